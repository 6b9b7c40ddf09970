//! A member that joins a server that already runs.

use super::*;
use crate::timing::backup::{CLOSING_MAX, REPORT_EVERY, STREAMS_MAX, TAP_BATCH, UNACCEPTED_MAX};
use crate::timing::primary::JOINER_SILENT;
use holdfast_replica::promotion::Why;
use holdfast_wire::message::{Adopted, ConnProgress};

impl Bed {
    fn joins() -> Self {
        let mut bed = Self::new();
        bed.book.beats = Some(0);
        bed.machine = BackupMachine::joining(KEY, Limits::DEFAULT, &mut bed.book);
        assert_eq!(bed.book.take(), [in_step(false)]);
        bed
    }

    /// A joiner whose copy runs and has executed everything that there was.
    fn caught_up() -> Self {
        let mut bed = Self::joins();
        bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
        bed.turn();
        assert_eq!(bed.book.take().last().map(String::as_str), Some("send CaughtUp"));
        bed
    }

    fn closing() -> Self {
        let mut bed = Self::caught_up();
        bed.book.peer.push(Message::Closing { number: 0 });
        bed
    }

    /// The joiner is no backup, and begins anew.
    fn has_left(&mut self) {
        assert_eq!(self.turn(), Turn::End(End::Again));
        let lines = self.book.take();
        let end = ["send GaveUp", "close peer", "kill", "close tap", "JoinFailed"];
        assert_eq!(lines[lines.len() - 5..], end);
        assert!(!lines.contains(&in_step(true)), "{lines:?}");
    }
}

/// A connection of which the server has read nothing.
fn adopted(accept: Option<u32>) -> Adopted {
    let (in_bytes, out_bytes, acked_bytes, eof, closed) = (0, 0, 0, false, false);
    let conn = Some((ConnId(5), record()));
    Adopted { conn, accept, in_bytes, out_bytes, acked_bytes, eof, closed, client_tsval: None }
}

/// The primary's server may have ended, and nobody has said so.
#[test]
fn a_primary_that_says_nothing_is_not_waited_for() {
    let mut bed = Bed::joins();
    bed.book.beats = None;
    bed.book.peer.push(Message::Join { log_from: 7, image_bytes: 6 });
    bed.turn();
    bed.pass(JOINER_SILENT.as_millis() as u64);
    assert!(!bed.book.has("JoinFailed"), "{:?}", bed.book.lines);
    bed.pass(1);
    assert!(bed.book.has("JoinFailed"), "{:?}", bed.book.lines);
}

/// The client may have knocked for minutes: a SYN from then would be played into a
/// takeover.
#[test]
fn what_came_before_it_was_let_in_is_left_aside() {
    let mut book = Bed::new().book;
    book.tap = vec![segment(0, b"raw"); 2 * TAP_BATCH];
    let machine = BackupMachine::joining(KEY, Limits::DEFAULT, &mut book);
    let mut bed = Bed { machine, book };
    assert!(bed.book.tap.is_empty());
    assert_eq!(bed.book.drains, 3, "as long as some of it is there");
    bed.turn();
    assert_eq!(bed.machine.log.counters().segments_unknown, 0);
}

const IMAGE: Message<'static> = Message::Image { bytes: &[1, 2, 3] };
const WHOLE: Message<'static> = Message::Image { bytes: &[] };

#[test]
fn a_joiner_is_in_step_only_when_it_has_executed_all_that_it_was_told() {
    let mut bed = Bed::joins();
    bed.book.peer.push(Message::Join { log_from: 7, image_bytes: 6 });
    bed.turn();
    assert_eq!(bed.book.take(), ["copy of 6 from 7", "Joins"]);
    bed.book.peer.push(IMAGE);
    bed.turn();
    assert_eq!(bed.book.take(), ["takes 3", "send ImageOk"]);
    // The image may be smaller than announced.
    bed.book.peer.extend([Message::Image { bytes: &[4, 5] }, WHOLE]);
    bed.book.is_slow = true;
    bed.pass(3);
    assert_eq!(bed.book.take(), ["takes 2", "send ImageOk", "whole"]);
    // Records that have waited for the copy.
    (bed.book.progress, bed.book.is_slow) = ((100, 0), false);
    bed.pass(3);
    assert_eq!(bed.book.take(), ["makes"]);
    bed.book.progress = (150, 99);
    bed.pass(3);
    assert!(bed.book.take().is_empty(), "it is behind where it began");
    bed.book.progress = (150, 100);
    bed.turn();
    assert_eq!(bed.book.take(), ["send CaughtUp"]);
    bed.book.peer.push(Message::Closing { number: 0 });
    bed.pass(5);
    assert!(bed.book.take().is_empty(), "it has not executed all");
    bed.book.progress = (190, 150);
    bed.turn();
    assert_eq!(bed.book.take(), ["send Joined", &in_step(true), "Joined"]);
    assert_eq!(bed.machine.log.counters().messages_late, 0, "all of it was for the joiner");
    // From then on it takes over.
    bed.pass(200);
    bed.book.is_lost = true;
    bed.turn();
    assert_eq!(bed.book.take()[0], "promotes: ChannelLost");
}

/// Output would wait for it as long as it lags.
#[test]
fn a_joiner_that_lags_has_not_caught_up() {
    let mut bed = Bed::joins();
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
    bed.book.progress = (100, 50);
    bed.turn();
    bed.book.progress = (150, 99);
    bed.pass(30);
    // It is beyond what there was when it began, and far behind all that came since.
    bed.book.progress = (150, 100);
    bed.pass(1);
    assert!(!bed.book.has("send CaughtUp"), "{:?}", bed.book.lines);
    bed.book.progress = (150, 150);
    bed.pass(1);
    assert!(bed.book.has("send CaughtUp"), "{:?}", bed.book.lines);
}

#[test]
fn a_joiner_is_in_step_only_when_the_frames_have_come() {
    let mut bed = Bed::caught_up();
    bed.book.peer.push(Message::Closing { number: 1 });
    bed.pass(3);
    assert!(bed.book.take().is_empty(), "the frame is missing");
    bed.book.peer.push(Message::Frame { number: 1, records: &[] });
    bed.turn();
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
}

impl Bed {
    /// The primary's kernel has `bytes` of a connection that came before the tap.
    fn closing_with(bytes: u64, accept: Option<u32>) -> Self {
        let mut bed = Self::joins();
        let record = record();
        bed.book.peer.extend([
            Message::Join { log_from: 7, image_bytes: 3 },
            Message::Adopt { conns: vec![adopted(accept)] },
            IMAGE,
            WHOLE,
        ]);
        bed.turn();
        let progress = ConnProgress {
            conn: ConnId(5),
            snd_una: record.iss.plus(1),
            snd_nxt: record.iss.plus(1),
            right_edge: record.irs.plus(60_000),
            tsval: 0,
            rcv_nxt: record.irs.plus(1 + bytes),
        };
        bed.book.peer.push(Message::Progress { conns: vec![progress] });
        bed.book.peer.push(Message::Closing { number: 0 });
        bed.pass(3);
        bed
    }
}

impl Bed {
    /// It takes over, and its client answers that it has sent so many bytes.
    fn takes_over_at(&mut self, bytes: u32) {
        self.book.is_lost = true;
        self.turn();
        self.grant();
        self.turn();
        (self.book.replica, self.book.manifest) = (Replica::Parked, true);
        self.book.tap = vec![segment(bytes, b"")];
        self.pass(10);
    }
}

/// Clients were told that their bytes have come, and will not send them again.
#[test]
fn a_joiner_is_in_step_only_when_it_holds_what_was_acknowledged() {
    assert!(Bed::closing_with(0, None).book.has("send Joined"));
    let mut bed = Bed::closing_with(10, None);
    assert!(!bed.book.has("send Joined"), "{:?}", bed.book.lines);
    bed.book.tap = vec![TcpPacket { payload: b"0123456789", ..segment(0, b"raw") }];
    bed.turn();
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
    assert_eq!(bed.machine.log.counters().messages_late, 0, "it understands all that it is told");
    // What came in time is as good as what came before.
    bed.takes_over_at(10);
    assert!(bed.book.losses.is_empty(), "{:?}", bed.book.losses);
}

/// One client's fault, or the server's, costs the other connections nothing.
#[test]
fn who_is_not_accepted_does_not_keep_a_joiner_from_being_in_step() {
    for (accept, wait) in [(None, UNACCEPTED_MAX), (Some(1), STREAMS_MAX)] {
        let mut bed = Bed::closing_with(10, accept);
        bed.pass(wait.as_millis() as u64 - 3);
        assert!(!bed.book.has("send Joined"), "{:?}", bed.book.lines);
        bed.pass(2);
        assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
        assert!(wait < CLOSING_MAX);
        // Its client would wait for ever for an answer to bytes that nobody has.
        bed.takes_over_at(10);
        assert_eq!(bed.book.losses, [Why::InputNotHeld], "{:?}", bed.book.lines);
    }
}

#[test]
fn a_joiner_that_cannot_have_all_in_time_leaves() {
    let mut bed = Bed::caught_up();
    bed.book.peer.push(Message::Closing { number: 1 });
    bed.turn();
    bed.pass(CLOSING_MAX.as_millis() as u64);
    assert!(bed.book.take().is_empty(), "it waits for its frame");
    bed.book.now = bed.book.now.plus(Nanos::from_ms(1));
    bed.has_left();
}

#[test]
fn every_failure_of_a_joiner_ends_in_another_attempt() {
    for bad in ["begin", "take", "make"] {
        let mut bed = Bed::joins();
        bed.book.bad = bad;
        bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
        bed.has_left();
    }
    let too_long = vec![Message::Join { log_from: 7, image_bytes: 2 }, IMAGE];
    let twice = vec![
        Message::Join { log_from: 7, image_bytes: 9 },
        Message::Join { log_from: 7, image_bytes: 9 },
    ];
    let refused = vec![Message::Refused { reason: "no", again: true }];
    let died = vec![Message::ServerDied { last: 0 }];
    let early = vec![Message::Closing { number: 0 }];
    let more = vec![Message::Join { log_from: 7, image_bytes: 9 }, IMAGE, WHOLE, IMAGE];
    let whole_twice = vec![Message::Join { log_from: 7, image_bytes: 9 }, WHOLE, WHOLE];
    let senseless = vec![
        Message::Join { log_from: 7, image_bytes: 3 },
        Message::Frame { number: 1, records: &[1, 2, 3] },
    ];
    let out_of_turn = [too_long, twice, early, vec![IMAGE], more, whole_twice];
    for said in out_of_turn.into_iter().chain([refused, died, senseless]) {
        let mut bed = Bed::joins();
        bed.book.peer = said;
        bed.has_left();
    }
    let differs = Replica::Diverged("it writes".to_owned());
    for (replica, state) in [(Replica::Ended, "ended"), (differs, "diverged")] {
        let mut bed = Bed::closing();
        bed.book.progress = (1, 0);
        bed.book.replica = replica;
        bed.has_left();
        assert_eq!(bed.book.said_state, state);
    }
    let mut bed = Bed::caught_up();
    bed.book.is_lost = true;
    bed.has_left();
    let mut bed = Bed::caught_up();
    bed.book
        .member
        .standing
        .handle_message(&Message::Epoch { epoch: EPOCH + 1, current: "a" }, EPOCH);
    bed.has_left();
}

#[test]
fn a_joiner_whose_copy_does_not_move_leaves() {
    let mut bed = Bed::joins();
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
    bed.book.progress = (100, 50);
    for _ in 0..100 {
        bed.book.now = bed.book.now.plus(Nanos::from_ms(20));
        if bed.turn() == Turn::End(End::Again) {
            return;
        }
    }
    panic!("{:?}", bed.book.lines);
}

/// An image is no news to a member that follows, and nothing is kept of it.
#[test]
fn who_follows_is_told_of_no_image() {
    let mut bed = Bed::served();
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
    bed.pass(2);
    assert!(bed.machine.said.is_empty() && bed.book.take().is_empty());
}

#[test]
fn a_joiner_never_takes_over() {
    let mut bed = Bed::caught_up();
    bed.book.beats = None;
    bed.pass(2000);
    assert!(!bed.book.lines.iter().any(|line| line.starts_with("promotes")));
    assert!(!bed.book.has(&in_step(true)));
}

/// A server that stood still for the image was silent for that long.
#[test]
fn a_silence_before_it_has_joined_means_nothing_to_a_joiner() {
    let mut bed = Bed::caught_up();
    bed.book.beats = None;
    bed.pass(500);
    assert!(bed.machine.peer_gone && bed.book.take().is_empty());
    bed.book.beats = Some(100);
    bed.book.peer.push(Message::Closing { number: 0 });
    bed.turn();
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
    assert!(!bed.machine.peer_gone);
}

/// Output would wait for the bytes that it still asks for.
#[test]
fn a_joiner_that_lacks_bytes_of_a_read_has_not_caught_up() {
    for lacks in [false, true] {
        let mut bed = Bed::joins();
        let read = Header {
            payload_len: u32::from(lacks),
            op: Op::Read as u8,
            flags: TAPPED,
            conn: 1,
            ret: i64::from(lacks),
            ..Header::default()
        };
        bed.book.peer.push(Message::Join { log_from: 7, image_bytes: 3 });
        bed.book.peer.push(Message::Adopt { conns: vec![adopted(Some(1))] });
        bed.book.peer.push(Message::Frame { number: 1, records: read.as_bytes().to_vec().leak() });
        bed.book.peer.extend([IMAGE, WHOLE]);
        bed.pass(3);
        assert_eq!(bed.book.has("send CaughtUp"), !lacks, "{:?}", bed.book.lines);
    }
}

/// The records kept for a slow copy have been acknowledged.
#[test]
fn the_log_ends_behind_what_was_kept() {
    let mut bed = Bed::closing();
    bed.book.keeps = true;
    bed.turn();
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
    bed.pass(200);
    bed.book.is_lost = true;
    bed.pass(5);
    assert!(bed.book.has(&promote()) && !bed.book.has("end log"), "{:?}", bed.book.lines);
    bed.book.keeps = false;
    bed.turn();
    assert!(bed.book.has("end log"), "{:?}", bed.book.lines);
}

/// Every attempt counts that did not end in a minute of protection, however long it
/// took.
#[test]
fn a_long_join_is_no_proof_of_its_replica() {
    let mut bed = Bed::caught_up();
    bed.book.member.given_up = 3;
    bed.pass(70_000);
    bed.book.peer.push(Message::Closing { number: 0 });
    bed.pass(10);
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.member.given_up, 3);
    bed.pass(70_000);
    assert_eq!(bed.book.member.given_up, 0);
}

#[test]
fn a_joiner_that_is_stopped_tells_the_primary() {
    let mut bed = Bed::caught_up();
    assert_eq!(bed.machine.turn(true, &mut bed.book), Turn::End(End::Stopped));
    let told = ["send GaveUp", "close peer", "kill", "close tap", "JoinFailed"];
    assert_eq!(
        (bed.book.take(), bed.book.reason.as_str()),
        (told.map(str::to_owned).into(), "it was stopped")
    );
}

/// People see why there is no backup, and so does the primary.
#[test]
fn a_joiner_that_leaves_says_why() {
    let refused = Message::Refused { reason: "another member joins", again: true };
    let died = Message::ServerDied { last: 0 };
    for (said, reason) in [
        (vec![refused], "another member joins"),
        (vec![died], "the primary's server died"),
        (vec![], "the channel to the primary was lost"),
    ] {
        let mut bed = Bed::caught_up();
        bed.book.is_lost = said.is_empty();
        bed.book.peer = said;
        bed.has_left();
        assert_eq!(bed.book.reason, reason);
    }
    let mut bed = Bed::caught_up();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "a" });
    bed.has_left();
    assert_eq!(bed.book.reason, format!("a speaks in epoch {}", EPOCH + 1));
}

#[test]
fn every_cause_of_a_takeover_has_its_words() {
    for (cause, word) in [
        (Cause::ServerDied, "server died"),
        (Cause::ChannelLost, "channel"),
        (Cause::Silent, "is silent"),
        (Cause::Unheard, "the edge does not hear"),
        (Cause::Alone, "does not hear this member"),
        (Cause::Fallen, "has fallen"),
    ] {
        assert!(cause.text().contains(word), "{cause:?}: {}", cause.text());
    }
}

/// What it has not run yet waits for its server, which is being built.
#[test]
fn the_time_that_a_copy_takes_is_not_held_against_it() {
    let mut bed = Bed::joins();
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
    (bed.book.is_slow, bed.book.progress) = (true, (100, 0));
    bed.pass(31_000);
    bed.book.is_slow = false;
    bed.pass(2);
    assert!(bed.book.has("makes") && !bed.book.has("JoinFailed"), "{:?}", bed.book.lines);
}

/// From now on output waits for it, so what it has not run is not confirmed.
#[test]
fn a_joiner_in_step_is_a_backup_like_any_other() {
    let mut bed = Bed::closing();
    bed.turn();
    assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
    bed.pass(REPORT_EVERY.as_millis() as u64);
    assert_eq!(bed.book.reported.2, None, "it joins no more");
    bed.book.progress = (200, 100);
    bed.pass(20);
    bed.book.take();
    bed.book.peer.push(Message::Frame { number: 1, records: &[] });
    bed.turn();
    assert!(!bed.book.has("send FrameOk"), "{:?}", bed.book.lines);
}
