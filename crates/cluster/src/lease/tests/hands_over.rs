//! Resigning, and what a host says of being in step.

use super::*;

#[test]
fn who_resigns_is_silent_first_and_is_followed_at_once() {
    let mut pair = Pair::paired();
    pair.until(205);
    pair.wanted = Default::default();
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    assert_eq!(
        (&pair.wanted[0].stores[..], pair.wanted[0].kinds()),
        (&[0][..], vec![Kind::Resign])
    );
    assert_eq!(pair.members[1].promised(), Nanos(0), "nothing is promised to it any more");
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(1)), "without any wait");
    assert_eq!(pair.wanted[1].notes, [Note::PeerResigned, Note::TookOver, Note::Unprotected]);
    pair.until(300);
    assert_eq!(pair.roles(), [Role::Waiting, Role::Solo]);
}

#[test]
fn a_resignation_that_is_lost_is_said_again() {
    let mut pair = Pair::paired();
    pair.until(205);
    pair.heard[0] = false;
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    pair.until(210);
    pair.heard[0] = true;
    assert_eq!(pair.when(300, |pair| pair.speaker() == Some(1)), 221);
    assert!(!pair.wanted[0].kinds()[2..].contains(&Kind::Ask));
}

#[test]
fn a_grant_that_is_under_way_does_not_undo_a_resignation() {
    let mut pair = Pair::paired();
    pair.heard[1] = false;
    pair.until(205);
    let grant = pair.wanted[1].sent[0];
    pair.heard = [false; 2];
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    pair.does(0, |lease, now, out| lease.handle_message(now, &grant, out));
    assert_eq!((pair.members[0].deadline(), pair.roles()[0]), (0, Role::Resigned));
}

#[test]
fn a_question_from_before_a_resignation_is_not_granted_after_it() {
    let mut pair = Pair::paired();
    pair.heard[0] = false;
    pair.until(221);
    let early = pair.wanted[0].sent[0];
    pair.heard[0] = true;
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    let grants = pair.members[1].counts().grants;
    pair.does(1, |lease, now, out| lease.handle_message(now, &early, out));
    assert_eq!((pair.members[1].counts().replayed, pair.members[1].counts().grants), (1, grants));
    assert_eq!(pair.members[1].promised(), Nanos(0));
}

#[test]
fn a_resignation_ends_the_wait_of_one_that_takes_over_already() {
    for answers in [false, true] {
        let mut pair = Pair::paired();
        pair.until(201);
        pair.answers[1] = answers;
        pair.heard[1] = false;
        pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
        assert_eq!(pair.roles()[1], if answers { Role::Solo } else { Role::Claiming });
        assert_eq!(pair.speaker(), Some(0));
        pair.does(0, |lease, now, out| lease.handle_resign(now, out));
        assert_eq!(pair.members[1].promised(), Nanos(0));
        assert_eq!(pair.speaker(), answers.then_some(1));
    }
}

#[test]
fn an_old_resignation_is_none() {
    let mut pair = Pair::paired();
    pair.until(201);
    let last = pair.wanted[0].sent[0];
    let old = Message { kind: Kind::Resign, number: last.number + 1, epoch: 0, ..last };
    pair.does(1, |lease, now, out| lease.handle_message(now, &old, out));
    assert_eq!(pair.roles()[1], Role::Following);
    assert!(pair.members[1].promised() > pair.now);
}

#[test]
fn who_resigned_can_serve_again_if_nobody_has_taken_over() {
    let mut pair = Pair::new();
    pair.until(100);
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    assert_eq!(pair.roles()[0], Role::Solo, "it had not resigned");
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Resigned, None));
    pair.until(200);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Resigned, Role::Waiting], None));
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    assert_eq!(pair.roles()[0], Role::Restarting);
    let patience = timing().patience().as_ms();
    assert_eq!(pair.when(500, |pair| pair.speaker() == Some(0)), 200 + patience + 1);
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
}

#[test]
fn who_does_not_own_the_record_cannot_resign() {
    let mut pair = Pair::paired();
    pair.wanted = Default::default();
    pair.does(1, |lease, now, out| lease.handle_resign(now, out));
    assert_eq!((pair.roles()[1], pair.wanted[1].sent.len()), (Role::Following, 0));
    pair.does(0, |lease, now, out| lease.handle_peer_gone(now, out));
    assert_eq!(pair.roles()[0], Role::Paired, "its backup is what is gone");
}

#[test]
fn a_backup_that_falls_out_of_step_grants_nothing_more() {
    let mut pair = Pair::paired();
    pair.until(201);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, false, out)));
    assert_eq!(pair.roles()[1], Role::Waiting);
    pair.until(300);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Solo, Role::Waiting], Some(0)));
}

#[test]
fn being_in_step_is_of_one_epoch_and_of_those_that_it_concerns() {
    let mut pair = Pair::paired();
    let says = |pair: &mut Pair, side, epoch, yes| {
        let mut valid = false;
        pair.does(side, |lease, now, out| valid = lease.handle_in_step(now, epoch, yes, out));
        valid
    };
    assert!(!says(&mut pair, 1, 0, false), "that epoch is over");
    assert!(!says(&mut pair, 0, 1, false), "the pair is the record's, not the host's");
    assert!(says(&mut pair, 1, 1, true));
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
    let mut pair = Pair::new();
    assert!(!says(&mut pair, 1, 0, true), "it has not read the record yet");
    pair.until(100);
    assert!(!says(&mut pair, 1, 1, false), "it is not");
    // Both are in step in an epoch that is over by then.
    assert!(says(&mut pair, 0, 1, true));
    pair.record = Some(record(2, 0, Mode::Solo));
    assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
}
