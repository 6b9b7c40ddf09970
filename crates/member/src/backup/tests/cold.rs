//! A cold backup: its replica is built when a takeover needs it.

use super::*;
use crate::timing::takeover::{BUILD_LOOK, BUILD_MAX, DRAIN_LOOK, GRANT_LOOK, PARK_MAX};

const IMAGE: Message<'static> = Message::Image { bytes: &[1, 2, 3] };
const WHOLE: Message<'static> = Message::Image { bytes: &[] };

impl Bed {
    pub(super) fn cold() -> Self {
        let mut bed = Self::new();
        bed.book.beats = Some(0);
        bed.machine = BackupMachine::joining(KEY, Limits::DEFAULT, &mut bed.book);
        bed.book.kept = Some(Kept { image: 0, log: 0 });
        assert_eq!(bed.book.take(), [in_step(false)]);
        bed
    }

    /// A backup in step that keeps everything that came; it counts as executed.
    pub(super) fn cold_in_step() -> Self {
        let mut bed = Self::cold();
        bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 3 }, IMAGE, WHOLE]);
        bed.book.progress = (100, 100);
        bed.turn();
        bed.book.peer.push(Message::Closing { number: 0 });
        bed.turn();
        assert!(bed.book.has("send Joined"), "{:?}", bed.book.lines);
        // What has arrived is reported once.
        (bed.book.is_whole, bed.book.keeps) = (false, true);
        bed.pass(500);
        bed.book.take();
        bed
    }

    /// A backup that takes over, and builds what it has kept.
    fn building(kept: Kept) -> Self {
        let mut bed = Self::cold_in_step();
        (bed.book.kept, bed.book.is_lost) = (Some(kept), true);
        bed.turn();
        let begin = ["promotes: ChannelLost", &builds(), "close peer"];
        assert_eq!(bed.book.take(), begin, "the edge is not asked");
        bed
    }

    fn is_built(&mut self) {
        (self.book.is_whole, self.book.keeps) = (true, false);
        self.turn();
        self.book.is_whole = false;
    }
}

fn builds() -> String {
    format!("to the edge: Builds {{ epoch: {EPOCH} }}")
}

#[test]
fn the_primary_sends_no_more_of_an_image_than_is_written() {
    let mut bed = Bed::cold();
    bed.book.unwritten = 3;
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 6 }, IMAGE]);
    bed.turn();
    assert_eq!(bed.book.take(), ["copy of 6 from 7", "Joins", "takes 3"]);
    bed.book.unwritten = 1;
    bed.pass(3);
    assert_eq!(bed.book.take(), ["send ImageOk"]);
    bed.pass(3);
    assert!(bed.book.take().is_empty());
}

#[test]
fn a_spool_that_fails_while_it_joins_ends_the_attempt() {
    let mut bed = Bed::cold();
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 6 }, IMAGE]);
    bed.turn();
    bed.book.replica = Replica::Unkept("no room".to_owned());
    assert_eq!(bed.turn(), Turn::End(End::Again));
    assert!(bed.book.has("JoinFailed"), "{:?}", bed.book.lines);
}

#[test]
fn a_spool_that_fails_ends_protection_and_not_the_service() {
    let mut bed = Bed::cold_in_step();
    bed.book.replica = Replica::Unkept("no room".to_owned());
    bed.turn();
    let lines = bed.book.take();
    assert_eq!(lines[..2], [in_step(false), "send GaveUp".to_owned()]);
    assert!(lines.contains(&"gave up: Unkept".to_owned()), "{lines:?}");
    assert!(!bed.book.has_ended, "it may join again");
}

#[test]
fn its_log_ends_when_the_server_is_built_and_has_all_of_it() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.pass(PARK_MAX.as_millis() as u64 + 1000);
    bed.book.take();
    assert!(matches!(bed.machine.stage, Stage::TakingOver(_)), "it may take longer");
    (bed.book.is_whole, bed.book.is_slow) = (true, false);
    bed.turn();
    assert!(bed.book.has("Built") && !bed.book.has("end log"), "{:?}", bed.book.lines);
    bed.book.is_whole = false;
    bed.book.keeps = false;
    bed.turn();
    assert!(bed.book.has("end log"), "{:?}", bed.book.lines);
}

#[test]
fn the_edge_is_asked_when_the_server_is_built_and_has_run_its_log() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.is_built();
    bed.turn();
    assert_eq!(bed.book.take(), ["makes", "Built", "end log"]);
    bed.pass(20);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "it runs its log");
    bed.book.replica = Replica::Parked;
    bed.turn();
    assert_eq!(bed.book.take(), [in_step(true), promote()]);
    bed.grant();
    assert_eq!(bed.turn(), Turn::Busy);
    assert!(bed.book.has("TookOver"), "{:?}", bed.book.lines);
}

#[test]
fn a_server_that_cannot_be_built_is_not_promoted() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.book.bad = "make";
    bed.is_built();
    assert!(!bed.book.has(&promote()) && bed.book.has(&in_step(false)), "{:?}", bed.book.lines);
    assert!(bed.book.has("gave up: Unkept"), "{:?}", bed.book.lines);
}

/// The primary was only cut off, and the edge lets it go on.
#[test]
fn a_primary_that_comes_back_first_ends_the_building() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "a" });
    bed.turn();
    assert!(bed.book.has("gave up: Fenced") && bed.book.has("kill"), "{:?}", bed.book.lines);
    bed.pass(5000);
    assert_eq!(bed.turn(), Turn::End(End::Again), "it joins again");
}

/// An edge that has lost its memory hears again that this member builds.
#[test]
fn an_edge_that_comes_back_hears_who_builds() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.book.edge.push(Message::Epoch { epoch: EPOCH, current: "a" });
    bed.turn();
    assert_eq!(bed.book.take(), [builds()]);
}

/// What the dead server has logged is still on its way.
#[test]
fn the_log_of_a_dead_server_is_drained_while_its_replica_is_built() {
    let mut bed = Bed::cold_in_step();
    bed.book.peer.push(Message::ServerDied { last: 9 });
    bed.turn();
    assert_eq!(bed.book.take(), ["promotes: ServerDied", &builds()], "the channel stays");
}

#[test]
fn a_long_log_that_diverges_is_not_replayed_to_its_end() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.book.replica = Replica::Diverged("other bytes".to_owned());
    bed.turn();
    assert!(bed.book.has("gave up: Diverged"), "{:?}", bed.book.lines);
    assert!(!bed.book.has(&promote()), "{:?}", bed.book.lines);
}

/// Nobody could serve sooner.
#[test]
fn a_replica_that_goes_on_in_its_log_is_waited_for() {
    let mut bed = Bed::building(Kept { image: 0, log: 0 });
    let most_ms = (PARK_MAX + BUILD_MAX).as_millis() as u64;
    for executed in 1..4 {
        bed.book.progress = (9, executed);
        bed.pass(1000);
        bed.pass(most_ms - 2000);
        assert!(!bed.book.has("gave up: Hung"), "{executed}: {:?}", bed.book.lines);
    }
    bed.pass(2000);
    assert!(bed.book.has("gave up: Hung"), "{:?}", bed.book.lines);
}

/// How long building may take grows with what is kept.
#[test]
fn what_is_never_built_is_given_up() {
    let most = |kept: Kept| {
        let mut bed = Bed::building(kept);
        let mut ms = 0;
        while !bed.book.has("gave up: Hung") {
            bed.pass(1000);
            ms += 1000;
        }
        ms
    };
    let least = (PARK_MAX + BUILD_MAX).as_millis() as u64;
    for (image, log, more) in [(0, 0, 0), (0, 10 << 20, 5000), (200 << 20, 0, 10_000)] {
        let ms = most(Kept { image, log });
        assert!((least + more..least + more + 2000).contains(&ms), "{image} {log}: {ms}");
    }
}

#[test]
fn a_spool_that_fails_while_the_server_is_built_ends_the_takeover() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    assert!(bed.book.builds);
    bed.book.builds = false;
    bed.book.replica = Replica::Unkept("no room".to_owned());
    bed.turn();
    assert!(bed.book.has("gave up: Unkept"), "{:?}", bed.book.lines);
    assert_eq!((bed.book.reason.as_str(), bed.book.builds), ("no room", true));
}

/// Then a new image would be due, but nobody could give one.
#[test]
fn a_log_that_is_long_keeps_nobody_from_taking_over() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.book.replica = Replica::Outgrown("it is long".to_owned());
    bed.is_built();
    bed.turn();
    assert_eq!(bed.book.take(), ["makes", "Built", "end log"]);
}

#[test]
fn a_building_is_looked_at_as_often_as_it_may_be_done() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    let looks = |bed: &mut Bed| {
        let Turn::Until(at) = bed.turn() else { panic!("{:?}", bed.book.lines) };
        at.since(bed.book.now)
    };
    assert_eq!(looks(&mut bed), nanos(BUILD_LOOK));
    bed.book.is_whole = true;
    assert_eq!(looks(&mut bed), nanos(DRAIN_LOOK), "it runs its log");
    (bed.book.is_whole, bed.book.keeps) = (false, false);
    assert_eq!(looks(&mut bed), nanos(DRAIN_LOOK));
    bed.book.replica = Replica::Parked;
    assert_eq!(looks(&mut bed), nanos(GRANT_LOOK), "the edge is asked");
}

/// The channel has failed for a reason that may be over, and the edge finds no way here.
#[test]
fn a_server_that_was_built_for_nobody_is_given_up() {
    let mut bed = Bed::building(Kept { image: 3, log: 100 });
    bed.is_built();
    bed.turn();
    (bed.book.replica, bed.book.bad) = (Replica::Parked, "interface");
    bed.turn();
    assert!(bed.book.has("gave up: Unreachable") && !bed.book.has(&promote()));
}
