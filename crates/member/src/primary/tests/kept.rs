//! A server that speaks alone, and is rebuilt if it falls.

use super::*;
use crate::timing::primary::{KEEP_AFTER, KEEP_PAUSE};

impl Bed {
    /// A primary whose server speaks alone, and of which everything is kept that it can be rebuilt
    /// from.
    pub(super) fn kept() -> Self {
        let mut bed = Self::new();
        bed.book.peer.push(Message::GaveUp { state: "ended", reason: "it was stopped" });
        bed.turn();
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        bed.turn();
        bed.turn();
        bed.book.rebuilds = true;
        bed.book.image = Some(Image { log_from: 0, bytes: IMAGE_BYTES as u64 });
        bed.book.take();
        bed.pass(KEEP_AFTER.as_millis() as u64 - 5);
        assert!(!bed.book.has("take image"), "{:?}", bed.book.lines);
        bed.pass(100);
        bed
    }

    /// Ends the server (`falls`: it is to be rebuilt); returns what the machine does.
    pub(super) fn ends(&mut self, falls: bool) -> (Turn, Vec<String>) {
        (self.book.ended, self.book.falls) = (true, falls);
        self.book.take();
        let turn = self.turn();
        (turn, self.book.take())
    }
}

pub(super) fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|it| it == line)
}

#[test]
fn output_waits_as_soon_as_all_is_kept_and_the_other_member_hears_nothing() {
    let mut bed = Bed::kept();
    let lines = bed.book.take();
    let place = |line: &str| lines.iter().position(|it| it == line).expect(line);
    assert!(place("take image") < place("commit 0"), "{lines:?}");
    assert!(place("commit 0") < place("clamp") && place("clamp") < place("shows Keeps"));
    assert!(!lines.iter().any(|it| it.starts_with("send") || it.starts_with("to the edge")));
}

#[test]
fn one_that_falls_is_rebuilt_and_not_again_where_it_had_fallen() {
    let (crashed, killed) = (Fall::Crashed, Fall::Killed);
    for (fall, before, twice) in [
        (crashed, None, false),
        (crashed, Some((7, 3)), false),
        (crashed, Some((0, 0)), true),
        (killed, Some((0, 0)), false),
        (killed, Some((0, 1)), true),
        (killed, Some((7, 1)), false),
    ] {
        let mut bed = Bed::kept();
        bed.book.member.fallen_at = before;
        bed.book.fall = fall;
        let (turn, lines) = bed.ends(true);
        assert!(has(&lines, "dead") && has(&lines, "strike"), "{lines:?}");
        assert_eq!(turn == Turn::End(End::Fallen), !twice, "{lines:?}");
        assert_eq!((has(&lines, "shows Fell"), has(&lines, "shows NotRebuilt")), (!twice, twice));
        assert_eq!(has(&lines, "alone"), twice, "its clients hear of it, if nobody goes on");
        assert_eq!(bed.machine.take_kept().is_some(), !twice);
        let repeats = before.filter(|(at, _)| *at == 0).map_or(0, |(_, repeats)| repeats + 1);
        assert_eq!(bed.book.member.fallen_at, Some((0, repeats)));
    }
}

/// The tap has nothing of them here, so the log's own bytes are asked for.
#[test]
fn the_client_whose_bytes_it_was_given_last_is_named() {
    let mut bed = Bed::kept();
    bed.connect(5);
    bed.book.log.extend([accept_record(5), read_record(b"hello")].concat());
    (0..20).for_each(|_| bed.pass(5));
    bed.book.member.fallen_at = Some((bed.book.log.len() as u64, 0));
    let (_, lines) = bed.ends(true);
    assert!(has(&lines, "shows NotRebuilt, 5"), "{lines:?}");
}

/// A server that is rebuilt must not wait for clients whose connections had ended.
#[test]
fn what_is_kept_knows_which_connections_are_over() {
    let mut bed = Bed::kept();
    bed.connect(5);
    bed.book.log.extend([accept_record(5), close_record()].concat());
    bed.turn();
    bed.turn();
    assert!(!bed.book.has("kept one 1 is over"), "{:?}", bed.book.lines);
    bed.book.state = ConnState::Over;
    bed.pass(100);
    bed.pass(5);
    assert!(bed.book.has("kept one 1 is over"), "{:?}", bed.book.lines);
}

#[test]
fn one_that_was_asked_to_end_is_not_rebuilt() {
    let mut bed = Bed::kept();
    let (turn, lines) = bed.ends(false);
    assert!(matches!(turn, Turn::Until(_)) && has(&lines, "alone"), "{lines:?}");
    bed.turn();
    assert!(bed.book.has("shows EndedAlone"), "{:?}", bed.book.lines);
}

#[test]
fn whoever_comes_is_let_in_and_nothing_waits() {
    let mut bed = Bed::kept();
    bed.book.take();
    bed.book.knocks = true;
    bed.pass(30);
    let lines = bed.book.take();
    let place = |line: &str| lines.iter().position(|it| it == line).expect(line);
    assert!(place("alone") < place("keeps nothing"), "{lines:?}");
    assert!(place("keeps nothing") < place("shows KeepsNot"), "{lines:?}");
    assert!(place("shows KeepsNot") < place("shows Joins"), "{lines:?}");
}

#[test]
fn what_cannot_be_kept_harms_nobody_and_is_tried_again() {
    let mut bed = Bed::kept();
    bed.book.take();
    bed.book.unkept = Some("the spool is full".to_owned());
    bed.pass(10);
    assert!(bed.book.has("alone") && bed.book.has("shows KeepsNot"), "{:?}", bed.book.lines);
    assert!(!bed.book.has("take image"), "{:?}", bed.book.lines);
    bed.book.unkept = None;
    bed.book.take();
    bed.pass(KEEP_PAUSE.as_millis() as u64 / 2);
    assert!(!bed.book.has("take image"), "{:?}", bed.book.lines);
    bed.pass(KEEP_PAUSE.as_millis() as u64);
    assert!(bed.book.has("shows Keeps"), "{:?}", bed.book.lines);
}
