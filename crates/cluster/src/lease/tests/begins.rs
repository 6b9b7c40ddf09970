//! How a group begins, becomes a pair, and lives as one.

use super::*;

#[test]
fn the_preferred_member_begins_alone_and_the_other_one_waits() {
    let mut pair = Pair::new();
    pair.until(1);
    assert_eq!(pair.record, Some(record(1, 0, Mode::Solo)));
    assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
    assert_eq!(pair.wanted[0].notes, [Note::Founded, Note::Unprotected]);
    let kept = Kept { record: Some(record(1, 0, Mode::Solo)), lineage: LINEAGE };
    assert_eq!(pair.wanted[0].kept.last(), Some(&kept));
    // An earlier life of it may have promised not to speak.
    assert_eq!(pair.speaker(), None);
    let promise = timing().promise();
    assert_eq!(pair.members[0].promised(), promise);
    assert_eq!(pair.when(200, |pair| pair.speaker() == Some(0)), promise.as_ms() + 1);
    assert_eq!(pair.members[0].deadline(), FOREVER);
}

#[test]
fn nobody_becomes_a_pair_before_both_are_in_step_and_grants_are_there() {
    let mut pair = Pair::new();
    pair.until(100);
    // Only the owner believes it: the other one grants nothing.
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(200);
    assert_eq!((pair.roles(), pair.members[1].counts().grants), ([Role::Solo, Role::Waiting], 0));
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, false, out)));
    // Only the other one does: it grants, and nothing is asked for.
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(300);
    assert_eq!(pair.roles(), [Role::Solo, Role::Following]);
    assert!(pair.members[1].counts().grants > 3);
    assert_eq!(pair.members[0].deadline(), FOREVER);
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(301);
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
    assert_eq!(pair.wanted[0].notes.last(), Some(&Note::Protected));
}

#[test]
fn the_lease_begins_before_the_pair_is_asked_for() {
    let mut pair = Pair::new();
    pair.until(100);
    pair.does(1, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    pair.until(139);
    pair.answers[0] = false;
    pair.wanted = Default::default();
    pair.does(0, |lease, now, out| assert!(lease.handle_in_step(now, 1, true, out)));
    // The newest question was sent at 120 ms.
    assert_eq!(pair.members[0].role(), Role::Pairing);
    assert_eq!(pair.wanted[0].stores, [MS(180).0]);
    assert_eq!(pair.wanted[0].swaps(), [record(1, 0, Mode::Pair)]);
    // Nobody answers, and nobody grants any more: it falls silent, whatever the record is.
    pair.heard[1] = false;
    pair.until(179);
    assert!(pair.speaks(0));
    // It has asked to remain alone meanwhile, which is another record.
    let solo = record(2, 0, Mode::Solo);
    assert!(pair.wanted[0].notes.contains(&Note::NoGrants));
    assert_eq!(pair.when(300, |pair| pair.speaker().is_none()), 180);
    pair.answers[0] = true;
    pair.until(400);
    assert_eq!((pair.record.as_ref(), pair.roles()[0]), (Some(&solo), Role::Solo));
    assert_eq!(pair.speaker(), Some(0));
}

#[test]
fn no_pair_is_asked_for_while_the_arbiter_is_away() {
    let mut pair = Pair::new();
    pair.until(100);
    pair.answers[0] = false;
    pair.does(0, |lease, now, out| {
        lease.client.poll_now(now);
        lease.act(now, out);
    });
    pair.until(200);
    assert!(!pair.members[0].is_arbiter_heard());
    assert_eq!(pair.wanted[0].notes.last(), Some(&Note::ArbiterSilent));
    pair.joins();
    pair.until(400);
    assert_eq!(
        (pair.roles(), pair.members[0].deadline()),
        ([Role::Solo, Role::Following], FOREVER)
    );
    pair.answers[0] = true;
    pair.until(500);
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
    assert!(
        pair.wanted[0].notes.contains(&Note::ArbiterAnswers) && pair.members[0].is_arbiter_heard()
    );
}

#[test]
fn a_pair_asks_each_period_and_every_grant_counts_from_its_question() {
    let mut pair = Pair::paired();
    pair.until(301);
    assert_eq!(pair.wanted[0].kinds(), [Kind::Ask; 6]);
    assert_eq!(pair.wanted[1].kinds(), [Kind::Grant; 6]);
    let lease = timing().lease().0;
    let stores: Vec<u64> = (200..=300).step_by(20).map(|ms| MS(ms).0 + lease).collect();
    assert_eq!(pair.wanted[0].stores, stores);
    assert_eq!(pair.members[1].promised(), MS(300).plus(timing().promise()));
    assert!(
        pair.wanted[0].asked.is_empty() && pair.wanted[1].asked.is_empty(),
        "nobody else is needed"
    );
}

#[test]
fn a_late_grant_is_worth_what_is_left_of_it() {
    let mut pair = Pair::paired();
    pair.heard[1] = false;
    pair.until(205);
    let late = pair.wanted[1].sent[0];
    pair.until(229);
    pair.does(0, |lease, now, out| lease.handle_message(now, &late, out));
    assert_eq!(pair.members[0].deadline(), MS(260).0, "asked at 200 ms");
    pair.does(0, |lease, now, out| lease.handle_message(now, &late, out));
    assert_eq!(pair.members[0].counts().replayed, 1);
    // A grant of a question that is forgotten is none.
    let made_up = Message {
        number: late.number + 50,
        echo: message::Echo { number: 1, ..late.echo },
        ..late
    };
    pair.does(0, |lease, now, out| lease.handle_message(now, &made_up, out));
    assert_eq!((pair.members[0].counts().stale_grants, pair.members[0].deadline()), (1, MS(260).0));
}

#[test]
fn what_is_for_another_or_from_another_life_counts_for_nothing() {
    let mut pair = Pair::paired();
    pair.until(201);
    let grant = pair.wanted[1].sent[0];
    let count = |pair: &mut Pair, message: Message| {
        pair.wanted = Default::default();
        let before = pair.members[0].deadline();
        pair.does(0, |lease, now, out| lease.handle_message(now, &message, out));
        assert_eq!(pair.members[0].deadline(), before);
        let counts = pair.members[0].counts();
        (counts.misdirected, counts.unproven, pair.wanted[0].kinds().len())
    };
    assert_eq!(count(&mut pair, Message { to: 3, ..grant }), (1, 0, 0));
    // Another life is asked to prove itself.
    let reborn = Message { session: 99, number: 1, echo: message::Echo::default(), ..grant };
    assert_eq!(count(&mut pair, reborn), (1, 1, 1));
    let answer = pair.wanted[0].sent[0];
    assert_eq!((answer.kind, answer.echo.session, answer.echo.number), (Kind::Word, 99, 1));
}

#[test]
fn a_copy_of_the_owner_does_not_come_between() {
    let mut pair = Pair::paired();
    pair.until(201);
    let heard = pair.wanted[1].sent[0];
    let copy = Message {
        from: 1,
        to: 2,
        kind: Kind::Word,
        session: 99,
        number: 1,
        echo: message::Echo { session: LIVES[1], number: heard.number },
        ..heard
    };
    for _ in 0..3 {
        pair.does(1, |lease, now, out| lease.handle_message(now, &copy, out));
    }
    assert_eq!(pair.members[1].counts().unproven, 3 + 1, "and once at the beginning");
    pair.until(400);
    assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
    assert!(pair.wanted[0].notes.is_empty() && pair.wanted[1].notes.is_empty());
}

#[test]
fn another_life_of_the_owner_finds_its_record_and_waits_for_a_backup() {
    let mut pair = Pair::paired();
    let kept = Kept { record: pair.record.clone(), lineage: LINEAGE };
    let again = Setup { me: Owner { name: "a".to_owned(), life: 11 }, kept, ..setup(0) };
    pair.members[0] = Lease::new(pair.now, again, &mut Wanted::default());
    pair.until(201);
    assert_eq!((pair.roles()[0], pair.speaker()), (Role::Restarting, None));
    // The other one holds its connections, and takes over.
    let until = pair.when(400, |pair| pair.speaker() == Some(1));
    assert!(until <= 262, "{until}");
    pair.until(600);
    assert_eq!(pair.roles(), [Role::Waiting, Role::Solo]);
    assert_eq!(pair.record, Some(record(2, 1, Mode::Solo)));
}

#[test]
fn another_life_of_the_owner_goes_on_alone_if_nobody_holds_its_connections() {
    let mut pair = Pair::paired();
    pair.runs[1] = false;
    let me = Owner { name: "a".to_owned(), life: 11 };
    let again = Setup { me: me.clone(), ..setup(0) };
    pair.members[0] = Lease::new(pair.now, again, &mut Wanted::default());
    let patience = timing().patience().as_ms();
    assert_eq!(pair.when(500, |pair| pair.speaker() == Some(0)), 200 + patience + 1);
    assert_eq!(pair.record, Some(Record { epoch: 2, owner: me, mode: Mode::Solo }));
    assert_eq!(pair.wanted[0].notes.last(), Some(&Note::Unprotected));
}

#[test]
fn a_try_of_an_earlier_life_that_is_granted_late_is_found() {
    let mut pair = Pair::paired();
    let again = Setup { me: Owner { name: "b".to_owned(), life: 21 }, ..setup(1) };
    pair.members[1] = Lease::new(pair.now, again, &mut Wanted::default());
    pair.runs[0] = false;
    pair.until(210);
    assert_eq!(pair.roles()[1], Role::Waiting);
    pair.record = Some(record(2, 1, Mode::Solo));
    pair.does(1, |lease, now, out| {
        lease.client.poll_now(now);
        lease.act(now, out);
    });
    assert_eq!(pair.roles()[1], Role::Restarting);
    pair.until(500);
    assert_eq!((pair.roles()[1], pair.speaker()), (Role::Solo, Some(1)));
}

/// The witness refuses the first question, since it tells which one it is; nothing is wrong with that.
#[test]
fn who_asks_for_the_first_time_accuses_nobody() {
    let mut pair = Pair::new();
    pair.answers = [false; 2];
    pair.until(1);
    let (number, ..) = pair.wanted[0].asked.last().expect("it asks").clone();
    let refused = Reply { lineage: 7, ticket: 1, outcome: Err(Refusal::OtherLineage) };
    pair.does(0, |lease, now, out| lease.handle_reply(now, number, &refused, out));
    assert_eq!(pair.wanted[0].notes, []);
    assert_eq!(pair.wanted[0].kept.last().map(|it| it.lineage), Some(7));
    let (again, ..) = pair.wanted[0].asked.last().expect("it asks again").clone();
    pair.does(0, |lease, now, out| lease.handle_reply(now, again, &refused, out));
    assert_eq!(pair.wanted[0].notes, [Note::Refused(Refusal::OtherLineage)]);
}
