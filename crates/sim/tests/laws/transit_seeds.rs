//! A fixed number of seeds of transit groups, or as many as are asked for.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N; `make soak SEEDS=N` sets it.

use holdfast_sim::transit::{Plan, Reached, simulate};

/// About twenty seconds of one processor.
const SEEDS: u64 = 700;

#[test]
fn no_seed_breaks_a_law() {
    let wanted = std::env::var("HOLDFAST_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let mut reached = Reached::default();
    let mut failures = Vec::new();
    for seed in 0..seeds {
        let outcome = simulate(Plan::draw(seed), false);
        failures.extend(outcome.failure());
        reached += outcome.reached;
    }
    println!("{seeds} seeds, {reached:?}");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 159] {
        let [one, other] = [(); 2].map(|()| simulate(Plan::draw(seed), true));
        assert_eq!(one.trace, other.trace);
        assert_eq!(one.events, simulate(Plan::draw(seed), false).events);
    }
}
