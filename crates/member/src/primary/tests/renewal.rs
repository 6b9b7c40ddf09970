//! A new image for a backup that follows: the server goes on, protected.

use super::joins::{IMAGE, book};
use super::*;
use crate::timing::primary::CLIENTS_MAX;
use holdfast_wire::message::IMAGE_BYTES_MAX;

impl Bed {
    /// A primary with one client, whose backup wants a new image.
    fn renewing(out_bytes: u64) -> Self {
        let mut bed = Self::new();
        let conn = bed.connect(5);
        bed.slot(conn).snd_una = SeqNo(101);
        bed.pass(5);
        bed.book.image = Some(IMAGE);
        bed.book.books = vec![book(5, out_bytes)];
        bed.book.take();
        bed.book.peer.push(Message::Renew);
        bed.turn();
        bed
    }

    /// The backup has as much of the image as was sent.
    fn sends_all(&mut self) {
        for pieces in 1..=3 {
            self.pass(3);
            self.book.peer.push(Message::ImageOk { bytes: pieces * IMAGE_BYTES as u64 });
        }
        self.pass(10);
    }

    fn pieces(&mut self) -> usize {
        self.book.take().iter().filter(|line| *line == "send Image").count()
    }
}

#[test]
fn an_image_is_taken_and_sent_while_the_log_goes_on() {
    let mut bed = Bed::renewing(0);
    let lines = bed.book.take();
    assert_eq!(lines[..3], ["take image", "image true", "send Renewed"], "{lines:?}");
    bed.sends_all();
    let lines = bed.book.take();
    let others = ["commit 0", "clamp", "send Join", "send Adopt", "shows Joins", "end log"];
    assert!(others.iter().all(|other| !lines.contains(&(*other).to_owned())), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "send Image").count(), 4, "three, and its end");
    assert!(bed.book.watches, "the backup is one still");
}

#[test]
fn it_is_whole_when_no_client_lacks_what_came_before() {
    let mut bed = Bed::renewing(100);
    bed.book.unacked = Unacked { bytes: 100, ..Unacked::default() };
    bed.sends_all();
    assert_eq!(bed.pieces(), 3, "its client has not acknowledged");
    bed.book.unacked = Unacked::default();
    bed.pass(30);
    let place = |what: &str| bed.book.lines.iter().position(|line| line == what);
    assert!(place("progress 5 edge 61000") < place("send Image"), "{:?}", bed.book.lines);
    assert_eq!(bed.pieces(), 1);
    assert_eq!(bed.book.clients_have, Some(201), "the backup knows it, too");
}

#[test]
fn a_client_that_takes_nothing_ends_the_attempt_and_nothing_else() {
    let mut bed = Bed::renewing(100);
    bed.book.unacked = Unacked { bytes: 100, ..Unacked::default() };
    bed.sends_all();
    bed.book.take();
    bed.pass(CLIENTS_MAX.as_millis() as u64 + 10);
    assert!(bed.book.has("send ImageOff") && !bed.book.has("send Image"), "{:?}", bed.book.lines);
    assert!(bed.book.watches && bed.book.member.speaks);
}

#[test]
fn an_image_that_cannot_be_taken_or_written_is_refused() {
    let mut bed = Bed::new();
    bed.pass(5);
    bed.book.take();
    bed.book.peer.push(Message::Renew);
    bed.turn();
    let lines = bed.book.take();
    let order = ["take image", "image false", "drop image", "send ImageOff"];
    assert!(lines.starts_with(&order.map(str::to_owned)[..2]), "{lines:?}");
    assert!(lines.contains(&"send ImageOff".to_owned()), "{lines:?}");
    let mut bed = Bed::renewing(0);
    bed.book.is_torn = true;
    bed.pass(5);
    assert!(bed.book.has("send ImageOff"), "{:?}", bed.book.lines);
    assert!(bed.book.watches);
}

#[test]
fn a_backup_that_wants_it_no_more_gets_no_more() {
    let mut bed = Bed::renewing(0);
    bed.pass(2);
    bed.book.take();
    bed.book.peer.push(Message::ImageOff { reason: "the disk has no room" });
    bed.pass(20);
    assert_eq!(bed.pieces(), 0);
}

#[test]
fn whatever_ends_the_log_ends_it_first() {
    for what in ["gave up", "hands over", "replaced", "ended"] {
        let mut bed = Bed::renewing(0);
        bed.book.take();
        match what {
            "gave up" => {
                bed.book.peer.push(Message::GaveUp { state: "hung", reason: "it stood still" });
            }
            "hands over" => bed.book.member.hands_over = true,
            "replaced" => {
                bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
            }
            _ => bed.book.ended = true,
        }
        bed.turn();
        let lines = bed.book.take();
        let drops = lines.iter().position(|line| line == "drop image");
        let ends = ["send Refused", "pause", "kill", "dead", "drop peer"];
        let first = lines.iter().position(|line| ends.contains(&line.as_str()));
        assert!(drops.is_some() && drops < first, "{what}: {lines:?}");
    }
}

#[test]
fn an_image_that_cannot_be_begun_is_refused() {
    let mut bed = Bed::new();
    bed.pass(5);
    bed.book.take();
    bed.book.bad = "take";
    bed.book.peer.push(Message::Renew);
    bed.turn();
    let lines = bed.book.take();
    assert_eq!(lines, ["take image", "drop image", "send ImageOff"]);
    assert_eq!(bed.book.refused, "cannot take");
    bed.pass(20);
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

/// Nothing tells that it is there.
#[test]
fn an_image_that_is_taken_is_looked_for() {
    let mut bed = Bed::new();
    bed.pass(5);
    bed.book.is_slow = true;
    bed.turn();
    let Turn::Until(idle) = bed.turn() else { panic!("it waits") };
    assert!(idle > bed.book.now.plus(nanos(TICK)), "{idle:?}");
    bed.book.peer.push(Message::Renew);
    let Turn::Until(at) = bed.turn() else { panic!("it waits") };
    assert!(at <= bed.book.now.plus(nanos(TICK)), "{at:?}");
}

#[test]
fn numbers_that_cannot_be_end_the_renewal_and_not_the_pair() {
    let mut bed = Bed::renewing(u64::MAX);
    assert!(bed.book.has("send ImageOff"), "{:?}", bed.book.lines);
    bed.pass(30);
    assert!(bed.pieces() == 0 && bed.book.watches, "{:?}", bed.book.lines);
    for (has, is_too_much) in [(6, false), (7, true), (300_012, true)] {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        bed.slot(conn).snd_una = SeqNo(101).plus(has);
        bed.slot(conn).snd_nxt = SeqNo(101).plus(has);
        bed.book.log = [accept_record(5), written_record(1, has as i64)].concat();
        bed.pass(5);
        (bed.book.image, bed.book.books) = (Some(IMAGE), vec![book(5, 5)]);
        bed.book.peer.push(Message::Renew);
        bed.turn();
        assert_eq!(bed.book.has("send ImageOff"), is_too_much, "{has}: {:?}", bed.book.lines);
        assert_eq!(bed.book.refused.contains("5 bytes written"), is_too_much);
    }
}

/// Heartbeats and log wait behind the pieces of an image.
#[test]
fn no_more_of_a_new_image_is_under_way_than_a_few_pieces() {
    let mut bed = Bed::new();
    bed.pass(5);
    let piece = IMAGE_BYTES_MAX as u64;
    bed.book.image = Some(Image { log_from: 0, bytes: 10 * piece });
    bed.book.piece = usize::MAX;
    bed.book.peer.push(Message::Renew);
    let pieces = |bed: &mut Bed| {
        bed.pass(20);
        bed.pieces()
    };
    assert_eq!((pieces(&mut bed), pieces(&mut bed)), (4, 0));
    bed.book.peer.push(Message::ImageOk { bytes: 2 * piece });
    assert_eq!((pieces(&mut bed), pieces(&mut bed)), (2, 0));
}

/// Only one image can be taken at a time.
#[test]
fn a_backup_that_begins_anew_gets_an_image_of_now() {
    let mut bed = Bed::renewing(0);
    bed.book.take();
    bed.book.books = vec![book(5, 0)];
    bed.book.peer.push(Message::Renew);
    bed.turn();
    let lines = bed.book.take();
    assert_eq!(lines[..3], ["drop image", "take image", "image true"], "{lines:?}");
}
