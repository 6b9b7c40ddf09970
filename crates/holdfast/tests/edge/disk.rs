//! What the disk and the pinned fence say, and which of them counts.

use crate::bed::*;
use holdfast::status::State;
use holdfast_cluster::state::EdgeState;
use holdfast_wire::message::Message;

#[test]
fn a_disk_that_fails_ends_no_promotion_and_is_said_at_once() {
    in_bed("disk", |bed| {
        bed.with_a_disk_of_our_own();
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        bed.disk("fails");
        // No member has asked for anything.
        let status = wait_for("unprotected", || {
            a.listen();
            b.listen();
            Some(bed.status()).filter(|status| status.state == State::Unprotected)
        });
        assert!(status.reason.contains("Input/output error"), "{}", status.reason);
        let refused = b.ask(2);
        assert!(refused.contains("again: true") && refused.contains("error"), "{refused}");
        assert_eq!(bed.status().epoch, 1);
        bed.disk("works");
        let granted = wait_for("a grant", || Some(b.ask(2)).filter(|it| it.starts_with("Granted")));
        assert_eq!(granted, "Granted { epoch: 2 }");
        let newest = bed.blocks().into_iter().flatten().max_by_key(|block| block.number).unwrap();
        assert_eq!((newest.state.epoch, newest.state.current.as_deref()), (2, Some("b")));
    });
}

#[test]
fn a_state_file_that_was_removed_or_replaced_is_written_anew() {
    in_bed("anew", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        let path = bed.edge().state_file.clone();
        let is_back = |bed: &Bed| {
            let newest = bed.blocks().into_iter().flatten().max_by_key(|block| block.number);
            newest.is_some_and(|block| block.state.epoch == 1)
        };
        std::fs::remove_file(&path).unwrap();
        wait_for("its return", || {
            a.listen();
            path.exists().then_some(())
        });
        assert!(is_back(bed));
        // The file is replaced again at once, perhaps while the daemon still opens the new one.
        for _ in 0..2 {
            let other = bed.folder.join("other");
            std::fs::write(&other, "nonsense").unwrap();
            std::fs::rename(&other, &path).unwrap();
            wait_for("its return", || {
                a.listen();
                (std::fs::metadata(&path).unwrap().len() == 8192).then_some(())
            });
            assert!(is_back(bed));
        }
        bed.kill();
        bed.start();
        assert_eq!(bed.status().epoch, 1);
    });
}

#[test]
fn a_grant_waits_for_the_disk_and_nothing_else_does() {
    in_bed("hang", |bed| {
        bed.with_a_disk_of_our_own();
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        bed.disk("hangs");
        b.say(&Message::Promote { epoch: 2 });
        // The daemon lives, and reports what is wrong, while its disk does not answer.
        let status = wait_for("unprotected", || {
            a.listen();
            b.listen();
            Some(bed.status()).filter(|status| status.reason.contains("does not answer"))
        });
        assert_eq!((status.epoch, status.state), (1, State::Unprotected));
        assert!(b.ask(2).contains("another grant is being written"));
        assert!(a.heard.is_empty() && b.heard.is_empty(), "{:?} {:?}", a.heard, b.heard);
        bed.disk("works");
        b.granted(2);
    });
}

#[test]
fn writes_take_turns_between_the_blocks() {
    in_bed("turns", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        for epoch in 1..5 {
            a.promote(epoch);
            let whole = bed.blocks().map(|block| block.expect("a whole block"));
            let newest = whole.iter().map(|block| (block.number, block.state.epoch)).max();
            let oldest = whole.iter().map(|block| block.number).min();
            let (number, newest) = newest.unwrap();
            assert_eq!((oldest, newest), (Some(number - 1), epoch), "{whole:?}");
        }
    });
}

#[test]
fn a_fence_that_is_older_than_the_disk_is_closed() {
    in_bed("agree", |bed| {
        let (mut a, _b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        bed.kill();
        bed.write_state(3, Some("b"));
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (3, State::Waiting), "{}", status.reason);
        let (mut a, mut b) = (bed.member_in("a", 1, true), bed.member("b"));
        assert!(a.ask(1).contains("not the next one"));
        b.promote(3);
    });
}

/// The daemon has died between the disk and the fence: nobody was told, and who was to be current may
/// have died, too.
#[test]
fn a_grant_that_was_written_and_not_given_is_none() {
    in_bed("ungiven", |bed| {
        let (mut a, _b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        bed.kill();
        bed.write_state(2, Some("b"));
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (1, State::Waiting), "{}", status.reason);
        let (mut a, mut b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        b.promote(2);
    });
}

#[test]
fn a_fence_that_is_newer_than_the_disk_wins() {
    in_bed("newer", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        b.promote(2);
        for lost in [true, false] {
            bed.kill();
            if lost {
                std::fs::remove_file(&bed.edge().state_file).unwrap();
            } else {
                bed.write_state(1, Some("a"));
            }
            bed.start();
            let status = bed.status();
            assert_eq!((status.epoch, status.state), (2, State::Waiting));
            assert!(status.reason.starts_with("`b` is current"), "open for b: {}", status.reason);
            assert!(bed.event("disk").is_some());
            (a, b) = (bed.member("a"), bed.member_in("b", 2, true));
            assert!(a.ask(1).contains("not the next one"), "an empty server beside the living one");
            assert!(a.ask(2).contains("not the next one"));
            b.promote(2);
            wait_for("the disk", || {
                let newest = bed.blocks().into_iter().flatten().max_by_key(|block| block.number);
                newest.filter(|it| {
                    it.state == EdgeState { epoch: 2, current: Some("b".into()), fenced: false }
                })
            });
        }
    });
}

#[test]
fn after_a_reboot_with_a_lost_disk_the_living_primary_goes_on() {
    in_bed("lost", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        b.promote(2);
        bed.kill();
        bed.reboot();
        std::fs::remove_file(&bed.edge().state_file).unwrap();
        bed.start();
        // The member with the empty server asks first.
        let mut a = bed.member("a");
        assert!(a.ask(1).contains("just started"));
        let mut b = bed.member_in("b", 2, true);
        b.granted(2);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 2, current: \"b\" }");
        assert!(a.ask(1).contains("not the next one"));
        assert_eq!(bed.status().epoch, 2);
        // The answer is remembered, too.
        bed.kill();
        bed.reboot();
        bed.start();
        assert_eq!(bed.status().epoch, 2);
    });
}
