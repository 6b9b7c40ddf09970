//! What an epoch is, and what the machine says of itself.

use super::*;

/// Lets a member read the record now.
fn reads(pair: &mut Pair, side: usize) {
    pair.does(side, |lease, now, out| {
        lease.client.poll_now(now);
        lease.act(now, out);
    });
}

/// A pair of which the second one is in step, and the first one has just asked for the pair,
/// which nobody has answered. The newest grant is of 120 ms.
fn pairing() -> Pair {
    let mut pair = Pair::new();
    pair.until(100);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(139);
    pair.answers[0] = false;
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    assert_eq!(pair.roles(), [Role::Pairing, Role::Following]);
    pair.wanted = Default::default();
    pair
}

#[test]
fn a_pair_is_of_the_epoch_that_its_owner_has_begun_alone() {
    let mut pair = Pair::new();
    pair.until(100);
    assert_eq!(pair.record, Some(record(1, 0, Mode::Solo)));
    pair.joins();
    pair.until(200);
    assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
    let both = [record(1, 0, Mode::Solo), record(1, 0, Mode::Pair)].map(Some);
    let kept: Vec<_> = pair.wanted[0].kept.iter().map(|it| it.record.clone()).collect();
    assert_eq!(kept[kept.len() - 2..], both, "the next life knows it, too");
    // The other one has read it as soon as the owner has said so.
    assert_eq!(pair.members[1].record(), Some(&record(1, 0, Mode::Pair)));
    assert_eq!(pair.members[1].in_step(), Some(1));
}

#[test]
fn who_is_told_of_a_pair_of_its_epoch_reads_it_and_of_nothing_that_it_knows() {
    let mut pair = Pair::paired();
    pair.until(201);
    let last = pair.wanted[0].sent[0];
    for (number, (epoch, solo, asks)) in
        [(1, true, 0), (1, false, 0), (0, false, 0), (2, true, 1)].into_iter().enumerate()
    {
        pair.wanted = Default::default();
        let number = last.number + 1 + number as u64;
        let says = Message { kind: Kind::Word, number, epoch, solo, ..last };
        pair.does(1, |lease, now, out| lease.handle_message(now, &says, out));
        assert_eq!(pair.wanted[1].asked.len(), asks, "{epoch} {solo}");
    }
}

#[test]
fn a_backup_that_was_in_step_in_an_earlier_epoch_has_nothing_of_a_later_pair() {
    for (claims, mode) in [(false, Mode::Pair), (true, Mode::Pair), (false, Mode::Solo)] {
        let mut pair = Pair::paired();
        pair.until(201);
        pair.heard = [false; 2];
        if claims {
            pair.answers[1] = false;
            pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
            assert_eq!(pair.roles()[1], Role::Claiming);
            pair.until(235);
            pair.answers[1] = true;
        }
        pair.record = Some(record(2, 0, mode));
        pair.runs[0] = false;
        reads(&mut pair, 1);
        pair.until(290);
        assert_eq!(pair.roles()[1], Role::Waiting, "{claims} {mode:?}");
        assert!(pair.wanted[1].notes.contains(&Note::Barred));
        assert_eq!(pair.members[1].in_step(), None);
        assert_eq!(pair.record, Some(record(2, 0, mode)));
    }
}

#[test]
fn a_question_of_a_later_epoch_is_not_granted_by_who_is_in_step_in_an_earlier_one() {
    for solo in [false, true] {
        for (epoch, granted) in [(1, 1), (2, 0)] {
            let mut pair = Pair::paired();
            pair.until(201);
            pair.answers[1] = false;
            let grants = pair.members[1].counts().grants;
            let last = pair.wanted[0].sent[0];
            let asks = Message { number: last.number + 1, epoch, solo, ..last };
            pair.does(1, |lease, now, out| lease.handle_message(now, &asks, out));
            assert_eq!(pair.members[1].counts().grants - grants, granted, "{epoch} {solo}");
        }
    }
}

#[test]
fn a_backup_that_is_ahead_of_its_record_stays_in_step() {
    let mut pair = Pair::new();
    pair.until(100);
    // Its host has heard of the epoch before the arbiter has said so.
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 2, true, out)));
    pair.record = Some(record(2, 0, Mode::Solo));
    reads(&mut pair, 1);
    assert_eq!((pair.roles()[1], pair.members[1].in_step()), (Role::Following, Some(2)));
    pair.record = Some(record(2, 0, Mode::Pair));
    reads(&mut pair, 1);
    assert_eq!((pair.roles()[1], pair.members[1].in_step()), (Role::Following, Some(2)));
}

#[test]
fn a_backup_that_claims_from_one_who_is_alone_after_all_is_barred() {
    let mut pair = Pair::new();
    pair.until(100);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Waiting, Some(0)));
    assert_eq!(pair.wanted[1].notes, [Note::PeerSilent, Note::Barred]);
}

#[test]
fn a_pair_that_nobody_answered_is_found_however_it_ends() {
    // It was granted, and only the answer is lost.
    let mut pair = pairing();
    pair.record = Some(record(1, 0, Mode::Pair));
    pair.answers[0] = true;
    pair.until(200);
    assert_eq!((pair.roles(), pair.speaker()), ([Role::Paired, Role::Following], Some(0)));
    // It is withdrawn, and was granted before: to be alone is asked for again, in the next epoch.
    let mut pair = pairing();
    pair.heard[1] = false;
    pair.until(172);
    assert!(pair.wanted[0].notes.contains(&Note::NoGrants));
    pair.record = Some(record(1, 0, Mode::Pair));
    pair.answers[0] = true;
    pair.until(220);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Solo, Some(0)));
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
    assert!(!pair.wanted[0].stores.contains(&0), "it never fell silent");
}

#[test]
fn a_late_pair_is_not_what_a_withdrawal_has_overtaken() {
    let mut pair = pairing();
    pair.heard[1] = false;
    pair.until(172);
    pair.answers[0] = true;
    pair.until(220);
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
    // The arbiter cannot go back, and one that does is not believed.
    pair.record = Some(record(1, 0, Mode::Pair));
    reads(&mut pair, 0);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Solo, Some(0)));
    assert_eq!(pair.members[0].counts().forgotten, 1);
}

#[test]
fn who_resigns_leaves_the_pair_that_it_has_asked_for_and_nothing_else() {
    for withdraws in [false, true] {
        let mut pair = pairing();
        pair.heard[1] = false;
        pair.until(if withdraws { 172 } else { 150 });
        pair.does(0, |lease, now, out| lease.handle_resign(now, out));
        assert_eq!(pair.members[0].client.is_changing(), !withdraws);
        pair.answers[0] = true;
        pair.until(250);
        let mode = if withdraws { Mode::Solo } else { Mode::Pair };
        assert_eq!(pair.record.as_ref().map(|it| (it.epoch, it.mode)), Some((1, mode)));
        assert_eq!((pair.roles()[0], pair.speaker()), (Role::Resigned, None));
    }
}

#[test]
fn who_has_lost_its_connections_is_no_pair_by_what_it_asked_for_before() {
    let mut pair = pairing();
    pair.runs[1] = false;
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    let patience = timing().patience().as_ms();
    pair.until(139 + patience + 10);
    assert_eq!(pair.roles()[0], Role::Claiming);
    // The pair is granted now.
    pair.record = Some(record(1, 0, Mode::Pair));
    pair.answers[0] = true;
    pair.wanted = Default::default();
    pair.until(400);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Solo, Some(0)));
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
    assert!(!pair.wanted[0].notes.contains(&Note::Protected));
}

#[test]
fn a_member_begins_a_group_if_it_is_told_to_and_there_is_none() {
    let found = |pair: &mut Pair, side| {
        pair.does(side, |lease, now, out| lease.handle_found(now, out));
    };
    let mut pair = Pair::new();
    pair.runs[0] = false;
    found(&mut pair, 1);
    assert_eq!(pair.roles()[1], Role::Starting, "it has not read the record yet");
    pair.until(100);
    assert_eq!((pair.roles()[1], pair.record.clone()), (Role::Waiting, None));
    found(&mut pair, 1);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(1)));
    assert_eq!(pair.record, Some(record(1, 1, Mode::Solo)));
    assert_eq!(pair.wanted[1].notes, [Note::Founded, Note::Unprotected]);
    let mut pair = Pair::new();
    pair.until(100);
    found(&mut pair, 1);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Waiting, Some(0)), "there is one");
}

#[test]
fn who_is_alone_begins_another_epoch_when_it_is_told_to() {
    let anew = |pair: &mut Pair, side| {
        pair.does(side, |lease, now, out| lease.handle_anew(now, out));
    };
    let mut pair = Pair::new();
    pair.until(100);
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    anew(&mut pair, 1);
    assert_eq!(pair.record, Some(record(1, 0, Mode::Solo)), "it is not the other one's to say");
    anew(&mut pair, 0);
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
    assert_eq!((pair.members[0].in_step(), pair.speaker()), (None, Some(0)));
    // While that is asked for, it is not asked for twice.
    pair.answers[0] = false;
    anew(&mut pair, 0);
    let asked = pair.wanted[0].swaps().len();
    anew(&mut pair, 0);
    assert_eq!(pair.wanted[0].swaps().len(), asked);
    // A pair goes on as it is.
    let mut pair = Pair::paired();
    anew(&mut pair, 0);
    assert_eq!((pair.roles()[0], pair.wanted[0].asked.len()), (Role::Paired, 0));
    // One that has been asked for is withdrawn, once.
    let mut pair = pairing();
    anew(&mut pair, 0);
    assert_eq!(pair.members[0].in_step(), None, "before it is granted");
    anew(&mut pair, 0);
    assert_eq!(pair.wanted[0].swaps(), [record(2, 0, Mode::Solo)]);
    pair.answers[0] = true;
    pair.until(300);
    assert_eq!(pair.record, Some(record(2, 0, Mode::Solo)));
    assert_eq!((pair.roles()[0], pair.members[0].in_step()), (Role::Solo, None));
}

#[test]
fn no_epoch_begins_anew_from_a_record_that_is_old_or_the_last() {
    let mut pair = Pair::new();
    pair.until(101);
    let last = pair.wanted[1].sent.last().copied().expect("it says a word each period");
    let says = Message { number: last.number + 1, epoch: 7, ..last };
    pair.heard[1] = false;
    pair.does(0, |lease, now, out| lease.handle_message(now, &says, out));
    pair.does(0, |lease, now, out| lease.handle_anew(now, out));
    assert_eq!(pair.record, Some(record(1, 0, Mode::Solo)), "the other one has seen a later one");
    let mut pair = Pair::new();
    pair.record = Some(record(u64::MAX, 0, Mode::Solo));
    pair.until(100);
    assert_eq!(pair.roles()[0], Role::Solo);
    pair.does(0, |lease, now, out| lease.handle_anew(now, out));
    assert_eq!(pair.record, Some(record(u64::MAX, 0, Mode::Solo)));
}

#[test]
fn a_member_says_who_it_is_and_what_it_knows() {
    let pair = Pair::paired();
    for side in [0, 1] {
        let member = &pair.members[side];
        let me = record(1, side, Mode::Solo).owner;
        assert_eq!((member.me(), &member.asker().from), (&me, &me));
        assert_eq!(member.asker().peer, ["b", "a"][side]);
        assert_eq!(member.asker().known, Some(record(1, 0, Mode::Pair)));
        assert_eq!(member.asker().lineage, LINEAGE);
    }
}

#[test]
fn a_member_hears_the_other_one_until_it_is_silent_for_long_or_resigns() {
    let hears = |pair: &Pair| [0, 1].map(|side| pair.members[side].hears_peer(pair.now));
    let mut pair = Pair::new();
    assert_eq!(hears(&pair), [false; 2], "nobody was heard yet");
    pair.until(100);
    assert_eq!(hears(&pair), [true; 2]);
    pair.until(201);
    dies(&mut pair, 1);
    // The last one was at 200 ms.
    pair.until(259);
    assert_eq!(hears(&pair), [true; 2]);
    pair.until(261);
    assert!(!hears(&pair)[0]);
    let mut pair = Pair::paired();
    pair.until(201);
    pair.does(0, |lease, now, out| lease.handle_resign(now, out));
    assert_eq!(hears(&pair), [true, false]);
    pair.does(0, |lease, now, out| lease.handle_resume(now, out));
    pair.until(225);
    assert_eq!(hears(&pair), [true; 2], "it says something else");
}

#[test]
fn a_member_knows_in_which_epoch_the_other_one_follows() {
    let mut pair = Pair::new();
    pair.until(100);
    assert_eq!([0, 1].map(|side| pair.members[side].peer_follows()), [None; 2]);
    assert_eq!([0, 1].map(|side| pair.members[side].in_step()), [None; 2]);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(130);
    assert_eq!([0, 1].map(|side| pair.members[side].peer_follows()), [Some(1), None]);
    assert_eq!([0, 1].map(|side| pair.members[side].in_step()), [None, Some(1)]);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, false, out)));
    pair.until(150);
    assert_eq!(pair.members[0].peer_follows(), None);
    // Who takes over still holds what it held.
    let mut pair = Pair::paired();
    pair.answers[1] = false;
    pair.does(1, |lease, now, out| lease.handle_peer_gone(now, out));
    pair.until(230);
    assert_eq!((pair.roles()[1], pair.members[0].peer_follows()), (Role::Claiming, Some(1)));
}
