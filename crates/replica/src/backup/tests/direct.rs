//! Tests of what the primary's server sends itself (decision 35).

use super::*;

/// Where the log has come to when the short way begins.
const FROM: u64 = 1000;

impl Case {
    /// An accepted connection, and a primary that says where its log is.
    fn direct() -> Self {
        let mut case = Self::accepted();
        case.message(&Message::LogAt { position: FROM });
        case
    }

    /// What the server sends itself; returns what it hears.
    fn sent(&mut self, position: u64, records: &[u8]) -> Option<u64> {
        self.backup.handle_direct(position, records, &mut self.notes);
        self.backup.take_held(Nanos(0))
    }

    fn frame_at(&mut self, position: u64, records: &[u8]) {
        self.frames += 1;
        let number = self.frames + 1;
        self.message(&Message::FrameAt { number, position, records });
    }
}

fn result(ret: i64) -> Vec<u8> {
    record(Op::Result, 0, 0, ret, 0, b"")
}

const LEN: u64 = HEADER_LEN as u64;

#[test]
fn records_are_replayed_once_whichever_way_they_come() {
    let mut case = Case::direct();
    case.frames = 0;
    let (one, two) = (result(1), [result(1), result(2)].concat());
    let replay = || Effect::Replay(Op::Result as u8, vec![]);
    assert_eq!(case.sent(FROM, &one), Some(FROM + LEN));
    assert_eq!(case.take(), [replay()]);
    // The answer was lost: it is given again, and nothing is replayed again.
    assert_eq!(case.sent(FROM, &one), Some(FROM + LEN));
    assert_eq!(case.take(), []);
    assert_eq!(case.sent(FROM, &two), Some(FROM + 2 * LEN));
    assert_eq!(case.take(), [replay()]);
    // The daemon sends all of it, and one more.
    case.frame_at(FROM, &[two, result(3)].concat());
    assert_eq!(case.take(), [replay()]);
    assert_eq!(case.backup.take_held(Nanos(0)), None, "the server has sent no more");
    case.flush();
    let daemon = [Effect::FrameOk(2), Effect::LogHeld(FROM + 3 * LEN)];
    assert_eq!(case.take(), daemon, "its daemon hears of all");
    case.frame_at(FROM + 3 * LEN, &result(4));
    assert_eq!(case.take(), [replay()]);
}

#[test]
fn what_does_not_follow_is_left_to_the_daemon() {
    let mut case = Case::accepted();
    assert_eq!(case.sent(0, &result(1)), None, "the primary has not said where its log is");
    case.message(&Message::LogAt { position: FROM });
    assert_eq!(case.sent(FROM + LEN, &result(2)), None, "a gap");
    let cut = &result(1)[..HEADER_LEN - 1];
    assert_eq!(case.sent(FROM, cut), None, "less than a record");
    assert_eq!(case.sent(FROM, &accept(2, ID.0)), None, "only the daemon names a connection");
    assert_eq!(case.sent(FROM, &record(Op::Close, 1, 0, 0, 0, b"")), None, "nor ends one");
    assert_eq!(case.take(), []);
    assert_eq!(case.backup.counters().direct_ignored, 2);
}

#[test]
fn what_the_tap_lacks_is_waited_for() {
    for by_tap in [true, false] {
        let mut case = Case::direct();
        case.frames = 0;
        let in_log = record_len(5) as u64;
        let sent = [result(1), read(0, b"hello"), result(2)].concat();
        assert_eq!(case.sent(FROM, &sent), Some(FROM + LEN), "as far as it can be replayed");
        assert!(case.backup.has_rest() && case.backup.counters().direct_cut == 1);
        case.take();
        match by_tap {
            true => case.tap(0, b"hello"),
            false => {
                // The daemon sends it, and asks nobody for what the tap brings meanwhile.
                case.frame_at(FROM, &sent);
                assert_eq!(case.take(), []);
                case.tap(0, b"hello");
            }
        }
        let end = Effect::Replay(Op::Result as u8, vec![]);
        assert_eq!(case.take(), [replayed(b"hello"), end], "once, by whichever way");
        assert_eq!(case.backup.take_held(Nanos(0)), Some(FROM + 2 * LEN + in_log));
        assert!(!case.backup.has_rest());
    }
}

#[test]
fn what_the_replica_has_no_room_for_is_waited_for() {
    let mut case = Case::direct();
    case.notes.full = true;
    assert_eq!(case.sent(FROM, &result(1)), None);
    case.tap(0, b"hello");
    assert_eq!(case.take(), []);
    case.notes.full = false;
    case.backup.handle_room(Nanos(0), &mut case.notes);
    assert_eq!(case.take(), [Effect::Replay(Op::Result as u8, vec![])]);
    assert_eq!(case.backup.take_held(Nanos(0)), Some(FROM + LEN));
}

#[test]
fn while_a_frame_waits_the_server_is_not_heard() {
    let mut case = Case::direct();
    case.frames = 0;
    case.frame_at(FROM, &read(0, b"hello"));
    let after = FROM + record_len(5) as u64;
    assert_eq!(case.sent(after, &result(1)), None);
    case.tap(0, b"hello");
    assert_eq!(case.take(), [replayed(b"hello")]);
    assert_eq!(case.sent(after, &result(1)), Some(after + LEN));
}

#[test]
fn who_takes_over_confirms_nothing() {
    let mut case = Case::direct();
    case.backup.handle_direct(FROM, &result(1), &mut case.notes);
    case.backup.begin_promotion(Nanos(0), &mut case.notes);
    assert_eq!(case.backup.take_held(Nanos(0)), None);
    assert_eq!(case.sent(FROM + LEN, &result(2)), None);
    assert!(!case.backup.owes_server());
}

#[test]
fn a_frame_beyond_the_log_breaks_the_pair() {
    for position in [FROM + 1, u64::MAX] {
        let mut case = Case::direct();
        case.frames = 0;
        case.frame_at(position, &result(1));
        let gap = Broken::LogGap { expected: FROM, got: position };
        assert_eq!(case.take(), [Effect::Broken(gap)]);
    }
    let mut case = Case::accepted();
    case.frames = 0;
    case.frame_at(0, &result(1));
    assert!(matches!(case.take()[..], [Effect::Broken(_)]), "nobody said where the log is");
}

proptest! {
    /// Whatever a server sends, nothing is confirmed that was not replayed.
    #[test]
    fn a_server_that_lies_is_borne(
        position in FROM - 50..FROM + 50,
        noise in proptest::collection::vec(any::<u8>(), 0..150),
        ops in proptest::collection::vec((0..24u8, 0..3u32, 0..60usize), 0..5),
    ) {
        let mut case = Case::direct();
        let made: Vec<u8> = ops
            .iter()
            .flat_map(|&(op, conn, len)| {
                let header = Header { op, conn, payload_len: len as u32, ..Header::default() };
                let mut bytes = [header.as_bytes(), &vec![1; len]].concat();
                bytes.resize(record_len(len), 0);
                bytes
            })
            .collect();
        for records in [noise, made] {
            let heard = case.sent(position, &records);
            let replayed = case.take().len() as u64;
            prop_assert!(heard.is_none() || replayed > 0 || position < FROM);
            if let Some(heard) = heard {
                prop_assert!(heard <= FROM + replayed * record_len(60) as u64);
            }
        }
    }
}
