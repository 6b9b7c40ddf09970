//! Connections with nothing under way: their clients are not asked.

use super::*;

/// The server has read all that came and written 100 bytes; the client, last heard at 0, has
/// acknowledged 90, and the primary's kernel has told of 40.
fn rested() -> Planned {
    let mut conn = Planned { snd_una: 40, in_bytes: 3, ..planned(Some(1)) };
    conn.tap.accept(Nanos(0), &segment(0, 90, b"abc"));
    conn.tap.stream.consume_to(3);
    conn
}

fn read() -> ManifestConn {
    ManifestConn { in_bytes: 3, ..replica() }
}

/// A promotion of one connection that begins now, with all but the client's answer, which the edge
/// has heard to acknowledge so much; and how many clients it asks.
fn begun(acked: u64, replica: ManifestConn, now: Nanos) -> (Promotion, Notes, usize) {
    let mut promotion = Promotion::new(vec![rested()], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    let asked = promotion.probes(now).len();
    promotion.handle_manifest(now, &[replica], &mut out);
    promotion.handle_timeout(now, &mut out);
    assert!(out.notes.is_empty(), "the edge's bounds may still come");
    promotion.handle_bounds(now, &[bounds(100, acked)], true, &mut out);
    let asked = asked + promotion.further_probes(now).len();
    assert!(promotion.further_probes(now).is_empty(), "once");
    (promotion, out, asked)
}

#[test]
fn a_connection_at_rest_waits_for_nobody() {
    for (now, tell) in [(Nanos::from_ms(999), Tell::Soon), (Nanos::from_ms(1000), Tell::Nothing)] {
        let (promotion, out, asked) = begun(100, read(), now);
        assert_eq!(asked, 0);
        let Some(Note::Restore { acked: 100, in_flight_end: 100, unread, .. }) = out.notes.first()
        else {
            panic!("{:?}", out.notes)
        };
        assert!(unread.is_empty());
        assert_eq!((out.tell, out.rtt_ms), (Some(tell), Some(RTT_UNKNOWN_MS)));
        assert!(promotion.is_done());
    }
}

#[test]
fn whoever_may_wait_for_something_is_asked() {
    let with = |change: fn(&mut Planned)| {
        let mut conn = rested();
        change(&mut conn);
        conn
    };
    let ahead = ConnProgress {
        conn: ID,
        snd_una: ISS.plus(41),
        snd_nxt: ISS.plus(101),
        right_edge: IRS,
        tsval: 0,
        rcv_nxt: IRS.plus(5),
    };
    let mut behind = rested();
    behind.tap.note_progress(&ahead, 40);
    let mut beyond_hole = rested();
    beyond_hole.tap.accept(Nanos(0), &segment(7, 100, b"later"));
    let mut ends = rested();
    let fin = Flags::ACK | Flags::FIN;
    ends.tap.accept(Nanos(0), &TcpPacket { flags: fin, ..segment(3, 100, b"") });
    let mut full = rested();
    full.tap.accept(Nanos(0), &TcpPacket { window: 0, ..segment(3, 100, b"") });
    let mut reset = rested();
    reset.tap.accept(Nanos(0), &TcpPacket { flags: Flags::RST, ..segment(3, 0, b"") });
    let cases = [
        ("it acknowledges what was never written", with(|conn| conn.tap.acked = 101)),
        ("the server has not read all", with(|conn| conn.in_bytes = 2)),
        ("the server has closed it", with(|conn| conn.closed = true)),
        ("nobody has accepted it", with(|conn| conn.accept = None)),
        ("it was told of more", with(|conn| conn.told = 4)),
        ("the primary's kernel has more", behind),
        ("something lies beyond a hole", beyond_hole),
        ("it ends", ends),
        ("it takes no output", full),
        ("it seems to have reset", reset),
    ];
    for (why, conn) in cases {
        let mut promotion = Promotion::new(vec![conn], VecDeque::new(), Limits::DEFAULT);
        assert_eq!(promotion.probes(Nanos(0)).len(), 1, "{why}");
    }
}

/// What the replica's table alone says: half a connection whose end its client may lack, and a
/// replica that wrote other than its log says. Those clients are asked then, and who does not
/// answer is not waited for longer than others.
#[test]
fn where_the_table_says_otherwise_the_client_is_asked() {
    let shut = ManifestConn { shut: 1, ..read() };
    let more = ManifestConn { out_bytes: 101, ..read() };
    for replica in [shut, more] {
        let (mut promotion, mut out, asked) = begun(100, replica, Nanos::from_ms(1000));
        assert_eq!((asked, &*out.notes), (1, &[][..]), "{replica:?}");
        let end = promotion.next_deadline().expect("a deadline");
        assert!(end <= Nanos::from_ms(1021), "{end:?}");
        promotion.handle_timeout(end, &mut out);
        assert!(promotion.is_done(), "{replica:?}");
    }
}

#[test]
fn a_request_that_comes_meanwhile_is_acknowledged_at_once() {
    let mut promotion = Promotion::new(vec![rested()], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    let now = Nanos::from_ms(1000);
    assert!(promotion.probes(now).is_empty());
    let later = now.plus(Nanos::from_ms(3));
    promotion.handle_segment(later, &segment(3, 100, b"next"), &mut out);
    promotion.handle_manifest(later, &[read()], &mut out);
    promotion.handle_bounds(later, &[bounds(100, 100)], true, &mut out);
    let Some(Note::Restore { unread, .. }) = out.notes.first() else { panic!("{:?}", out.notes) };
    assert_eq!((unread.as_slice(), out.tell), (&b"next"[..], Some(Tell::Now)));
    assert_eq!(out.rtt_ms, Some(RTT_UNKNOWN_MS), "it answers no question");
}

/// Without an edge that tells, the tap has heard the acknowledgement, or nobody has.
#[test]
fn who_has_acknowledged_all_by_the_tap_is_not_asked() {
    for (acked, expected) in [(100, 0), (99, 1)] {
        let mut conn = rested();
        conn.tap.acked = acked;
        let mut promotion = Promotion::new(vec![conn], VecDeque::new(), Limits::DEFAULT);
        let mut out = Notes::default();
        assert!(promotion.probes(Nanos(0)).is_empty());
        promotion.handle_manifest(Nanos(0), &[read()], &mut out);
        promotion.handle_bounds(Nanos(0), &[], true, &mut out);
        assert_eq!(promotion.further_probes(Nanos(0)).len(), expected, "{acked}");
        assert_eq!(out.notes.len(), 1 - expected);
        if expected == 0 {
            let Some(Note::Restore { acked: 100, in_flight_end: 100, .. }) = out.notes.first()
            else {
                panic!("{:?}", out.notes)
            };
        }
    }
}

/// An edge that has not seen so much pass knows better than an acknowledgement.
#[test]
fn what_the_edge_did_not_see_pass_counts_as_under_way() {
    let mut conn = rested();
    conn.tap.acked = 100;
    let mut promotion = Promotion::new(vec![conn], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    assert!(promotion.probes(Nanos(0)).is_empty());
    promotion.handle_manifest(Nanos(0), &[read()], &mut out);
    promotion.handle_bounds(Nanos(0), &[bounds(90, 60)], true, &mut out);
    assert_eq!(out.notes, [restored(60, 90, Closing::default())]);
}

/// Who may lack something is asked when that is known, and has as long to answer as others.
#[test]
fn who_may_lack_something_by_the_edges_word_is_asked_then() {
    let later = Nanos::from_ms(7);
    let (mut promotion, mut out, asked) = begun(99, read(), later);
    assert_eq!((asked, promotion.next_deadline()), (1, Some(later.plus(PROBE_WAIT))));
    promotion.handle_segment(Nanos::from_ms(9), &segment(3, 100, b""), &mut out);
    assert_eq!((out.notes.len(), out.rtt_ms, out.tell), (1, Some(3), Some(Tell::Now)));
}

/// An edge that has granted and then says nothing costs twice the wait, not the answers.
#[test]
fn without_bounds_everybody_is_asked_in_the_end() {
    let mut promotion = Promotion::new(vec![rested()], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    assert!(promotion.probes(Nanos(0)).is_empty());
    promotion.handle_manifest(Nanos(0), &[read()], &mut out);
    promotion.handle_timeout(PROBE_WAIT, &mut out);
    assert!(promotion.further_probes(PROBE_WAIT).is_empty(), "many bounds take some time");
    let then = PROBE_WAIT.plus(BOUNDS_WAIT_PER_CONN);
    promotion.handle_timeout(then, &mut out);
    assert_eq!((promotion.further_probes(then).len(), out.notes.len()), (1, 0));
    let end = then.plus(PROBE_WAIT);
    assert_eq!(promotion.next_deadline(), Some(end));
    promotion.handle_timeout(end, &mut out);
    assert_eq!(out.notes, [restored(40, 100, Closing::default())]);
}

/// Of many connections the bounds come in parts, and while they come nobody is taken for silent.
#[test]
fn each_part_of_the_bounds_makes_the_wait_longer() {
    let mut promotion = Promotion::new(vec![rested()], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    promotion.probes(Nanos(0));
    promotion.handle_manifest(Nanos(0), &[read()], &mut out);
    let later = Nanos::from_ms(19);
    promotion.handle_bounds(later, &[], false, &mut out);
    assert_eq!(promotion.next_deadline(), Some(later.plus(PROBE_WAIT)));
    promotion.handle_bounds(Nanos(0), &[], false, &mut out);
    assert_eq!(promotion.next_deadline(), Some(later.plus(PROBE_WAIT)), "and never shorter");
}

/// A server that was killed between a write and the record that it was done.
#[test]
fn whoever_may_have_what_only_the_replica_wrote_is_asked_at_once() {
    let wrote_more = ManifestConn { out_bytes: 107, ..read() };
    let (mut promotion, mut out, asked) = begun(100, wrote_more, Nanos(7));
    assert_eq!((asked, out.notes.len()), (1, 0));
    promotion.handle_segment(Nanos(9), &segment(3, 107, b""), &mut out);
    let restored = matches!(out.notes.first(), Some(Note::Restore { acked: 107, .. }));
    assert!(!restored, "the edge has seen 100 bytes pass");
    promotion.handle_segment(Nanos(9), &segment(3, 100, b""), &mut out);
    assert!(matches!(out.notes.first(), Some(Note::Restore { acked: 100, .. })), "{:?}", out.notes);
    assert!(promotion.is_done());
}
