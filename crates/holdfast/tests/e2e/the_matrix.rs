//! Combinations of fault, workload, IP version, client options and path. Each run of the tests
//! takes a sample by seed in which every value of every axis occurs; `HOLDFAST_MATRIX=full` takes
//! all combinations, one takeover each.

use crate::world;
use std::time::Duration;

const FAULTS: [&str; 4] = [
    "--fault kill9",
    "--fault kill9-all",
    "--fault link-cut",
    "--fault kill9 --fence-before-ms 30",
];

const WORKLOADS: [&str; 15] = [
    "--workload pingpong --connections 1",
    "--workload incr",
    "--workload shared --connections 8",
    "--workload echo",
    "--workload upload",
    "--workload download",
    "--workload idle",
    "--workload idle-subscriber",
    "--workload churn --connections 8",
    "--workload pubsub",
    "--workload mqtt",
    "--workload http-close --server nginx",
    "--workload http-close --server lighttpd",
    "--workload http-download --connections 2 --server nginx",
    "--workload http-keepalive --server lighttpd",
];

const VERSIONS: [&str; 2] = ["", "--ipv6"];

const CLIENTS: [&str; 5] =
    ["", "--no-sack", "--no-timestamps", "--no-window-scaling", "--congestion bbr"];

const PATHS: [&str; 5] =
    ["", "--client-path wan", "--tap-loss 1%", "--primary-loss 1%", "--slow-log 5ms"];

/// Number of takeovers in a sample.
const SAMPLE: usize = 15;

/// Longest time for all combinations.
const FULL_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Longest time for a sample.
const SAMPLE_LIMIT: Duration = Duration::from_secs(600);

#[test]
fn every_combination_survives() {
    let full = world::is_full();
    let _limit = world::limit(if full { FULL_LIMIT } else { SAMPLE_LIMIT });
    let first = world::first_seed();
    let chosen = if full { all() } else { sample(first) };
    let mut complaints = Vec::new();
    for (words, seed) in chosen.iter().zip(first..) {
        if let Some(line) = world::complaint(words, seed) {
            eprintln!("{line}");
            complaints.push(line);
        }
    }
    world::report(&complaints, chosen.len() as u64);
}

fn words(choice: [&str; 5]) -> String {
    choice.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn all() -> Vec<String> {
    let mut out = Vec::new();
    for fault in FAULTS {
        for workload in WORKLOADS {
            for version in VERSIONS {
                for client in CLIENTS {
                    for path in PATHS {
                        out.push(words([fault, workload, version, client, path]));
                    }
                }
            }
        }
    }
    out
}

/// Takeovers of a sample, with a value of every axis for each.
fn sample(seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let mut axes = [
        deck(&FAULTS, &mut random),
        deck(&WORKLOADS, &mut random),
        deck(&VERSIONS, &mut random),
        deck(&CLIENTS, &mut random),
        deck(&PATHS, &mut random),
    ];
    (0..SAMPLE).map(|_| words(axes.each_mut().map(|axis| axis.pop().unwrap_or_default()))).collect()
}

/// [`SAMPLE`] values in random order, each as often as any other, give or take one.
fn deck(values: &[&'static str], random: &mut Random) -> Vec<&'static str> {
    let mut deck: Vec<_> = values.iter().copied().cycle().take(SAMPLE).collect();
    for last in (1..deck.len()).rev() {
        deck.swap(last, random.below(last as u64 + 1) as usize);
    }
    deck
}

/// A SplitMix64 generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    }
}
