//! A server that falls while it has no backup is rebuilt on its own host (docs/REPLICATION.md,
//! 31), and judged by the same laws: its clients live, and each reads what it would have.

use crate::calm::{MS, calm, run};
use crate::scope;
use holdfast_sim::{
    ColdPlan, Fault, How, Limits, Mutation, Plan, Rebuild, Rng, Step, When, simulate, trace_tail,
};

/// Runs of each named plan.
const SEEDS: u64 = 8;

/// Seeds of drawn plans, beyond those of other tests.
fn drawn() -> std::ops::Range<u64> {
    300_000..scope::of(300_160, 300_400)
}
/// A seed that has found something rare: an edge whose daemon died between a grant's write and its
/// fence, and who was to be current was dead too.
const FOUND: [u64; 1] = [301_860];

/// Clients that go on for long, a backup that dies at once, and nothing else that breaks.
fn alone(seed: u64, rebuild: Rebuild) -> Plan {
    let faults = vec![(When::At(150 * MS), Fault::Dies { speaks: false, how: How::Host })];
    Plan { faults, rebuild: Some(rebuild), ..calm(seed, 6000) }
}

fn falls(after: u64) -> (When, Fault) {
    (When::After(after), Fault::Dies { speaks: true, how: How::Server })
}

#[test]
fn it_falls_and_goes_on_again_and_again() {
    for seed in 0..2 * SEEDS {
        let mut plan = alone(seed, Rebuild::GoesOn);
        plan.faults.extend([falls(2000 * MS), falls(1500 * MS), falls(1300 * MS)]);
        let outcome = run(&plan);
        let seen = (outcome.reached.rebuilt, outcome.takeovers, outcome.service_ended);
        assert_eq!(seen, (3, 3, false), "{plan}");
        assert!(outcome.replies > 50, "{plan}");
    }
}

#[test]
fn a_backup_that_comes_is_let_in_and_takes_over() {
    for seed in 0..SEEDS {
        let mut plan = alone(seed, Rebuild::GoesOn);
        plan.faults.push(falls(2000 * MS));
        plan.faults.push((When::After(900 * MS), Fault::Starts { member: 1 }));
        let dies = Fault::Dies { speaks: true, how: How::Host };
        plan.faults.push((When::Join(Step::Joined), dies));
        let outcome = run(&plan);
        let reached = (outcome.reached.rebuilt, outcome.reached.joins);
        assert_eq!((reached, outcome.takeovers), ((1, 1), 2), "{plan}");
        assert!(!outcome.service_ended, "{plan}");
    }
}

#[test]
fn one_that_falls_again_at_the_same_place_is_left() {
    for seed in 0..SEEDS {
        let mut plan = alone(seed, Rebuild::FallsAgain);
        plan.faults.push(falls(2000 * MS));
        let outcome = run(&plan);
        let reached = (outcome.reached.rebuilt, outcome.reached.not_rebuilt);
        assert_eq!((reached, outcome.takeovers), ((1, 1), 0), "{plan}");
        assert!(outcome.service_ended, "{plan}");
    }
}

/// A lone server of which all is kept, and that never had a backup: whoever breaks L1 or L2
/// does so beside what is kept.
fn never_protected(seed: u64, mutation: Option<Mutation>) -> Plan {
    let faults = vec![(When::At(MS), Fault::HostDies { member: 1 }), falls(2000 * MS)];
    let plan = alone(seed, Rebuild::GoesOn);
    // The tap of its host has everything at once, if it has room.
    let limits = Limits { tap_packets: 2, ..plan.limits };
    // Where the backup is cold, no primary waits for one.
    Plan { cold: Some(ColdPlan::ROOMY), faults, mutation, limits, ..plan }
}

#[test]
fn what_leaves_before_it_is_kept_is_seen() {
    let broken = |mutation| -> Vec<&'static str> {
        let run = |seed| simulate(never_protected(seed, mutation), false).violations;
        (0..2 * SEEDS).flat_map(run).map(|violation| violation.law).collect()
    };
    assert_eq!(broken(None), Vec::<&str>::new());
    for (law, mutation) in
        [("L1", Mutation::AckBeyondStable), ("L1", Mutation::KeepDsack), ("L2", Mutation::NoCommit)]
    {
        let laws = broken(Some(mutation));
        assert!(laws.contains(&law), "{mutation:?}: {laws:?}");
    }
}

#[test]
fn no_drawn_plan_breaks_a_law() {
    let (mut kept, mut rebuilt, mut left) = (0, 0, 0);
    for seed in drawn().chain(FOUND) {
        let mut plan = Plan::draw(seed);
        // Drawn last: what the seed draws besides is what it always was.
        let mut rng = Rng::new(seed, 13);
        let again = rng.one_in(6);
        plan.rebuild = Some(if again { Rebuild::FallsAgain } else { Rebuild::GoesOn });
        let dies = Fault::Dies { speaks: false, how: rng.pick(&[How::Daemon, How::Host]) };
        plan.faults.push((
            if plan.faults.is_empty() { When::At(150 * MS) } else { When::After(300 * MS) },
            dies,
        ));
        for _ in 0..rng.range(1, 4) {
            plan.faults.push(falls(rng.spread(MS, 3000 * MS)));
        }
        plan.load_until += 4000 * MS;
        let outcome = simulate(plan.clone(), false);
        if let Some(line) = outcome.failure() {
            panic!("{}\n{plan}\n{line}", trace_tail(plan.clone()));
        }
        kept += outcome.reached.kept;
        rebuilt += outcome.reached.rebuilt;
        left += outcome.reached.not_rebuilt;
    }
    println!("{kept} kept, {rebuilt} rebuilt, {left} left");
    assert!(rebuilt > 10 && left > 0, "{kept} kept, {rebuilt} rebuilt, {left} left: too little");
}
