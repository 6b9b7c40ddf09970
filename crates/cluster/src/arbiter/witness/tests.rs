use super::*;
use crate::arbiter::Owner;

const BOOT: u32 = 7;
const RUN: u64 = 0x1234_5678_9abc_def0;
const LINEAGE: u64 = 1 << 32 | 7;
const LATER: Nanos = Nanos::from_ms(60_000);
/// Names and lives of the members.
const A: (&str, u64) = ("alpha", 10);
const B: (&str, u64) = ("beta", 20);

fn owner((name, life): (&str, u64)) -> Owner {
    Owner { name: name.to_owned(), life }
}

fn record(epoch: u64, of: (&str, u64), mode: Mode) -> Record {
    Record { epoch, owner: owner(of), mode }
}

fn asker(from: (&str, u64), known: Option<Record>) -> Asker {
    let peer = if from.0 == A.0 { B.0 } else { A.0 };
    let (group, peer) = ("web".to_owned(), peer.to_owned());
    Asker { group, from: owner(from), peer, lineage: LINEAGE, known, ticket: 0 }
}

fn empty() -> Witness {
    Witness::new(Nanos(0), (BOOT, RUN), WitnessLimits::STANDARD, [])
}

fn answered(decision: Decision) -> Result<Option<Record>, Refusal> {
    match decision {
        Decision::Answer(reply) => reply.outcome,
        Decision::Persist(state) => panic!("{state} is written"),
    }
}

/// The ticket that this life is given at this time.
fn ticket(witness: &Witness, now: Nanos, life: u64) -> u64 {
    witness.reply(now, "web", life, Ok(None)).ticket
}

/// One who has just been answered.
fn heard(witness: &Witness, asker: Asker) -> Asker {
    Asker { ticket: ticket(witness, Nanos(0), asker.from.life), ..asker }
}

/// What a question of one who has just been answered leads to, with a disk that writes at once.
fn ask(
    witness: &mut Witness,
    now: Nanos,
    asker: &Asker,
    request: &Request,
) -> Result<Option<Record>, Refusal> {
    let asker = &Asker { ticket: ticket(witness, now, asker.from.life), ..asker.clone() };
    match witness.handle_question(now, asker, request) {
        Decision::Answer(reply) => reply.outcome,
        Decision::Persist(_) => {
            witness.handle_persisted(now, &asker.group).expect("written").outcome
        }
    }
}

fn read(
    witness: &mut Witness,
    from: (&str, u64),
    known: Option<Record>,
) -> Result<Option<Record>, Refusal> {
    ask(witness, Nanos(0), &asker(from, known), &Request::Read)
}

fn swap_at(
    witness: &mut Witness,
    now: Nanos,
    from: (&str, u64),
    expected: Option<Record>,
    next: Record,
) -> Result<Option<Record>, Refusal> {
    let asker = asker(from, expected.clone());
    ask(witness, now, &asker, &Request::Swap { expected, next })
}

fn swap(
    witness: &mut Witness,
    from: (&str, u64),
    expected: Option<Record>,
    next: Record,
) -> Result<Option<Record>, Refusal> {
    swap_at(witness, Nanos(0), from, expected, next)
}

/// A witness that both members have told that they know nothing.
fn settled() -> Witness {
    let mut witness = empty();
    assert_eq!(read(&mut witness, A, None), Err(Refusal::Settling));
    assert_eq!(read(&mut witness, B, None), Ok(None));
    witness
}

/// One whose record is the second one, of a pair in the first epoch.
fn paired() -> (Witness, Record) {
    let mut witness = settled();
    let (one, two) = (record(1, A, Mode::Solo), record(1, A, Mode::Pair));
    assert_eq!(swap(&mut witness, A, None, one.clone()), Ok(Some(one.clone())));
    assert_eq!(swap(&mut witness, A, Some(one), two.clone()), Ok(Some(two.clone())));
    assert_eq!(witness.counts().changes, 2);
    (witness, two)
}

fn stored(record: Record) -> GroupState {
    let members = [A.0.to_owned(), B.0.to_owned()];
    GroupState { group: "web".to_owned(), members, lineage: LINEAGE, record: Some(record) }
}

#[test]
fn a_group_begins_when_both_members_know_nothing() {
    let mut witness = empty();
    let first = record(1, A, Mode::Solo);
    for _ in 0..3 {
        assert_eq!(swap(&mut witness, A, None, first.clone()), Err(Refusal::Settling));
    }
    assert!(!witness.is_settled("web") && !witness.is_settled("other"));
    assert_eq!(read(&mut witness, B, None), Ok(None));
    assert!(witness.is_settled("web"));
    assert_eq!(swap(&mut witness, A, None, first.clone()), Ok(Some(first.clone())));
    assert_eq!(witness.record("web"), Some(&first));
    assert_eq!((witness.counts().refusals, witness.counts().changes), (3, 1));
}

#[test]
fn what_is_granted_is_written_first() {
    let (mut witness, pair) = paired();
    let next = record(2, B, Mode::Solo);
    let request = Request::Swap { expected: Some(pair.clone()), next: next.clone() };
    let from = heard(&witness, asker(B, Some(pair.clone())));
    let decision = witness.handle_question(Nanos(0), &from, &request);
    assert_eq!(decision, Decision::Persist(stored(next.clone())));
    // Meanwhile the old one is the record, and nobody changes it.
    assert_eq!(read(&mut witness, A, Some(pair.clone())), Ok(Some(pair.clone())));
    let alone = Request::Swap { expected: Some(pair.clone()), next: record(2, A, Mode::Solo) };
    let other = witness.handle_question(Nanos(0), &asker(A, Some(pair.clone())), &alone);
    assert_eq!(answered(other), Err(Refusal::Busy));
    let failed = witness.handle_persist_failed(Nanos(0), "web").expect("it was being written");
    assert_eq!(failed.outcome, Err(Refusal::NotWritten));
    assert_eq!(witness.record("web"), Some(&pair), "nothing has changed");
    assert_eq!(witness.handle_persisted(Nanos(0), "web"), None);
    assert_eq!(witness.handle_persist_failed(Nanos(0), "web"), None);
    assert_eq!(ask(&mut witness, Nanos(0), &from, &request), Ok(Some(next)));
}

#[test]
fn one_of_two_wins_and_who_asks_again_has_won() {
    let (mut witness, pair) = paired();
    let (won, lost) = (record(2, B, Mode::Solo), record(2, A, Mode::Solo));
    for _ in 0..2 {
        assert_eq!(swap(&mut witness, B, Some(pair.clone()), won.clone()), Ok(Some(won.clone())));
    }
    assert_eq!(swap(&mut witness, A, Some(pair), lost), Ok(Some(won)));
    assert_eq!(witness.counts().changes, 3);
}

#[test]
fn who_runs_alone_bars_the_other_one_and_is_a_pair_when_it_says_so() {
    let mut witness = settled();
    let one = record(1, A, Mode::Solo);
    assert_eq!(swap(&mut witness, A, None, record(1, A, Mode::Pair)), Err(Refusal::Change));
    assert_eq!(swap(&mut witness, A, None, one.clone()), Ok(Some(one.clone())));
    let takes = |witness: &mut Witness, next| swap(witness, B, Some(one.clone()), next);
    assert_eq!(takes(&mut witness, record(2, B, Mode::Solo)), Err(Refusal::Barred));
    assert_eq!(takes(&mut witness, record(1, A, Mode::Pair)), Err(Refusal::Change), "another's");
    for next in [record(2, A, Mode::Pair), record(1, B, Mode::Pair), record(3, A, Mode::Solo)] {
        let said = swap(&mut witness, A, Some(one.clone()), next.clone());
        assert_eq!(said, Err(Refusal::Change), "{next:?}");
    }
    let pair = record(1, A, Mode::Pair);
    assert_eq!(swap(&mut witness, A, Some(one.clone()), pair.clone()), Ok(Some(pair.clone())));
    let late = swap(&mut witness, A, Some(one.clone()), record(2, A, Mode::Solo));
    assert_eq!(late, Ok(Some(pair.clone())), "what was expected is over, though the epoch is not");
    for next in [record(2, A, Mode::Pair), record(1, A, Mode::Solo), record(2, B, Mode::Pair)] {
        let from = if next.owner.name == A.0 { A } else { B };
        let said = swap(&mut witness, from, Some(pair.clone()), next.clone());
        assert_eq!(said, Err(Refusal::Change), "{next:?}");
    }
}

#[test]
fn who_is_alone_begins_another_epoch_or_is_a_pair_in_this_one_and_not_both() {
    let one = record(1, A, Mode::Solo);
    let (pair, anew) = (record(1, A, Mode::Pair), record(2, A, Mode::Solo));
    for [first, second] in [[&pair, &anew], [&anew, &pair]] {
        let mut witness = settled();
        assert_eq!(swap(&mut witness, A, None, one.clone()), Ok(Some(one.clone())));
        for next in [first, second] {
            let said = swap(&mut witness, A, Some(one.clone()), next.clone());
            assert_eq!(said, Ok(Some(first.clone())));
        }
    }
}

#[test]
fn a_change_is_made_for_one_who_hears_this_witness_now() {
    let age = WitnessLimits::STANDARD.ticket_age;
    let now = Nanos(LATER.0 + age.0);
    let (witness, pair) = paired();
    let next = record(2, B, Mode::Solo);
    let takes = Request::Swap { expected: Some(pair.clone()), next: next.clone() };
    let with = |ticket| Asker { ticket, ..asker(B, Some(pair.clone())) };
    let good = ticket(&witness, now, B.1);
    let other_run = Witness::new(Nanos(0), (BOOT, RUN + 1), WitnessLimits::STANDARD, []);
    for (ticket, what) in [
        (0, "none"),
        (good + 1, "one of the future"),
        (good - age.0, "an old one"),
        (ticket(&witness, now, A.1), "the other member's"),
        (ticket(&witness, now, B.1 + 1), "another life's"),
        (ticket(&other_run, now, B.1), "of a witness that has been started again"),
    ] {
        let mut witness = witness.clone();
        let Decision::Answer(reply) = witness.handle_question(now, &with(ticket), &takes) else {
            panic!("{what}: it is granted");
        };
        assert_eq!(reply.outcome, Err(Refusal::Unproven), "{what}");
        assert_eq!((witness.counts().unproven, witness.record("web")), (1, Some(&pair)));
        // That reply brings one, and what was refused is not done by anything but asking again.
        assert_eq!(reply.ticket, good);
        assert_eq!(witness.handle_persisted(now, "web"), None);
        let again = witness.handle_question(now, &with(reply.ticket), &takes);
        assert_eq!(again, Decision::Persist(stored(next.clone())));
    }
    let mut witness = witness.clone();
    let last = good - (age.0 - 1);
    let said = witness.handle_question(now, &with(last), &takes);
    assert!(matches!(said, Decision::Persist(_)), "it is young enough");
}

#[test]
fn every_reply_has_a_ticket_of_its_time_and_its_asker() {
    let (mut witness, pair) = paired();
    let request = Request::Swap { expected: Some(pair.clone()), next: record(2, B, Mode::Solo) };
    let from = heard(&witness, asker(B, Some(pair.clone())));
    assert!(matches!(witness.handle_question(Nanos(0), &from, &request), Decision::Persist(_)));
    let now = Nanos::from_ms(70);
    let asks = |witness: &mut Witness, from: Asker| match witness.handle_question(
        now,
        &from,
        &Request::Read,
    ) {
        Decision::Answer(reply) => reply.ticket,
        Decision::Persist(state) => panic!("{state} is written"),
    };
    let [of_a, of_b] = [A, B].map(|of| ticket(&witness, now, of.1));
    assert_eq!(asks(&mut witness, asker(A, Some(pair.clone()))), of_a);
    let stranger = Asker { peer: "gamma".to_owned(), ..asker(A, None) };
    assert_eq!(asks(&mut witness, stranger), of_a, "refused");
    let mut failing = witness.clone();
    let failed = failing.handle_persist_failed(now, "web").expect("it was being written");
    assert_eq!(failed.ticket, of_b);
    assert_eq!(witness.handle_persisted(now, "web").expect("as well").ticket, of_b);
    assert!(of_a != of_b && of_a != ticket(&witness, Nanos(0), A.1));
}

/// Old questions that are sent again neither take a member's ticket away nor make it young.
#[test]
fn a_question_that_is_repeated_changes_nothing_for_its_member() {
    let age = WitnessLimits::STANDARD.ticket_age;
    let (mut witness, pair) = paired();
    let takes = Request::Swap { expected: Some(pair.clone()), next: record(2, B, Mode::Solo) };
    let old = heard(&witness, asker(B, Some(pair.clone())));
    for now in [Nanos(age.0 - 1), age, LATER] {
        for request in [&Request::Read, &takes] {
            let mut witness = witness.clone();
            witness.handle_question(now, &old, request);
            let good = Asker { ticket: ticket(&witness, now, B.1), ..old.clone() };
            let said = witness.handle_question(now, &good, &takes);
            // The one that was under way was young enough, and is being written.
            let is_busy = now < age && *request == takes;
            assert_eq!(matches!(said, Decision::Persist(_)), !is_busy, "{now:?}");
        }
    }
    for _ in 0..3 {
        witness.handle_question(age, &old, &Request::Read);
    }
    let said = witness.handle_question(age, &old, &takes);
    assert_eq!(answered(said), Err(Refusal::Unproven));
}

/// Who has won is told so without a ticket: nothing is changed.
#[test]
fn what_changes_nothing_needs_no_ticket() {
    let (mut witness, pair) = paired();
    let none = asker(A, Some(pair.clone()));
    let won = Request::Swap { expected: Some(record(1, A, Mode::Solo)), next: pair.clone() };
    let lost = Request::Swap { expected: None, next: record(1, A, Mode::Solo) };
    for request in [Request::Read, won, lost] {
        let said = witness.handle_question(LATER, &none, &request);
        assert_eq!(answered(said), Ok(Some(pair.clone())));
    }
    let never = Request::Swap { expected: Some(pair.clone()), next: record(9, A, Mode::Solo) };
    assert_eq!(answered(witness.handle_question(LATER, &none, &never)), Err(Refusal::Change));
}

#[test]
fn a_witness_of_the_same_boot_waits_for_nobody() {
    let pair = record(2, A, Mode::Pair);
    let limits = WitnessLimits::STANDARD;
    let mut witness = Witness::new(Nanos(0), (BOOT, RUN), limits, [stored(pair.clone())]);
    let next = record(3, B, Mode::Solo);
    assert_eq!(swap(&mut witness, B, Some(pair), next.clone()), Ok(Some(next)));
}

#[test]
fn after_a_boot_both_members_say_what_they_know_and_the_newest_counts() {
    let (old, new) = (record(2, A, Mode::Pair), record(5, A, Mode::Solo));
    let limits = WitnessLimits::STANDARD;
    let mut witness = Witness::new(Nanos(0), (8, RUN), limits, [stored(old.clone())]);
    let lineage = 2 << 32 | 8;
    let takes = Request::Swap { expected: Some(old.clone()), next: record(3, B, Mode::Solo) };
    // What is meant for the lineage before says what was known then.
    let reply = witness.handle_question(Nanos(0), &asker(B, Some(old.clone())), &takes);
    let refused = |witness: &Witness, life| {
        let ticket = ticket(witness, Nanos(0), life);
        Decision::Answer(Reply { lineage, ticket, outcome: Err(Refusal::OtherLineage) })
    };
    assert_eq!(reply, refused(&witness, B.1));
    assert_eq!(witness.counts().misdirected, 1);
    let told = |from, known: &Record| Asker { lineage, ..asker(from, Some(known.clone())) };
    for _ in 0..2 {
        let said = ask(&mut witness, Nanos(0), &told(B, &old), &takes);
        assert_eq!(said, Err(Refusal::Settling), "it alone may not know");
    }
    let settles = witness.handle_question(Nanos(0), &told(A, &new), &Request::Read);
    let state = GroupState { lineage, ..stored(new.clone()) };
    assert_eq!(settles, Decision::Persist(state), "the one that speaks has said so");
    assert_eq!(
        answered(witness.handle_question(Nanos(0), &told(A, &new), &Request::Read)),
        Err(Refusal::Busy)
    );
    assert_eq!(
        witness.handle_persisted(Nanos(0), "web").expect("written").outcome,
        Ok(Some(new.clone()))
    );
    assert_eq!(ask(&mut witness, Nanos(0), &told(B, &old), &takes), Ok(Some(new)), "lost");
}

#[test]
fn a_disk_that_is_newer_than_what_members_know_counts() {
    let three = record(3, B, Mode::Solo);
    let mut witness =
        Witness::new(Nanos(0), (8, RUN), WitnessLimits::STANDARD, [stored(three.clone())]);
    let lineage = 2 << 32 | 8;
    let told = |from| Asker { lineage, ..asker(from, None) };
    assert_eq!(ask(&mut witness, Nanos(0), &told(A), &Request::Read), Err(Refusal::Settling));
    assert_eq!(ask(&mut witness, Nanos(0), &told(B), &Request::Read), Ok(Some(three)));
}

#[test]
fn a_witness_that_is_behind_says_so_and_grants_nothing() {
    let (mut witness, pair) = paired();
    let newer = record(3, A, Mode::Solo);
    let takes = Request::Swap { expected: Some(pair.clone()), next: record(2, B, Mode::Solo) };
    assert_eq!(read(&mut witness, A, Some(newer.clone())), Err(Refusal::Behind));
    assert_eq!((witness.counts().behind, witness.is_settled("web")), (1, false));
    let lineage = 2 << 32 | 7;
    let told = |from, known: &Record| Asker { lineage, ..asker(from, Some(known.clone())) };
    assert_eq!(
        ask(&mut witness, Nanos(0), &asker(B, Some(pair.clone())), &takes),
        Err(Refusal::OtherLineage)
    );
    // What it was told before it had begun anew may be old.
    assert_eq!(ask(&mut witness, Nanos(0), &told(B, &pair), &takes), Err(Refusal::Behind));
    assert_eq!(
        ask(&mut witness, Nanos(0), &told(A, &newer), &Request::Read),
        Ok(Some(newer.clone()))
    );
    assert_eq!(ask(&mut witness, Nanos(0), &told(B, &pair), &takes), Ok(Some(newer)));
}

#[test]
fn two_owners_of_one_epoch_are_for_people() {
    for mode in [Mode::Solo, Mode::Pair] {
        let (mut witness, pair) = paired();
        let other = record(1, B, mode);
        assert_eq!(read(&mut witness, B, Some(other.clone())), Err(Refusal::Behind));
        let lineage = 2 << 32 | 7;
        let told = |from, known: &Record| Asker { lineage, ..asker(from, Some(known.clone())) };
        let said = ask(&mut witness, Nanos(0), &told(B, &other), &Request::Read);
        assert_eq!(said, Err(Refusal::Behind));
        for _ in 0..2 {
            let said = ask(&mut witness, Nanos(0), &told(A, &pair), &Request::Read);
            assert_eq!(said, Err(Refusal::Conflict));
        }
        assert_eq!(witness.counts().conflicts, 2);
    }
}

#[test]
fn both_modes_of_one_epoch_are_one_history() {
    let (mut witness, pair) = paired();
    let solo = record(1, A, Mode::Solo);
    // Who has not heard of the pair is not ahead, and who has is.
    assert_eq!(read(&mut witness, A, Some(solo.clone())), Ok(Some(pair.clone())));
    let limits = WitnessLimits::STANDARD;
    for known in [[&solo, &pair], [&pair, &solo]] {
        let mut witness = Witness::new(Nanos(0), (BOOT, RUN), limits, [stored(solo.clone())]);
        assert_eq!(read(&mut witness, A, Some(pair.clone())), Err(Refusal::Behind));
        let lineage = 2 << 32 | 7;
        let told = |from, known: &Record| Asker { lineage, ..asker(from, Some(known.clone())) };
        let first = ask(&mut witness, Nanos(0), &told(A, known[0]), &Request::Read);
        assert_eq!(first, Err(Refusal::Behind));
        let second = ask(&mut witness, Nanos(0), &told(B, known[1]), &Request::Read);
        assert_eq!(second, Ok(Some(pair.clone())));
    }
}

#[test]
fn a_member_that_has_asked_a_later_lineage_is_not_answered_by_an_earlier_one() {
    let (mut witness, pair) = paired();
    let takes = Request::Swap { expected: Some(pair.clone()), next: record(2, B, Mode::Solo) };
    let from = heard(&witness, asker(B, Some(pair.clone())));
    assert!(matches!(witness.handle_question(Nanos(0), &from, &takes), Decision::Persist(_)));
    let elsewhere = Asker { lineage: 9 << 32 | 99, ..asker(A, Some(pair)) };
    let reply = witness.handle_question(Nanos(0), &elsewhere, &Request::Read);
    let lineage = 10 << 32 | 7;
    let refused = |life, refusal| {
        let run = Witness::new(Nanos(0), (BOOT, RUN), WitnessLimits::STANDARD, []);
        Reply { lineage, ticket: ticket(&run, Nanos(0), life), outcome: Err(refusal) }
    };
    assert_eq!(reply, Decision::Answer(refused(A.1, Refusal::OtherLineage)));
    // The other one may have granted something: what is being written is not won here.
    let reply = witness.handle_persisted(Nanos(0), "web").expect("it was being written");
    assert_eq!(reply, refused(B.1, Refusal::Settling));
    assert!(!witness.is_settled("web"));
    // An earlier lineage changes nothing.
    let early = witness.handle_question(Nanos(0), &from, &Request::Read);
    assert_eq!(early, Decision::Answer(refused(B.1, Refusal::OtherLineage)));
}

#[test]
fn another_life_of_the_owner_waits_until_the_one_before_is_silent() {
    let quiet = WitnessLimits::STANDARD.owner_quiet;
    for mode in [Mode::Pair, Mode::Solo] {
        let (mut witness, pair) = paired();
        let mut last = pair.clone();
        if mode == Mode::Solo {
            last = record(2, A, Mode::Solo);
            assert_eq!(swap(&mut witness, A, Some(pair), last.clone()), Ok(Some(last.clone())));
        }
        let copy = (A.0, 11);
        let next = record(last.epoch + 1, copy, Mode::Solo);
        let tries = |witness: &mut Witness, now| {
            swap_at(witness, now, copy, Some(last.clone()), next.clone())
        };
        let early = Nanos(quiet.0 - 1);
        assert_eq!(tries(&mut witness, early), Err(Refusal::OwnerLives));
        // The owner is heard: it all begins again.
        let alive = asker(A, Some(last.clone()));
        assert_eq!(ask(&mut witness, early, &alive, &Request::Read), Ok(Some(last.clone())));
        assert_eq!(tries(&mut witness, quiet), Err(Refusal::OwnerLives));
        assert_eq!(witness.counts().copies, 2);
        assert_eq!(tries(&mut witness, early.plus(quiet)), Ok(Some(next.clone())));
    }
}

#[test]
fn the_other_member_waits_for_nobody_in_a_pair() {
    let (mut witness, pair) = paired();
    let next = record(2, B, Mode::Solo);
    assert_eq!(swap(&mut witness, B, Some(pair), next.clone()), Ok(Some(next)));
}

#[test]
fn who_is_no_member_is_refused() {
    let (mut witness, pair) = paired();
    let good = asker(A, Some(pair));
    let with = |change: fn(&mut Asker)| {
        let mut asker = good.clone();
        change(&mut asker);
        asker
    };
    for (asker, refusal) in [
        (with(|it| it.from.name = "gamma".to_owned()), Refusal::Stranger),
        (with(|it| it.peer = "gamma".to_owned()), Refusal::Stranger),
        (with(|it| it.from.name = "al pha".to_owned()), Refusal::Name),
        (with(|it| it.peer = it.from.name.clone()), Refusal::Name),
        (with(|it| it.group = String::new()), Refusal::Name),
        (with(|it| it.from.life = 0), Refusal::Name),
    ] {
        let said = ask(&mut witness, Nanos(0), &asker, &Request::Read);
        assert_eq!(said, Err(refusal), "{asker:?}");
    }
    assert!(witness.is_settled("web"));
}

#[test]
fn there_are_only_so_many_groups_and_each_is_its_own() {
    let limits = WitnessLimits { groups_max: 2, ..WitnessLimits::STANDARD };
    let mut witness = Witness::new(Nanos(0), (BOOT, RUN), limits, []);
    for (group, refusal) in
        [("one", Refusal::Settling), ("two", Refusal::Settling), ("six", Refusal::TooManyGroups)]
    {
        let asker = Asker { group: group.to_owned(), ..asker(A, None) };
        assert_eq!(ask(&mut witness, LATER, &asker, &Request::Read), Err(refusal));
    }
    let asker = Asker { group: "one".to_owned(), ..asker(B, None) };
    assert_eq!(ask(&mut witness, LATER, &asker, &Request::Read), Ok(None));
    assert!(witness.is_settled("one") && !witness.is_settled("two"));
}

#[test]
fn what_may_pass_is_told_from_what_may_not() {
    let passes = |refusal: Refusal| refusal.may_pass();
    assert!(
        [Refusal::Busy, Refusal::Settling, Refusal::Behind, Refusal::OwnerLives]
            .into_iter()
            .all(passes)
    );
    assert!(
        ![Refusal::Barred, Refusal::Change, Refusal::Name, Refusal::Stranger]
            .into_iter()
            .any(passes)
    );
}
