//! A cold backup (docs/REPLICATION.md, 30) is judged by the same laws as one that runs a
//! replica, whoever dies and whenever.

use crate::calm::{MS, calm, run};
use crate::scope;
use holdfast_sim::{ColdPlan, Fault, How, Plan, Step, Ways, When, simulate, trace_tail};

/// Number of runs of each named plan.
const SEEDS: u64 = 8;

/// Seeds of drawn plans, beyond those of other tests.
fn drawn() -> std::ops::Range<u64> {
    200_000..scope::of(200_200, 200_400)
}

/// Clients that go on for long, a cold backup that joins at once, and nothing that breaks.
fn cold(seed: u64) -> Plan {
    Plan { cold: Some(ColdPlan::ROOMY), ..calm(seed, 4000) }
}

#[test]
fn it_joins_by_itself_and_takes_over() {
    for (how, seed) in [How::Daemon, How::Server, How::Host]
        .into_iter()
        .flat_map(|how| (0..SEEDS).map(move |n| (how, n)))
    {
        let mut plan = cold(seed);
        plan.faults = vec![
            (When::Join(Step::Joined), Fault::TapLoss { lasts: MS }),
            (When::After(500 * MS), Fault::Dies { speaks: true, how }),
        ];
        let outcome = run(&plan);
        let seen = (outcome.reached.joins, outcome.takeovers, outcome.service_ended);
        assert!(seen.0 >= 1 && (seen.1, seen.2) == (1, false), "{how:?} {seen:?}\n{plan}");
        assert!(outcome.replies > 50, "{how:?}\n{plan}");
    }
}

/// The primary is cut off for a while, and lives.
fn cut_off(seed: u64, cold_plan: ColdPlan) -> Plan {
    let (member, ways, lasts) = (0, Ways::Both, 300 * MS);
    let faults = vec![
        (When::Join(Step::Joined), Fault::TapLoss { lasts: MS }),
        (When::After(500 * MS), Fault::CutEdge { member, ways, lasts }),
        (When::After(0), Fault::CutPair { ways, lasts }),
    ];
    Plan { cold: Some(cold_plan), faults, load_until: 8000 * MS, ..cold(seed) }
}

#[test]
fn a_primary_that_lives_goes_on_where_what_is_kept_is_damaged() {
    let damaged = ColdPlan { damaged_permille: 1000, ..ColdPlan::ROOMY };
    for seed in 0..2 * SEEDS {
        let plan = cut_off(seed, damaged);
        let outcome = run(&plan);
        let seen = (outcome.reached.unbuilt, outcome.takeovers, outcome.service_ended);
        assert_eq!(seen, (1, 0, false), "{plan}");
        assert!(outcome.reached.joins >= 2, "its backup joins again: {plan}");
    }
}

/// Where it does not live, nobody serves, and nobody is to blame.
#[test]
fn where_what_is_kept_is_damaged_and_the_primary_is_dead_the_service_ends() {
    let damaged = ColdPlan { damaged_permille: 1000, ..ColdPlan::ROOMY };
    for seed in 0..SEEDS {
        let mut plan = Plan { cold: Some(damaged), ..cold(seed) };
        plan.faults = vec![
            (When::Join(Step::Joined), Fault::TapLoss { lasts: MS }),
            (When::After(500 * MS), Fault::Dies { speaks: true, how: How::Host }),
        ];
        let outcome = run(&plan);
        let seen = (outcome.reached.unbuilt, outcome.takeovers, outcome.service_ended);
        assert_eq!(seen, (1, 0, true), "{plan}");
    }
}

#[test]
fn a_primary_that_comes_back_before_the_server_is_built_goes_on() {
    let slow = ColdPlan { build_min: 2000 * MS, ..ColdPlan::ROOMY };
    for seed in 0..2 * SEEDS {
        let plan = cut_off(seed, slow);
        let outcome = run(&plan);
        assert_eq!((outcome.takeovers, outcome.service_ended), (0, false), "{plan}");
        assert!(outcome.reached.joins >= 2, "its backup joins again: {plan}");
    }
}

/// One that has died and begins anew knows nothing, and is not let speak.
#[test]
fn a_primary_that_begins_anew_does_not_come_before_who_builds_its_server() {
    let slow = ColdPlan { build_min: 2000 * MS, ..ColdPlan::ROOMY };
    for (how, seed) in
        [How::Daemon, How::Host].into_iter().flat_map(|how| (0..SEEDS).map(move |n| (how, n)))
    {
        let mut plan = Plan { cold: Some(slow), load_until: 8000 * MS, ..cold(seed) };
        plan.faults = vec![
            (When::Join(Step::Joined), Fault::TapLoss { lasts: MS }),
            (When::After(500 * MS), Fault::Dies { speaks: true, how }),
            (When::After(300 * MS), Fault::Starts { member: 0 }),
        ];
        let outcome = run(&plan);
        assert_eq!((outcome.takeovers, outcome.service_ended), (1, false), "{how:?} {plan}");
    }
}

/// If the speaking member dies before the joiner can be in step, the service ends, as
/// it would have without a joiner; afterwards the joiner takes over.
#[test]
fn who_speaks_dies_in_every_step() {
    for (step, seed) in Step::ALL.into_iter().flat_map(|step| (0..SEEDS).map(move |n| (step, n))) {
        let mut plan = cold(seed);
        plan.faults = vec![(When::Join(step), Fault::Dies { speaks: true, how: How::Host })];
        let outcome = run(&plan);
        let in_step = matches!(step, Step::InStep | Step::Joined);
        let seen = (outcome.takeovers, outcome.service_ended);
        assert!(seen == (1, false) || seen == (0, true) && !in_step, "{step:?} {seen:?}\n{plan}");
    }
}

#[test]
fn ten_takeovers_in_a_row_cost_nobody_a_connection() {
    for seed in 0..SEEDS {
        let mut plan = cold(seed);
        plan.load_until = 12_000 * MS;
        for life in 0..10 {
            let how = [How::Host, How::Daemon, How::Server][life % 3];
            plan.faults.push((When::Join(Step::Joined), Fault::Dies { speaks: true, how }));
            // The daemon of a primary whose server has ended is restarted, too.
            let rest = Fault::Dies { speaks: false, how: How::Daemon };
            plan.faults.push((When::After(700 * MS), rest));
            plan.faults.push((When::After(20 * MS), Fault::Starts { member: life % 2 }));
        }
        let outcome = run(&plan);
        let seen = (outcome.takeovers, outcome.reached.joins >= 10, outcome.service_ended);
        assert_eq!(seen, (10, true, false), "{plan}");
    }
}

/// A backup whose log soon has become long.
fn short(seed: u64) -> Plan {
    Plan { cold: Some(ColdPlan { log_max: 64 << 10, ..ColdPlan::ROOMY }), ..cold(seed) }
}

/// The backup gets new images again and again, and is one all the time.
#[test]
fn a_long_log_is_cut_short() {
    let (mut renewals, mut joins) = (0, 0);
    for seed in 0..2 * SEEDS {
        let plan = short(seed);
        let outcome = run(&plan);
        assert_eq!((outcome.takeovers, outcome.service_ended), (0, false), "{plan}");
        renewals += outcome.reached.renewals;
        joins += outcome.reached.joins;
    }
    // Clients may fill what is left of the spool before there is a new image.
    assert!(joins < 3 * SEEDS, "{joins} joins, {renewals} renewals");
    assert!(renewals > 3 * SEEDS, "{renewals} renewals: too little is exercised");
}

/// Whoever dies in whatever step of a renewal, the other one serves.
#[test]
fn who_dies_while_an_image_is_renewed_costs_nobody_a_connection() {
    let mut renewals = 0;
    for (step, seed) in
        Step::RENEWAL.into_iter().flat_map(|step| (0..SEEDS).map(move |n| (step, n)))
    {
        for (speaks, how) in [
            (true, How::Host),
            (true, How::Daemon),
            (true, How::Server),
            (false, How::Daemon),
            (false, How::Host),
        ] {
            let mut plan = short(seed);
            plan.faults = vec![(When::Join(step), Fault::Dies { speaks, how })];
            let outcome = run(&plan);
            let seen = (outcome.takeovers, outcome.service_ended);
            assert_eq!(seen, (u64::from(speaks), false), "{step:?} {speaks} {how:?}\n{plan}");
            renewals += outcome.reached.renewals;
        }
    }
    assert!(renewals > 0, "too little is exercised");
}

/// An attempt that fails leaves the backup what it had.
#[test]
fn images_that_fail_leave_what_there_was() {
    let mut renewals = 0;
    for seed in 0..2 * SEEDS {
        let mut plan = short(seed);
        plan.joins.untaken_permille = 400;
        let outcome = run(&plan);
        assert_eq!((outcome.takeovers, outcome.service_ended), (0, false), "{plan}");
        renewals += outcome.reached.renewals;
    }
    assert!(renewals > SEEDS, "{renewals} renewals: too little is exercised");
}

#[test]
fn no_drawn_plan_breaks_a_law() {
    let (mut joins, mut takeovers) = (0, 0);
    for seed in drawn() {
        let mut plan = Plan::draw(seed);
        plan.cold = plan.cold.or(Some(ColdPlan::ROOMY));
        let outcome = simulate(plan.clone(), false);
        if let Some(line) = outcome.failure() {
            panic!("{}\n{plan}\n{line}", trace_tail(plan.clone()));
        }
        joins += outcome.reached.joins;
        takeovers += outcome.takeovers;
    }
    println!("{joins} joins, {takeovers} takeovers");
    let runs = drawn().count() as u64;
    assert!(takeovers * 10 > runs, "{joins} joins, {takeovers} takeovers in {runs} runs: too few");
}
