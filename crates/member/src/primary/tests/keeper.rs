//! What is kept beside a server that speaks alone, and what fails of it.

use super::kept::has;
use super::*;
use crate::backup::TWICE;
use crate::timing::backup::{LOOK_AFTER, TAP_AFTER, UNACCEPTED_MAX};
use crate::timing::primary::{
    ALONE_LOOK, CONFIRM_LOOK, KEEP_AFTER, KEEP_LASTS, KEEP_PAUSE, REPLACED_REST,
};
use holdfast_replica::backup::PROMOTE_DRAIN_MAX;
use holdfast_wire::packet::{Flags, TcpOptions, TcpPacket};

/// A client's segment, as the tap sees it.
fn segment(payload: &'static [u8]) -> TcpPacket<'static> {
    let ConnKey { server, client, server_port, client_port } = key(5);
    TcpPacket {
        source: client,
        destination: server,
        source_port: client_port,
        destination_port: server_port,
        seq: SeqNo(1000),
        ack: SeqNo(101),
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload,
        raw: b"raw",
    }
}

impl Bed {
    /// A server of which everything is kept, and whose client is accepted.
    fn kept_with_client() -> Self {
        let mut bed = Self::kept();
        bed.connect(5);
        bed.book.log.extend(accept_record(5));
        bed.pass(5);
        bed.book.take();
        bed
    }

    /// A server of which everything is kept; it has fallen, and the last record of its log needs
    /// bytes of its client that have not come from the tap yet.
    fn falling() -> (Self, Nanos) {
        let mut bed = Self::kept_with_client();
        bed.book.log.extend(read_record(b"hello"));
        (bed.book.ended, bed.book.falls) = (true, true);
        let begun = bed.book.now;
        assert_eq!(bed.turn(), Turn::Until(begun.plus(nanos(CONFIRM_LOOK))));
        assert_eq!(bed.book.take(), ["dead", "strike"]);
        assert!(!bed.book.watches, "nothing of it wakes the member any more");
        (bed, begun)
    }

    /// A server that has fallen, and stays down.
    fn down() -> Self {
        let (mut bed, _) = Self::falling();
        bed.book.unkept = Some("the disk is gone".to_owned());
        assert!(matches!(bed.turn(), Turn::Until(_)));
        assert!(bed.book.has("shows NotRebuilt, 5") || bed.book.has("shows NotRebuilt"));
        assert_eq!(bed.book.reason, "the disk is gone");
        assert_eq!(bed.book.unwatched, 3, "nor does who comes when the gate is open");
        bed
    }

    /// Asserts that nothing is kept any more, and why; the server serves on.
    fn keeps_no_more(&mut self, reason: &str) {
        self.book.take();
        self.book.watches = true;
        self.pass(10);
        assert!(self.book.has("keeps nothing") && self.book.has("shows KeepsNot"));
        let left = (self.machine.closing.is_some(), self.machine.joins);
        assert_eq!((left, self.book.watches), ((false, None), false));
        // Nobody is told of clients that come from then on.
        self.hold(77);
        self.pass(1);
        assert_eq!(self.book.reason, reason, "{:?}", self.book.lines);
        assert!(!self.book.lines.iter().any(|line| line.starts_with("send")));
        assert!(self.book.member.speaks && !self.book.has("kill"));
    }

    /// Whether an image is taken within these milliseconds.
    fn keeps_within(&mut self, ms: u64) -> bool {
        self.book.take();
        self.pass(ms);
        self.book.lines.iter().any(|line| line.starts_with("take image"))
    }
}

/// It hears clients by itself, so that nobody has to be asked for what they sent.
#[test]
fn what_clients_send_is_kept_and_then_acknowledged() {
    let mut bed = Bed::kept_with_client();
    bed.book.own_tap = vec![segment(b"hello")];
    bed.pass(3);
    assert!(bed.book.has("stable 5 1005"), "{:?}", bed.book.lines);
    // The server has read it, and its record needs no bytes but those.
    bed.book.log.extend(read_record(b"hello"));
    bed.pass(3);
    assert_eq!(bed.book.kept_records, 2);
    assert_eq!(bed.book.stable, bed.book.log.len() as u64);
    // What other clients send is none of this one's.
    bed.book.take();
    bed.book.own_tap = vec![TcpPacket { source_port: 6, seq: SeqNo(1005), ..segment(b"other") }];
    bed.pass(3);
    assert!(!bed.book.has("stable 5 1010"), "{:?}", bed.book.lines);
}

#[test]
fn a_tap_that_is_busy_wakes_nobody() {
    let mut bed = Bed::kept_with_client();
    bed.book.own_tap = vec![segment(b"hello")];
    bed.turn();
    assert!(!bed.book.is_own_tap_watched);
    bed.turn_at(bed.book.now.plus(nanos(TAP_AFTER)));
    assert!(bed.book.is_own_tap_watched);
}

#[test]
fn output_waits_for_room_and_what_clients_have_is_noted() {
    let mut bed = Bed::kept_with_client();
    let before = bed.book.stable;
    bed.book.keeping_room = false;
    bed.book.log.extend(intent_record(50));
    bed.pass(5);
    assert_eq!(bed.book.stable, before);
    bed.book.keeping_room = true;
    bed.pass(5);
    assert_eq!(bed.book.stable, bed.book.log.len() as u64);
    (bed.slot(ConnId(5)).snd_nxt, bed.slot(ConnId(5)).snd_una) = (SeqNo(151), SeqNo(131));
    bed.pass(30);
    assert_eq!(bed.book.kept_acked.last(), Some(&(1, 30)));
}

#[test]
fn the_rest_of_a_fallen_servers_log_is_waited_for() {
    let (mut bed, begun) = Bed::falling();
    let kept = bed.book.kept_records;
    bed.book.own_tap = vec![segment(b"hello")];
    bed.book.edge.push(Message::Reach { member: "b", yes: true });
    assert_eq!(bed.turn_at(begun.plus(Nanos::from_ms(1))), Turn::End(End::Fallen));
    assert!(bed.book.edge.is_empty(), "it hears the edge");
    assert!(bed.book.has("shows Fell"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.kept_records, kept + 1, "it is over as soon as all is here");
    // The tap does not bring them: the log has them, too.
    let (mut bed, begun) = Bed::falling();
    assert!(matches!(bed.turn_at(begun.plus(Nanos(1000))), Turn::Until(_)));
    assert_eq!(bed.book.kept_records, kept);
    let asked = Nanos(PROMOTE_DRAIN_MAX.0 - 1_000_000);
    assert_eq!(bed.turn_at(begun.plus(asked)), Turn::End(End::Fallen));
    assert_eq!(bed.book.kept_records, kept + 1);
    let machine = bed.machine.take_kept().expect("all is kept");
    assert_eq!(machine.heard_at, begun, "the outage counts from the fall");
    // A member that is late does not ask any more: the log ends before them.
    let (mut bed, begun) = Bed::falling();
    assert_eq!(bed.turn_at(begun.plus(PROMOTE_DRAIN_MAX)), Turn::End(End::Fallen));
    assert_eq!(bed.book.kept_records, kept);
    let (mut bed, _) = Bed::falling();
    assert_eq!(bed.stop(), Turn::End(End::Fallen), "who is stopped waits for nothing");
}

#[test]
fn a_fallen_server_whose_log_is_lost_stays_down() {
    let mut bed = Bed::down();
    let lines = bed.book.take();
    let place = |line: &str| lines.iter().position(|it| it == line).expect(line);
    assert!(place("keeps nothing") < place("alone"), "its clients hear of it: {lines:?}");
    assert!(!bed.book.watches && bed.machine.take_kept().is_none());
    let Turn::Until(at) = bed.turn() else { panic!("it stays") };
    assert!(at > bed.book.now);
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert!(!bed.book.has("shows Fell") && !bed.book.has("kill"), "{:?}", bed.book.lines);
    let stood_by = bed.book.stood_by;
    bed.pass(3000);
    assert!(!bed.book.has_ended, "nobody else speaks");
    assert_eq!(bed.book.stood_by, stood_by + 3000);
}

#[test]
fn a_server_that_stays_down_leaves_the_service_to_another_member() {
    let mut bed = Bed::down();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 2, current: "b" });
    bed.turn();
    let rested = bed.book.now.plus(nanos(REPLACED_REST));
    assert!(matches!(bed.turn_at(rested), Turn::Until(_)));
    assert_eq!(bed.turn_at(rested.plus(Nanos(1))), Turn::End(End::Again));
}

/// Also on a host whose gate cannot be opened any more.
#[test]
fn a_gate_that_cannot_be_opened_ends_whoever_keeps_something() {
    let failed = Turn::End(End::Failed("cannot open".to_owned()));
    let mut bed = Bed::kept();
    bed.book.bad = "open";
    bed.book.knocks = true;
    bed.book.take();
    assert_eq!(bed.turn_at(bed.book.now.plus(nanos(ALONE_LOOK))), failed);
    assert!(!bed.book.has("take image"), "{:?}", bed.book.lines);
    let mut bed = Bed::kept();
    (bed.book.bad, bed.book.unkept) = ("open", Some("no room".to_owned()));
    let ends = (0..10).any(|_| {
        bed.book.now = bed.book.now.plus(Nanos::from_ms(1));
        bed.turn() == failed
    });
    assert!(ends, "{:?}", bed.book.lines);
    let (mut bed, _) = Bed::falling();
    (bed.book.bad, bed.book.unkept) = ("open", Some("no room".to_owned()));
    assert_eq!(bed.turn(), failed);
    assert!(!bed.book.has("shows NotRebuilt"), "{:?}", bed.book.lines);
}

/// Its clients may have been told of bytes that nobody would have.
#[test]
fn who_falls_before_all_was_kept_is_not_rebuilt() {
    for (waited, rebuilt) in [(0, false), (UNACCEPTED_MAX.as_millis() as u64 + 50, true)] {
        let mut bed = Bed::alone();
        bed.book.books.clear();
        bed.slot(ConnId(5)).rcv_nxt = SeqNo(1010);
        bed.book.rebuilds = true;
        bed.pass(KEEP_AFTER.as_millis() as u64 + 100);
        assert!(bed.book.has("clamp") && !bed.book.has("shows Keeps"), "{:?}", bed.book.lines);
        bed.pass(waited);
        assert_eq!(bed.book.has("shows Keeps"), rebuilt);
        let (turn, lines) = bed.ends(true);
        assert_eq!(turn == Turn::End(End::Fallen), rebuilt, "{turn:?}");
        assert_eq!(
            (has(&lines, "shows Fell"), has(&lines, "shows NotRebuilt")),
            (rebuilt, !rebuilt)
        );
        let reason = "not all was kept yet that it could be rebuilt of";
        assert_eq!(bed.book.reason == reason, !rebuilt, "{}", bed.book.reason);
    }
}

#[test]
fn who_falls_twice_at_one_place_is_shown_as_such() {
    let mut bed = Bed::kept();
    bed.book.member.fallen_at = Some((0, 0));
    bed.ends(true);
    assert_eq!(bed.book.reason, TWICE);
}

#[test]
fn who_is_stopped_or_replaced_ends_its_server_and_what_was_kept() {
    let mut bed = Bed::kept();
    bed.book.take();
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert!(bed.book.has("kill") && !bed.book.has("shows Fell"), "{:?}", bed.book.lines);
    let mut bed = Bed::kept();
    bed.book.take();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 2, current: "b" });
    bed.turn();
    assert_eq!(bed.book.take(), ["kill", "shows Replaced", "keeps nothing"]);
    // The kernel's doing counts for nothing once the operator has ended the server.
    let mut bed = Bed::kept();
    (bed.book.ended, bed.book.falls) = (true, true);
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
}

#[test]
fn what_cannot_be_kept_is_said_and_the_server_serves_on() {
    let mut bed = Bed::kept();
    bed.book.bad = "record";
    bed.keeps_no_more("cannot record");
    let mut bed = Bed::kept();
    bed.book.bad = "tail";
    bed.keeps_no_more(OVERWRITTEN);
}

/// The image, or the room for it, may be missing.
#[test]
fn an_attempt_to_keep_that_fails_is_made_again_later() {
    let (after, pause) = (KEEP_AFTER.as_millis() as u64, KEEP_PAUSE.as_millis() as u64);
    for (bad, reason, keeps_nothing) in [
        ("keep", "cannot keep", false),
        ("take", "cannot take", true),
        ("spool", "cannot spool", true),
    ] {
        let mut bed = Bed::alone();
        (bed.book.rebuilds, bed.book.bad) = (true, bad);
        bed.pass(after + 30);
        assert!(bed.book.has("shows KeepsNot"), "{bad}: {:?}", bed.book.lines);
        assert_eq!(bed.book.reason, reason);
        assert_eq!(bed.book.has("keeps nothing"), keeps_nothing, "{bad}");
        let others = ["send Refused", "drop peer", "shows JoinFailed", "shows Joins"];
        assert!(others.iter().all(|line| !bed.book.has(line)), "{bad}: {:?}", bed.book.lines);
        // The second pause is twice as long.
        bed.pass(pause);
        bed.book.take();
        bed.pass(2 * pause - 60);
        assert!(!bed.book.has("shows KeepsNot"), "{bad}: {:?}", bed.book.lines);
        bed.book.bad = "";
        bed.book.books = vec![super::joins::book(5, 0)];
        bed.pass(200);
        assert!(bed.book.has("shows Keeps"), "{bad}: {:?}", bed.book.lines);
    }
}

#[test]
fn attempts_before_a_long_success_do_not_count() {
    let (lasts, pause) = (KEEP_LASTS.as_millis() as u64, KEEP_PAUSE.as_millis() as u64);
    for (lasted, counts) in [(lasts - 200, true), (lasts, false)] {
        let mut bed = Bed::kept();
        bed.book.take();
        bed.book.unkept = Some("no room".to_owned());
        bed.pass(10);
        bed.book.unkept = None;
        assert!(bed.keeps_within(pause + 100) && bed.book.has("shows Keeps"));
        bed.pass(lasted);
        bed.book.unkept = Some("no room".to_owned());
        bed.pass(10);
        assert!(bed.book.has("shows KeepsNot"), "{:?}", bed.book.lines);
        bed.book.unkept = None;
        assert_eq!(bed.keeps_within(pause + 100), !counts, "{lasted}");
    }
}

#[test]
fn nothing_is_kept_that_nobody_wants_or_could_record() {
    let after = KEEP_AFTER.as_millis() as u64 + 100;
    let mut bed = Bed::alone();
    bed.pass(after);
    bed.book.rebuilds = true;
    assert!(!bed.keeps_within(60_000), "the configuration is read once");
    let mut bed = Bed::alone();
    (bed.book.rebuilds, bed.book.attached) = (true, false);
    assert!(!bed.keeps_within(after));
    bed.book.attached = true;
    assert!(bed.keeps_within(100));
}

#[test]
fn who_comes_while_the_server_is_copied_hears_why_it_has_to_wait() {
    let mut bed = Bed::alone();
    (bed.book.rebuilds, bed.book.is_slow) = (true, true);
    bed.pass(KEEP_AFTER.as_millis() as u64 + 100);
    assert!(bed.book.has("take image"), "{:?}", bed.book.lines);
    bed.turn();
    assert_eq!(bed.book.turns_away, "the server is being copied, to be rebuilt if it falls");
}

#[test]
fn the_door_is_looked_at_now_and_then_and_may_not_open() {
    let mut bed = Bed::kept();
    bed.book.take();
    (bed.book.bad, bed.book.knocks) = ("hello", true);
    while bed.book.knocks {
        bed.pass(1);
    }
    assert_eq!(bed.book.take(), ["shows JoinFailed"]);
    let look = bed.book.now.plus(nanos(ALONE_LOOK));
    bed.book.knocks = true;
    bed.turn_at(Nanos(look.0 - 1));
    assert!(bed.book.knocks, "nobody has looked");
    bed.turn_at(look);
    assert_eq!(bed.book.take(), ["turn away"]);
    assert!(matches!(bed.machine.stage, Stage::Kept(_)), "it is kept still");
}

/// A backup that was only lost may come back at once, and needs an image of its own.
#[test]
fn who_is_left_alone_again_waits_before_it_keeps_anything() {
    let after = KEEP_AFTER.as_millis() as u64;
    let mut bed = Bed::joining();
    bed.book.rebuilds = true;
    bed.joins_for(after);
    assert!(!bed.keeps_within(after - 10));
    assert!(bed.keeps_within(20));
    // So does one that was let in and failed to join.
    let mut bed = Bed::kept();
    bed.book.knocks = true;
    bed.pass(30);
    assert!(bed.book.has("shows Joins"), "{:?}", bed.book.lines);
    bed.book.is_lost = true;
    bed.turn();
    assert!(bed.book.has("shows JoinFailed"), "{:?}", bed.book.lines);
    bed.book.is_lost = false;
    assert!(!bed.keeps_within(after - 10));
    assert!(bed.keeps_within(20));
}

/// It has no replica that could be behind.
#[test]
fn nothing_of_what_is_kept_waits_to_be_run() {
    let mut bed = Bed::alone();
    bed.book.log = log_record();
    let log_from = bed.book.log.len() as u64;
    bed.book.image = Some(Image { log_from, bytes: IMAGE_BYTES as u64 });
    bed.book.rebuilds = true;
    bed.pass(KEEP_AFTER.as_millis() as u64 + 200);
    assert!(bed.book.has("shows Keeps") && bed.book.shown.keeps, "{:?}", bed.book.lines);
    assert_eq!(bed.book.shown.unexecuted, 0);
    assert!(bed.book.looks_at_kept > 0, "what is wrong with it is found out");
}

#[test]
fn who_has_nothing_to_say_is_asked_once_in_a_turn() {
    let mut bed = Bed::kept();
    let before = bed.book.looks_at_kept;
    bed.turn();
    assert_eq!(bed.book.looks_at_kept, before + 1);
}

/// There is nothing to do until somebody makes room, and nothing waits for that.
#[test]
fn a_full_disk_does_not_keep_a_server_awake_that_does_nothing() {
    let mut bed = Bed::kept();
    bed.book.keeping_room = false;
    bed.turn();
    let Turn::Until(at) = bed.turn() else { panic!("it sleeps") };
    assert!(at > bed.book.now.plus(nanos(LOOK_AFTER)), "{at:?}");
}

#[test]
fn what_is_told_and_sent_of_the_image_is_kept() {
    let bed = Bed::kept();
    assert_eq!(bed.book.written, IMAGE_BYTES as u64);
    assert!(bed.book.handed > 3, "{}", bed.book.handed);
}

#[test]
fn what_fails_before_all_was_kept_leaves_nothing_of_the_attempt() {
    let mut bed = Bed::alone();
    bed.book.books.clear();
    bed.slot(ConnId(5)).rcv_nxt = SeqNo(1010);
    bed.book.rebuilds = true;
    bed.pass(KEEP_AFTER.as_millis() as u64 + 100);
    assert!(bed.machine.closing.is_some() && bed.machine.joins.is_some());
    bed.book.bad = "record";
    bed.keeps_no_more("cannot record");
}
