use super::*;
use crate::limits;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions};
use proptest::prelude::*;

const IRS: u32 = u32::MAX - 20;

pub(crate) fn record() -> ConnRecord {
    ConnRecord {
        key: ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: 5000 },
        iss: SeqNo(7000),
        irs: SeqNo(IRS),
        mss: 1460,
        peer_mss: 0,
        rcv_wscale: 2,
        snd_wscale: NO_SCALING,
        sack: true,
        tsval: Some(100),
        window: 1000,
    }
}

fn segment(offset: i64, payload: &[u8]) -> TcpPacket<'_> {
    TcpPacket {
        source: record().key.client,
        destination: record().key.server,
        source_port: record().key.client_port,
        destination_port: record().key.server_port,
        seq: SeqNo(IRS.wrapping_add(1).wrapping_add(offset as u32)),
        ack: SeqNo(7001),
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload,
        raw: b"raw",
    }
}

fn tap() -> Tap {
    Tap::new(&record(), Limits::default())
}

#[test]
fn a_keepalive_and_a_fin_before_the_stream_change_nothing() {
    let mut tap = tap();
    assert_eq!(tap.accept(Nanos(0), &segment(-1, b"x")), Verdict::Nothing);
    assert_eq!(
        tap.accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(-10, b"abc") }),
        Verdict::Old
    );
    assert_eq!((tap.stream.end(), tap.fin_held()), (0, false));
    assert_eq!(tap.accept(Nanos(0), &segment(-2, b"xxab")), Verdict::Grown);
    assert_eq!(tap.stream.range(0, 2).map(|pieces| pieces.concat()), Some(b"ab".to_vec()));
}

#[test]
fn a_fin_counts_when_everything_before_it_is_held() {
    let mut tap = tap();
    assert_eq!(
        tap.accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(3, b"de") }),
        Verdict::Kept
    );
    assert_eq!(tap.held(), SeqNo(IRS).plus(1));
    assert_eq!(tap.raws().count(), 1);
    assert_eq!(tap.accept(Nanos(0), &segment(0, b"abc")), Verdict::Grown);
    assert_eq!(tap.held(), SeqNo(IRS).plus(7));
    assert_eq!(tap.raws().count(), 0);
    assert_eq!(tap.accept(Nanos(0), &segment(5, b"beyond the end")), Verdict::Nothing);
    assert_eq!(tap.stream.end(), 5);
}

#[test]
fn a_lone_fin_grows_the_held_part() {
    let mut tap = tap();
    assert_eq!(
        tap.accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(0, b"") }),
        Verdict::Grown
    );
    assert!(tap.fin_held());
}

#[test]
fn what_the_primary_holds_replaces_what_was_tapped() {
    let mut tap = tap();
    tap.accept(Nanos(0), &segment(0, b"ab"));
    tap.accept(Nanos(0), &segment(3, b"XYZ"));
    tap.accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(9, b"") });
    assert_eq!(tap.missing(), Some((2, 3)));
    assert!(!tap.note_unread(3, b"beyond the hole", false));
    assert!(!tap.note_unread(2, b"", false), "nothing is no answer");
    assert!(tap.note_unread(1, b"bcde", false));
    assert_eq!(tap.stream.range(0, 6).map(|pieces| pieces.concat()), Some(b"abcdeZ".to_vec()));
    assert_eq!(tap.missing(), Some((6, 10)));
    // A FIN in front of what the primary has does not count.
    assert!(tap.note_unread(6, b"ghijk", false));
    assert_eq!((tap.missing(), tap.fin), (None, None));
    // Bytes that were consumed meanwhile stay consumed.
    tap.stream.consume_to(8);
    assert!(tap.note_unread(5, b"fghijkl", true));
    assert_eq!(tap.stream.range(8, 4).map(|pieces| pieces.concat()), Some(b"ijkl".to_vec()));
    assert_eq!((tap.missing(), tap.fin_held(), tap.raws().count()), (None, true, 0));
}

#[test]
fn what_the_primary_holds_lies_within_the_window() {
    let mut tap = tap();
    let edge = 65535 << 2;
    let bytes = vec![7; 300_000];
    assert!(tap.note_unread(0, &bytes, true));
    assert_eq!((tap.stream.end(), tap.fin), (edge, None), "the FIN behind the cut is no FIN");
    assert!(!tap.note_unread(u64::MAX, b"far", true));
    tap.right_edge = u64::MAX;
    while tap.stream.end() < limits::STREAM_BYTES_MAX as u64 {
        assert!(tap.note_unread(tap.stream.end(), &bytes, false));
    }
    assert!(!tap.note_unread(tap.stream.end(), &bytes, false));
    assert_eq!(tap.stream.held_bytes(), limits::STREAM_BYTES_MAX);
}

#[test]
fn an_adopted_connection_has_what_the_server_had_read() {
    for (eof, has) in [(false, 5), (true, 6)] {
        let adopted = Adopted {
            conn: None,
            accept: Some(1),
            in_bytes: 5,
            out_bytes: 0,
            acked_bytes: 0,
            eof,
            closed: false,
            client_tsval: None,
        };
        let tap = Tap::adopt(&record(), &adopted, Limits::default());
        assert_eq!((tap.acknowledged(), tap.held_offset()), (has, has));
        assert_eq!((tap.missing(), tap.is_behind()), (None, false));
    }
}

#[test]
fn only_the_exact_number_resets() {
    let mut tap = tap();
    tap.accept(Nanos(0), &segment(0, b"abc"));
    let rst = |offset| TcpPacket { flags: Flags::ACK | Flags::RST, ..segment(offset, b"") };
    assert_eq!(tap.accept(Nanos(0), &rst(2)), Verdict::Challenge);
    assert_eq!(tap.accept(Nanos(0), &rst(6)), Verdict::Challenge);
    // The stream reaches the number of an RST that was refused: the client goes on.
    assert_eq!(tap.accept(Nanos(0), &segment(3, b"def")), Verdict::Grown);
    assert!(!tap.reset);
    assert_eq!(tap.accept(Nanos(0), &rst(6)), Verdict::Reset);
    assert!(tap.reset);
}

#[test]
fn window_ack_and_age_are_checked() {
    let mut tap = tap();
    let edge = 65535 << 2;
    assert_eq!(tap.accept(Nanos(0), &segment(edge + 1, b"x")), Verdict::Window);
    assert_eq!(tap.accept(Nanos(0), &segment(edge, b"x")), Verdict::Kept);
    let far = SeqNo(7001).plus(u64::from(ACK_SLACK_BYTES) + 1);
    assert_eq!(
        tap.accept(Nanos(0), &TcpPacket { ack: far, ..segment(0, b"x") }),
        Verdict::AckRange
    );
    assert_eq!(
        tap.accept(Nanos(0), &TcpPacket { flags: Flags::default(), ..segment(0, b"x") }),
        Verdict::AckRange
    );
    let stamped = |tsval| TcpOptions { timestamps: Some((tsval, 0)), ..TcpOptions::default() };
    let aged = |offset, tsval| TcpPacket { options: stamped(tsval), ..segment(offset, b"x") };
    assert_eq!(
        tap.accept(Nanos(0), &aged(5, 900)),
        Verdict::Kept,
        "beyond a hole says nothing about age"
    );
    assert_eq!(tap.accept(Nanos(0), &aged(0, 500)), Verdict::Grown);
    assert_eq!(tap.accept(Nanos(0), &aged(1, 400)), Verdict::Paws);
    assert_eq!((tap.client_tsval(Nanos(0)), tap.client_tsval(PAWS_IDLE)), (Some(500), None));
    assert_eq!(tap.accept(PAWS_IDLE, &aged(1, 400)), Verdict::Grown);
}

#[test]
fn what_was_stale_to_the_primary_is_stale_here() {
    let stamped = |tsval| TcpOptions { timestamps: Some((tsval, 0)), ..TcpOptions::default() };
    let aged = |offset, tsval| TcpPacket { options: stamped(tsval), ..segment(offset, b"x") };
    let mut tap = tap();
    tap.note_clock(500, Nanos(0));
    tap.note_clock(300, Nanos(0));
    assert_eq!(tap.accept(Nanos(0), &aged(0, 400)), Verdict::Paws);
    assert_eq!(tap.accept(Nanos(0), &aged(0, 501)), Verdict::Grown);
}

#[test]
fn the_syn_completes_the_record() {
    let (mut tap, mut record) = (tap(), record());
    let syn = TcpPacket {
        flags: Flags::SYN,
        options: TcpOptions { mss: Some(1400), wscale: Some(3), ..TcpOptions::default() },
        ..segment(-1, b"")
    };
    tap.note_syn(Nanos(0), &syn, &mut record);
    assert_eq!((record.peer_mss, record.snd_wscale), (1400, 3));
    tap.accept(Nanos(0), &segment(0, b"x"));
    assert_eq!(tap.peer_window, 4000);
}

#[test]
fn offsets_are_exact_beyond_four_gigabytes() {
    let mut tap = tap();
    let chunk = vec![7; 1 << 20];
    for n in 0..5000_u64 {
        let verdict = tap.accept(Nanos(0), &segment((n << 20) as i64, &chunk));
        assert_eq!(verdict, Verdict::Grown, "chunk {n}");
        tap.stream.consume_to((n + 1) << 20);
    }
    assert_eq!(tap.stream.end(), 5000 << 20);
}

/// A sender with one hole sends single bytes, forwards, backwards and from the middle, again and
/// again: no segment may cost more because of what was kept before.
#[test]
fn what_is_kept_beyond_a_hole_does_not_slow_what_comes() {
    const BYTES: i64 = 30_000;
    let orders: [fn(i64) -> i64; 3] = [|i| i, |i| BYTES - 1 - i, |i| (i * 7919) % BYTES];
    for order in orders {
        let mut tap =
            Tap::new(&record(), Limits { beyond_pieces_max: BYTES as usize, ..Limits::default() });
        tap.right_edge = 1 << 40;
        // Another stream grows in order, and nothing of it is removed by this.
        let mut grown = 0;
        for i in 0..BYTES {
            for _ in 0..2 {
                tap.accept(Nanos(0), &segment(100_000 + order(i), b"x"));
            }
            if i % 3 == 0 {
                assert_eq!(tap.accept(Nanos(0), &segment(grown, b"y")), Verdict::Grown);
                grown += 1;
            }
        }
        let steps = tap.stream.steps() + tap.raws.steps;
        assert!(steps < 40 * BYTES as u64, "{steps} steps for {BYTES} segments");
        assert_eq!(tap.stream.beyond_bytes(), BYTES as usize);
        assert_eq!(tap.raws().count(), BYTES as usize, "repeats are not kept");
        // The hole is closed, and everything can be consumed at once.
        let rest = vec![b'z'; (100_000 - grown) as usize];
        assert_eq!(tap.accept(Nanos(0), &segment(grown, &rest)), Verdict::Grown);
        assert_eq!(tap.usage(), Usage { held: 100_000 + BYTES as usize, aside: 0 });
    }
}

#[test]
fn without_room_for_more_only_what_is_in_order_is_taken() {
    let mut tap = tap();
    let mut accept =
        |offset, bytes| tap.accept_in(Nanos(0), &segment(offset, bytes), Room::InOrder);
    assert_eq!(accept(3, b"de"), Verdict::Full);
    assert_eq!(accept(0, b"abc"), Verdict::Grown);
    assert_eq!(accept(2, b"cde"), Verdict::Grown);
    assert_eq!(tap.usage(), Usage { held: 5, aside: 0 });
}

proptest! {
    #[test]
    fn arbitrary_segments_never_panic(
        segments in proptest::collection::vec(
            (any::<u32>(), -70_000_i64..70_000, any::<u8>(), proptest::option::of(any::<u32>()), 0_usize..3000), 0..60),
    ) {
        let mut tap = tap();
        let payload = [9; 3000];
        for (ack, offset, flags, tsval, len) in segments {
            let near = SeqNo(7001).plus(u64::from(ack % 1000));
            let set = |flag: Flags, is_set| if is_set { flag } else { Flags::default() };
            tap.accept(Nanos(u64::from(ack)), &TcpPacket {
                ack: if flags & 1 == 0 { near } else { SeqNo(ack) },
                flags: set(Flags::SYN, flags & 30 == 30)
                    | set(Flags::ACK, flags & 32 != 0 || flags & 64 != 0)
                    | set(Flags::FIN, flags & 12 == 12)
                    | set(Flags::RST, flags & 51 == 51),
                options: TcpOptions { timestamps: tsval.map(|value| (value, 0)), ..TcpOptions::default() },
                ..segment(offset, &payload[..len])
            });
            prop_assert!(tap.raws.bytes() <= limits::RAWS_BYTES_MAX);
        }
    }
}
