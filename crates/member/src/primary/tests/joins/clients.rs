//! Clients that a join waits for.

use super::*;
use crate::timing::primary::{CLOSING_EVERY, REPEATS_MAX, SLOW_MAX};

const NONE: Unacked = Unacked { bytes: 0, repeats: 0, window_closed: false };
const SOME: Unacked = Unacked { bytes: 1, repeats: REPEATS_MAX - 1, ..NONE };
/// A client that does not answer.
const SILENT: Unacked = Unacked { bytes: 1, repeats: REPEATS_MAX, ..NONE };
/// What the kernel says of a client, and how long a join then waits for it, in ms.
const WAITS: [(Unacked, u64); 3] = [(NONE, 1), (SILENT, 1), (SOME, CLIENTS_MAX.as_millis() as u64)];

#[test]
fn clients_that_lack_output_from_before_are_waited_for_a_while() {
    let mut bed = Bed::alone();
    (bed.book.books, bed.book.unacked) = (vec![book(5, 30)], SOME);
    bed.book.knocks = true;
    bed.turn();
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(10);
    assert!(!bed.book.has("clamp"), "its client lacks 30 bytes");
    bed.slot(ConnId(5)).snd_una = SeqNo(131);
    bed.turn();
    assert!(bed.book.has("clamp"));
    for (unacked, waits_ms) in WAITS {
        let mut bed = Bed::alone();
        (bed.book.books, bed.book.unacked) = (vec![book(5, 30)], unacked);
        bed.book.knocks = true;
        bed.turn();
        bed.book.peer.push(Message::CaughtUp);
        bed.pass(waits_ms - 1);
        assert!(!bed.book.has("clamp"));
        bed.pass(2);
        assert!(bed.book.has("clamp"));
        // The joiner has nothing of the earlier output, so it must hear once the client has
        // acknowledged it.
        assert_eq!(bed.book.clients_have == Some(131), unacked == NONE);
    }
}

#[test]
fn a_client_is_waited_for_up_to_a_limit() {
    let mut bed = Bed::alone();
    (bed.book.books, bed.book.unacked, bed.book.knocks) = (vec![book(5, 30)], SOME, true);
    bed.turn();
    let last = bed.book.now.plus(nanos(CLIENTS_MAX));
    bed.book.peer.push(Message::CaughtUp);
    bed.turn_at(last);
    assert!(!bed.book.has("clamp"), "{:?}", bed.book.lines);
    bed.turn_at(last.plus(Nanos(1)));
    assert!(bed.book.has("clamp"), "{:?}", bed.book.lines);
}

/// The group is protected except for those connections.
#[test]
fn connections_that_a_takeover_would_end_are_counted_until_their_clients_have_all() {
    for unacked in [SILENT, SOME] {
        let mut bed = Bed::alone();
        (bed.book.books, bed.book.unacked) = (vec![book(5, 30)], unacked);
        bed.book.knocks = true;
        bed.turn();
        bed.book.peer.push(Message::CaughtUp);
        bed.pass(CLIENTS_MAX.as_millis() as u64 + 3);
        bed.book.peer.push(Message::Joined);
        bed.pass(1_000);
        assert_eq!(bed.book.at_risk, 1, "{unacked:?}");
        bed.slot(ConnId(5)).snd_una = SeqNo(131);
        bed.pass(1_000);
        assert_eq!(bed.book.at_risk, 0, "{unacked:?}");
    }
}

/// While a member joins nothing holds handshakes back, and the log is read after the gate.
#[test]
fn a_client_that_comes_while_the_log_is_read_is_known_when_it_is_accepted() {
    let mut bed = Bed::joining();
    bed.book.slots.insert(ConnId(6), slot(6));
    bed.book.late_held = vec![held(6)];
    bed.book.log.extend(accept_record(6));
    bed.turn();
    assert_eq!(bed.machine.log.counters().accepts_unknown, 0);
    assert!(bed.book.has("open 6"), "{:?}", bed.book.lines);
}

/// Only the kernel has what was sent on a closed connection.
#[test]
fn clients_of_connections_that_the_server_has_let_go_of_are_waited_for_too() {
    for (unacked, waits_ms) in WAITS {
        let mut bed = Bed::alone();
        bed.book.books.clear();
        bed.slot(ConnId(5)).snd_nxt = SeqNo(132);
        (bed.book.unacked, bed.book.knocks) = (unacked, true);
        bed.turn();
        assert!(bed.book.has("fin 5"), "{:?}", bed.book.lines);
        bed.book.peer.push(Message::CaughtUp);
        bed.pass(waits_ms - 1);
        assert!(!bed.book.has("clamp"));
        bed.pass(2);
        assert!(bed.book.has("clamp"));
    }
}

/// No backup follows such a connection, so nobody says that its client's FIN is held.
#[test]
fn a_fin_is_answered_behind_what_was_acknowledged_alone() {
    let mut bed = Bed::alone();
    bed.book.books.clear();
    bed.slot(ConnId(5)).snd_nxt = SeqNo(132);
    (bed.book.unacked, bed.book.knocks) = (NONE, true);
    bed.turn();
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(10);
    assert!(bed.book.has("clamp"), "{:?}", bed.book.lines);
    let stable = bed.slot(ConnId(5)).stable;
    let (acked, fin) = (stable.plus(500), stable.plus(501));
    (bed.slot(ConnId(5)).last_ack, bed.slot(ConnId(5)).rcv_nxt) = (acked, fin);
    bed.book.state = ConnState::Over;
    bed.pass(200);
    assert!(bed.book.has(&format!("stable 5 {}", fin.0)), "{:?}", bed.book.lines);
}

/// What the kernel held for the client goes over with the image.
#[test]
fn who_takes_nothing_is_not_waited_for_and_loses_nothing() {
    let closed = Unacked { bytes: 30, window_closed: true, ..NONE };
    let idle = Unacked { bytes: 0, ..closed };
    for (unacked, is_slow) in
        [(closed, true), (SOME, true), (SILENT, true), (NONE, false), (idle, false)]
    {
        let mut bed = Bed::alone();
        (bed.book.books, bed.book.unacked) = (vec![book(5, 30)], unacked);
        bed.book.knocks = true;
        bed.turn();
        assert_eq!(bed.book.slow == [5], is_slow, "{unacked:?}");
    }
    // The client has acknowledged 4 of the 30 bytes; the kernel still holds 2 of those 4.
    let held = |from, len: usize| {
        vec![Earlier { socket: 5, from: SeqNo(from), bytes: (0..len as u8).collect() }]
    };
    for (earlier, goes_over) in
        [(held(103, 28), true), (held(103, 27), false), (held(106, 40), false), (vec![], false)]
    {
        let mut bed = Bed::alone();
        (bed.book.books, bed.book.unacked) = (vec![book(5, 30)], SOME);
        bed.slot(ConnId(5)).snd_una = SeqNo(105);
        (bed.book.earlier, bed.book.knocks) = (earlier, true);
        bed.turn();
        let sent = goes_over.then(|| (ConnId(5), 4, (2..28).collect()));
        assert_eq!(bed.book.handed_over, sent.into_iter().collect::<Vec<_>>());
        bed.book.peer.push(Message::CaughtUp);
        bed.pass(10);
        assert_eq!(bed.book.has("clamp"), goes_over, "{:?}", bed.book.lines);
    }
}

/// ACKs that a joiner has allowed are owed no longer once it has left.
#[test]
fn connections_end_as_before_after_a_join_that_failed() {
    let mut bed = Bed::joining();
    bed.book.is_lost = true;
    bed.turn();
    assert!(bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
    bed.book.is_lost = false;
    bed.slot(ConnId(5)).stable = SeqNo(1100);
    bed.slot(ConnId(5)).rcv_nxt = SeqNo(1100);
    bed.book.state = ConnState::Over;
    bed.pass(5_000);
    assert!(bed.machine.tables.conns.is_empty());
}

#[test]
fn what_the_kernel_held_goes_over_in_pieces() {
    let mut bed = Bed::alone();
    let len = 2 * IMAGE_BYTES_MAX + 10;
    (bed.book.books, bed.book.unacked) = (vec![book(5, len as u64)], SOME);
    let bytes = (0..len).map(|at| (at / IMAGE_BYTES_MAX) as u8).collect();
    bed.book.earlier = vec![Earlier { socket: 5, from: SeqNo(101), bytes }];
    bed.book.knocks = true;
    bed.turn();
    let pieces = bed.book.handed_over.iter().map(|(_, offset, bytes)| (*offset, bytes.len()));
    let expected = [(0, IMAGE_BYTES_MAX), (IMAGE_BYTES_MAX, IMAGE_BYTES_MAX), (len - 10, 10)];
    let expected = expected.map(|(offset, len)| (offset as u64, len));
    assert_eq!(pieces.collect::<Vec<_>>(), expected);
}

/// A primary whose joiner has caught up, while a client lacks some of what it was sent.
fn waiting_for_clients() -> Bed {
    let mut bed = Bed::alone();
    (bed.book.books, bed.book.unacked, bed.book.knocks) = (vec![book(5, 30)], SOME, true);
    bed.turn();
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    bed
}

/// Each question is a system call.
#[test]
fn the_kernel_is_asked_now_and_then_what_clients_lack() {
    let mut bed = waiting_for_clients();
    bed.book.questions = 0;
    bed.pass(10 * CLOSING_EVERY.as_millis() as u64);
    assert_eq!(bed.book.questions, 10);
}

/// Its silence has cost nobody anything before.
#[test]
fn who_is_silent_when_output_begins_to_wait_has_the_time_of_a_new_backup() {
    let mut bed = waiting_for_clients();
    bed.book.is_silent = true;
    bed.pass(500);
    bed.slot(ConnId(5)).snd_una = SeqNo(131);
    bed.pass(500);
    assert!(bed.book.has("clamp") && !bed.book.has("shows Doubts"), "{:?}", bed.book.lines);
}

/// Each of them costs the others some time in which the server stands still.
#[test]
fn no_more_slow_clients_go_with_an_image_than_the_limit() {
    let mut bed = Bed::alone();
    (6..6 + SLOW_MAX as u64).for_each(|id| bed.hold(id));
    bed.turn();
    bed.book.unacked = Unacked { bytes: 30, window_closed: true, ..NONE };
    bed.book.knocks = true;
    bed.turn();
    assert_eq!(bed.book.slow.len(), SLOW_MAX);
}
