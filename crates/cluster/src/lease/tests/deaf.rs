//! Members that send and do not hear.

use super::*;

/// Nothing arrives at a member any more.
fn goes_deaf(pair: &mut Pair, side: usize) {
    pair.deaf[side] = true;
}

#[test]
fn a_primary_that_hears_nothing_falls_silent_and_its_backup_goes_on() {
    let mut pair = Pair::paired();
    pair.until(210);
    goes_deaf(&mut pair, 0);
    // The newest grant that it has is for its question of 200 ms.
    assert_eq!(pair.when(400, |pair| pair.speaker().is_none()), 260);
    assert!(pair.wanted[0].swaps().len() == 1 && pair.unproven[0] == 1, "it has asked in vain");
    assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
    // What was granted at 220 ms was never heard.
    assert_eq!(pair.when(400, |pair| pair.roles()[1] != Role::Following), 281);
    assert_eq!(pair.wanted[1].notes, [Note::PeerSilent, Note::TookOver, Note::Unprotected]);
    // It keeps what it has promised for the last question that it has granted.
    assert_eq!(pair.members[1].promised(), MS(260).plus(timing().promise()));
    assert_eq!(pair.when(400, |pair| pair.speaker() == Some(1)), 321);
    assert_eq!(pair.unproven[1], 0, "it had read the record before it needed a ticket");
    pair.until(600);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(1)));
    // When it hears again, it learns what it is.
    pair.deaf[0] = false;
    pair.until(700);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Waiting, Role::Solo], Some(1)));
}

#[test]
fn a_backup_that_hears_nothing_does_not_take_the_service_from_its_primary() {
    let mut pair = Pair::paired();
    pair.until(210);
    goes_deaf(&mut pair, 1);
    // The arbiter is asked by the backup alone.
    pair.answers[0] = false;
    pair.until(270);
    assert_eq!((pair.roles()[1], pair.unproven[1]), (Role::Claiming, 1));
    assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
    pair.answers[0] = true;
    pair.until(600);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Solo, Some(0)));
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
}

#[test]
fn who_is_told_that_its_owner_is_gone_proves_that_it_hears() {
    let mut pair = Pair::paired();
    pair.until(210);
    goes_deaf(&mut pair, 1);
    pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
    pair.until(600);
    assert_eq!(
        (pair.roles()[1], pair.record.clone()),
        (Role::Claiming, Some(record(2, 0, Mode::Solo)))
    );
    assert_eq!(pair.speaker(), Some(0));
    // One that hears is refused once, and asks again at once.
    let mut pair = Pair::paired();
    pair.until(210);
    pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
    assert_eq!((pair.roles()[1], pair.unproven[1]), (Role::Solo, 1));
}

#[test]
fn who_hears_its_owner_resign_needs_no_other_proof() {
    let mut pair = Pair::paired();
    pair.until(205);
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    assert_eq!((pair.roles()[1], pair.unproven[1]), (Role::Solo, 0));
    assert_eq!(pair.wanted[1].asked.len(), 1);
}

#[test]
fn a_primary_that_is_left_reads_the_record_a_period_before_it_asks_for_it() {
    let mut pair = Pair::paired();
    pair.until(210);
    dies(&mut pair, 1);
    pair.until(230);
    assert!(pair.wanted[0].asked.is_empty());
    pair.until(249);
    let asked: Vec<_> = pair.wanted[0].asked.iter().map(|asked| &asked.2).collect();
    assert_eq!(asked, [&Request::Read], "once");
    pair.until(251);
    assert_eq!((pair.roles()[0], pair.wanted[0].asked.len()), (Role::Solo, 2));
    assert_eq!(pair.unproven[0], 0);
}

#[test]
fn a_primary_that_hears_only_the_arbiter_goes_on_alone_before_it_is_given_up() {
    let mut pair = Pair::paired();
    pair.until(210);
    pair.heard[1] = false;
    for ms in 211..600 {
        pair.until(ms);
        assert_eq!(pair.speaker(), Some(0), "{ms}");
    }
    assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
}

#[test]
fn a_lost_grant_is_no_deafness_and_hearing_again_ends_the_doubt() {
    let mut pair = Pair::paired();
    pair.until(210);
    goes_deaf(&mut pair, 0);
    pair.until(235);
    pair.deaf[0] = false;
    pair.until(600);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    assert!(pair.wanted[0].notes.is_empty() && pair.wanted[1].notes.is_empty());
    assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
}

#[test]
fn who_overslept_does_not_take_its_owner_for_deaf() {
    let mut pair = Pair::paired();
    pair.until(210);
    // The machine is suspended, and what comes meanwhile is lost.
    pair.answers = [false; 2];
    (pair.runs[1], pair.heard[0]) = (false, false);
    pair.until(268);
    (pair.runs[1], pair.heard[0]) = (true, true);
    for ms in 269..600 {
        pair.until(ms);
        assert_eq!(pair.roles()[1], Role::Following, "{ms}");
    }
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
}

#[test]
fn a_deaf_owner_is_not_followed_again_while_the_arbiter_is_away() {
    let mut pair = Pair::paired();
    pair.until(210);
    pair.answers = [false; 2];
    goes_deaf(&mut pair, 0);
    pair.until(600);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Claiming], None));
    assert!(!pair.wanted[1].notes.contains(&Note::PeerHeardAgain));
    pair.deaf[0] = false;
    pair.until(700);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    pair.until(900);
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
}

#[test]
fn one_question_without_an_echo_is_no_proof_of_deafness() {
    let mut pair = Pair::paired();
    pair.until(215);
    pair.heard[1] = false;
    pair.until(225);
    pair.heard[1] = true;
    pair.until(245);
    dies(&mut pair, 0);
    // The grant of 220 ms is lost, the question of 240 ms was sent without it, and that is all.
    assert_eq!(pair.when(400, |pair| pair.roles()[1] != Role::Following), 301);
}

#[test]
fn who_begins_again_does_not_wait_for_a_backup_that_hears_nothing() {
    let mut pair = Pair::paired();
    pair.until(205);
    goes_deaf(&mut pair, 1);
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    pair.until(300);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Resigned, Role::Claiming], None));
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    let at = pair.when(600, |pair| pair.speaker() == Some(0));
    assert!(at <= 301 + timing().patience().as_ms(), "{at}");
    // One that hears, and only has no arbiter, is waited for.
    let mut pair = Pair::paired();
    pair.until(205);
    pair.answers[1] = false;
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    pair.until(300);
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    pair.until(600);
    assert_eq!(pair.roles(), [Role::Restarting, Role::Claiming]);
    pair.answers[1] = true;
    pair.until(700);
    assert_eq!(pair.speaker(), Some(1));
}
