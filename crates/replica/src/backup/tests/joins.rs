//! Tests of joining a server that already runs and has connections.

use super::*;
use holdfast_wire::message::{Adopted, STREAM_BYTES_MAX};

/// A connection with accept number 1, of which the server had read `in_bytes`.
pub(super) fn adopted(in_bytes: u64) -> Adopted {
    Adopted {
        conn: Some((ID, conn_record())),
        accept: Some(1),
        in_bytes,
        out_bytes: 0,
        acked_bytes: 0,
        eof: false,
        closed: false,
        client_tsval: None,
    }
}

impl Case {
    fn joins() -> Self {
        Self::joins_within(Limits::default())
    }

    fn joins_within(limits: Limits) -> Self {
        Self { backup: Backup::joining(KEY, limits), notes: Notes::default(), frames: 0 }
    }

    fn adopt(&mut self, adopted: &Adopted) {
        self.backup.adopt(Nanos(0), adopted, &mut self.notes);
    }
}

#[test]
fn a_stream_goes_on_behind_what_the_server_had_read() {
    for (eof, told) in [(false, 5), (true, 6)] {
        let mut case = Case::joins();
        case.adopt(&Adopted { eof, ..adopted(5) });
        case.flush();
        assert_eq!(case.take(), [held(told)], "the primary hears how far it is held");
    }
    let mut case = Case::joins();
    case.adopt(&adopted(5));
    case.flush();
    case.take();
    case.tap(3, b"loworld");
    case.frame(&read(0, b"world"));
    case.flush();
    assert_eq!(case.take(), [replayed(b"world"), Effect::FrameOk(1), held(10)]);
}

/// A segment that the primary's kernel refuses as stale must not be the replica's input, although
/// the joiner's tap has seen none before it; what the tap had before the primary's word counts.
#[test]
fn what_is_older_than_the_primarys_word_is_stale() {
    let stamped = |offset, payload, tsval| {
        let options = TcpOptions { timestamps: Some((tsval, 0)), ..TcpOptions::default() };
        TcpPacket { options, ..segment(offset, payload) }
    };
    let mut case = Case::joins();
    let record = ConnRecord { tsval: Some(1), ..conn_record() };
    case.backup.handle_segment(Nanos(0), &syn(), &mut case.notes);
    case.backup.handle_segment(Nanos(0), &stamped(0, b"hello", 400), &mut case.notes);
    let conn = Some((ID, record));
    case.adopt(&Adopted { conn, accept: None, client_tsval: Some(500), ..adopted(0) });
    case.flush();
    assert_eq!(case.take(), [held(5)]);
    case.backup.handle_segment(Nanos(0), &stamped(5, b"stale", 400), &mut case.notes);
    case.flush();
    assert_eq!(case.take(), []);
    case.backup.handle_segment(Nanos(0), &stamped(5, b"real!", 501), &mut case.notes);
    case.flush();
    assert_eq!(case.take(), [held(10)]);
}

/// The joiner's tap runs before the joiner hears of any connection.
#[test]
fn what_came_before_its_adoption_counts() {
    let mut case = Case::joins();
    case.backup.handle_segment(Nanos(0), &syn(), &mut case.notes);
    case.tap(0, b"hello");
    case.adopt(&Adopted { accept: None, ..adopted(0) });
    case.flush();
    assert_eq!(case.take(), [held(5)]);
}

#[test]
fn who_follows_takes_up_nobody() {
    let mut case = Case { backup: Backup::new(KEY), ..Case::joins() };
    case.adopt(&adopted(0));
    assert_eq!((case.backup.connections(), case.backup.counters().messages_late), (0, 1));
    let mut case = Case::joins();
    case.backup.joined();
    case.adopt(&adopted(0));
    assert_eq!((case.backup.connections(), case.backup.counters().messages_late), (0, 1));
}

#[test]
fn what_a_primary_says_twice_or_beyond_the_limits_breaks_the_pair() {
    let other = |accept| Adopted { conn: None, accept: Some(accept), ..adopted(0) };
    let limits = Limits { conns_max: 1, accepts_max: 2, ..Limits::DEFAULT };
    let mut second = adopted(0);
    second.accept = None;
    second.conn = Some((ConnId(9), conn_record()));
    let same = Adopted { accept: None, ..adopted(0) };
    for (adopted_then, why) in [
        (vec![other(1)], Broken::AcceptTwice { accept: 1 }),
        (vec![same], Broken::AdoptedTwice { conn: ID }),
        (vec![second], Broken::AdoptedFull { max: 1 }),
        (vec![other(2), other(3)], Broken::AcceptsFull { max: 2 }),
    ] {
        let mut case = Case::joins_within(limits);
        case.adopt(&adopted(0));
        adopted_then.iter().for_each(|adopted| case.adopt(adopted));
        assert_eq!(case.take(), [Effect::Broken(why)]);
    }
}

/// Bytes from before the joiner's tap have to be fetched.
#[test]
fn a_stream_is_behind_until_all_is_held_that_the_primary_has() {
    let mut case = Case::joins();
    case.adopt(&adopted(2));
    assert!(case.backup.behind().is_empty() && case.backup.can_ask(ID));
    case.primary_has(Nanos(0), 5);
    assert_eq!(case.backup.behind(), BTreeMap::from([(ID, 5)]));
    assert!(!case.backup.holds(ID, 5) && case.backup.holds(ID, 2));
    case.tap(2, b"llo");
    assert!(case.backup.behind().is_empty() && case.backup.holds(ID, 5));
    // A connection that is over, or whose tuple belongs to another one, is not waited for.
    assert!(case.backup.holds(ConnId(77), 5) && !case.backup.can_ask(ConnId(77)));
    case.primary_has(Nanos(0), 9);
    let newer = ConnRecord { irs: SeqNo(70_000), ..conn_record() };
    case.message(&Message::Conn { conn: ConnId(8), record: newer });
    assert!(case.backup.behind().is_empty() && case.backup.holds(ID, 9));
}

#[test]
fn nobody_can_be_asked_for_bytes_of_a_connection_that_is_not_accepted() {
    let mut case = Case::joins();
    case.adopt(&Adopted { accept: None, ..adopted(0) });
    case.primary_has(Nanos(0), 5);
    assert!(!case.backup.can_ask(ID));
    case.frame(&accept(1, ID.0));
    assert!(case.backup.can_ask(ID));
}

/// The stream was given up while the joiner waited for it; a takeover ends it, unless it has
/// arrived since.
#[test]
fn a_stream_that_was_left_out_is_lost_unless_it_comes() {
    for comes in [false, true] {
        let mut case = Case::joins();
        case.adopt(&Adopted { accept: None, ..adopted(0) });
        case.primary_has(Nanos(0), 5);
        case.backup.leave_out(ID, 5);
        case.backup.joined();
        if comes {
            case.tap(0, b"hello");
        }
        case.backup.handle_peer_lost(Nanos(0), &mut case.notes);
        case.backup.begin_promotion(Nanos(0), &mut case.notes);
        let mut promotion = case.backup.plan(Nanos(0)).expect("the log has ended");
        let mut verdicts = Verdicts::default();
        promotion.probes(Nanos(0));
        promotion.handle_manifest(Nanos(0), &[], &mut verdicts);
        promotion.handle_timeout(Nanos::from_ms(100), &mut verdicts);
        let expected = if comes { (1, vec![]) } else { (0, vec![Why::InputNotHeld]) };
        assert_eq!((verdicts.restored, verdicts.discarded), expected);
    }
}

#[derive(Default)]
struct Verdicts {
    restored: usize,
    discarded: Vec<Why>,
}

impl PromotionOutput for Verdicts {
    fn restore(&mut self, _: &Restore<'_>) {
        self.restored += 1;
    }
    fn discard(&mut self, lost: &Discarded, tell: Option<Probe>) {
        assert!(tell.is_some(), "its client waits");
        self.discarded.push(lost.why);
    }
    fn reset(&mut self, _: ConnId, _: u32) {}
    fn diverged(&mut self, reason: &Diverged) {
        panic!("{reason}");
    }
}

/// Nobody waits for the replica before that, so what has waited for it was not late.
#[test]
fn its_replica_sets_the_pace_only_when_it_has_joined() {
    let mut case = Case::joins();
    case.backup.handle_executed(Nanos(0), 500, 0);
    let late = Nanos(2 * LAG_MAX.0);
    assert!(case.backup.lags(late) && !case.backup.is_behind(late));
    case.frame(&record(Op::Result, 0, 0, 1, 0, b""));
    case.backup.flush(late, &mut case.notes);
    assert!(case.take().contains(&Effect::FrameOk(1)));
    case.backup.replica_begins(Nanos(0));
    assert!(!case.backup.lags(late));
    case.backup.handle_executed(late, 500, 0);
    let later = Nanos(2 * late.0);
    assert!(case.backup.lags(later) && !case.backup.is_behind(later));
    case.backup.joined();
    assert!(case.backup.is_behind(later));
}

/// The replica does not keep this output, since the server had written it before.
#[test]
fn output_from_before_is_kept_until_the_client_has_it_and_never_beyond_the_limit() {
    let limits = Limits { earlier_bytes_max: 10, ..Limits::DEFAULT };
    let mut case = Case::joins_within(limits);
    case.adopt(&Adopted { out_bytes: 30, acked_bytes: 20, ..adopted(0) });
    let mut earlier = |offset, bytes: &[u8]| {
        let message = Message::Earlier { conn: ID, offset, bytes };
        case.backup.handle_message(Nanos(0), &message, &mut case.notes);
        (case.backup.earlier_bytes, case.backup.counters().refused_full)
    };
    assert_eq!(earlier(20, b"0123456"), (7, 0));
    assert_eq!(earlier(29, b"9"), (7, 0), "there is a hole before it");
    assert_eq!(earlier(27, b"789a"), (7, 1), "no room");
    assert_eq!(earlier(27, b"789"), (10, 1));
    for (snd_una, kept) in [(29, 10), (30, 0)] {
        let seq = conn_record().iss.plus(1 + snd_una);
        let irs = conn_record().irs;
        let progress = ConnProgress {
            conn: ID,
            snd_una: seq,
            snd_nxt: seq,
            right_edge: irs,
            tsval: 0,
            rcv_nxt: irs,
        };
        let message = Message::Progress { conns: vec![progress] };
        case.backup.handle_message(Nanos(0), &message, &mut case.notes);
        assert_eq!(case.backup.earlier_bytes, kept, "{snd_una}");
    }
    // A member in step is told of no connection.
    case.backup.joined();
    let message = Message::Earlier { conn: ID, offset: 30, bytes: b"x" };
    case.backup.handle_message(Nanos(0), &message, &mut case.notes);
    assert_eq!(case.backup.earlier_bytes, 0);
}

/// They are the word of the primary's server, which may write nonsense.
#[test]
fn a_connection_that_cannot_be_ends_the_join_and_nothing_else() {
    let wrong = [
        Adopted { in_bytes: u64::MAX, ..adopted(0) },
        Adopted { in_bytes: u64::MAX - 15, eof: true, ..adopted(0) },
        Adopted { in_bytes: 1 << 63, conn: None, ..adopted(0) },
        Adopted { out_bytes: u64::MAX, ..adopted(0) },
        Adopted { out_bytes: 5, acked_bytes: 7, ..adopted(0) },
    ];
    for adopted in wrong {
        let mut case = Case::joins();
        case.adopt(&adopted);
        case.tap(0, b"hello");
        case.flush();
        let effects = case.take();
        let is_named = matches!(effects[..], [Effect::Broken(Broken::AdoptedWrong { .. })]);
        assert!(is_named, "{adopted:?}: {effects:?}");
    }
}

#[test]
fn the_longest_stream_that_may_be_goes_on() {
    let most = STREAM_BYTES_MAX;
    let mut case = Case::joins();
    case.adopt(&Adopted { out_bytes: most, acked_bytes: most + 1, ..adopted(most) });
    case.flush();
    case.take();
    // Sequence numbers begin anew every 4 GiB.
    case.tap(most as u32, b"hello");
    case.frame(&read(0, b"hello"));
    case.flush();
    assert!(case.take().contains(&replayed(b"hello")));
}
