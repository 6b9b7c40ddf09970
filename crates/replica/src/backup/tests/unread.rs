//! Tests with bytes that the tap lost and the primary's server has not read.

use super::*;
use holdfast_wire::message::UNREAD_BYTES_MAX;

impl Case {
    /// Reports that the primary's kernel has the client's stream up to `offset`.
    pub(super) fn primary_has(&mut self, now: Nanos, offset: u64) {
        let iss = conn_record().iss;
        let progress = ConnProgress {
            conn: ID,
            snd_una: iss.plus(1),
            snd_nxt: iss.plus(1),
            right_edge: SeqNo(61_000),
            tsval: 0,
            rcv_nxt: SeqNo(1000).plus(offset),
        };
        let message = Message::Progress { conns: vec![progress] };
        self.backup.handle_message(now, &message, &mut self.notes);
        self.notes.effects.retain(|effect| !matches!(effect, Effect::Acked(..)));
    }

    fn tap_at(&mut self, now: Nanos, offset: u32, payload: &[u8]) {
        self.backup.handle_segment(now, &segment(offset, payload), &mut self.notes);
    }

    fn answer(&mut self, now: Nanos, offset: u64, bytes: &[u8], last: bool) {
        let message = Message::Unread { conn: ID, offset, bytes, last };
        self.backup.handle_message(now, &message, &mut self.notes);
    }

    /// Lets the backup act at its next deadline; returns that time, and the effects.
    fn wait(&mut self) -> (Nanos, Vec<Effect>) {
        let due = self.backup.next_deadline().expect("something is due");
        self.backup.handle_timeout(due, &mut self.notes);
        (due, self.take())
    }
}

const T: Nanos = Nanos(5_000_000);

fn after(time: Nanos) -> Nanos {
    T.plus(time)
}

#[test]
fn a_hole_in_the_tap_is_asked_for_once_and_filled() {
    let mut case = Case::accepted();
    case.tap_at(T, 0, b"abc");
    case.tap_at(T, 8, b"ij");
    case.tap_at(after(Nanos(10)), 12, b"mn");
    assert_eq!(case.backup.next_deadline(), Some(after(UNREAD_AFTER)));
    let (now, effects) = case.wait();
    assert_eq!(effects, [Effect::NeedUnread(3, 8)]);
    // The next hole is asked for at once; the end of the tap needs no question.
    case.answer(now, 3, b"defgh", false);
    assert_eq!(case.take(), [Effect::NeedUnread(10, 12)]);
    case.answer(now, 10, b"kl", false);
    case.flush();
    assert_eq!(case.take(), [held(14)]);
    assert_eq!(case.backup.next_deadline(), None);
    let counters = *case.backup.counters();
    assert_eq!((counters.unread_asked, counters.unread_filled), (2, 2));
    case.frame(&read(0, b"abcdefghijklmn"));
    assert_eq!(case.take(), [replayed(b"abcdefghijklmn")]);
}

#[test]
fn a_lost_end_is_known_by_what_the_primary_has() {
    let mut case = Case::accepted();
    case.primary_has(T, 5);
    assert_eq!(case.wait(), (after(UNREAD_AFTER), vec![Effect::NeedUnread(0, 5)]));
    case.answer(T, 0, b"hello", false);
    case.flush();
    assert_eq!(case.take(), [held(5)]);
    case.primary_has(T, 5);
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn copies_that_are_only_late_are_not_asked_for() {
    let mut case = Case::accepted();
    case.primary_has(T, 5);
    case.tap_at(T, 0, b"hello");
    assert_eq!(case.wait(), (after(UNREAD_AFTER), vec![]));
    assert_eq!(case.backup.next_deadline(), None);
    // A stream that grows gets more time.
    case.primary_has(T, 20);
    case.tap_at(T, 5, b"12345");
    assert_eq!(case.wait().1, []);
    case.tap_at(T, 10, b"1234567890");
    assert_eq!(case.wait().1, []);
    assert_eq!(case.backup.next_deadline(), None);
    assert_eq!(case.backup.counters().unread_asked, 0);
}

#[test]
fn a_lost_fin_is_asked_for_like_a_byte() {
    let mut case = Case::accepted();
    case.tap_at(T, 0, b"end");
    case.primary_has(T, 4);
    assert_eq!(case.wait().1, [Effect::NeedUnread(3, 4)]);
    case.answer(T, 3, b"", true);
    case.flush();
    assert_eq!(case.take(), [held(4)]);
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn what_nobody_has_is_asked_for_ever_more_rarely() {
    let mut case = Case::accepted();
    case.tap_at(T, 3, b"lost on the client's way");
    let mut last = T;
    let mut pause = UNREAD_AFTER;
    for _ in 0..12 {
        let (now, effects) = case.wait();
        assert_eq!(effects, [Effect::NeedUnread(0, 3)]);
        assert_eq!(now.since(last), pause);
        case.answer(now, 0, b"", false);
        last = now;
        pause = Nanos(2 * pause.0).min(UNREAD_PAUSE_MAX);
    }
    assert_eq!(pause, UNREAD_PAUSE_MAX);
    case.tap_at(last, 0, b"its");
    assert_eq!(case.wait().1, []);
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn without_an_answer_it_asks_again() {
    let mut case = Case::accepted();
    case.primary_has(T, 5);
    let (asked, _) = case.wait();
    assert_eq!(case.backup.next_deadline(), Some(asked.plus(UNREAD_ANSWER)));
    assert_eq!(case.wait().1, [Effect::NeedUnread(0, 5)]);
    // An answer that was not asked for changes nothing.
    case.answer(T, 0, b"hello", false);
    case.answer(T, 0, b"other", false);
    assert_eq!(case.backup.counters().payloads_late, 1);
    case.frame(&read(0, b"hello"));
    assert_eq!(case.take(), [replayed(b"hello")]);
}

#[test]
fn what_is_not_accepted_or_was_read_is_not_asked_for() {
    let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
    case.message(&Message::Conn { conn: ID, record: conn_record() });
    case.primary_has(T, 5);
    assert_eq!(case.take(), [Effect::ConnOk(ID)]);
    assert_eq!(case.wait().1, [], "it has no descriptor");
    case.frame(&[accept(1, ID.0), read(0, b"hello")].concat());
    case.take();
    case.backup.handle_timeout(T, &mut case.notes);
    assert_eq!(case.take(), [Effect::Need(1, 1)]);
    case.backup.handle_timeout(after(UNREAD_PAUSE_MAX), &mut case.notes);
    assert_eq!(case.take(), [], "its record brings it");
    case.message(&Message::Payload { frame: 1, index: 1, bytes: b"hello" });
    case.backup.handle_timeout(after(Nanos(3 * UNREAD_PAUSE_MAX.0)), &mut case.notes);
    assert_eq!(case.take(), [replayed(b"hello")]);
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn the_server_may_read_while_the_question_is_under_way() {
    let mut case = Case::accepted();
    case.tap_at(T, 0, b"ab");
    case.tap_at(T, 4, b"ef");
    let (now, _) = case.wait();
    case.frame(&read(0, b"abcd"));
    case.backup.handle_timeout(now.plus(NEED_AFTER), &mut case.notes);
    assert_eq!(case.take(), [Effect::Need(2, 0)]);
    case.answer(now, 2, b"cd", false);
    assert_eq!(case.take(), [replayed(b"abcd")], "whichever comes first");
    case.message(&Message::Payload { frame: 2, index: 0, bytes: b"abcd" });
    case.flush();
    assert_eq!(case.take(), [Effect::FrameOk(2), held(6)]);
}

#[test]
fn the_primary_is_right_and_the_record_decides() {
    let mut case = Case::accepted();
    case.primary_has(T, 6);
    case.wait();
    // A forged segment comes in between.
    case.tap_at(T, 0, b"EVI");
    case.answer(T, 0, b"goodly", false);
    case.frame(&read(0, b"goo"));
    assert_eq!(case.take(), [replayed(b"goo")]);
    assert_eq!(case.backup.counters().conflicts, 0);
    // Wrong bytes in an answer are found out like wrong bytes of the tap.
    case.frame(&read(0, b"DLY"));
    assert_eq!(case.take(), [Effect::Need(3, 0)]);
    case.message(&Message::Payload { frame: 3, index: 0, bytes: b"DLY" });
    assert_eq!(case.take(), [replayed(b"DLY")]);
}

#[test]
fn a_long_gap_comes_in_parts() {
    let mut case = Case::accepted();
    let all = 3 * UNREAD_BYTES_MAX as u64 - 7;
    case.primary_has(T, all);
    let mut asked = case.wait().1;
    let mut at = 0;
    while !asked.is_empty() {
        assert_eq!(asked, [Effect::NeedUnread(at, all)]);
        let len = (all - at).min(UNREAD_BYTES_MAX as u64);
        case.answer(T, at, &vec![7; len as usize], false);
        at += len;
        asked = case.take();
    }
    case.flush();
    assert_eq!((at, case.take()), (all, vec![held(all as u32)]));
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn only_so_many_questions_are_open() {
    let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
    let mut accepts = Vec::new();
    let ids = 2 * UNREAD_ASKED_MAX as u32;
    for n in 1..=ids {
        let key = ConnKey { client_port: n as u16, ..conn_record().key };
        let record = ConnRecord { key, ..conn_record() };
        let conn = ConnId(u64::from(n));
        case.message(&Message::Conn { conn, record });
        accepts.extend(accept(n, conn.0));
        let late = TcpPacket { source_port: key.client_port, ..segment(5, b"late") };
        case.backup.handle_segment(T, &late, &mut case.notes);
    }
    case.frame(&accepts);
    let mut asked = Vec::new();
    let mut open = CountOpen(&mut asked);
    case.backup.handle_timeout(after(UNREAD_AFTER), &mut open);
    assert_eq!(asked.len(), UNREAD_ASKED_MAX);
    // Each answer, and each connection that ends, makes room for another question.
    let mut open = CountOpen(&mut asked);
    let nothing = Message::Unread { conn: ConnId(1), offset: 0, bytes: &[], last: false };
    case.backup.handle_message(after(UNREAD_AFTER), &nothing, &mut open);
    case.backup.handle_message(T, &Message::Gone { conn: ConnId(2) }, &mut open);
    case.backup.handle_timeout(after(Nanos(3 * UNREAD_AFTER.0)), &mut open);
    assert_eq!(asked.len(), UNREAD_ASKED_MAX + 2);
}

/// Notes the connections that are asked about.
struct CountOpen<'a>(&'a mut Vec<ConnId>);

impl BackupOutput for CountOpen<'_> {
    fn send(&mut self, message: &Message<'_>) {
        if let Message::NeedUnread { conn, .. } = message {
            self.0.push(*conn);
        }
    }
    fn replay(&mut self, _: &Header, _: &[&[u8]]) -> bool {
        true
    }
    fn acked(&mut self, _: u32, _: u64) {}
    fn gone(&mut self, _: u32) {}
    fn server_died(&mut self) {}
    fn log_ended(&mut self) {}
    fn broken(&mut self, _: &Broken) {}
}

#[test]
fn in_a_takeover_nothing_is_asked_and_late_answers_change_nothing() {
    let mut case = Case::accepted();
    case.tap_at(T, 3, b"def");
    let (now, _) = case.wait();
    case.message(&Message::ServerDied { last: 9 });
    case.take();
    assert_eq!(case.backup.next_deadline(), Some(PROMOTE_DRAIN_MAX));
    case.answer(now, 0, b"abc", false);
    case.backup.handle_timeout(PROMOTE_DRAIN_MAX, &mut case.notes);
    assert_eq!(case.take(), [Effect::Ended]);
    case.answer(now, 0, b"abc", false);
    let counters = *case.backup.counters();
    assert_eq!((counters.payloads_late, counters.messages_late, counters.unread_filled), (1, 1, 0));
}
