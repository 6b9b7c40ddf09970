//! Two ends in virtual time, over a path that loses up to 60 %, in bursts or not,
//! reorders, duplicates, corrupts and goes dark, with either end dying and coming
//! back: every byte exactly once and in order, or a clean error.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N instead of 10,000. A failure prints one
//! line; `HOLDFAST_REPLAY=seed` with the test `replay_one` runs the same run again.

mod app;
mod profile;
mod rng;
mod world;

use app::Outcome;
use holdfast_boston::{Config, Counters, Failure, FlowControl, Nanos, Redundancy};
use profile::Profile;
use world::{Summary, World};

/// Default number of seeds.
const SEEDS: u64 = 10_000;

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
    let wanted = std::env::var("HOLDFAST_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let mut sum = Summary::default();
    for seed in 0..seeds {
        let Summary { frames, lost, corrupted, failures, virtual_time } = run(seed);
        sum.frames += frames;
        sum.lost += lost;
        sum.corrupted += corrupted;
        sum.failures += failures;
        sum.virtual_time = sum.virtual_time.plus(virtual_time);
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(sum.lost > seeds && sum.corrupted > seeds / 10, "the seeds exercise too little");
    assert!(sum.failures > seeds / 100, "restarts exercise too little");
}

#[test]
fn replay_one() {
    if let Ok(seed) = std::env::var("HOLDFAST_REPLAY") {
        println!("{:?}", run(seed.parse().expect("a seed")));
    }
}

/// Counters of a client that sent 400 kB over such a path, summed over ten runs.
fn cost(config: Config, loss: f64) -> Counters {
    let mut sum = Counters::default();
    for seed in 0..10 {
        let mut world = World::new(Profile::lossy(seed, config, 400_000, loss));
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let of = world.apps(0)[0].endpoint.counters();
        sum.segments += of.segments;
        sum.cells_needed += of.cells_needed;
        sum.cells_sent += of.cells_sent;
        sum.repairs += of.repairs;
        sum.cuts += of.cuts;
        sum.probes += of.probes;
        sum.timeouts += of.timeouts;
    }
    sum
}

fn changed(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}

#[test]
fn without_loss_nothing_is_sent_twice() {
    for flow in [FlowControl::Tahoe, FlowControl::Reno, FlowControl::Vegas] {
        let counters = cost(changed(Config::default(), |it| it.flow = flow), 0.0);
        assert_eq!(counters.cells_sent, counters.cells_needed, "{flow:?}");
        let Counters { repairs, cuts, probes, timeouts, .. } = counters;
        assert_eq!((repairs, cuts, probes, timeouts), (0, 0, 0, 0), "{flow:?}");
    }
}

/// Boston-BP sends little more again than was lost, and has no timeout where a part of a segment
/// arrives (boston.md: the likely source of the paper's gains).
#[test]
fn bandwidth_preserving_repairs_cost_what_was_lost() {
    for loss in [0.01, 0.05, 0.10, 0.20] {
        let counters = cost(Config::default(), loss);
        let share = counters.cells_sent as f64 / counters.cells_needed as f64;
        let least = 1.0 / (1.0 - loss);
        assert!((least * 0.98..least * 1.02).contains(&share), "{loss}: {share}, not {least}");
        assert!(counters.timeouts * 100 < counters.segments, "{loss}: {counters:?}");
    }
}

/// The code hides no congestion (RFC 9265, recommendation 1).
#[test]
fn losses_that_decoding_makes_good_cut_the_window_all_the_same() {
    let spare = Redundancy::Fixed { first: 0.5, retransmit: 0.5 };
    let counters = cost(changed(Config::default(), |it| it.redundancy = spare), 0.02);
    assert!(counters.repairs * 100 < counters.segments, "{counters:?}");
    assert!(counters.cuts > 100, "{counters:?}");
}

#[test]
fn the_papers_redundancy_costs_its_share_and_saves_rounds() {
    let [plain, fec] = [Redundancy::BandwidthPreserving, Redundancy::PAPER_FEC].map(|redundancy| {
        cost(changed(Config::paper_fec(), |it| it.redundancy = redundancy), 0.01)
    });
    assert!(fec.repairs * 2 < plain.repairs, "{fec:?} {plain:?}");
    let share = fec.cells_sent as f64 / fec.cells_needed as f64;
    assert!((1.03..1.06).contains(&share), "{share}");
}

/// No later cells report the loss of a lone segment's last ones.
#[test]
fn the_end_of_a_stream_is_repaired_without_a_timeout() {
    let (mut timeouts, mut probes) = (0, 0);
    for seed in 0..200 {
        let mut world = World::new(Profile::lossy(seed, Config::default(), 1000, 0.05));
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let of = world.apps(0)[0].endpoint.counters();
        timeouts += of.timeouts;
        probes += of.probes;
    }
    // The probe itself is lost once in twenty times.
    assert!(timeouts < 5 && probes > 5, "{timeouts} timeouts, {probes} probes");
}

#[test]
fn who_died_and_came_back_is_noticed_at_its_first_word() {
    for victim in 0..2 {
        let mut profile = Profile::lossy(1, Config::default(), 4_000_000, 0.0);
        profile.sides[victim].restart = Some((Nanos::from_ms(1000), Nanos::from_ms(100)));
        let mut world = World::new(profile);
        world.run().unwrap_or_else(|why| panic!("{why}"));
        let survivor = world.apps(1 - victim)[0].outcome;
        assert_eq!(survivor, Some(Outcome::Failed(Failure::Reset)));
    }
}
