//! Every judge of pairs with leases can fail: each mutation breaks the model of a host in one
//! way, and a judge says so within 5,000 seeds. And what leases cannot do, as a plan that
//! shows it.

use holdfast_cluster::arbiter::own::Way;
use holdfast_sim::lease::{Fault, Mutation, Plan, Ways, simulate};

const MS: u64 = 1_000_000;
/// Seeds within which a mutation must be seen.
const WITHIN: u64 = 5_000;
/// Seeds that are clean without it.
const CLEAN: u64 = 300;

/// A plan in which this happens, all else as the seed draws it.
fn plan(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    let faults = faults.iter().map(|(ms, fault)| (ms * MS, *fault)).collect();
    Plan { faults, ..Plan::draw(seed) }
}

/// The same with a slow disk.
fn slow(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    Plan { disk: 60 * MS, ..plan(seed, faults) }
}

/// The same without a third party.
fn nobody(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    Plan { way: Some(Way::Nobody), ..plan(seed, faults) }
}

fn command(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    Plan { way: Some(Way::Command), ..plan(seed, faults) }
}

/// Some seed breaks this law with the mutation; without it none breaks any.
fn sees(law: &str, mutation: Mutation, faults: &[(u64, Fault)]) {
    sees_in(law, mutation, faults, plan);
}

fn sees_in(
    law: &str,
    mutation: Mutation,
    faults: &[(u64, Fault)],
    plan: fn(u64, &[(u64, Fault)]) -> Plan,
) {
    for seed in 0..CLEAN {
        let outcome = simulate(plan(seed, faults), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
    let breaks = |seed: &u64| {
        let mut plan = plan(*seed, faults);
        plan.mutation = Some(mutation);
        simulate(plan, false).violations.iter().any(|it| it.law == law)
    };
    let (first, all) = ((0..WITHIN).find(breaks), (0..WITHIN).filter(breaks).count());
    println!("{mutation:?} is seen in {all} of {WITHIN} seeds, first {first:?}");
    assert!(first.is_some(), "{mutation:?}");
}

/// Some seed breaks this law with the mutation, whatever faults it draws.
fn sees_anyway(law: &str, mutation: Mutation) {
    let breaks = |seed: &u64| {
        let plan = Plan { mutation: Some(mutation), ..Plan::draw(*seed) };
        simulate(plan, false).violations.iter().any(|it| it.law == law)
    };
    let (first, all) = ((0..WITHIN).find(breaks), (0..WITHIN).filter(breaks).count());
    println!("{mutation:?} is seen in {all} of {WITHIN} seeds, first {first:?}");
    assert!(first.is_some(), "{mutation:?}");
}

const CUT: Fault = Fault::Cut { ways: Ways::Both, lasts: None };

#[test]
fn a_promise_that_is_ignored_is_seen() {
    sees_anyway("L3", Mutation::PromiseIgnored);
}

#[test]
fn a_lease_that_is_counted_from_its_receipt_is_seen() {
    sees_anyway("L3", Mutation::CountedFromReceipt);
}

#[test]
fn a_backup_that_asks_nobody_is_seen() {
    sees_anyway("L3", Mutation::TakesOverUnasked);
}

#[test]
fn a_primary_that_asks_nobody_is_seen() {
    sees_anyway("L3", Mutation::AloneUnasked);
}

#[test]
fn a_grant_that_counts_for_a_later_question_is_seen() {
    let mute = Fault::Cut { ways: Ways::FromFirst, lasts: None };
    sees("L3", Mutation::OldGrantForNew, &[(300, mute)]);
}

#[test]
fn who_resigns_before_it_is_silent_is_seen() {
    sees("L3", Mutation::ResignsFirst, &[(400, Fault::Resigns { member: 0 })]);
}

#[test]
fn a_witness_that_answers_before_it_has_written_is_seen() {
    // One of the two wins, the witness falls, and the other one wins, too.
    let dies = Fault::ArbiterDies { again: Some(2 * MS) };
    sees_in("L3", Mutation::AnswersFirst, &[(300, CUT), (348, dies)], slow);
}

#[test]
fn a_witness_that_trusts_an_old_disk_is_seen() {
    // The backup sleeps while the primary goes on alone, which the disk then has not heard of.
    let sleeps = Fault::Frozen { member: 1, lasts: 200 * MS };
    let boots = Fault::ArbiterBoots { old: true, again: 30 * MS };
    let away = Fault::CutArbiter { member: 0, lasts: 400 * MS };
    sees("L3", Mutation::TrustsItsDisk, &[(300, sleeps), (380, CUT), (400, away), (460, boots)]);
}

#[test]
fn a_pair_that_begins_without_a_lease_is_seen() {
    // The primary stands still right after it has asked for a pair, and its kernel goes on.
    let stands = Fault::Frozen { member: 0, lasts: 300 * MS };
    sees("L3", Mutation::PairsUnleased, &[(123, stands)]);
}

#[test]
fn a_backup_that_never_takes_over_is_seen() {
    let dies = Fault::HostDies { member: 0, again: None };
    sees("liveness", Mutation::NeverClaims, &[(400, dies)]);
}

#[test]
fn a_member_that_takes_over_what_it_does_not_hold_is_seen() {
    let dies = Fault::HostDies { member: 0, again: None };
    sees("step", Mutation::JoinsTooEarly, &[(400, dies)]);
}

#[test]
fn an_epoch_that_comes_again_is_seen() {
    // All that knew it have died, and the arbiter's disk is an old one.
    let dies = |member| Fault::HostDies { member, again: Some(100 * MS) };
    let boots = Fault::ArbiterBoots { old: true, again: 50 * MS };
    sees("epoch", Mutation::KeepsNothing, &[(400, dies(0)), (500, boots), (520, dies(1))]);
}

#[test]
fn a_witness_that_asks_for_no_ticket_is_seen() {
    // What is granted to one who never hears of it bars the other one for ever.
    sees("liveness", Mutation::NoTickets, &[(400, Fault::Deaf { member: 0, lasts: None })]);
}

#[test]
fn a_takeover_by_nothing_but_silence_is_seen() {
    sees_in("L3", Mutation::WordUngiven, &[(400, CUT)], nobody);
}

#[test]
fn a_yield_that_nobody_has_given_is_seen() {
    // The primary gives the service away, and is back before it hears who has taken it.
    let mute = Fault::Cut { ways: Ways::FromSecond, lasts: None };
    let faults = [(399, mute), (400, Fault::Resigns { member: 0 })];
    sees_in("L3", Mutation::YieldAssumed, &faults, nobody);
}

#[test]
fn a_group_that_is_founded_twice_is_seen() {
    // The primary hands over, and comes back with an empty disk.
    let lost = Fault::DiskLost { member: 0, again: 100 * MS };
    let faults = [(400, Fault::Resigns { member: 0 }), (440, lost)];
    sees_in("L3", Mutation::FoundsUnasked, &faults, nobody);
}

#[test]
fn a_host_that_was_not_switched_off_is_seen() {
    sees_in("L3", Mutation::FalseProof, &[(400, CUT)], command);
}

#[test]
fn an_owner_that_needs_no_proof_is_seen() {
    sees_in("epoch", Mutation::FilesDiffer, &[(400, CUT)], command);
}

#[test]
fn a_change_that_is_true_before_it_is_written_is_seen() {
    // The backup takes over, and falls before its disk has it.
    let dies = Fault::HostDies { member: 1, again: Some(100 * MS) };
    sees_in(
        "epoch",
        Mutation::AnswersFirst,
        &[(400, Fault::Resigns { member: 0 }), (420, dies)],
        |seed, faults| Plan { disk: 60 * MS, ..nobody(seed, faults) },
    );
}

/// What is to be taken for granted where an operator gives the word: that the host had not gone on
/// alone. Otherwise what it told its clients since is lost.
#[test]
fn a_word_over_one_who_went_on_alone_is_a_limit() {
    let cut = Fault::Cut { ways: Ways::Both, lasts: None };
    let dies = Fault::HostDies { member: 0, again: None };
    let mut plan = nobody(1, &[(400, cut), (600, dies)]);
    plan.mutation = Some(Mutation::WordUngiven);
    let violations = simulate(plan, false).violations;
    assert!(violations.iter().any(|it| it.law == "step"), "{violations:?}");
}

/// Who hears nothing and sends all the same stops nobody else.
#[test]
fn a_member_that_hears_nothing_leaves_the_service_to_the_other_one() {
    for member in [0, 1] {
        let (mut takeovers, mut most) = (0, 0);
        for seed in 0..WITHIN {
            let deaf = Fault::Deaf { member, lasts: None };
            let outcome = simulate(plan(seed, &[(400, deaf)]), false);
            assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
            takeovers += outcome.reached.takeovers;
            most = most.max(outcome.silence);
        }
        println!("{member} is deaf: {takeovers} takeovers, {:.1} ms at most", most as f64 / 1e6);
        // Some were alone before, or had just asked for that.
        let due = if member == 0 { WITHIN - WITHIN / 25..WITHIN + 1 } else { 0..WITHIN / 25 };
        assert!(due.contains(&takeovers), "{takeovers}");
    }
}

/// What no clock of a member can tell: the machine and its clock stood still, and its lease is
/// as long as before. Two speak, for less than a lease. The data path has to bear that.
#[test]
fn a_clock_that_stands_still_is_seen_and_is_a_limit() {
    let stands = Fault::ClockStands { member: 0, lasts: 200 * MS };
    let (mut seen, mut most, mut lease) = (0, 0, 0);
    for seed in 0..WITHIN {
        let plan = plan(seed, &[(300, stands)]);
        lease = lease.max(plan.lease);
        let outcome = simulate(plan, false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        seen += u64::from(outcome.by_clock > 0);
        most = most.max(outcome.by_clock);
    }
    println!("two speak in {seen} of {WITHIN} seeds, for {:.1} ms at most", most as f64 / 1e6);
    assert!(seen > WITHIN / 4, "{seen} of {WITHIN}");
    assert!((1..=lease).contains(&most), "{most}");
}

/// The same pause with a clock that goes on harms nobody.
#[test]
fn a_machine_that_is_suspended_and_whose_clock_runs_is_silent_afterwards() {
    for still in [
        Fault::Suspended { member: 0, lasts: 200 * MS },
        Fault::Frozen { member: 0, lasts: 200 * MS },
    ] {
        for seed in 0..CLEAN {
            let outcome = simulate(plan(seed, &[(300, still)]), false);
            assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
            assert_eq!(outcome.by_clock, 0);
        }
    }
}

/// A second fault stops the service while the arbiter is away, and not before.
#[test]
fn a_pair_goes_on_without_its_arbiter_until_something_else_fails() {
    let away = (300, Fault::ArbiterDies { again: None });
    for seed in 0..CLEAN {
        let goes_on = simulate(Plan { loss: 0.0, ..plan(seed, &[away]) }, false);
        assert!(goes_on.violations.is_empty() && goes_on.speaks, "seed {seed}");
        for dies in [0, 1] {
            let faults = [away, (400, Fault::HostDies { member: dies, again: None })];
            let stops = simulate(plan(seed, &faults), false);
            assert!(stops.violations.is_empty() && !stops.speaks, "seed {seed}, {dies} dies");
        }
    }
}

/// Who is copied, member or arbiter, does not make two speakers by that alone.
#[test]
fn copies_are_refused_and_counted() {
    let (mut copies, mut arbiters) = (0, 0);
    for seed in 0..CLEAN {
        let member = simulate(plan(seed, &[(300, Fault::MemberCopied { member: 0 })]), false);
        let arbiter = [(300, Fault::ArbiterCopied), (500, CUT)];
        let arbiter = simulate(plan(seed, &arbiter), false);
        for outcome in [&member, &arbiter] {
            assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
            assert!(!outcome.by_copy);
        }
        copies += member.reached.copies;
        arbiters += arbiter.reached.lineages;
    }
    assert!(copies > CLEAN && arbiters > CLEAN, "{copies} and {arbiters}");
}

/// What is recorded and sent again, or made up, changes nothing.
#[test]
fn replayed_messages_are_refused_and_counted() {
    let mut replayed = 0;
    for seed in 0..CLEAN {
        let forger = [(300, Fault::Forger { lasts: 500 * MS })];
        let outcome = simulate(Plan { loss: 0.0, ..plan(seed, &forger) }, false);
        assert!(outcome.violations.is_empty() && outcome.speaks, "seed {seed}");
        replayed += outcome.reached.replayed;
    }
    assert!(replayed > 50 * CLEAN, "{replayed}");
}
