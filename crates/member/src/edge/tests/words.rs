//! What members say, what the edge answers, and what it tells of itself.

use super::*;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{VERSION, VERSION_OLDEST};

#[test]
fn what_members_say_is_told_apart() {
    let of = |message| MemberRequest::of(message, GROUP, "a");
    let promote = |epoch, lives| MemberRequest::Promote { epoch, lives };
    for (message, wish) in [
        (Message::Ask, MemberRequest::Ask),
        (Message::InStep { epoch: 2, yes: true }, MemberRequest::InStep { epoch: 2, yes: true }),
        (Message::Builds { epoch: 3 }, MemberRequest::Builds { epoch: 3 }),
        (Message::Promote { epoch: 4 }, promote(4, false)),
        (Message::GoAlone { epoch: 5 }, promote(5, true)),
        (
            Message::NotAlive { epoch: 6, keys: vec![KEY] },
            MemberRequest::NotAlive { epoch: 6, keys: vec![KEY] },
        ),
        (Message::Beat { number: 1, echo: 1, executed: 0 }, MemberRequest::Nothing),
        (Message::Granted { epoch: 1 }, MemberRequest::Nonsense),
    ] {
        assert_eq!(of(message), wish);
    }
}

#[test]
fn a_hello_fits_only_if_release_group_and_member_do() {
    let said = |versions: (u32, u32), group, member| {
        let mut hello = hello(group, member, (7, true), Vec::new());
        if let Message::Hello { version, log_version, .. } = &mut hello {
            (*version, *log_version) = versions;
        }
        MemberRequest::of(hello, GROUP, "a")
    };
    let release = (VERSION, LOG_VERSION);
    let greeting = holdfast_cluster::membership::Greeting { epoch: 7, speaks: true };
    for (hello, fits) in [
        (said(release, GROUP, "a"), true),
        (said((VERSION_OLDEST, LOG_VERSION), GROUP, "a"), true),
        (said((VERSION + 1, LOG_VERSION), GROUP, "a"), false),
        (said((VERSION_OLDEST - 1, LOG_VERSION), GROUP, "a"), false),
        (said((VERSION, LOG_VERSION + 1), GROUP, "a"), false),
        (said(release, "other", "a"), false),
        (said(release, GROUP, "b"), false),
    ] {
        assert_eq!(hello, MemberRequest::Hello { fits, greeting });
    }
}

#[test]
fn who_says_what_no_member_says_does_not_stay() {
    let mut bed = Bed::pair();
    assert!(!bed.says(B, MemberRequest::Nonsense));
    assert_eq!(bed.take(), ["to 1: Refused", "close 1"]);
    assert!(!bed.machine.is_here(B) && bed.machine.is_here(A));
    assert!(!bed.says(B, MemberRequest::Ask), "nothing more is heard of it");
    bed.machine.handle_opened(B, &mut bed.book);
    bed.take();
    assert!(!bed.says(B, MemberRequest::Ask), "it has not said hello");
    assert_eq!(bed.take(), ["to 1: Refused", "close 1"]);
}

#[test]
fn who_asks_is_told_the_epoch() {
    let mut bed = Bed::pair();
    assert!(bed.says(B, MemberRequest::Ask));
    assert_eq!(bed.take(), ["to 1: Epoch"]);
}

/// Whoever takes over waits for the last message.
#[test]
fn the_bounds_of_many_flows_come_in_several_messages_and_one_is_the_last() {
    for (flows, messages) in [
        (Some(0), vec![(0, true)]),
        (Some(1), vec![(1, true)]),
        (Some(4096), vec![(4096, true)]),
        (Some(4097), vec![(4096, false), (1, true)]),
        (None, vec![(0, true)]),
    ] {
        let mut bed = Bed::pair();
        bed.book.bounds.clear();
        bed.book.flows = flows;
        bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
        bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
        bed.written(Ok(()));
        assert_eq!(bed.book.bounds, messages);
        let why = "bounds: unknown, the takeover guesses: no memory".to_owned();
        assert_eq!(bed.book.notes.contains(&why), flows.is_none());
    }
}

#[test]
fn only_a_current_member_that_is_here_is_asked_about_quiet_clients() {
    let mut bed = Bed::pair();
    bed.pass(100, &[A, B], false);
    assert!(bed.book.can_ask && bed.take().is_empty(), "no client is quiet");
    bed.book.quiet.push(KEY);
    bed.pass(100, &[A, B], false);
    assert_eq!(bed.take(), ["to 0: AreAlive"]);
    bed.machine.handle_closed(A, "test", bed.book.now, &mut bed.book);
    bed.pass(100, &[B], false);
    assert!(!bed.book.can_ask && bed.take().is_empty(), "nobody can be asked");
}

#[test]
fn a_heartbeat_beside_the_channel_is_a_sign_of_life_as_of_when_it_came() {
    let mut bed = Bed::pair();
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    for ms in 1..=100u64 {
        if ms % 10 == 0 {
            bed.machine.handle_pulse(A, bed.book.now);
        }
        bed.pass(1, &[B], false);
    }
    assert!(!bed.take().contains(&"to 1: Reach".to_owned()), "it lives");
    let last = bed.book.now;
    bed.machine.handle_pulse(A, last);
    bed.pass(25, &[B], false);
    assert!(bed.machine.is_suspected(A));
    // One that has come already is no news.
    bed.machine.handle_pulse(A, last);
    assert!(bed.machine.is_suspected(A));
    bed.machine.handle_pulse(A, last.plus(Nanos::from_ms(1)));
    assert!(!bed.machine.is_suspected(A));
    bed.pass(100, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()), "it is gone");
    bed.machine.handle_pulse(7, bed.book.now);
}

#[test]
fn heartbeats_beside_the_channel_show_that_this_host_hears() {
    for is_heard in [true, false] {
        let mut bed = Bed::pair();
        for _ in 0..100 {
            bed.pass(1, &[], false);
            if is_heard {
                bed.machine.handle_pulse(B, bed.book.now);
            }
        }
        bed.take();
        bed.pass(1, &[A, B], false);
        assert_eq!(bed.machine.deafened(), u64::from(!is_heard));
    }
}

/// What is not urgent is put off meanwhile.
#[test]
fn an_edge_is_not_calm_while_the_current_member_is_suspected() {
    let mut bed = Bed::pair();
    assert!(bed.machine.is_calm());
    bed.pass(25, &[A], false);
    assert!(bed.machine.is_calm(), "a backup's silence brings no takeover");
    bed.pass(1, &[A, B], false);
    bed.pass(25, &[B], false);
    assert!(bed.machine.is_suspected(A) && !bed.machine.is_calm());
    let nobodys = Bed::new(EdgeState::default(), (0, None));
    assert!(nobodys.machine.is_calm(), "nobody is current");
}

#[test]
fn an_edge_counts_what_befell_it() {
    let mut bed = Bed::new(EdgeState::default(), (0, None));
    assert_eq!((bed.machine.count(), bed.machine.grants()), (2, 0));
    bed = Bed::pair();
    assert_eq!(bed.machine.grants(), 1);
    bed.says(B, MemberRequest::Promote { epoch: 9, lives: false });
    assert_eq!(bed.machine.grants(), 1, "a refusal is none");
    assert_eq!((bed.machine.overslept(), bed.machine.deafened()), (0, 0));
    // Nobody is heard for a while, nor does this process run.
    bed.book.now = bed.book.now.plus(Nanos::from_ms(200));
    bed.pass(1, &[A, B], false);
    assert_eq!((bed.machine.overslept(), bed.machine.deafened()), (1, 1));
}

#[test]
fn whichever_member_was_judged_too_late_counts() {
    let mut bed = Bed::pair();
    bed.pass(3, &[A, B], false);
    // From now on the edge's heartbeats to the two come at different times.
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    bed.pass(1, &[A], false);
    bed.book.now = bed.book.now.plus(Nanos::from_ms(17));
    bed.pass(1, &[A], false);
    assert_eq!(bed.machine.overslept(), 1, "the other's was late by less than a heartbeat");
}

#[test]
fn only_the_current_member_is_suspected_in_words() {
    for (heard, suspected) in [(A, false), (B, true)] {
        let mut bed = Bed::pair();
        bed.book.notes.clear();
        bed.pass(200, &[heard], false);
        let noted = bed.book.notes.contains(&"suspect: a".to_owned());
        assert_eq!(noted, suspected, "{:?}", bed.book.notes);
        assert!(!bed.book.notes.contains(&"suspect: b".to_owned()), "{:?}", bed.book.notes);
    }
}
