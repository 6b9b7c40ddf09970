//! The steps of a join, each by itself: what a lone server is owed meanwhile, how fast the image
//! goes, and what the joiner must have heard before the last step.

use super::*;
use crate::timing::primary::{ALONE_LOOK, BACKLOG_EVERY, CLOSING_EVERY, IMAGE_EVERY};

impl Bed {
    /// A primary with the client 5, which speaks alone; `change` is made to the client's slot.
    fn alone_with(change: impl FnOnce(&mut SlotView)) -> Self {
        let mut bed = Self::alone();
        change(bed.slot(ConnId(5)));
        bed
    }
}

#[test]
fn who_speaks_alone_looks_after_what_goes_on_beside_it_in_every_turn() {
    for mut bed in [Bed::alone(), Bed::joining(), Bed::kept()] {
        let before = bed.book.stood_beside;
        bed.pass(3);
        assert_eq!(bed.book.stood_beside, before + 3, "{:?}", bed.machine.stage);
    }
}

#[test]
fn who_is_replaced_while_it_speaks_alone_rests_and_is_not_stopped_by_that() {
    let mut bed = Bed::alone();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 2, current: "b" });
    let turn = bed.turn();
    assert!(bed.book.has("shows Replaced"), "{:?}", bed.book.lines);
    assert!(matches!(turn, Turn::Until(_)), "{turn:?}");
}

/// Other output waits behind an image whose pieces go as fast as they are made.
#[test]
fn a_piece_of_an_image_goes_when_its_time_has_come() {
    let mut bed = Bed::joining();
    let next = bed.book.now.plus(nanos(IMAGE_EVERY));
    bed.turn_at(Nanos(next.0 - 1));
    assert!(!bed.book.has("send Image"), "{:?}", bed.book.lines);
    bed.turn_at(next);
    assert!(bed.book.has("send Image"), "{:?}", bed.book.lines);
}

/// Its SYN-ACK left before the gate held anything back, so the client may have sent something.
#[test]
fn who_connects_at_the_last_moment_is_known_to_the_joiner_before_it_may_be_in_step() {
    let mut bed = Bed::joining();
    bed.book.slots.insert(ConnId(6), SlotView { held_synack: false, ..slot(6) });
    bed.book.late_held = vec![held(6)];
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    let lines = bed.book.take();
    let order = ["clamp", "send Conn", "progress 6 edge 61000", "send Closing"];
    assert!(order.windows(2).all(|two| at(&lines, two[0]) < at(&lines, two[1])), "{lines:?}");
}

/// What leaves without a record would be missing at a joiner that is in step.
#[test]
fn once_output_waits_nothing_leaves_that_the_log_does_not_know() {
    let logged = [accept_record(5), intent_record(50)].concat();
    for (log, breaks) in [(accept_record(5), true), (logged, false)] {
        let mut bed = Bed::alone();
        bed.book.books.clear();
        bed.book.knocks = true;
        bed.turn();
        bed.book.peer.push(Message::CaughtUp);
        bed.turn();
        assert!(bed.book.has("send Closing"), "{:?}", bed.book.lines);
        bed.book.log = log;
        bed.slot(ConnId(5)).snd_nxt = SeqNo(101 + 50);
        bed.pass(5);
        assert_eq!(bed.book.has("shows Asks"), breaks, "{:?}", bed.book.lines);
    }
}

/// A gate that has sent nothing yet has no time of the client's clock.
#[test]
fn a_joiner_is_told_the_time_of_a_clients_clock_if_there_is_one() {
    for (has_ts, tsecr, told) in [(true, 77, Some(77)), (true, 0, None), (false, 77, None)] {
        let mut bed = Bed::alone_with(|slot| (slot.has_ts, slot.tsecr) = (has_ts, tsecr));
        bed.book.knocks = true;
        bed.turn();
        let clocks: Vec<_> = bed.book.adopted.iter().map(|it| it.client_tsval).collect();
        assert_eq!(clocks, [told], "{has_ts} {tsecr}");
    }
}

#[test]
fn the_next_piece_is_waited_for_as_long_as_some_may_go() {
    let mut bed = Bed::joining();
    let Turn::Until(at) = bed.turn() else { panic!("it waits") };
    assert!(at <= bed.book.now.plus(nanos(IMAGE_EVERY)), "{at:?}");
    bed.pass(6);
    assert!(bed.book.has("drop image"), "all was sent");
    let Turn::Until(at) = bed.turn() else { panic!("it waits") };
    assert!(at > bed.book.now.plus(nanos(IMAGE_EVERY)), "{at:?}");
}

#[test]
fn who_comes_too_soon_is_turned_away_and_the_next_one_is_looked_for() {
    let mut bed = Bed::alone();
    (bed.book.bad, bed.book.knocks) = ("hello", true);
    bed.turn();
    assert!(bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
    assert_eq!(bed.turn(), Turn::after(ALONE_LOOK, bed.book.now));
}

#[test]
fn who_may_join_is_let_in_once() {
    let mut bed = Bed::joining();
    bed.pass(3);
    assert_eq!(bed.book.admitted, 1);
}

/// What it said of a new image was said of the one before.
#[test]
fn who_joins_gets_one_image() {
    let mut bed = Bed::alone();
    bed.machine.tables.wish.note(&Message::Renew);
    bed.book.knocks = true;
    bed.turn();
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(bed.book.has("send Closing"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.lines.iter().filter(|line| *line == "take image").count(), 1);
}

/// What clients have acknowledged by the image is in the log by then.
#[test]
fn a_client_that_connects_just_before_the_log_begins_is_in_the_image() {
    let mut bed = Bed::alone();
    bed.book.is_slow = true;
    bed.book.knocks = true;
    bed.turn();
    bed.book.take();
    bed.book.is_slow = false;
    bed.book.slots.insert(ConnId(6), SlotView { held_synack: false, ..slot(6) });
    bed.book.held_later = vec![held(6)];
    bed.turn();
    let adopted: Vec<_> = bed.book.adopted.iter().filter_map(|it| it.conn).collect();
    let ids: Vec<_> = adopted.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [ConnId(5), ConnId(6)], "{:?}", bed.book.lines);
}

/// A server that speaks alone makes room as one with a backup does, and looks no more often.
#[test]
fn a_lone_server_ends_the_oldest_unanswered_handshakes_now_and_then() {
    let mut bed = Bed::alone();
    (bed.book.backlog, bed.book.state) = (Some(2), ConnState::SynReceived);
    bed.hold(6);
    bed.hold(7);
    bed.pass(BACKLOG_EVERY.as_millis() as u64 + 100);
    let ends = |line: &String| line.starts_with("destroy");
    assert!(bed.book.lines.iter().any(ends), "{:?}", bed.book.lines);
    let every = CLOSING_EVERY.as_millis() as u64;
    let before = bed.book.minded;
    bed.pass(10 * every);
    assert_eq!(bed.book.minded, before + 10);
}

/// The server's books were read before what it has written since.
#[test]
fn what_is_logged_while_clients_are_looked_at_counts_as_written() {
    let mut bed = Bed::joining();
    bed.slot(ConnId(5)).snd_una = SeqNo(101 + 40);
    bed.slot(ConnId(5)).snd_nxt = SeqNo(101 + 40);
    bed.book.slots_read.set(false);
    bed.book.late_log = written_record(5, 40);
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(bed.book.has("send Closing"), "{} {:?}", bed.book.refused, bed.book.lines);
}
