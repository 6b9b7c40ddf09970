//! What follows when a member, the way to it, or the arbiter is gone.

use super::*;

#[test]
fn a_primary_that_dies_is_followed_by_its_backup_when_its_lease_is_over() {
    let mut pair = Pair::paired();
    pair.until(210);
    dies(&mut pair, 0);
    // It was heard at 200 ms, and its kernel speaks until 260.
    assert_eq!(pair.when(400, |pair| pair.roles()[1] != Role::Following), 261);
    assert_eq!(pair.roles()[1], Role::Solo, "the arbiter answers at once");
    assert_eq!(pair.wanted[1].notes, [Note::PeerSilent, Note::TookOver, Note::Unprotected]);
    assert_eq!(pair.speaker(), Some(1));
    let promised = MS(200).plus(timing().promise());
    assert_eq!(pair.members[1].promised(), promised);
    assert_eq!(pair.record, Some(record(2, 1, Mode::Solo)));
}

#[test]
fn nobody_takes_over_before_the_promise_is_over() {
    let mut pair = Pair::paired();
    pair.until(201);
    // The owner's daemon is gone, its kernel is not.
    dies(&mut pair, 0);
    pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(0)));
    assert_eq!(pair.when(400, |pair| pair.speaker().is_none()), 260);
    assert_eq!(pair.when(400, |pair| pair.speaker() == Some(1)), 261);
}

#[test]
fn a_backup_that_dies_leaves_its_primary_alone_and_nobody_notices() {
    let mut pair = Pair::paired();
    pair.until(210);
    dies(&mut pair, 1);
    // The newest grant is of 200 ms; two and a half periods later it asks to go on alone.
    assert_eq!(pair.when(400, |pair| pair.roles()[0] != Role::Paired), 251);
    assert_eq!(pair.wanted[0].notes, [Note::NoGrants, Note::Unprotected]);
    assert_eq!(pair.wanted[0].stores.last(), Some(&FOREVER));
    assert!(!pair.wanted[0].stores.contains(&0), "it never fell silent");
}

#[test]
fn a_backup_that_says_that_it_leaves_is_not_waited_for() {
    let gives_up = |lease: &mut Lease, now, out: &mut Wanted| {
        assert!(lease.handle_in_step(now, 1, false, out));
    };
    let ends = |lease: &mut Lease, now, out: &mut Wanted| lease.handle_leave(now, out);
    for leave in [gives_up as fn(&mut Lease, Nanos, &mut Wanted), ends] {
        let mut pair = Pair::paired();
        pair.until(210);
        pair.does(1, leave);
        assert_eq!(pair.when(400, |pair| pair.roles()[0] == Role::Solo), 210);
        assert_eq!(pair.wanted[0].notes, [Note::NoGrants, Note::Unprotected]);
        assert!(!pair.wanted[0].stores.contains(&0), "it never fell silent");
    }
}

#[test]
fn of_two_that_are_cut_off_the_primary_goes_on_and_the_backup_is_barred() {
    let mut pair = Pair::paired();
    pair.until(210);
    pair.heard = [false; 2];
    for ms in 211..500 {
        pair.until(ms);
        assert_eq!(pair.speaker(), Some(0), "{ms}");
    }
    assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
    assert_eq!(pair.wanted[1].notes, [Note::PeerSilent, Note::Barred]);
    // They hear each other again: the one that was barred grants nothing until it is in step.
    pair.heard = [true; 2];
    let grants = pair.members[1].counts().grants;
    pair.until(600);
    assert_eq!(
        (pair.roles(), pair.members[1].counts().grants),
        ([Role::Solo, Role::Waiting], grants)
    );
    pair.joins();
    pair.until(700);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    assert_eq!(pair.record, Some(record(2, 0, Mode::Pair)));
}

#[test]
fn a_backup_that_was_left_grants_nothing_before_it_knows_and_steps_back_when_it_does() {
    let mut pair = Pair::paired();
    pair.heard[1] = false;
    pair.answers[1] = false;
    pair.until(260);
    assert_eq!(pair.roles(), [Role::Solo, Role::Following]);
    let grants = pair.members[1].counts().grants;
    pair.heard[1] = true;
    pair.until(261);
    assert_eq!((pair.members[1].counts().grants, pair.roles()[0]), (grants, Role::Solo));
    pair.answers[1] = true;
    pair.until(320);
    assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
    assert!(pair.wanted[1].notes.contains(&Note::Barred));
}

#[test]
fn a_primary_that_is_replaced_is_silent_by_its_deadline_and_learns_it() {
    let mut pair = Pair::paired();
    pair.until(210);
    // Its process does not run; its kernel does.
    pair.runs[0] = false;
    assert_eq!(pair.when(400, |pair| pair.speaker().is_none()), 260);
    assert_eq!(pair.when(400, |pair| pair.speaker() == Some(1)), 261);
    pair.until(300);
    pair.runs[0] = true;
    pair.until(302);
    // It asks first; the answer tells it to read the record.
    assert_eq!(pair.roles(), [Role::Waiting, Role::Solo]);
    assert_eq!(pair.wanted[0].notes, [Note::Overslept, Note::Deposed]);
    assert_eq!(pair.members[0].counts().overslept, 1);
    assert_eq!(pair.wanted[0].stores.last(), Some(&0));
}

#[test]
fn a_primary_that_overslept_asks_for_a_period_before_it_goes_on_alone() {
    let mut pair = Pair::paired();
    pair.until(210);
    pair.runs[0] = false;
    pair.until(255);
    pair.runs[0] = true;
    pair.until(256);
    // The other one grants at once, and all is as before.
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
    assert!(pair.wanted[0].swaps().is_empty());
    assert_eq!(pair.members[0].deadline(), MS(255).plus(timing().lease()).0);
}

#[test]
fn a_backup_that_overslept_does_not_hold_it_against_its_primary() {
    let mut pair = Pair::paired();
    pair.until(210);
    dies(&mut pair, 0);
    pair.runs[1] = false;
    pair.until(300);
    pair.runs[1] = true;
    // It was to look at 220 ms, 20 ms after it had heard the other one.
    assert_eq!(pair.when(500, |pair| pair.roles()[1] != Role::Following), 341);
    assert_eq!(pair.wanted[1].notes[..2], [Note::Overslept, Note::PeerSilent]);
}

#[test]
fn a_pair_goes_on_without_its_arbiter_and_a_second_fault_stops_it() {
    let mut pair = Pair::paired();
    pair.answers = [false; 2];
    pair.until(1000);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    dies(&mut pair, 0);
    pair.until(1500);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Claiming, None));
    assert!(pair.wanted[1].notes.contains(&Note::ArbiterSilent));
    pair.answers[1] = true;
    pair.until(1600);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(1)));
}

#[test]
fn a_hiccup_while_the_arbiter_is_away_passes() {
    let mut pair = Pair::paired();
    pair.answers = [false; 2];
    pair.heard = [false; 2];
    pair.until(400);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Claiming], None));
    pair.heard = [true; 2];
    pair.until(500);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    assert!(pair.wanted[1].notes.contains(&Note::PeerHeardAgain));
    // Nobody goes on alone when the arbiter comes back.
    pair.answers = [true; 2];
    pair.until(2000);
    assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
}

#[test]
fn a_try_that_was_given_up_and_is_granted_makes_an_owner_all_the_same() {
    let mut pair = Pair::paired();
    pair.answers = [false; 2];
    pair.heard = [false; 2];
    pair.until(400);
    pair.heard = [true; 2];
    pair.until(500);
    // The backup's try has waited somewhere, and is done now.
    pair.record = Some(record(2, 1, Mode::Solo));
    pair.answers = [true; 2];
    let promised = pair.members[1].promised();
    pair.does(1, |lease, now, out| {
        lease.client.poll_now(now);
        lease.act(now, out);
    });
    let at = pair.when(800, |pair| pair.speaker() == Some(1));
    assert!(MS(at) >= promised, "what was promised in between holds");
    pair.until(at + 50);
    assert_eq!(pair.roles(), [Role::Waiting, Role::Solo]);
}

#[test]
fn an_arbiter_that_forgot_is_not_believed() {
    let mut pair = Pair::paired();
    let reads = |pair: &mut Pair, side| {
        pair.does(side, |lease, now, out| {
            lease.client.poll_now(now);
            lease.act(now, out);
        });
    };
    let contradicts = [record(1, 1, Mode::Solo), record(1, 1, Mode::Pair)];
    let forgot = contradicts.into_iter().chain([record(1, 0, Mode::Solo)]).map(Some);
    for forgot in forgot.chain([None]) {
        pair.record = forgot;
        reads(&mut pair, 0);
        assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
        assert_eq!(pair.members[0].record(), Some(&record(1, 0, Mode::Pair)));
    }
    assert_eq!(pair.members[0].counts().forgotten, 4);
    assert_eq!(pair.wanted[0].notes, [Note::ArbiterForgot; 4]);
}

#[test]
fn an_earlier_lineage_is_never_asked_again() {
    let mut pair = Pair::paired();
    let reads = |pair: &mut Pair| {
        pair.does(0, |lease, now, out| {
            lease.client.poll_now(now);
            lease.act(now, out);
        });
    };
    pair.lineage = 5;
    reads(&mut pair);
    assert_eq!(pair.wanted[0].notes, [Note::OtherArbiter]);
    assert_eq!(pair.wanted[0].kept.last().map(|it| it.lineage), Some(5));
    assert_eq!(pair.members[0].counts().lineages, 1);
    // An earlier one says something.
    pair.lineage = 4;
    pair.record = Some(record(9, 1, Mode::Solo));
    pair.until(202);
    reads(&mut pair);
    assert_eq!(pair.roles()[0], Role::Paired);
    assert_eq!(pair.members[0].record().map(|it| it.epoch), Some(1));
}

#[test]
fn a_record_that_the_other_member_calls_old_is_not_changed() {
    let mut pair = Pair::paired();
    pair.until(210);
    let last = pair.wanted[1].sent[0];
    let says = Message { kind: Kind::Word, number: last.number + 1, epoch: 7, ..last };
    (pair.heard[1], pair.answers[1]) = (false, false);
    pair.does(0, |lease, now, out| lease.handle_message(now, &says, out));
    pair.until(400);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Paired, None));
    assert!(pair.wanted[0].swaps().is_empty());
    assert_eq!(pair.wanted[0].asked.len(), 1, "it has read it");
}

#[test]
fn what_the_arbiter_refuses_is_told_and_tried_again() {
    let mut pair = Pair::paired();
    pair.answers[1] = false;
    dies(&mut pair, 0);
    pair.until(265);
    let (number, ..) = pair.wanted[1].asked.last().expect("it has asked").clone();
    let refused = Reply { lineage: LINEAGE, ticket: 1, outcome: Err(Refusal::Settling) };
    pair.does(1, |lease, now, out| lease.handle_reply(now, number, &refused, out));
    assert_eq!(pair.wanted[1].notes, [Note::PeerSilent, Note::Refused(Refusal::Settling)]);
    assert_eq!(pair.members[1].counts().refusals, 1);
    pair.does(1, |lease, now, out| lease.handle_reply(now, number, &refused, out));
    assert_eq!(pair.members[1].counts().late_answers, 1);
    pair.answers[1] = true;
    pair.until(300);
    assert_eq!(pair.roles()[1], Role::Solo);
}
