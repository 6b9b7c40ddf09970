//! A pair of members in virtual time: the machines under test joined to a model
//! server, model clients and a model network, crashed at every boundary.
//!
//! A failure prints one line; put it into `HOLDFAST_REPLAY` and run the test
//! `replay_one` to see the same run again.

mod check;
mod client;
mod kernel;
mod outputs;
mod profile;
mod rng;
mod server;
mod serving;
mod takeover;
mod world;

use profile::{At, Crash, Profile, Victim};
use world::World;

/// Runs one case; the line that repeats it, if it fails.
fn run(profile: Profile) -> Result<World, String> {
    let mut world = World::new(profile);
    world.run();
    match world.verdict() {
        Ok(()) => Ok(world),
        Err(why) => Err(format!("HOLDFAST_REPLAY='{profile}' ({why})")),
    }
}

fn sweep(seeds: std::ops::Range<u64>, victim: Victim) {
    for seed in seeds {
        let calm = run(Profile::calm(seed)).unwrap_or_else(|line| panic!("{line}"));
        let records = (0..=calm.records_logged()).map(At::Record);
        let messages = (0..=calm.messages_delivered()).map(At::Message);
        for at in records.chain(messages) {
            let profile = Profile { crash: Some(Crash { victim, at }), ..Profile::calm(seed) };
            if let Err(line) = run(profile) {
                panic!("{line}");
            }
        }
    }
}

#[test]
fn nothing_is_lost_without_a_crash() {
    for seed in 0..40 {
        let world = run(Profile::calm(seed)).unwrap_or_else(|line| panic!("{line}"));
        assert!(world.records_logged() > 20, "seed {seed} exercises too little");
    }
}

#[test]
fn the_tap_loses_and_reorders_and_reads_are_repaired() {
    let repairs: u64 = (0..40)
        .map(|seed| {
            run(Profile::calm(seed)).map_or_else(|line| panic!("{line}"), |world| world.repairs())
        })
        .sum();
    assert!(repairs > 20, "only {repairs} repairs");
}

#[test]
fn what_the_tap_loses_and_the_server_has_not_read_is_fetched() {
    let filled: u64 = (0..40)
        .map(|seed| {
            let world = run(Profile::calm(seed)).unwrap_or_else(|line| panic!("{line}"));
            world.unread_filled()
        })
        .sum();
    assert!(filled > 20, "only {filled} gaps were filled");
}

#[test]
fn every_connection_survives_the_primary_host_at_every_boundary() {
    sweep(0..SEEDS, Victim::PrimaryHost);
}

#[test]
fn every_connection_survives_the_server_at_every_boundary() {
    sweep(0..SEEDS, Victim::Server);
}

#[test]
fn every_connection_survives_a_fence_before_the_kill_at_every_boundary() {
    sweep(0..SEEDS, Victim::Nobody);
}

#[test]
fn nothing_uncommitted_leaves_after_the_backup_dies_at_any_boundary() {
    sweep(0..SEEDS / 2, Victim::Backup);
}

/// The checker must be able to see what output commit prevents.
#[test]
fn without_output_commit_the_checker_fails() {
    let crash = Some(Crash { victim: Victim::PrimaryHost, at: At::Record(25) });
    let broken = (0..20)
        .filter(|seed| run(Profile { commit: false, crash, ..Profile::calm(*seed) }).is_err());
    assert!(broken.count() >= 10);
    // The end-to-end check alone, without looking inside, must see it too.
    let wrong = (0..60).filter(|seed| {
        let crash = Some(Crash { victim: Victim::PrimaryHost, at: At::Record(25 + seed % 20) });
        let mut world = World::new(Profile { commit: false, crash, ..Profile::calm(*seed) });
        world.run();
        world.client_verdict().is_err()
    });
    assert!(wrong.count() >= 1);
}

#[test]
fn replay_one() {
    if let Ok(line) = std::env::var("HOLDFAST_REPLAY") {
        let profile: Profile = line.parse().unwrap_or_else(|why: String| panic!("{why}"));
        if let Err(line) = run(profile) {
            panic!("{line}");
        }
    }
}

const SEEDS: u64 = 10;
