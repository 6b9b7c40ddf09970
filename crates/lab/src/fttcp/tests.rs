use super::sides::Side;
use super::trace::{Seen, of_frame};
use super::{FIGURES, fig2, fig3, fig4, latency};
use holdfast_papers::figures::Drawn;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PORT: u16 = 6379;

fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn seen(ms: u64, from_client: bool, len: usize, end: u32, ack: u32) -> Seen {
    let (end, ack) = (SeqNo(end), SeqNo(ack));
    Seen { at: at(ms), from_client, port: 5000, len, end, ack, syn: false }
}

fn is_whole(drawn: &Drawn) {
    assert!(!drawn.checks.is_empty() && !drawn.charts.is_empty() && !drawn.table.rows.is_empty());
    for row in &drawn.table.rows {
        assert_eq!(row.len(), drawn.table.columns.len());
    }
    for check in &drawn.checks {
        assert!(check.ours.is_finite(), "{}: {}", check.what, check.ours);
    }
}

#[test]
fn names_are_those_of_the_command_line() {
    let ids = FIGURES.map(|it| it.id);
    assert_eq!(ids, ["fttcp-fig2", "fttcp-fig3", "fttcp-fig4", "fttcp-latency"]);
}

#[test]
fn every_mode_is_measured_cold_and_hot() {
    let names: Vec<String> = Side::all().into_iter().map(Side::name).collect();
    let expected = [
        "clean TCP",
        "cold immediate",
        "hot immediate",
        "cold PR",
        "hot PR",
        "cold PRS",
        "hot PRS",
        "cold COMMIT",
        "hot COMMIT",
    ];
    assert_eq!(names, expected);
}

#[test]
fn throughputs_are_compared_with_clean_tcp() {
    let side = |kb: f64| fig2::Found {
        cases: [vec![kb, kb, kb + 1.0], vec![kb], vec![20.13]],
        each: vec![(20, vec![50.0]), (30, vec![kb / 30.0])],
    };
    let drawn = fig2::draw(&[side(1000.0), side(990.0), side(970.0)]);
    is_whole(&drawn);
    let ours = |what: &str| drawn.checks.iter().find(|it| it.what == what).unwrap().ours;
    assert!((ours("ttcp in, hot : clean TCP") - 0.97).abs() < 1e-9);
    assert!((ours("each of 30 clients, cold : clean TCP") - 0.99).abs() < 1e-9);
}

#[test]
fn modes_are_compared_with_the_papers_bars() {
    let found: Vec<fig3::Found> = Side::all()
        .into_iter()
        .enumerate()
        .map(|(index, side)| fig3::Found { side, kb_per_s: vec![1000.0 - index as f64] })
        .collect();
    let drawn = fig3::draw(&found);
    is_whole_but_for_the_papers(&drawn);
    let falls = drawn.checks.iter().find(|it| it.what.starts_with("hot: the least step")).unwrap();
    assert!((falls.ours - 0.002).abs() < 1e-9, "{}", falls.ours);
}

/// Asserts that no cell is empty outside the paper's column, which has no bar for output commit.
fn is_whole_but_for_the_papers(drawn: &Drawn) {
    let mut drawn = drawn.clone();
    drawn.table.rows.iter_mut().for_each(|row| row.truncate(4));
    drawn.table.columns.truncate(4);
    is_whole(&drawn);
}

#[test]
fn requests_have_the_papers_sizes() {
    for (request, reply) in latency::EXCHANGE {
        let key = "k".repeat(request - latency::get("").len() - 1);
        assert_eq!(latency::get(&key).len(), request);
        let value = latency::value_len(reply);
        assert_eq!(format!("${value}\r\n{}\r\n", "v".repeat(value)).len(), reply);
    }
}

#[test]
fn a_request_ends_with_its_second_reply_and_a_packet_with_its_acknowledgement() {
    let seen = [
        seen(0, true, 87, 187, 500),
        seen(2, false, 464, 964, 187),
        seen(2, true, 0, 187, 964),
        seen(3, true, 39, 226, 964),
        seen(4, false, 0, 964, 187),
        seen(7, false, 49, 1013, 226),
    ];
    let near = |found: Vec<f64>, expected: &[f64]| {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    };
    near(latency::request_us(&seen), &[7000.0]);
    near(latency::packet_us(&seen), &[2000.0, 4000.0]);
    let of = latency::statistics(&[1.0, 2.0, 6.0]);
    assert_eq!((of[0], of[1], of[2], of[3], of[4]), (3.0, 1.0, 2.0, 3.0, 6.0));
    let found = |side| latency::Found { side, requests: vec![100.0], packets: vec![50.0] };
    is_whole(&latency::draw(&Side::all().into_iter().map(found).collect::<Vec<_>>()));
}

#[test]
fn a_stall_lasts_from_the_death_until_acknowledgements_go_on() {
    let trace = [
        Seen { syn: true, ..seen(1000, true, 0, 100, 0) },
        seen(1010, true, 50, 150, 1),
        // A pause before the death does not count for the takeover.
        seen(1510, false, 0, 1, 150),
        seen(1600, true, 50, 200, 1),
        seen(1650, false, 0, 1, 150),
        seen(1700, false, 0, 1, 200),
        seen(1701, false, 0, 1, 200),
    ];
    let mut hot = fig4::of_trace(&trace, at(1605)).unwrap();
    assert!((hot.died_s - 0.605).abs() < 1e-9);
    assert!((hot.stall_ms - 95.0).abs() < 1e-6, "{}", hot.stall_ms);
    assert_eq!((hot.sent.len(), hot.acked.len()), (3, 4));
    assert_eq!(hot.sent[1].1, 50.0);
    (hot.detection_ms, hot.promotion_ms) = (20.0, 30.0);
    assert!((hot.gap_ms() - 45.0).abs() < 1e-6);
    is_whole_but_for_gaps(&fig4::draw(&hot, &fig4::Found { log_mb: 5.0, ..hot.clone() }));
    assert!(fig4::of_trace(&trace, at(1702)).is_err(), "it never went on");
}

/// Asserts that each point has one of two cells.
fn is_whole_but_for_gaps(drawn: &Drawn) {
    assert!(drawn.table.rows.iter().all(|row| row[2].is_nan() != row[3].is_nan()));
    is_whole(drawn);
}

#[test]
fn a_frame_is_one_of_the_service_or_none() {
    let key = ConnKey {
        server: holdfast_wire::packet::map_ipv4([10, 9, 0, 100]),
        client: holdfast_wire::packet::map_ipv4([10, 9, 0, 1]),
        server_port: PORT,
        client_port: 5000,
    };
    let segment = TcpSegment {
        key,
        to_client: false,
        seq: SeqNo(100),
        ack: SeqNo(7),
        flags: Flags::ACK,
        window: 10,
        options: TcpOptions::default(),
        payload: b"abc",
    };
    let frame = segment.build().unwrap();
    let expected = seen(3, true, 3, 103, 7);
    assert_eq!(of_frame(at(3), &frame, PORT), Some(expected));
    assert_eq!(of_frame(at(3), &frame, PORT + 1), None);
    assert_eq!(of_frame(at(3), &frame[..20], PORT), None);
    let back = TcpSegment { to_client: true, ..segment }.build().unwrap();
    let expected = Seen { from_client: false, ..expected };
    assert_eq!(of_frame(at(3), &back, PORT), Some(expected));
    assert_eq!(Side::hot(Buffering::Pr).name(), "hot PR");
}
