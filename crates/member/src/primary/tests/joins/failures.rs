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
