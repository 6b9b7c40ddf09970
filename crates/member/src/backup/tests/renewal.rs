//! A cold backup whose log is long: a new image, or a new join.

use super::*;
use crate::timing::backup::{COPY_LOOK, RENEW_PAUSE, RENEW_SILENT_MAX, RENEW_TRIES_MAX};

const RENEWED: Message<'static> = Message::Renewed { log_from: 120, image_bytes: 3 };
const PIECE: Message<'static> = Message::Image { bytes: &[1, 2, 3] };
const WHOLE: Message<'static> = Message::Image { bytes: &[] };
const OFF: Message<'static> = Message::ImageOff { reason: "it does not stand still" };

impl Bed {
    /// A backup that has asked for a new image.
    fn renewing() -> Self {
        let mut bed = Self::cold_in_step();
        bed.book.replica = Replica::Outgrown("it is long".to_owned());
        bed.turn();
        assert_eq!(bed.book.take(), ["keeps twice", "send Renew"]);
        bed
    }

    /// A backup whose attempts at a new image have failed that often.
    fn failed(times: u32) -> Self {
        let mut bed = Self::renewing();
        for n in 0..times {
            bed.book.peer.push(OFF);
            bed.turn();
            assert_eq!(bed.book.take(), ["replaces: false", "send ImageOff", "RenewedNot"]);
            bed.pass(((RENEW_PAUSE.as_millis() as u64) << n) + 2);
            if n + 1 < times {
                assert_eq!(bed.book.take(), ["keeps twice", "send Renew"]);
            }
        }
        bed
    }
}

#[test]
fn a_new_image_takes_the_old_ones_place_when_all_of_it_is_kept() {
    let mut bed = Bed::renewing();
    bed.book.peer.extend([RENEWED, PIECE]);
    bed.turn();
    assert_eq!(bed.book.take(), ["image of 3 at 120", "takes 3", "send ImageOk"]);
    bed.book.peer.push(WHOLE);
    bed.pass(100);
    assert_eq!(bed.book.take(), ["whole"], "it is not written yet");
    (bed.book.is_renewed, bed.book.replica) = (true, Replica::Replays);
    bed.turn();
    assert_eq!(bed.book.take(), ["replaces: true", "Renewed"]);
    bed.pass(500);
    assert_eq!(bed.book.take(), Vec::<String>::new());
    assert!(bed.machine.follows(), "it never was anything but a backup");
}

#[test]
fn one_that_is_not_whole_replaces_nothing() {
    let mut bed = Bed::renewing();
    bed.book.peer.extend([RENEWED, PIECE]);
    bed.book.is_renewed = true;
    bed.pass(100);
    assert!(!bed.book.has("replaces: true"), "{:?}", bed.book.lines);
}

#[test]
fn what_fails_leaves_the_old_image_and_is_tried_again_later() {
    let mut bed = Bed::failed(0);
    bed.book.peer.push(OFF);
    bed.turn();
    bed.book.take();
    bed.pass(RENEW_PAUSE.as_millis() as u64 - 1);
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.pass(2);
    assert_eq!(bed.book.take(), ["keeps twice", "send Renew"]);
    // What still comes of the attempt before means nothing.
    bed.book.peer.extend([PIECE, WHOLE]);
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

#[test]
fn a_disk_without_room_and_a_primary_that_is_silent_are_failures() {
    for bad in ["begin", "take", "keep"] {
        let mut bed = Bed::renewing();
        bed.book.bad = bad;
        bed.book.peer.extend([RENEWED, PIECE]);
        bed.turn();
        assert!(bed.book.has("replaces: false") && bed.book.has("RenewedNot"), "{bad}");
        assert!(bed.machine.follows(), "{bad}");
    }
    let mut bed = Bed::renewing();
    bed.pass(RENEW_SILENT_MAX.as_millis() as u64 + 10);
    assert!(bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
}

#[test]
fn a_takeover_in_the_middle_needs_the_old_image() {
    let mut bed = Bed::renewing();
    bed.book.peer.extend([RENEWED, PIECE]);
    bed.turn();
    bed.book.take();
    bed.book.is_lost = true;
    bed.turn();
    assert_eq!(bed.book.take()[..2], ["replaces: false", "promotes: ChannelLost"]);
}

/// It stays a backup until the primary goes on without it, and then joins anew at
/// once.
#[test]
fn a_backup_that_gets_no_new_image_leaves_when_the_primary_lets_it() {
    let mut bed = Bed::failed(RENEW_TRIES_MAX);
    assert_eq!(bed.book.take(), ["send GaveUp"]);
    bed.book.peer.push(Message::Refused { reason: "it gave up", again: true });
    bed.turn();
    let lines = bed.book.take();
    assert_eq!(lines[0], in_step(false));
    assert!(lines.contains(&"gave up: Outgrown".to_owned()), "{lines:?}");
    assert_eq!(bed.book.member.given_up, 0, "nothing was wrong");
}

#[test]
fn a_primary_that_dies_while_its_backup_would_leave_is_taken_over() {
    let mut bed = Bed::failed(RENEW_TRIES_MAX);
    bed.book.take();
    // The channel may be closed because the primary has let it go.
    (bed.book.is_lost, bed.book.beats) = (true, None);
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.book.is_lost = false;
    bed.pass(500);
    assert_eq!(bed.book.take()[0], "promotes: Silent");
}

#[test]
fn a_disk_that_keeps_no_second_log_is_a_failure() {
    let mut bed = Bed::cold_in_step();
    bed.book.bad = "renew";
    bed.book.replica = Replica::Outgrown("it is long".to_owned());
    bed.turn();
    assert_eq!(bed.book.take(), ["keeps twice", "replaces: false", "send ImageOff", "RenewedNot"]);
    assert_eq!(bed.book.reason, "cannot renew");
    bed.book.bad = "";
    bed.pass(RENEW_PAUSE.as_millis() as u64);
    assert_eq!(bed.book.take(), ["keeps twice", "send Renew"], "it is tried again");
}

#[test]
fn a_new_image_that_is_not_as_announced_is_a_failure() {
    let out_of_turn = "the primary speaks out of turn";
    for (more, reason) in [
        (PIECE, "more of the image came than was announced"),
        (RENEWED, out_of_turn),
        (Message::Closing { number: 0 }, out_of_turn),
    ] {
        let mut bed = Bed::renewing();
        bed.book.peer.extend([RENEWED, PIECE, more]);
        bed.turn();
        assert!(bed.book.has("RenewedNot") && bed.book.has("replaces: false"), "{reason}");
        assert_eq!(bed.book.reason, reason);
    }
}

/// An image of a large server takes minutes.
#[test]
fn a_new_image_may_take_its_time_as_long_as_something_of_it_comes() {
    let most = RENEW_SILENT_MAX.as_millis() as u64;
    let mut bed = Bed::renewing();
    let asked = bed.book.now;
    for said in [RENEWED, PIECE, WHOLE] {
        bed.pass(most);
        bed.book.peer.push(said);
        bed.turn();
    }
    bed.pass(most);
    assert!(!bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
    (bed.book.is_renewed, bed.book.replica) = (true, Replica::Replays);
    bed.turn();
    assert!(bed.book.has("Renewed"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.took, Some(bed.book.now.since(asked)));
    let mut bed = Bed::renewing();
    bed.pass(most);
    assert!(!bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
    bed.pass(1);
    assert!(bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.reason, "nothing more comes of the new image");
}

/// Attempts before one that was good do not count.
#[test]
fn a_new_image_that_is_there_clears_the_record() {
    let mut bed = Bed::failed(2);
    assert_eq!(bed.book.take(), ["keeps twice", "send Renew"]);
    bed.book.peer.extend([RENEWED, PIECE, WHOLE]);
    bed.book.is_renewed = true;
    bed.turn();
    assert!(bed.book.has("replaces: true"), "{:?}", bed.book.lines);
    bed.turn();
    bed.book.take();
    bed.book.peer.push(OFF);
    bed.turn();
    assert!(bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
    bed.book.take();
    bed.pass(RENEW_PAUSE.as_millis() as u64 + 1);
    assert!(bed.book.has("send Renew"), "{:?}", bed.book.lines);
}

/// The primary went on alone because it was asked to, and its last words were lost.
#[test]
fn a_backup_that_would_leave_hears_from_the_edge_that_it_may() {
    let mut bed = Bed::failed(RENEW_TRIES_MAX);
    bed.book.take();
    for _ in 0..100 {
        bed.book.edge.push(Message::Alone { member: "a" });
        bed.pass(1);
    }
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Outgrown"));
    assert_eq!(bed.book.reason, "a new image is due");
    assert_eq!(bed.book.member.given_up, 0, "nothing was wrong");
}

/// While the channel breaks the primary may be silent, too; that counts a turn later.
#[test]
fn a_channel_that_breaks_with_a_silence_is_no_word_of_the_edge() {
    let mut bed = Bed::failed(RENEW_TRIES_MAX);
    bed.book.take();
    bed.book.beats = None;
    for _ in 0..200 {
        bed.book.is_lost = true;
        bed.pass(1);
    }
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.pass(1);
    assert_eq!(bed.book.take()[0], "promotes: Silent");
}

/// Nothing tells that what came of the image is written.
#[test]
fn who_gets_a_new_image_looks_after_it() {
    for renews in [false, true] {
        let mut bed = if renews { Bed::renewing() } else { Bed::cold_in_step() };
        bed.book.keeps = false;
        bed.turn();
        let Turn::Until(at) = bed.turn() else { panic!("it waits") };
        assert_eq!(at <= bed.book.now.plus(nanos(COPY_LOOK)), renews, "{at:?}");
    }
}

/// The disk keeps nothing of it before the primary has announced it.
#[test]
fn a_new_image_that_was_not_announced_is_not_looked_for() {
    let mut bed = Bed::renewing();
    bed.book.bad = "keep";
    bed.pass(20);
    assert!(!bed.book.has("RenewedNot"), "{:?}", bed.book.lines);
}
