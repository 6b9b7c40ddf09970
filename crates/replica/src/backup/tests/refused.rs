//! What a backup takes once, not at all, or only when there is room for it.

use super::*;

fn syn_at(seq: u32) -> TcpPacket<'static> {
    TcpPacket { seq: SeqNo(seq), ..syn() }
}

#[test]
fn the_syn_of_a_connection_says_what_its_record_lacks_and_another_one_is_kept() {
    let mut case = Case::accepted();
    let mss = |case: &Case| case.backup.conns[&ID].record.peer_mss;
    case.backup.handle_segment(Nanos(0), &syn_at(5999), &mut case.notes);
    assert_eq!((mss(&case), case.backup.early.counts()), (0, (0, 1)), "of a new life");
    case.backup.handle_segment(Nanos(0), &syn_at(999), &mut case.notes);
    assert_eq!((mss(&case), case.backup.early.counts()), (1400, (0, 1)));
    assert_eq!(case.backup.counters().segments_unknown, 0);
}

#[test]
fn a_syn_that_is_repeated_is_kept_once() {
    let mut backup = Backup::new(KEY);
    let mut notes = Notes::default();
    for (seq, count) in [(999, 1), (999, 1), (5999, 2), (999, 2)] {
        backup.handle_segment(Nanos(0), &syn_at(seq), &mut notes);
        assert_eq!(backup.early.counts(), (0, count));
    }
}

#[test]
fn a_number_names_one_connection() {
    let mut case = Case::accepted();
    case.message(&Message::Conn { conn: ID, record: conn_record() });
    assert_eq!(case.take(), [Effect::ConnOk(ID)], "said again");
    let key = ConnKey { client_port: 7, ..conn_record().key };
    case.message(&Message::Conn { conn: ID, record: ConnRecord { key, ..conn_record() } });
    assert_eq!((case.take(), case.backup.counters().refused_full), (vec![], 1));
    assert_eq!(case.backup.conns[&ID].record.key, conn_record().key);
}

#[test]
fn a_reset_that_may_be_forged_is_counted_as_a_challenge() {
    let mut case = Case::accepted();
    let reset = TcpPacket { flags: Flags::RST, ..segment(10, b"") };
    case.backup.handle_segment(Nanos(0), &reset, &mut case.notes);
    let counters = case.backup.counters();
    assert_eq!((counters.challenges, counters.segments_refused), (1, 0));
}

#[test]
fn frames_wait_up_to_the_limit() {
    let max = 2 * HEADER_LEN;
    let mut case = Case::accepted_within(Limits { frames_queued_max: max, ..Limits::DEFAULT });
    (0..2).for_each(|_| case.frame(&read(0, b"late")));
    assert!(!case.take().iter().any(|effect| matches!(effect, Effect::Broken(_))));
    case.frame(&read(0, b"late"));
    assert_eq!(case.take(), [Effect::Broken(Broken::FramesFull { max })]);
}

#[test]
fn a_connection_is_accepted_once_and_a_number_given_once() {
    let mut case = Case::accepted();
    case.frame(&accept(2, ID.0));
    assert_eq!(case.take(), [Effect::Broken(Broken::AcceptTwice { accept: 2 })]);
    // Of a connection without a tap nothing is left when it is closed.
    let close = |accept| record(Op::Close, accept, 0, 0, 0, b"");
    for (id, again) in [(0, None), (ID.0, Some(Broken::AcceptTwice { accept: 2 }))] {
        let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
        case.message(&Message::Conn { conn: ID, record: conn_record() });
        case.frame(&accept(2, id));
        case.frame(&close(2));
        case.take();
        case.frame(&accept(2, 0));
        let broken = case.take().into_iter().find_map(|effect| match effect {
            Effect::Broken(why) => Some(why),
            _ => None,
        });
        assert_eq!(broken, again);
    }
}

#[test]
fn a_tapped_read_returns_what_it_has_read() {
    let mut case = Case::accepted();
    let bytes = |ret, payload: &[u8]| {
        record(Op::Read, 1, TAPPED, ret, hash(&KEY, payload), payload)[..HEADER_LEN].to_vec()
    };
    case.frame(&bytes(-11, b""));
    assert_eq!(case.take(), [replayed(b"")], "an error has no bytes");
    case.frame(&bytes(5, b"abc"));
    let broken = Broken::TappedLength { ret: 5, payload_len: 3 };
    assert_eq!(case.take(), [Effect::Broken(broken)]);
}

#[test]
fn what_finds_the_ring_full_is_replayed_once_there_is_room() {
    let other = || record(Op::Result, 0, 0, 7, 0, b"");
    for is_repaired in [false, true] {
        let mut case = Case::accepted();
        if is_repaired {
            case.frame(&read(0, b"late"));
            case.backup.handle_timeout(Nanos(u64::MAX), &mut case.notes);
            assert_eq!(case.take(), [Effect::Need(2, 0)]);
        }
        case.notes.full = true;
        if is_repaired {
            case.message(&Message::Payload { frame: 2, index: 0, bytes: b"late" });
        } else {
            case.frame(&other());
        }
        case.flush();
        assert_eq!(case.take(), [], "and nothing is confirmed");
        case.notes.full = false;
        case.backup.handle_room(Nanos(0), &mut case.notes);
        let expected = if is_repaired {
            replayed(b"late")
        } else {
            Effect::Replay(Op::Result as u8, Vec::new())
        };
        assert_eq!(case.take(), [expected]);
        case.flush();
        assert!(case.take().contains(&Effect::FrameOk(2)));
    }
}

/// The server accepts it all the same, and finds that its client has gone.
#[test]
fn a_connection_that_was_replaced_before_it_was_accepted_goes_when_it_is() {
    let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
    case.message(&Message::Conn { conn: ID, record: conn_record() });
    let newer = ConnRecord { irs: SeqNo(5999), ..conn_record() };
    case.message(&Message::Conn { conn: ConnId(6), record: newer });
    case.take();
    case.frame(&accept(1, ID.0));
    assert!(case.take().contains(&Effect::Gone(1)));
    assert!(!case.backup.conns.contains_key(&ID) && case.backup.conns.contains_key(&ConnId(6)));
}

#[test]
fn the_servers_clock_only_advances() {
    let first = (u32::MAX, Nanos(0));
    for (tsval, known) in [
        (u32::MAX - 1, first),
        (u32::MAX, first),
        // It may wrap.
        (1, (1, Nanos(3))),
    ] {
        let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
        let record = ConnRecord { tsval: Some(u32::MAX), ..conn_record() };
        case.message(&Message::Conn { conn: ID, record });
        let (snd_una, rcv_nxt) = (conn_record().iss.plus(1), SeqNo(1000));
        let (snd_nxt, right_edge) = (snd_una, SeqNo(5));
        let progress = ConnProgress { conn: ID, snd_una, snd_nxt, right_edge, tsval, rcv_nxt };
        let message = Message::Progress { conns: vec![progress] };
        case.backup.handle_message(Nanos(3), &message, &mut case.notes);
        let conn = case.backup.conns.remove(&ID).expect("a connection");
        assert_eq!(case.backup.planned(conn).tsval, Some(known), "{tsval}");
    }
}
