//! Attempts to join that fail, and what the next one is told of them.

use super::*;
use crate::timing::primary::{CATCHING_UP_MAX, REJOIN_PAUSE_MAX};

/// Time in which all of an image has gone to a joiner.
const IMAGE_MS: u64 = 100;

#[test]
fn every_failure_before_output_waits_ends_alone_with_growing_pauses() {
    let mut bed = Bed::alone();
    let pause = REJOIN_PAUSE.as_millis() as u64;
    // The image cannot be begun, or fails.
    bed.book.image = None;
    bed.book.knocks = true;
    bed.turn();
    bed.book.image = Some(IMAGE);
    bed.has_failed(true, pause);
    // The channel is lost, or the joiner gives up, or there is no room left for log.
    bed.book.is_lost = true;
    bed.turn();
    bed.has_failed(true, 2 * pause);
    bed.book.peer.push(Message::GaveUp { state: "ended", reason: "no memory" });
    bed.turn();
    bed.has_failed(true, 4 * pause);
    bed.book.is_log_full = true;
    bed.turn();
    bed.book.is_log_full = false;
    bed.has_failed(true, 8 * pause);
    // It has the whole image, and does not come to the log's end.
    bed.pass(IMAGE_MS);
    bed.book.take();
    bed.pass(CATCHING_UP_MAX.as_millis() as u64 - IMAGE_MS);
    assert!(!bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
    while !bed.book.has("shows JoinFailed") {
        bed.pass(1);
    }
    bed.has_failed(true, 16 * pause);
    // The joiner is silent.
    bed.book.is_silent = true;
    bed.pass(JOINER_SILENT.as_millis() as u64 + 1);
    bed.book.is_silent = false;
    assert!(bed.book.has("shows JoinFailed"));
    assert_eq!(bed.book.member.epoch, EPOCH + 1, "nobody was asked");
}

#[test]
fn a_joiner_that_has_the_image_may_take_its_time_up_to_a_limit() {
    let mut bed = Bed::joining();
    while !bed.book.has("drop image") {
        bed.pass(1);
    }
    let last = bed.book.now.plus(nanos(CATCHING_UP_MAX));
    bed.turn_at(last);
    assert!(!bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
    bed.turn_at(last.plus(Nanos(1)));
    assert!(bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
}

/// Threads that race are found out by a replica that differs, and may be made to run one at a
/// time when the next one is made.
#[test]
fn whoever_joins_after_a_difference_gets_an_image_of_threads_that_may_take_turns() {
    let mut bed = Bed::joining();
    bed.book.peer.push(Message::GaveUp { state: "hung", reason: "it stands still" });
    bed.turn();
    bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
    bed.book.peer.push(Message::GaveUp { state: "diverged", reason: "it differs" });
    bed.turn();
    bed.book.take();
    for _ in 0..2 {
        bed.pass(REJOIN_PAUSE_MAX.as_millis() as u64);
        bed.book.knocks = true;
        bed.turn();
        assert!(bed.book.has("take image after a difference"), "{:?}", bed.book.lines);
        bed.book.is_lost = true;
        bed.turn();
        bed.book.is_lost = false;
        bed.book.take();
    }
}

/// The host cannot tell what its own server is made of.
#[test]
fn who_cannot_say_hello_lets_nobody_in_for_a_while() {
    let mut bed = Bed::alone();
    (bed.book.bad, bed.book.knocks) = ("hello", true);
    bed.turn();
    assert_eq!(bed.book.take(), ["shows JoinFailed"]);
    bed.book.bad = "";
    assert!(bed.may_join_after(REJOIN_PAUSE.as_millis() as u64));
    let mut bed = Bed::alone();
    (bed.book.bad, bed.book.knocks) = ("hello", true);
    bed.turn();
    bed.turn();
    assert_eq!(bed.book.turns_away, format!("{AGAIN}: cannot hello"));
}

#[test]
fn an_image_that_cannot_be_begun_ends_the_join_before_its_log() {
    let mut bed = Bed::alone();
    (bed.book.bad, bed.book.knocks) = ("take", true);
    bed.turn();
    assert_eq!(bed.book.refused, "cannot take");
    bed.book.bad = "";
    bed.has_failed(false, REJOIN_PAUSE.as_millis() as u64);
}

#[test]
fn the_image_of_a_server_that_serves_no_more_is_dropped() {
    for stops in [false, true] {
        let mut bed = Bed::alone();
        (bed.book.is_slow, bed.book.knocks) = (true, true);
        bed.turn();
        bed.book.take();
        bed.book.ended = !stops;
        let turn = bed.machine.turn(stops, &mut bed.book);
        assert_eq!(turn == Turn::End(End::Stopped), stops, "{turn:?}");
        assert!(bed.book.has("drop image"), "{:?}", bed.book.lines);
    }
}

#[test]
fn more_connections_than_a_backup_can_follow_let_nobody_join() {
    for (conns_max, joins) in [(1, false), (2, true)] {
        let mut book = Bed::new().book;
        (book.image, book.knocks) = (Some(IMAGE), true);
        for id in [5, 6] {
            book.slots.insert(ConnId(id), SlotView { held_synack: false, ..slot(id) });
        }
        let limits = PrimaryLimits { conns_max, ..PrimaryLimits::DEFAULT };
        let machine = PrimaryMachine::alone(100, limits, [held(5), held(6)], &mut book);
        let mut bed = Bed { machine, book };
        bed.turn();
        assert_eq!(bed.book.has("send Join"), joins, "{:?}", bed.book.lines);
        assert_eq!(bed.book.has("end log"), !joins, "{:?}", bed.book.lines);
        assert_eq!(bed.book.refused.as_str(), if joins { "" } else { join::TOO_MANY });
    }
}

/// What the joiner hears, people see.
#[test]
fn a_joiner_is_told_why_it_is_not_let_in_or_left() {
    let fails = |reason: &str, what: &dyn Fn(&mut Bed)| {
        let mut bed = Bed::joining();
        what(&mut bed);
        bed.turn();
        assert_eq!((bed.book.refused.as_str(), bed.book.reason.as_str()), (reason, reason));
    };
    fails(LOST, &|bed| bed.book.is_lost = true);
    fails("cannot record", &|bed| bed.book.bad = "record");
    fails("it takes the log more slowly than the server writes it", &|bed| {
        bed.book.is_log_full = true;
    });
    fails("it has said nothing for ten seconds", &|bed| {
        bed.book.is_silent = true;
        bed.pass(JOINER_SILENT.as_millis() as u64);
        assert!(!bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
        bed.book.now = bed.book.now.plus(Nanos(1));
    });
    let mut bed = Bed::alone();
    (bed.book.strangers, bed.book.knocks) = (3, true);
    bed.turn();
    assert!(bed.book.refused.starts_with("3 of the server's"), "{}", bed.book.refused);
    for is_slow in [false, true] {
        let mut bed = Bed::alone();
        (bed.book.is_slow, bed.book.knocks) = (is_slow, true);
        bed.turn();
        bed.book.turns_away.clear();
        bed.turn();
        assert_eq!(bed.book.turns_away, join::ANOTHER, "{:?}", bed.machine.stage);
    }
}

/// Only its own word makes a backup that is lost one that has given up.
#[test]
fn what_an_earlier_joiner_has_said_is_not_held_against_the_next_one() {
    let mut bed = Bed::joining();
    bed.book.peer.push(Message::GaveUp { state: "ended", reason: "no memory" });
    bed.turn();
    bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(3);
    bed.book.peer.push(Message::Joined);
    bed.pass(3);
    assert!(bed.book.has("shows Joined"), "{:?}", bed.book.lines);
    bed.book.is_lost = true;
    bed.turn();
    bed.book.is_lost = false;
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 2 });
    bed.turn();
    assert!(bed.book.has("shows Alone"), "{:?}", bed.book.lines);
    bed.book.take();
    assert!(bed.may_join_after(0), "it was only lost");
}

/// A member that has taken over is alone from its first moment on.
#[test]
fn who_has_taken_over_tells_nobody_of_clients_that_come() {
    let mut book = Bed::new().book;
    let machine = PrimaryMachine::alone(100, PrimaryLimits::DEFAULT, [held(5)], &mut book);
    let mut bed = Bed { machine, book };
    bed.hold(6);
    bed.turn();
    assert!(bed.book.has("open 6") && !bed.book.has("send Conn"), "{:?}", bed.book.lines);
}

/// Maintenance of a backup is no reason to keep it out.
#[test]
fn a_joined_backup_that_somebody_has_stopped_may_come_back_at_once() {
    for (reason, pause_ms) in [(STOPPED, 0), ("its replica has ended", 1000)] {
        let mut bed = Bed::joining();
        bed.book.peer.push(Message::CaughtUp);
        bed.pass(3);
        bed.book.peer.push(Message::Joined);
        bed.pass(3);
        bed.book.peer.push(Message::GaveUp { state: "ended", reason });
        bed.turn();
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 2 });
        bed.turn();
        bed.book.books = vec![book(5, 0)];
        assert!(bed.book.has("shows Alone"), "{:?}", bed.book.lines);
        bed.book.take();
        assert!(bed.may_join_after(pause_ms), "{reason}");
    }
}

/// The server can write over its books, and a takeover would go by them.
#[test]
fn nobody_joins_on_numbers_that_cannot_be() {
    let wrong = [
        (u64::MAX, 0, "bytes read"),
        (u64::MAX - 15, 0, "bytes read"),
        (0, u64::MAX, "written"),
        (80_000 + (1 << 20), 0, "may not have sent so much"),
        (0, (1 << 30) + 1, "no kernel keeps so much"),
    ];
    for (in_bytes, out_bytes, what) in wrong {
        let mut bed = Bed::alone();
        bed.book.books = vec![join::Book { in_bytes, ..book(5, out_bytes) }];
        bed.book.knocks = true;
        bed.turn();
        let refused = bed.book.refused.clone();
        assert!(refused.contains(&key(5).to_string()) && refused.contains(what), "{refused}");
        assert!(bed.book.has("shows JoinFailed") && !bed.book.has("send Join"));
        bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
    }
    // The gate does not know this one, and it has no name.
    let mut bed = Bed::alone();
    bed.book.books = vec![book(5, 0), book(8, u64::MAX)];
    bed.book.knocks = true;
    bed.turn();
    assert!(bed.book.refused.contains("connection number 8"), "{}", bed.book.refused);
}

#[test]
fn what_a_kernel_holds_is_no_contradiction() {
    for (in_bytes, out_bytes) in [(70_000, 0), (0, 1 << 30), ((1 << 32) + 20, 1 << 32)] {
        let mut bed = Bed::alone();
        bed.book.books = vec![join::Book { in_bytes, ..book(5, out_bytes) }];
        bed.book.knocks = true;
        bed.turn();
        assert!(bed.book.has("send Adopt"), "{in_bytes}, {out_bytes}: {}", bed.book.refused);
    }
}

/// A replica that has written less than its client holds would not be promoted, and all
/// connections would be lost.
#[test]
fn who_has_less_than_a_client_acknowledges_is_not_in_step() {
    for (has, out_bytes) in [(300_012, 0), (300_012, 1 << 40), (300_012, u64::MAX >> 2), (7, 5)] {
        let mut bed = Bed::alone();
        bed.slot(ConnId(5)).snd_una = SeqNo(101).plus(has);
        bed.slot(ConnId(5)).snd_nxt = SeqNo(101).plus(has);
        bed.book.books = vec![book(5, out_bytes)];
        bed.book.knocks = true;
        bed.turn();
        assert!(bed.book.has("shows Joins"), "a write may have been under way: {has}");
        bed.book.take();
        bed.book.peer.push(Message::CaughtUp);
        bed.turn();
        let refused = &bed.book.refused;
        assert!(refused.contains(&key(5).to_string()), "{refused}");
        assert!(refused.contains("its client has acknowledged"), "{refused}");
        assert!(!bed.book.has("clamp"), "{:?}", bed.book.lines);
        bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
    }
}

/// The server was writing when its image was taken, and the log tells what came of it.
#[test]
fn what_was_written_since_the_image_is_known() {
    let mut bed = Bed::joining();
    bed.book.log = written_record(5, 40);
    // The client has the server's end, too.
    bed.slot(ConnId(5)).snd_una = SeqNo(101 + 41);
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(bed.book.has("send Closing"), "{} {:?}", bed.book.refused, bed.book.lines);
}
