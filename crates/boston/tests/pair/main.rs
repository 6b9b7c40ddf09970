//! Two ends in virtual time, over a path that loses up to 60 %, in bursts or not,
//! reorders, duplicates, corrupts and goes dark, with either end dying and coming
//! back: every byte exactly once and in order, or a clean error.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N instead of as many as fit the time. A
//! failure prints one line; `HOLDFAST_REPLAY=seed` with the test `replay_one` runs
//! the same run again.

mod app;
mod profile;
mod rng;
mod world;

use profile::Profile;
use std::time::{Duration, Instant};
use world::{Summary, World};

/// What the rest of `make test` leaves to it.
const BUDGET: Duration = Duration::from_secs(15);

fn run(seed: u64) -> Summary {
    World::new(Profile::draw(seed)).run().unwrap_or_else(|why| {
        let profile = Profile::draw(seed);
        panic!(
            "HOLDFAST_REPLAY={seed} cargo test -p holdfast-boston replay_one # {why}\n{profile:#?}"
        )
    })
}

#[test]
fn every_byte_exactly_once_or_a_clean_error() {
    let wanted: Option<u64> =
        std::env::var("HOLDFAST_SEEDS").ok().map(|text| text.parse().expect("a number of seeds"));
    let begun = Instant::now();
    let (mut seed, mut sum) = (0, Summary::default());
    while wanted.map_or(begun.elapsed() < BUDGET, |wanted| seed < wanted) {
        let Summary { frames, lost, corrupted, failures, virtual_time } = run(seed);
        sum.frames += frames;
        sum.lost += lost;
        sum.corrupted += corrupted;
        sum.failures += failures;
        sum.virtual_time = sum.virtual_time.plus(virtual_time);
        seed += 1;
    }
    println!("{seed} seeds: {sum:?}");
    assert!(sum.lost > seed && sum.corrupted > seed / 10, "the seeds exercise too little");
    assert!(sum.failures > seed / 100, "restarts exercise too little");
}

#[test]
fn replay_one() {
    if let Ok(seed) = std::env::var("HOLDFAST_REPLAY") {
        println!("{:?}", run(seed.parse().expect("a seed")));
    }
}
