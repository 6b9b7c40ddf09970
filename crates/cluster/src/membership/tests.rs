use super::*;
use proptest::prelude::*;

fn group() -> EdgeMembership {
    let mut edge =
        EdgeMembership::new(&["alpha", "beta"], EdgeState::default()).expect("two names");
    assert!(edge.handle_answers("beta", true) && !edge.handle_answers("beta", true));
    edge
}

fn grant(edge: &mut EdgeMembership, name: &str, epoch: u64) {
    assert!(matches!(edge.handle_promote(name, epoch), Decision::Grant { .. }), "{name} {epoch}");
    edge.handle_persisted();
}

#[test]
fn the_very_first_start_goes_to_the_preferred_member() {
    let mut edge = group();
    assert_eq!(edge.handle_promote("beta", 1), Decision::Refuse(Refusal::NotPreferred));
    grant(&mut edge, "alpha", 1);
    assert_eq!(edge.handle_ask(), &EdgeState { epoch: 1, current: Some("alpha".to_owned()) });
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
    assert_eq!(edge.handle_promote("beta", 3), Decision::Refuse(Refusal::WrongEpoch));
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::BackupInStep));
    assert_eq!(edge.handle_promote("gamma", 2), Decision::Refuse(Refusal::UnknownMember));
    grant(&mut edge, "beta", 2);
    assert!(!edge.is_in_step("alpha") && !edge.is_in_step("beta"));
    assert_eq!(edge.handle_promote("alpha", 2), Decision::Refuse(Refusal::WrongEpoch));
}

#[test]
fn a_backup_that_is_silent_bars_nobody_and_is_barred() {
    let mut edge = group();
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
    grant(&mut edge, "alpha", 1);
    grant(&mut edge, "alpha", 2);
    assert_eq!(edge.handle_promote("beta", u64::MAX), Decision::Refuse(Refusal::WrongEpoch));
}

#[test]
fn unusable_member_lists_are_refused() {
    let new = |names: &[&str]| EdgeMembership::new(names, EdgeState::default()).map(|_| ());
    assert_eq!(new(&[]), Err(MembersError::Count(0)));
    assert_eq!(new(&["a", "a"]), Err(MembersError::Twice("a".to_owned())));
    assert_eq!(new(&["a b"]), Err(MembersError::Name("a b".to_owned())));
    let state = EdgeState { epoch: 3, current: Some("gone".to_owned()) };
    assert!(EdgeMembership::new(&["a"], state).is_err());
}

proptest! {
    /// Whatever is asked, in whatever order and with restarts of the edge: an
    /// epoch has one member, epochs never go back, and a takeover needs a
    /// backup that was in step.
    #[test]
    fn an_epoch_has_one_member(ops in proptest::collection::vec((0_u8..5, 0_usize..3, 0_u64..3), 0..80)) {
        let names = ["alpha", "beta", "gamma"];
        let mut edge = EdgeMembership::new(&names, EdgeState::default()).expect("three names");
        let mut holders = std::collections::BTreeMap::new();
        let mut disk = EdgeState::default();
        for (op, who, ahead) in ops {
            let epoch = edge.handle_ask().epoch;
            match op {
                0 => { edge.handle_in_step(names[who], epoch + ahead, true); }
                1 | 2 => {
                    let in_step = edge.is_in_step(names[who]);
                    let before = edge.handle_ask().current.clone();
                    if let Decision::Grant { persist } = edge.handle_promote(names[who], epoch + ahead) {
                        prop_assert_eq!(persist.epoch, epoch + 1);
                        prop_assert!(in_step || before.is_none() || before.as_deref() == Some(names[who]));
                        if ahead == 1 && who == 2 {
                            edge.handle_persist_failed();
                        } else {
                            disk = persist;
                            edge.handle_persisted();
                        }
                    }
                }
                3 => edge = EdgeMembership::new(&names, EdgeState::parse(disk.to_string().as_bytes()).expect("our own file")).expect("our names"),
                _ => { edge.handle_in_step(names[who], epoch, false); }
            }
            let state = edge.handle_ask();
            prop_assert!(state.epoch >= epoch);
            let holder = holders.entry(state.epoch).or_insert_with(|| state.current.clone());
            prop_assert_eq!(&*holder, &state.current);
        }
    }
}
