//! Who is granted, who is refused, and what survives kill -9.

use crate::bed::*;
use holdfast::config::Role;
use holdfast::status::State;
use holdfast_wire::message::Message;

#[test]
fn a_backup_in_step_is_granted_and_the_old_primary_learns_of_it() {
    in_bed("grant", |bed| {
        assert_eq!(bed.status().state, State::Waiting);
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        b.say(&Message::Promote { epoch: 1 });
        assert!(b.hear("Refused").contains("preferred"));
        a.promote(1);
        assert_eq!(b.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        wait_for("unprotected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Unprotected).then_some(())
        });
        b.say(&Message::Promote { epoch: 2 });
        assert!(b.hear("Refused").contains("in step"));
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        b.promote(2);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 2, current: \"b\" }");
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (2, State::Unprotected));
        eprintln!("grant took {} µs", status.counters["edge.last_grant_us"]);
    });
}

#[test]
fn a_killed_edge_comes_back_with_its_fence_and_epoch() {
    in_bed("kill", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        bed.kill();
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (1, State::Waiting));
        assert!(status.reason.starts_with("`a` is current"), "open for a: {}", status.reason);
        let mut a = bed.member("a");
        a.say(&Message::Ask);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        a.promote(1);
    });
}

#[test]
fn a_backup_that_does_not_answer_bars_nobody() {
    in_bed("silent", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        a.say(&Message::Promote { epoch: 2 });
        assert!(a.hear("Refused").contains("in step"));
        // `b` answers nothing from here on.
        wait_for("silence", || {
            a.listen();
            (bed.status().state == State::Unprotected).then_some(())
        });
        a.promote(2);
        b.say(&Message::Promote { epoch: 2 });
        b.hear("Epoch");
        assert_eq!(b.hear("Alone"), "Alone { member: \"a\" }");
        b.hear("Epoch");
        assert!(b.hear("Refused").contains("not the next one"));
    });
}

#[test]
fn a_hand_that_closed_the_edge_is_not_overruled_by_a_member_or_a_restart() {
    in_bed("hand", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        assert_eq!(bed.ask("fence").unwrap()["epoch"], 1);
        for round in 0..3 {
            assert_eq!(bed.status().state, State::Fenced, "{round}");
            // The current one, the same one started anew, a backup.
            assert!(a.ask(1).contains("closed by hand"));
            assert!(a.ask(2).contains("closed by hand"));
            assert!(b.ask(2).contains("closed by hand"));
            bed.kill();
            if round == 1 {
                bed.reboot();
            }
            bed.start();
            (a, b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
        }
        bed.ask("unfence").unwrap();
        a.promote(1);
        bed.kill();
        bed.start();
        assert_ne!(bed.status().state, State::Fenced, "opened for good");
    });
}

#[test]
fn a_fence_for_a_test_ends_with_the_takeover() {
    in_bed("held", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        let request = holdfast::admin::Request::Fence { until_takeover: true };
        holdfast::admin::ask(&bed.config.admin_socket(Role::Edge), request).unwrap();
        assert!(a.ask(1).contains("closed by hand"));
        assert_eq!(bed.status().state, State::Fenced);
        b.promote(2);
        assert_ne!(bed.status().state, State::Fenced);
    });
}
