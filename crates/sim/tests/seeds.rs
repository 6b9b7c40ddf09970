//! As many seeds as fit the time, or as many as are asked for.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N; `make soak SEEDS=N` sets it.

use holdfast_sim::{Plan, simulate, trace_tail};
use std::time::{Duration, Instant};

/// What the rest of `make test` leaves to it.
const BUDGET: Duration = Duration::from_secs(30);

#[test]
fn no_seed_breaks_a_law() {
    let wanted: Option<u64> =
        std::env::var("HOLDFAST_SEEDS").ok().map(|text| text.parse().expect("a number of seeds"));
    let start = Instant::now();
    let (mut seed, mut takeovers, mut unread) = (0, 0, 0);
    while wanted.map_or(start.elapsed() < BUDGET, |wanted| seed < wanted) {
        let outcome = simulate(Plan::draw(seed), false);
        if let Some(line) = outcome.failure() {
            panic!("{}\n{line}", trace_tail(seed));
        }
        takeovers += outcome.takeovers;
        unread += outcome.unread;
        seed += 1;
    }
    println!("{seed} seeds, {takeovers} takeovers, {unread} bytes fetched unread");
    assert!(takeovers * 10 > seed && unread > seed, "the seeds exercise too little");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 159] {
        let [one, other] = [(); 2].map(|()| simulate(Plan::draw(seed), true));
        assert_eq!(one.trace, other.trace);
        assert_eq!(one.events, simulate(Plan::draw(seed), false).events);
    }
}
