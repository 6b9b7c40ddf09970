use super::*;
use proptest::prelude::*;

fn group() -> EdgeMembership {
    let mut edge =
        EdgeMembership::new(&["alpha", "beta"], EdgeState::default()).expect("two names");
    assert!(edge.handle_answers("beta", true) && !edge.handle_answers("beta", true));
    edge
}

fn state(epoch: u64, current: &str) -> EdgeState {
    EdgeState { epoch, current: Some(current.to_owned()), fenced: false }
}

fn grant(edge: &mut EdgeMembership, name: &str, epoch: u64) {
    assert!(matches!(edge.handle_promote(name, epoch), Decision::Grant { .. }), "{name} {epoch}");
    edge.handle_persisted();
}

#[test]
fn the_very_first_start_goes_to_another_member_once_the_preferred_one_does_not_come() {
    let refused = Decision::Refuse(Refusal::NotPreferred);
    let mut edge = group();
    edge.handle_settled();
    edge.handle_answers("alpha", true);
    assert_eq!(edge.handle_promote("beta", 1), refused, "it is there");
    edge.handle_answers("alpha", false);
    grant(&mut edge, "beta", 1);
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::NotInStep));
}

#[test]
fn the_very_first_start_goes_to_the_preferred_member() {
    let mut edge = group();
    assert_eq!(edge.handle_promote("beta", 1), Decision::Refuse(Refusal::NotPreferred));
    grant(&mut edge, "alpha", 1);
    assert_eq!(edge.handle_ask(), &state(1, "alpha"));
    assert_eq!(edge.handle_promote("alpha", 1), Decision::Reopen { epoch: 1 });
}

#[test]
fn only_a_backup_in_step_is_promoted() {
    let mut edge = group();
    grant(&mut edge, "alpha", 1);
    assert_eq!(edge.handle_promote("beta", 2), Decision::Refuse(Refusal::NotInStep));
    assert!(!edge.handle_in_step("beta", 0, true), "another epoch");
    assert!(!edge.handle_in_step("alpha", 1, true), "the current member");
    assert!(edge.handle_in_step("beta", 1, true));
    assert_eq!(edge.handle_promote("beta", 1), Decision::Refuse(Refusal::WrongEpoch));
    assert_eq!(edge.handle_promote("beta", 3), Decision::Refuse(Refusal::Behind));
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::BackupInStep));
    assert_eq!(edge.handle_promote("gamma", 2), Decision::Refuse(Refusal::UnknownMember));
    grant(&mut edge, "beta", 2);
    assert!(!edge.is_in_step("alpha") && !edge.is_in_step("beta"));
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::WrongEpoch));
}

#[test]
fn a_backup_that_is_silent_bars_nobody_and_is_barred() {
    let mut edge = group();
    edge.handle_settled();
    grant(&mut edge, "alpha", 1);
    edge.handle_in_step("beta", 1, true);
    assert!(edge.is_ready("beta"));
    assert!(edge.handle_answers("beta", false) && !edge.is_ready("beta"));
    grant(&mut edge, "alpha", 2);
    edge.handle_answers("beta", true);
    assert_eq!(edge.handle_promote("beta", 2), Decision::Refuse(Refusal::WrongEpoch));
    assert_eq!(edge.handle_promote("beta", 3), Decision::Refuse(Refusal::NotInStep));
    assert!(!edge.handle_answers("gamma", true), "a stranger");
}

#[test]
fn who_comes_or_goes_is_in_step_when_it_says_so_again() {
    let mut edge = group();
    grant(&mut edge, "alpha", 1);
    for leaves in [false, true] {
        assert!(edge.handle_builds("beta", 1));
        if leaves {
            edge.handle_left("beta");
        }
        assert_eq!((edge.is_in_step("beta"), edge.builds("beta")), (!leaves, !leaves));
    }
}

#[test]
fn a_grant_counts_only_once_it_is_written() {
    let mut edge = group();
    grant(&mut edge, "alpha", 1);
    edge.handle_in_step("beta", 1, true);
    assert!(matches!(edge.handle_promote("beta", 2), Decision::Grant { .. }));
    assert_eq!(edge.handle_ask().epoch, 1);
    assert_eq!(edge.handle_promote("alpha", 1), Decision::Refuse(Refusal::Busy));
    edge.handle_persist_failed();
    assert_eq!(edge.handle_ask().current.as_deref(), Some("alpha"));
    grant(&mut edge, "beta", 2);
}

#[test]
fn a_lone_member_may_start_anew_in_a_new_epoch() {
    let mut edge = group();
    edge.handle_settled();
    grant(&mut edge, "alpha", 1);
    grant(&mut edge, "alpha", 2);
    assert_eq!(edge.handle_promote("beta", u64::MAX), Decision::Refuse(Refusal::Behind));
}

#[test]
fn unusable_member_lists_are_refused() {
    let new = |names: &[&str]| EdgeMembership::new(names, EdgeState::default()).map(|_| ());
    assert_eq!(new(&[]), Err(MembersError::Count(0)));
    assert_eq!(new(&["a", "a"]), Err(MembersError::Twice("a".to_owned())));
    assert_eq!(new(&["a b"]), Err(MembersError::Name("a b".to_owned())));
    assert!(EdgeMembership::new(&["a"], state(3, "gone")).is_err());
}

#[test]
fn only_what_may_pass_is_asked_again() {
    let passing = [
        Refusal::BackupInStep,
        Refusal::NotPreferred,
        Refusal::Busy,
        Refusal::Fenced,
        Refusal::Settling,
        Refusal::Behind,
    ];
    assert!(passing.iter().all(|refusal| !refusal.is_final()));
    let lasting = [Refusal::UnknownMember, Refusal::WrongEpoch, Refusal::NotInStep];
    assert!(lasting.iter().all(|refusal| refusal.is_final()));
}

#[test]
fn an_edge_that_was_closed_by_hand_grants_nothing_until_it_is_opened() {
    let mut edge = group();
    grant(&mut edge, "alpha", 1);
    edge.handle_in_step("beta", 1, true);
    assert!(edge.handle_fenced(true).fenced);
    for (name, epoch) in [("alpha", 1), ("alpha", 2), ("beta", 2)] {
        assert_eq!(edge.handle_promote(name, epoch), Decision::Refuse(Refusal::Fenced));
    }
    edge.handle_fenced(false);
    assert!(matches!(edge.handle_promote("beta", 2), Decision::Grant { .. }));
    edge.handle_fenced(true);
    assert_eq!(edge.handle_persisted().map(|state| state.fenced), Some(true), "meanwhile");
}

fn hello(edge: &mut EdgeMembership, name: &str, epoch: u64, speaks: bool) {
    edge.handle_hello(name, Greeting { epoch, speaks });
}

/// An edge whose host was started again, with the state on its disk.
fn booted(disk: EdgeState) -> EdgeMembership {
    let mut edge = EdgeMembership::new(&["alpha", "beta"], disk).expect("two names");
    edge.handle_boot();
    edge
}

#[test]
fn a_disk_that_knows_less_than_a_living_primary_is_not_believed() {
    for disk in [EdgeState::default(), state(1, "alpha")] {
        let next = disk.epoch + 1;
        let mut edge = booted(disk);
        hello(&mut edge, "alpha", 0, false);
        assert_eq!(edge.handle_promote("alpha", next), Decision::Refuse(Refusal::Settling));
        assert_eq!(edge.claim(), None);
        hello(&mut edge, "beta", 2, true);
        assert_eq!(edge.claim(), Some(("beta", 2)));
        assert_eq!(edge.handle_promote("alpha", next), Decision::Refuse(Refusal::Behind));
        assert_eq!(edge.handle_promote("beta", 3), Decision::Refuse(Refusal::Behind));
        grant(&mut edge, "beta", 2);
        assert_eq!((edge.claim(), edge.handle_ask()), (None, &state(2, "beta")));
        assert_eq!(edge.handle_promote("alpha", 3), Decision::Refuse(Refusal::NotInStep));
        assert!(edge.handle_in_step("alpha", 2, true));
        grant(&mut edge, "alpha", 3);
    }
}

#[test]
fn a_member_that_does_not_speak_is_evidence_but_not_the_primary() {
    let mut edge = booted(EdgeState::default());
    hello(&mut edge, "beta", 4, false);
    hello(&mut edge, "alpha", 0, false);
    assert_eq!(edge.claim(), None);
    assert_eq!(edge.handle_promote("alpha", 1), Decision::Refuse(Refusal::Behind));
    assert_eq!(edge.handle_promote("beta", 5), Decision::Refuse(Refusal::Behind));
    assert_eq!(edge.handle_promote("beta", 4), Decision::Refuse(Refusal::Behind));
    // Both members were restarted, so nothing is left that could be lost.
    hello(&mut edge, "beta", 0, false);
    grant(&mut edge, "alpha", 1);
}

#[test]
fn who_says_no_hello_holds_up_nobody_for_long() {
    let mut edge = booted(state(3, "alpha"));
    edge.handle_answers("beta", false);
    hello(&mut edge, "alpha", 0, false);
    assert_eq!(edge.handle_promote("alpha", 3), Decision::Reopen { epoch: 3 }, "it lives");
    assert_eq!(edge.handle_promote("alpha", 4), Decision::Refuse(Refusal::Settling));
    edge.handle_settled();
    grant(&mut edge, "alpha", 4);
}

/// An edge that was restarted has lost what it knew of backups.
#[test]
fn a_current_member_that_starts_anew_waits_until_a_backup_could_have_spoken() {
    for beta in [None, Some((3, true)), Some((3, false)), Some((0, false))] {
        let names = ["alpha", "beta"];
        let mut edge = EdgeMembership::new(&names, state(3, "alpha")).expect("two names");
        hello(&mut edge, "alpha", 0, false);
        assert_eq!(edge.handle_promote("alpha", 4), Decision::Refuse(Refusal::Settling));
        let Some((epoch, is_in_step)) = beta else {
            edge.handle_settled();
            grant(&mut edge, "alpha", 4);
            continue;
        };
        hello(&mut edge, "beta", epoch, false);
        edge.handle_answers("beta", true);
        if epoch == 3 {
            assert_eq!(edge.handle_promote("alpha", 4), Decision::Refuse(Refusal::Settling));
            assert!(edge.handle_in_step("beta", 3, is_in_step));
        }
        if is_in_step {
            assert_eq!(edge.handle_promote("alpha", 4), Decision::Refuse(Refusal::BackupInStep));
            grant(&mut edge, "beta", 4);
        } else {
            grant(&mut edge, "alpha", 4);
        }
    }
}

#[test]
fn two_claims_to_one_epoch_are_no_claim() {
    let mut edge = booted(EdgeState::default());
    hello(&mut edge, "alpha", 2, true);
    hello(&mut edge, "beta", 2, true);
    assert_eq!(edge.claim(), None);
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::Behind));
}

#[test]
fn a_fence_without_a_member_waits_for_the_one_that_speaks() {
    let lost = EdgeState { epoch: 2, current: None, fenced: false };
    let mut edge = EdgeMembership::new(&["alpha", "beta"], lost.clone()).expect("two names");
    assert_eq!(edge.handle_promote("alpha", 3), Decision::Refuse(Refusal::Behind));
    hello(&mut edge, "alpha", 1, true);
    assert_eq!(edge.claim(), None);
    assert_eq!(edge.handle_promote("alpha", 1), Decision::Refuse(Refusal::WrongEpoch));
    hello(&mut edge, "beta", 2, true);
    grant(&mut edge, "beta", 2);
    // No member knows anything, so this counts as a first start.
    let mut edge = EdgeMembership::new(&["alpha", "beta"], lost).expect("two names");
    hello(&mut edge, "alpha", 0, false);
    assert_eq!(edge.handle_promote("alpha", 3), Decision::Refuse(Refusal::Behind));
    hello(&mut edge, "beta", 0, false);
    grant(&mut edge, "alpha", 3);
}

proptest! {
    /// Whatever is asked, in whatever order, with failing writes, restarts of the edge, its
    /// operator's hand, and a disk that is rolled back together with a reboot: an epoch has one
    /// member; epochs never go back while the disk is right; a takeover needs a backup that was in
    /// step; no member runs on alone while a backup is ready; and a rolled-back disk yields to the
    /// primary that speaks.
    #[test]
    fn an_epoch_has_one_member(
        ops in proptest::collection::vec((0_u8..9, 0_usize..3, 0_u64..3), 0..80)
    ) {
        let names = ["alpha", "beta", "gamma"];
        let new = |disk: &EdgeState| EdgeMembership::new(&names, disk.clone()).expect("our names");
        let mut edge = new(&EdgeState::default());
        let mut holders = std::collections::BTreeMap::new();
        let mut disks = vec![EdgeState::default()];
        // The members greet an edge that may have forgotten everything.
        let greet = |edge: &mut EdgeMembership, speaks: Option<(usize, u64)>| {
            edge.handle_boot();
            for (i, name) in names.iter().enumerate() {
                let own = speaks.filter(|(speaker, _)| *speaker == i);
                let epoch = own.map_or(0, |(_, epoch)| epoch);
                edge.handle_hello(name, Greeting { epoch, speaks: own.is_some() });
            }
        };
        // The member that speaks: the primary of the last epoch that was granted.
        let mut speaks: Option<(usize, u64)> = None;
        // Whether the host was restarted and nobody has been let through since.
        let mut booted = false;
        for (op, who, ahead) in ops {
            let epoch = edge.handle_ask().epoch;
            match op {
                0 => { edge.handle_in_step(names[who], epoch + ahead, true); }
                1 | 2 => {
                    let ready = |edge: &EdgeMembership, i: usize| edge.is_ready(names[i]);
                    let in_step = edge.is_in_step(names[who]);
                    let before = edge.handle_ask().clone();
                    let claims = edge.claim() == Some((names[who], epoch + ahead));
                    let barred = (0..3).any(|i| i != who && ready(&edge, i));
                    if let Decision::Grant { persist } = edge.handle_promote(names[who], epoch + ahead) {
                        prop_assert!(!before.fenced);
                        prop_assert_eq!(persist.epoch, epoch + if claims { ahead } else { 1 });
                        let itself = before.current.as_deref() == Some(names[who]);
                        prop_assert!(claims || in_step || before.current.is_none() || itself);
                        prop_assert!(claims || in_step || !(itself && barred), "over a ready backup");
                        if ahead == 1 && who == 2 {
                            edge.handle_persist_failed();
                        } else {
                            speaks = Some((who, persist.epoch));
                            disks.push(persist);
                            edge.handle_persisted();
                            booted = false;
                        }
                    }
                }
                3 => {
                    edge = new(disks.last().expect("one"));
                    if booted {
                        greet(&mut edge, speaks);
                    }
                }
                4 => { edge.handle_in_step(names[who], epoch, false); }
                5 => { edge.handle_answers(names[who], ahead > 0); }
                6 => {
                    edge.handle_fenced(ahead == 2);
                    if let Some(disk) = disks.last_mut() { disk.fenced = ahead == 2; }
                }
                7 if speaks.is_some() => {
                    // The host is restarted with an older disk, and the members are still there.
                    let older = disks.len() - 1 - (ahead as usize).min(disks.len() - 1);
                    edge = new(&disks[older]);
                    greet(&mut edge, speaks);
                    booted = true;
                    disks.truncate(older + 1);
                }
                _ => {}
            }
            let state = edge.handle_ask();
            prop_assert!(op == 7 || state.epoch >= epoch);
            let holder = holders.entry(state.epoch).or_insert_with(|| state.current.clone());
            prop_assert_eq!(&*holder, &state.current);
        }
    }
}

/// Writing may take time, and may fail.
#[test]
fn what_is_said_while_a_grant_is_written_counts() {
    let mut edge = group();
    edge.handle_settled();
    grant(&mut edge, "alpha", 1);
    edge.handle_in_step("beta", 1, true);
    assert!(matches!(edge.handle_promote("beta", 2), Decision::Grant { .. }));
    assert!(edge.handle_in_step("beta", 1, false), "it has given up");
    edge.handle_persist_failed();
    assert_eq!(edge.handle_promote("beta", 2), Decision::Refuse(Refusal::NotInStep));
    assert!(matches!(edge.handle_promote("alpha", 2), Decision::Grant { .. }));
    assert!(edge.handle_in_step("beta", 1, true));
    edge.handle_persisted();
    assert!(!edge.is_in_step("beta"), "that was another epoch");
}

/// Who builds a server may fail; one that lives has its connections still. One that begins anew
/// has not.
#[test]
fn a_backup_that_builds_bars_only_a_primary_that_begins_anew() {
    let mut edge = group();
    edge.handle_settled();
    grant(&mut edge, "alpha", 1);
    assert!(!edge.handle_builds("beta", 0), "another epoch");
    assert!(edge.handle_builds("beta", 1) && edge.builds("beta") && edge.is_ready("beta"));
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::BackupInStep));
    assert!(edge.handle_in_step("beta", 1, true) && !edge.builds("beta"));
    assert_eq!(edge.handle_alone("alpha", 2), Decision::Refuse(Refusal::BackupInStep));
    assert!(edge.handle_builds("beta", 1));
    assert!(matches!(edge.handle_alone("alpha", 2), Decision::Grant { .. }));
    edge.handle_persisted();
    assert!(!edge.builds("beta") && !edge.is_in_step("beta"));
}

#[test]
fn who_builds_in_an_epoch_does_not_build_in_the_next() {
    let mut edge = group();
    edge.handle_settled();
    assert!(!edge.builds("alpha") && !edge.builds("beta"));
    grant(&mut edge, "alpha", 1);
    assert!(edge.handle_builds("beta", 1) && edge.builds("beta"));
    edge.handle_left("beta");
    assert!(!edge.builds("beta"));
    assert!(edge.handle_builds("beta", 1) && edge.builds("beta"));
    assert!(matches!(edge.handle_alone("alpha", 2), Decision::Grant { .. }));
    edge.handle_persisted();
    assert!(!edge.builds("beta"));
}
