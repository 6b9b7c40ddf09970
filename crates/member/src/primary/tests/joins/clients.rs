//! Clients that a join waits for.

use super::*;
use crate::timing::primary::REPEATS_MAX;

const NONE: Unacked = Unacked { bytes: 0, repeats: 0 };
const SOME: Unacked = Unacked { bytes: 1, repeats: REPEATS_MAX - 1 };
/// Its client does not answer.
const SILENT: Unacked = Unacked { bytes: 1, repeats: REPEATS_MAX };
/// What the kernel says, and how long a join waits then, ms.
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
        // The joiner has nothing of it: it must hear that nobody lacks it.
        assert_eq!(bed.book.clients_have == Some(131), unacked == NONE);
    }
}

/// What its server said then nobody else has.
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
