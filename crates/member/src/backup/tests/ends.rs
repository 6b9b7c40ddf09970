//! How a backup's part ends: stopped, given up, or as a survivor.

use super::*;
use crate::timing::backup::{PROVEN_AFTER, REJOIN_PAUSE, REJOIN_PAUSE_MAX};
use crate::timing::takeover::{GRANT_LOOK, NUDGE_LOOK, NUDGE_MAX, PARK_MAX};

impl Bed {
    fn stop(&mut self) -> Turn {
        self.machine.turn(true, &mut self.book)
    }

    /// A member that has taken over; `nudges`: something that was in flight may be lost.
    fn survivor(nudges: bool) -> Self {
        let mut bed = Self::taking_over();
        (bed.book.replica, bed.book.nudges) = (Replica::Parked, nudges);
        bed.grant();
        assert_eq!(bed.turn(), Turn::Busy);
        assert!(bed.book.has("TookOver"), "{:?}", bed.book.lines);
        bed.book.take();
        bed
    }

    /// A takeover that waits for its replica, with the edge's grant and a client that answers not.
    fn unparked() -> Self {
        let mut bed = Self::requested();
        bed.book.is_lost = true;
        bed.turn();
        bed.grant();
        bed.turn();
        assert!(bed.book.has("segment 1001"), "{:?}", bed.book.lines);
        bed.book.take();
        bed
    }

    /// Asserts that another one is current, whom this member may join.
    fn is_replaced(&mut self) {
        self.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "a" });
    }
}

#[test]
fn whoever_is_stopped_tells_the_others_first() {
    let mut bed = Bed::served();
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Ended"));
    assert_eq!(bed.book.reason, "it was stopped");
    assert_eq!(bed.book.said_state, "ended");
    for mut bed in [Bed::taking_over(), Bed::unparked()] {
        assert_eq!(bed.stop(), Turn::End(End::Stopped));
        assert_eq!(bed.gave_up().as_deref(), Some("gave up: Ended"));
        assert_eq!(bed.book.reason, "the daemon was stopped during the takeover");
    }
}

#[test]
fn a_backup_that_has_given_up_rests_until_another_speaks_alone_or_it_is_stopped() {
    let pause = REJOIN_PAUSE.as_millis() as u64;
    let mut bed = Bed::served();
    bed.book.replica = Replica::Ended;
    bed.turn();
    bed.pass(2 * pause);
    assert!(matches!(bed.turn(), Turn::Until(_)), "nobody speaks alone");
    bed.is_replaced();
    assert_eq!(bed.turn(), Turn::End(End::Again));
    let mut bed = Bed::served();
    bed.book.replica = Replica::Ended;
    bed.turn();
    let gave_up = bed.book.now;
    bed.is_replaced();
    let again_at = gave_up.plus(nanos(REJOIN_PAUSE));
    assert!(matches!(bed.turn_at(Nanos(again_at.0 - 1)), Turn::Until(_)));
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert_eq!(bed.turn_at(again_at), Turn::End(End::Again));
}

#[test]
fn who_gives_up_too_often_does_not_come_again() {
    let mut bed = Bed::served();
    bed.book.member.rejoin_max = 8;
    for failed in 0..9 {
        bed.book.replica = Replica::Replays;
        bed.machine = BackupMachine::new(KEY, &mut bed.book);
        bed.book.replica = Replica::Ended;
        bed.book.take();
        bed.turn();
        assert_eq!(bed.book.member.given_up, failed + 1);
        assert_eq!(bed.book.has("GaveUpForGood"), failed == 8, "{failed}");
        let pause = nanos(REJOIN_PAUSE_MAX.min(REJOIN_PAUSE * (1 << failed)));
        bed.is_replaced();
        let again_at = bed.book.now.plus(pause);
        assert!(matches!(bed.turn_at(Nanos(again_at.0 - 1)), Turn::Until(_)), "{failed}");
        assert_eq!(bed.turn_at(again_at) == Turn::End(End::Again), failed < 8, "{failed}");
        bed.book.member.standing = crate::standing::Standing::new("demo", "b", "a");
    }
}

#[test]
fn a_backup_that_has_followed_for_long_has_a_clean_record() {
    let mut bed = Bed::new();
    bed.book.member.given_up = 3;
    let proven = bed.book.now.plus(nanos(PROVEN_AFTER));
    bed.turn_at(proven);
    assert_eq!(bed.book.member.given_up, 3);
    bed.turn_at(proven.plus(Nanos(1)));
    assert_eq!(bed.book.member.given_up, 0);
}

#[test]
fn a_survivor_becomes_a_primary_unless_another_speaks() {
    let mut bed = Bed::survivor(false);
    assert_eq!(bed.turn(), Turn::End(End::Survives));
    let mut bed = Bed::survivor(false);
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 2, current: "a" });
    assert_eq!(bed.turn(), Turn::End(End::Again));
    assert_eq!(bed.book.take(), ["kill", "Replaced"]);
    // Nobody speaks: it stays to say so.
    let mut bed = Bed::survivor(false);
    bed.book.ended = true;
    assert!(matches!(bed.turn(), Turn::Until(_)));
    assert!(bed.book.has("EndedAlone"), "{:?}", bed.book.lines);
}

#[test]
fn a_survivor_that_is_stopped_ends_its_server() {
    for nudges in [false, true] {
        let mut bed = Bed::survivor(nudges);
        assert_eq!(bed.stop(), Turn::End(End::Stopped));
        assert_eq!(bed.book.take(), ["kill"], "{nudges}");
    }
}

#[test]
fn a_survivor_drives_what_was_in_flight_for_a_while_or_until_nothing_is() {
    let mut bed = Bed::survivor(true);
    let until = bed.book.now.plus(nanos(NUDGE_MAX));
    let look = bed.book.now.plus(nanos(NUDGE_LOOK));
    assert_eq!(bed.turn(), Turn::Until(look));
    assert!(matches!(bed.turn_at(until), Turn::Until(_)));
    assert_eq!(bed.book.take(), Vec::<String>::new());
    assert_eq!(bed.turn_at(until.plus(Nanos(1))), Turn::End(End::Survives));
    assert_eq!(bed.book.take(), ["end unanswered", "close tap"]);
    let mut bed = Bed::survivor(true);
    bed.book.nudges = false;
    assert_eq!(bed.turn(), Turn::End(End::Survives));
    assert_eq!(bed.book.take(), ["end unanswered", "close tap"]);
}

/// The edge may have been away for long, with the replica at the end of its log.
#[test]
fn a_replica_that_never_parks_is_given_up_and_one_that_waits_for_the_edge_is_not() {
    let mut bed = Bed::unparked();
    let late = bed.book.now.plus(nanos(PARK_MAX));
    bed.turn_at(late);
    assert_eq!(bed.gave_up(), None);
    bed.turn_at(late.plus(Nanos(1)));
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
    assert_eq!(bed.book.reason, "the replica did not come to the end of its log");
    let mut bed = Bed::accepted();
    bed.book.is_lost = true;
    bed.turn();
    bed.pass(2 * PARK_MAX.as_millis() as u64);
    assert_eq!(bed.turn(), Turn::Until(bed.book.now.plus(nanos(GRANT_LOOK))));
    bed.grant();
    bed.turn();
    let late = bed.book.now.plus(nanos(PARK_MAX));
    bed.turn_at(late);
    assert_eq!(bed.gave_up(), None);
    bed.turn_at(late.plus(Nanos(1)));
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
}

#[test]
fn a_replica_that_still_goes_on_after_the_grant_is_waited_for() {
    let mut bed = Bed::unparked();
    for executed in 1..4 {
        bed.book.progress = (9, executed);
        bed.pass(PARK_MAX.as_millis() as u64 - 1);
        assert_eq!(bed.gave_up(), None);
    }
    bed.pass(PARK_MAX.as_millis() as u64);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
}

/// Records that were kept for it never find room.
#[test]
fn a_replica_that_never_takes_the_rest_of_its_log_is_given_up() {
    let mut bed = Bed::served();
    (bed.book.is_lost, bed.book.keeps) = (true, true);
    bed.turn();
    let late = bed.book.now.plus(nanos(PARK_MAX));
    bed.turn_at(late);
    assert_eq!(bed.gave_up(), None);
    bed.turn_at(late.plus(Nanos(1)));
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
    assert_eq!(bed.book.reason, "the replica did not take the rest of the log");
}
