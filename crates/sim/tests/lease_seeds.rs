//! A fixed number of seeds of pairs with leases, or as many as are asked for.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N; `HOLDFAST_TRACE=SEED` tells what happens in one.

use holdfast_sim::lease::{Outcome, Plan, Reached, simulate};
use std::collections::BTreeMap;

/// About three seconds of one processor.
const SEEDS: u64 = 30_000;

/// What was seen of one kind of fault.
#[derive(Default)]
struct Row {
    runs: u64,
    silent: u64,
    sum_ns: u64,
    most_ns: u64,
    by_clock: u64,
    by_copy: u64,
}

impl Row {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.by_clock += u64::from(outcome.by_clock > 0);
        self.by_copy += u64::from(outcome.by_copy);
        if outcome.speaks {
            self.sum_ns += outcome.silence;
            self.most_ns = self.most_ns.max(outcome.silence);
        } else {
            self.silent += 1;
        }
    }

    fn line(&self) -> String {
        let spoke = (self.runs - self.silent).max(1) as f64;
        format!(
            "{:7} runs, nobody speaks at the end in {:5}, else silent for {:6.1} ms on average, {:6.1} at most; two by a clock in {}, by a copy in {}",
            self.runs,
            self.silent,
            self.sum_ns as f64 / 1e6 / spoke,
            self.most_ns as f64 / 1e6,
            self.by_clock,
            self.by_copy
        )
    }
}

fn kind(plan: &Plan) -> &'static str {
    match plan.faults.as_slice() {
        [] => "none",
        [(_, fault)] => fault.kind(),
        [_, _] => "two faults",
        _ => "three faults",
    }
}

#[test]
fn no_seed_breaks_a_law() {
    let wanted = std::env::var("HOLDFAST_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let (mut reached, mut rows) = (Reached::default(), BTreeMap::<&str, Row>::new());
    let mut failures = Vec::new();
    for seed in 0..seeds {
        let plan = Plan::draw(seed);
        let kind = kind(&plan);
        let outcome = simulate(plan, false);
        rows.entry(kind).or_default().add(&outcome);
        failures.extend(outcome.failure());
        reached += outcome.reached;
    }
    for (kind, row) in &rows {
        println!("{kind:42} {}", row.line());
    }
    println!("{seeds} seeds, {reached:?}");
    let first: Vec<_> = failures.iter().take(20).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), first.join("\n"));
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 159] {
        let [one, other] = [(); 2].map(|()| simulate(Plan::draw(seed), true));
        assert_eq!(one.trace, other.trace);
        assert_eq!(one.events, simulate(Plan::draw(seed), false).events);
    }
}

/// Tells what happens in the seed that is asked for.
#[test]
fn a_seed_is_told() {
    let Ok(seed) = std::env::var("HOLDFAST_TRACE") else { return };
    let plan = Plan::draw(seed.parse().expect("a seed"));
    println!("{plan}");
    let outcome = simulate(plan, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
}
