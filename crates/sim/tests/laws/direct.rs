//! The short way of the log, on which the server's thread sends it itself, over ways that are good,
//! and that lose, delay and repeat datagrams (decision 35).

use holdfast_sim::{DirectPlan, Plan, simulate};

const SEEDS: u64 = 150;
const MS: u64 = 1_000_000;

/// Runs every seed with this way; returns how often the server heard something new by itself.
fn run(direct: DirectPlan, faults: bool) -> u64 {
    (0..SEEDS)
        .map(|seed| {
            let mut plan = Plan { direct: Some(direct), cold: None, ..Plan::draw(seed) };
            if !faults {
                plan.faults.clear();
            }
            let outcome = simulate(plan, false);
            assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
            outcome.reached.directs
        })
        .sum()
}

#[test]
fn a_good_way_carries_the_log() {
    let way = DirectPlan { loss_permille: 0, late_max: 0, wait: 3 * MS };
    assert!(run(way, false) > 20 * SEEDS);
    assert!(run(way, true) > 10 * SEEDS);
}

#[test]
fn a_bad_way_costs_time_only() {
    let way = DirectPlan { loss_permille: 400, late_max: 4 * MS, wait: MS };
    assert!(run(way, true) > SEEDS);
}

#[test]
fn a_way_that_is_cut_costs_time_only() {
    assert_eq!(run(DirectPlan { loss_permille: 1000, late_max: 0, wait: MS }, true), 0);
}
