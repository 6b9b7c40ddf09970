//! A primary that leaves its backup, or is left by it: stopped, replaced, or alone.

use super::*;
use crate::timing::primary::{CONFIRM_MAX, GRANT_BUILD_MAX, GRANT_MAX, REPLACED_REST};

impl Bed {
    /// A primary that hands over and waits for the edge's word. `returns`: it stays as a backup.
    fn yielding(returns: bool, is_cold: bool) -> Self {
        let mut bed = Self::new();
        bed.turn();
        (bed.book.member.is_cold, bed.book.member.hands_over) = (is_cold, returns);
        bed.machine.turn(!returns, &mut bed.book);
        assert!(bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
        bed.book.take();
        bed
    }

    /// A primary whose server has ended.
    fn server_ended() -> Self {
        let mut bed = Self::new();
        bed.turn();
        bed.book.ended = true;
        bed.turn();
        bed.book.take();
        bed
    }

    /// A primary that has lost its backup, and asks the edge.
    fn asking() -> Self {
        let mut bed = Self::new();
        bed.turn();
        bed.book.is_lost = true;
        bed.turn();
        assert!(bed.book.has("shows Asks"), "{:?}", bed.book.lines);
        bed.book.is_lost = false;
        bed.book.take();
        bed
    }

    fn replaced_by_backup(&mut self) {
        self.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
    }

    /// Asserts that it rests before it joins the member that is current.
    fn rests_and_joins(&mut self) {
        let since = self.book.now;
        let last = since.plus(nanos(REPLACED_REST));
        self.book.edge.push(Message::Reach { member: "b", yes: true });
        assert!(matches!(self.turn_at(last), Turn::Until(_)));
        assert!(self.book.edge.is_empty(), "it hears the edge");
        assert_eq!(self.turn_at(last.plus(Nanos(1))), Turn::End(End::Again));
    }
}

#[test]
fn who_has_handed_over_to_stay_joins_the_other_member() {
    let mut bed = Bed::yielding(true, false);
    bed.replaced_by_backup();
    assert!(matches!(bed.turn(), Turn::Until(_)));
    assert_eq!(bed.book.take(), ["kill", "shows HandedOver", "drop peer"]);
    bed.rests_and_joins();
    // Who is stopped meanwhile does not stay.
    let mut bed = Bed::yielding(true, false);
    bed.replaced_by_backup();
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert_eq!(bed.book.take(), ["kill", "shows HandedOver"]);
    assert!(matches!(bed.turn(), Turn::Until(_)), "nothing is left to do");
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
}

#[test]
fn who_is_stopped_while_it_rests_ends() {
    let mut bed = Bed::new();
    bed.replaced_by_backup();
    bed.turn();
    assert!(bed.book.has("shows Replaced"), "{:?}", bed.book.lines);
    let rested = bed.book.now.plus(nanos(REPLACED_REST)).plus(Nanos(1));
    assert_eq!(bed.stop(), Turn::End(End::Stopped));
    assert_eq!(bed.turn_at(rested), Turn::End(End::Again));
}

#[test]
fn a_hand_over_waits_for_a_backup_that_builds_much_longer() {
    for (is_cold, max) in [(false, GRANT_MAX), (true, GRANT_BUILD_MAX)] {
        let mut bed = Bed::yielding(false, is_cold);
        let last = bed.book.now.plus(nanos(max));
        assert!(matches!(bed.turn_at(Nanos(last.0 - 1)), Turn::Until(_)), "{is_cold}");
        assert_eq!(bed.book.take(), Vec::<String>::new());
        assert_eq!(bed.turn_at(last), Turn::End(End::Silent));
        assert_eq!(bed.book.take(), ["kill"]);
    }
}

/// Only a member that was to stay takes the service back, and only if nobody else has it.
#[test]
fn a_hand_over_is_taken_back_by_no_one_else() {
    for (returns, is_cold, is_lost, replaced, resumes) in [
        (true, true, true, false, true),
        (true, true, true, true, false),
        (false, true, true, false, false),
        (true, false, true, false, false),
        (true, true, false, false, false),
    ] {
        let mut bed = Bed::yielding(returns, is_cold);
        bed.book.is_lost = is_lost;
        if replaced {
            bed.replaced_by_backup();
        }
        bed.turn();
        let seen = (bed.book.has("resume"), bed.book.member.speaks);
        assert_eq!(seen, (resumes, resumes), "{returns} {is_cold} {is_lost} {replaced}");
        assert_eq!(bed.book.has("drop peer"), is_lost || replaced, "{:?}", bed.book.lines);
    }
    let mut bed = Bed::yielding(true, true);
    bed.book.is_lost = true;
    assert_eq!(bed.stop(), Turn::End(End::Silent));
    assert!(!bed.book.has("resume"), "{:?}", bed.book.lines);
}

#[test]
fn a_hand_over_does_not_wait_forever_for_what_is_not_confirmed() {
    let unconfirmed = || {
        let mut bed = Bed::new();
        bed.turn();
        bed.book.log = log_record();
        bed.stop();
        assert!(!bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
        bed
    };
    let mut bed = unconfirmed();
    let last = bed.book.now.plus(nanos(CONFIRM_MAX));
    bed.turn_at(Nanos(last.0 - 1));
    assert!(!bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
    bed.turn_at(last);
    assert!(bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
    let mut bed = unconfirmed();
    bed.stop();
    assert!(bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
    let mut bed = unconfirmed();
    bed.book.is_lost = true;
    bed.turn();
    assert!(bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
}

/// The edge may be about to let the backup speak, so this kernel must stay silent.
#[test]
fn who_is_stopped_while_the_edge_decides_waits_for_its_word() {
    for mut bed in [Bed::server_ended(), Bed::asking()] {
        assert!(matches!(bed.stop(), Turn::Until(_)));
        let last = bed.book.now.plus(nanos(GRANT_MAX));
        assert!(matches!(bed.turn_at(Nanos(last.0 - 1)), Turn::Until(_)));
        assert!(!bed.book.has("kill"), "{:?}", bed.book.lines);
        assert_eq!(bed.turn_at(last), Turn::End(End::Silent));
        assert!(bed.book.has("kill"), "{:?}", bed.book.lines);
    }
    for mut bed in [Bed::server_ended(), Bed::asking()] {
        bed.stop();
        bed.replaced_by_backup();
        assert_eq!(bed.turn(), Turn::End(End::Stopped));
        assert!(bed.book.has("shows HandedOver"), "{:?}", bed.book.lines);
    }
}

#[test]
fn who_has_lost_its_server_joins_the_backup_that_goes_on() {
    let mut bed = Bed::server_ended();
    bed.replaced_by_backup();
    bed.turn();
    let shown = "shows ServerEnded, Current";
    assert!(bed.book.lines.iter().any(|line| line.starts_with(shown)), "{:?}", bed.book.lines);
    bed.rests_and_joins();
}

/// The edge may have granted it the service just before.
#[test]
fn a_backup_that_gave_up_is_not_waited_for_nor_joined() {
    let mut bed = Bed::server_ended();
    bed.book.peer.push(Message::GaveUp { state: "hung", reason: "it stood still" });
    bed.replaced_by_backup();
    bed.turn();
    let nobody = "shows ServerEnded, Nobody(\"the backup gave up: hung: it stood still\")";
    assert!(bed.book.has(nobody), "{:?}", bed.book.lines);
    for _ in 0..2 * REPLACED_REST.as_millis() {
        let turn = bed.turn_at(bed.book.now.plus(Nanos::from_ms(1)));
        assert!(matches!(turn, Turn::Until(_)), "{turn:?}");
    }
}

#[test]
fn a_silent_backup_is_doubted_up_to_a_limit() {
    let mut bed = Bed::in_doubt();
    let last = bed.book.member.watch.doubt_until(bed.book.now);
    bed.turn_at(Nanos(last.0 - 1));
    assert!(!bed.book.has("drop peer"), "{:?}", bed.book.lines);
    bed.turn_at(last);
    assert!(bed.book.has("drop peer"), "{:?}", bed.book.lines);
}

#[test]
fn a_channel_that_takes_nothing_more_is_dropped() {
    let mut bed = Bed::server_ended();
    bed.pass(5);
    assert!(!bed.book.has("drop peer"), "{:?}", bed.book.lines);
    bed.book.bad = "flush";
    bed.pass(1);
    assert!(bed.book.has("drop peer"), "{:?}", bed.book.lines);
}

#[test]
fn a_gate_that_cannot_be_opened_ends_the_member() {
    let mut bed = Bed::asking();
    bed.book.bad = "open";
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    assert_eq!(bed.turn(), Turn::End(End::Failed("cannot open".to_owned())));
    assert!(!bed.book.has("shows Alone"), "{:?}", bed.book.lines);
}

/// The kernel believes they were sent, and a client that uploads would wait for its timer.
#[test]
fn acks_that_the_gate_held_back_leave_once_nothing_waits() {
    for (rcv_nxt, has_newer, sent) in
        [(1100, false, true), (1000, false, false), (1100, true, false)]
    {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        bed.slot(conn).rcv_nxt = SeqNo(rcv_nxt);
        if has_newer {
            bed.book.slots.insert(ConnId(6), slot(5));
        }
        bed.book.is_lost = true;
        bed.turn();
        bed.book.take();
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        bed.turn();
        let lines = bed.book.take();
        let at = |what: &str| lines.iter().position(|line| line == what);
        assert_eq!(lines.iter().any(|line| line.starts_with("ack")), sent, "{lines:?}");
        assert!(!sent || at("alone") < at("ack 1100"), "{lines:?}");
    }
}

/// Clients get what the backup holds by now, and the edge is heard.
#[test]
fn a_hand_over_goes_on_with_what_the_backup_confirms() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.log = log_record();
    bed.stop();
    bed.book.edge.push(Message::Reach { member: "b", yes: true });
    bed.book.peer.push(Message::FrameOk { number: 1 });
    bed.book.behind = 8;
    bed.turn();
    assert!(!bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
    assert!(bed.book.edge.is_empty(), "it hears the edge");
    assert_eq!(bed.book.stable, HEADER_LEN as u64);
}

/// The members may have met long ago.
#[test]
fn a_silence_before_it_was_paired_is_not_held_against_the_backup() {
    let mut book = Book::new();
    for _ in 0..2000 {
        let now = book.bench.now.plus(Nanos::from_ms(1));
        book.bench.now = now;
        book.member.watch.handle_edge(now);
        book.member.watch.handle_timeout(now);
    }
    let now = book.bench.now;
    assert!(book.member.watch.verdict(now).is_some());
    let machine = PrimaryMachine::new(100, &mut book);
    let mut bed = Bed { machine, book };
    bed.book.is_silent = true;
    bed.pass(100);
    assert!(!bed.book.has("shows Doubts"), "{:?}", bed.book.lines);
}

#[test]
fn who_waits_for_another_one_looks_after_its_own_host() {
    let mut ended = Bed::server_ended();
    let mut resting = Bed::new();
    resting.replaced_by_backup();
    resting.turn();
    assert!(!resting.book.has_ended, "{:?}", resting.book.lines);
    for bed in [&mut ended, &mut resting] {
        let (stood_by, looks) = (bed.book.stood_by, bed.book.server_looks);
        bed.pass(3);
        assert_eq!(bed.book.stood_by, stood_by + 3, "{:?}", bed.machine.stage);
        assert_eq!(bed.book.server_looks, looks + 3, "{:?}", bed.machine.stage);
    }
}

/// Its SYN-ACK would wait until the client gives up.
#[test]
fn who_connects_while_the_server_is_handed_over_is_told_to_the_backup() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.log = log_record();
    bed.stop();
    assert!(!bed.book.has("shows Stopped"), "{:?}", bed.book.lines);
    bed.hold(6);
    bed.turn();
    assert!(bed.book.has("send Conn"), "{:?}", bed.book.lines);
}

#[test]
fn a_backup_that_is_barred_may_not_come_again_as_it_is() {
    let bed = Bed::asking();
    assert_eq!(bed.book.may_come_again, Some(false));
}
