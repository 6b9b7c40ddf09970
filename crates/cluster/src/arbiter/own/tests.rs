use super::*;

const MS: fn(u64) -> Nanos = Nanos::from_ms;

fn record(epoch: u64, name: &str, life: u64, mode: Mode) -> Record {
    Record { epoch, owner: Owner { name: name.to_owned(), life }, mode }
}

/// A pair's record of `a`, and what `b` makes of it.
fn pair() -> Record {
    record(3, "a", 10, Mode::Pair)
}

/// Member `me`, in its life 10 (`a`) or 20 (`b`), with this on its disk.
fn own(me: &str, way: Way, stored: Option<Record>) -> Own {
    let (life, peer) = if me == "a" { (10, "b") } else { (20, "a") };
    let me = Owner { name: me.to_owned(), life };
    let founds = me.name == "a";
    let (peer, patience, retry) = (peer.to_owned(), [MS(20), MS(40)], MS(100));
    Own::new(Settings { me, peer, founds, way, patience, retry }, stored)
}

/// What the other member says, in this life, of that record.
fn says(own: &Own, kind: Kind, life: u64, known: Option<&Record>) -> Message {
    let mut message = Message { kind, session: life, number: 1, ..Message::NOTHING };
    message.tell(known, &own.settings.peer);
    message
}

/// What becomes of the wish to be alone, with a disk that works.
fn wish(own: &mut Own, now: u64) -> Result<Option<Record>, Refusal> {
    let expected = own.record().cloned();
    let epoch = rank_of(expected.as_ref()).0 + 1;
    let next = Record { epoch, owner: own.settings.me.clone(), mode: Mode::Solo };
    own.handle_request(MS(now), 7, Request::Swap { expected, next });
    if own.poll_write().is_some() {
        assert_eq!(own.poll_reply(), None, "it is not true yet");
        own.handle_written(MS(now), true);
    }
    let (number, reply) = own.poll_reply().expect("an answer");
    assert_eq!((number, reply.lineage), (7, LINEAGE));
    reply.outcome
}

#[test]
fn silence_is_no_reason_to_take_over_and_one_to_go_on() {
    let mut backup = own("b", Way::Nobody, Some(pair()));
    for now in 0..500 {
        assert_eq!(wish(&mut backup, now), Err(Refusal::NotOff));
    }
    assert!(!backup.poll_proof());
    let mut owner = own("a", Way::Nobody, Some(pair()));
    assert_eq!(wish(&mut owner, 0), Ok(Some(record(4, "a", 10, Mode::Solo))));
}

#[test]
fn what_was_resigned_in_this_epoch_and_life_is_taken_over() {
    for (epoch, life, is_its) in [(3, 10, true), (2, 10, false), (3, 11, false)] {
        let mut backup = own("b", Way::Nobody, Some(pair()));
        let told = record(epoch, "a", life, Mode::Pair);
        let mut resign = says(&backup, Kind::Resign, life, Some(&told));
        // It is the owner's life that speaks.
        resign.session = 10;
        backup.handle_heard(MS(1), &resign);
        assert_eq!(wish(&mut backup, 2).is_ok(), is_its, "{epoch} {life}");
    }
}

#[test]
fn a_later_life_of_the_owner_shows_that_the_one_before_is_silent() {
    let mut backup = own("b", Way::Nobody, Some(pair()));
    backup.handle_heard(MS(1), &says(&backup, Kind::Word, 11, None));
    assert_eq!(wish(&mut backup, 2), Err(Refusal::NotOff), "its disk is empty: who knows");
    backup.handle_heard(MS(3), &says(&backup, Kind::Word, 11, Some(&pair())));
    assert!(wish(&mut backup, 4).is_ok());
}

#[test]
fn an_operators_word_is_for_what_was_refused_a_moment_ago() {
    let mut backup = own("b", Way::Nobody, Some(pair()));
    assert!(!backup.handle_word(MS(0)), "nobody has asked for anything");
    assert_eq!(wish(&mut backup, 0), Err(Refusal::NotOff));
    assert!(!backup.handle_word(MS(500)), "that was long ago");
    assert_eq!(wish(&mut backup, 600), Err(Refusal::NotOff));
    assert!(backup.handle_word(MS(610)));
    assert!(wish(&mut backup, 620).is_ok());
}

#[test]
fn what_was_said_of_an_owner_that_is_heard_again_counts_no_more() {
    let mut backup = own("b", Way::Command, Some(pair()));
    let _ = wish(&mut backup, 0);
    assert!(backup.handle_word(MS(1)));
    backup.handle_heard(MS(2), &says(&backup, Kind::Ask, 10, Some(&pair())));
    assert_eq!(wish(&mut backup, 3), Err(Refusal::Proving));
    for now in 4..60 {
        let _ = wish(&mut backup, now);
    }
    assert!(backup.poll_proof());
    backup.handle_proof(MS(60), true);
    backup.handle_heard(MS(61), &says(&backup, Kind::Ask, 10, Some(&pair())));
    assert_eq!(wish(&mut backup, 62), Err(Refusal::Proving));
}

#[test]
fn of_a_backup_that_leaves_nothing_is_to_be_proved() {
    let mut owner = own("a", Way::Command, Some(pair()));
    let mut backup = own("b", Way::Command, Some(pair()));
    let mut follows = Message { follows: true, epoch: 3, ..says(&backup, Kind::Word, 20, None) };
    backup.mark(&mut follows);
    backup.leave();
    let mut word = says(&backup, Kind::Word, 20, None);
    backup.mark(&mut word);
    assert!(word.yields && !word.follows);
    owner.handle_heard(MS(1), &word);
    assert!(wish(&mut owner, 2).is_ok() && !owner.poll_proof());
    assert_eq!(wish(&mut backup, 2), Err(Refusal::Barred));
}

#[test]
fn a_command_is_run_after_a_while_and_believed_for_good() {
    for (me, patience) in [("a", 20), ("b", 40)] {
        let mut member = own(me, Way::Command, Some(pair()));
        for now in 0..patience {
            assert_eq!(wish(&mut member, now), Err(Refusal::Proving));
            assert!(!member.poll_proof(), "{now}");
        }
        assert_eq!(wish(&mut member, patience), Err(Refusal::Proving));
        assert!(member.poll_proof() && !member.poll_proof(), "once");
        member.handle_proof(MS(patience + 1), false);
        assert_eq!(wish(&mut member, patience + 2), Err(Refusal::NoProof));
        assert!(!member.poll_proof(), "not at once again");
        for now in patience..patience + 102 {
            let _ = wish(&mut member, now);
        }
        assert!(member.poll_proof());
        member.handle_proof(MS(9000), true);
        assert!(wish(&mut member, 9999).is_ok(), "{me}");
    }
}

#[test]
fn who_was_not_run_begins_to_be_patient_again() {
    let mut backup = own("b", Way::Gateway, Some(pair()));
    let _ = wish(&mut backup, 0);
    let _ = wish(&mut backup, 500);
    assert!(!backup.poll_proof());
    let _ = wish(&mut backup, 540);
    assert!(backup.poll_proof());
    backup.handle_proof(MS(560), true);
    let _ = wish(&mut backup, 900);
    assert_eq!(backup.record(), Some(&pair()), "what the gateway said then says nothing now");
}

#[test]
fn what_was_given_away_comes_back_only_from_who_yields() {
    for way in [Way::Nobody, Way::Command] {
        let mut owner = own("a", way, Some(pair()));
        let mut resign = says(&owner, Kind::Resign, 10, None);
        owner.mark(&mut resign);
        assert_eq!((resign.kind, resign.epoch, resign.owns), (Kind::Resign, 3, true));
        for now in 0..100 {
            assert_eq!(wish(&mut owner, now), Err(Refusal::Unheard));
        }
        assert!(!owner.poll_proof(), "it shoots nobody who may serve");
        // A later life of the other one has to hear of it.
        let mut word = says(&owner, Kind::Word, 10, None);
        owner.mark(&mut word);
        assert_eq!(word.kind, Kind::Resign);

        let mut other = own("b", way, Some(pair()));
        other.handle_heard(MS(100), &word);
        let mut follows = Message { follows: true, epoch: 3, ..says(&other, Kind::Word, 20, None) };
        other.mark(&mut follows);
        assert!(!follows.yields);
        let mut yields = says(&other, Kind::Word, 20, Some(&pair()));
        other.mark(&mut yields);
        assert!(yields.yields);
        assert_eq!(wish(&mut other, 101), Err(Refusal::Barred), "for good");
        owner.handle_heard(MS(102), &yields);
        assert!(wish(&mut owner, 103).is_ok());
    }
}

#[test]
fn a_group_is_founded_by_one_when_the_other_has_nothing_either() {
    let mut first = own("a", Way::Nobody, None);
    assert_eq!(wish(&mut first, 0), Err(Refusal::Unheard));
    first.handle_heard(MS(1), &says(&first, Kind::Word, 20, None));
    assert_eq!(wish(&mut first, 2), Ok(Some(record(1, "a", 10, Mode::Solo))));
    let mut second = own("b", Way::Nobody, None);
    second.handle_heard(MS(1), &says(&second, Kind::Word, 10, None));
    assert_eq!(wish(&mut second, 2), Err(Refusal::Unheard), "the other one would, too");
    assert!(second.handle_word(MS(3)));
    assert!(wish(&mut second, 4).is_ok());
}

#[test]
fn a_fresh_disk_learns_and_starts_nothing_beside_a_living_server() {
    let mut first = own("a", Way::Nobody, None);
    let served = record(5, "b", 20, Mode::Solo);
    first.handle_heard(MS(1), &says(&first, Kind::Ask, 20, Some(&served)));
    assert_eq!(first.poll_write(), Some(served.clone()));
    first.handle_written(MS(2), true);
    assert_eq!(wish(&mut first, 3), Err(Refusal::Barred));
    // One that lost its disk does not say that it knows what it has learnt of itself.
    let mut lost = own("a", Way::Nobody, None);
    let earlier = record(3, "a", 9, Mode::Pair);
    lost.handle_heard(MS(1), &says(&lost, Kind::Word, 20, Some(&earlier)));
    assert_eq!(lost.poll_write(), None, "nor does a later life of it find that on the disk");
    assert_eq!(lost.record(), Some(&earlier));
    assert_eq!(wish(&mut lost, 2), Err(Refusal::Unheard));
    let mut word = says(&lost, Kind::Word, 10, None);
    lost.mark(&mut word);
    assert_eq!((word.epoch, word.yields), (0, false));
}

#[test]
fn two_owners_of_one_epoch_change_nothing() {
    let mut owner = own("a", Way::Nobody, Some(record(4, "a", 10, Mode::Solo)));
    let others = record(4, "b", 20, Mode::Solo);
    owner.handle_heard(MS(1), &says(&owner, Kind::Word, 21, Some(&others)));
    assert!(owner.is_contested() && !owner.is_contested_alive(), "that one is not running");
    assert_eq!(wish(&mut owner, 2), Err(Refusal::Conflict));
    owner.handle_heard(MS(3), &says(&owner, Kind::Ask, 20, Some(&others)));
    assert!(owner.is_contested_alive());
    let pair = record(4, "b", 20, Mode::Pair);
    owner.handle_heard(MS(4), &says(&owner, Kind::Ask, 20, Some(&pair)));
    assert_eq!(owner.poll_write(), None, "it is not learnt, though it comes later");
    owner.handle_heard(MS(5), &says(&owner, Kind::Word, 20, None));
    assert!(!owner.is_contested(), "somebody has removed it");
}

#[test]
fn a_disk_that_writes_nothing_makes_nothing_true() {
    let mut owner = own("a", Way::Nobody, Some(pair()));
    let next = record(4, "a", 10, Mode::Solo);
    let request = Request::Swap { expected: Some(pair()), next: next.clone() };
    owner.handle_request(MS(1), 7, request.clone());
    assert_eq!(owner.poll_write(), Some(next));
    let mut resign = says(&owner, Kind::Resign, 10, None);
    owner.mark(&mut resign);
    assert_eq!(resign.kind, Kind::Word, "nobody knows yet in which epoch it resigns");
    owner.handle_request(MS(2), 8, Request::Read);
    assert_eq!(owner.poll_reply(), None, "what is being written is no answer");
    owner.handle_written(MS(3), false);
    assert_eq!(owner.poll_reply().map(|it| it.0), Some(8), "the later question");
    assert_eq!(owner.record(), Some(&pair()));
    owner.handle_request(MS(4), 9, request);
    owner.handle_written(MS(5), false);
    let reply = owner.poll_reply().expect("an answer").1;
    assert_eq!(reply.outcome, Err(Refusal::NotWritten));
}
