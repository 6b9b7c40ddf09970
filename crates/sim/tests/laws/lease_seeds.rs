//! A fixed number of seeds of pairs with leases, or as many as are asked for.
//!
//! `HOLDFAST_SEEDS=N` runs the seeds 0 to N; `HOLDFAST_TRACE=SEED` tells what happens in one, with
//! `HOLDFAST_WAY=nobody`, `command` or `gateway` for a pair without a third party.

use holdfast_cluster::arbiter::own::Way;
use holdfast_sim::lease::{Fault, Outcome, Plan, Reached, simulate};
use std::collections::BTreeMap;

/// About three seconds of one processor for each kind of arbiter.
const SEEDS: u64 = 15_000;

/// What was seen of one kind of fault.
#[derive(Default)]
struct Row {
    runs: u64,
    silent: u64,
    sum_ns: u64,
    most_ns: u64,
    by_clock: u64,
    by_copy: u64,
    by_gateway: u64,
}

impl Row {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.by_clock += u64::from(outcome.by_clock > 0);
        self.by_copy += u64::from(outcome.by_copy);
        self.by_gateway += u64::from(outcome.by_gateway > 0);
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
            "{:7} runs, nobody speaks at the end in {:5}, else silent for {:6.1} ms on average, {:6.1} at most; two by a clock in {}, by a copy in {}, by a gateway in {}",
            self.runs,
            self.silent,
            self.sum_ns as f64 / 1e6 / spoke,
            self.most_ns as f64 / 1e6,
            self.by_clock,
            self.by_copy,
            self.by_gateway
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

fn draw(seed: u64, way: Option<Way>) -> Plan {
    way.map_or_else(|| Plan::draw(seed), |way| Plan::draw_own(seed, way))
}

#[test]
fn no_seed_breaks_a_law() {
    all_seeds(None, |_, _| {});
}

/// Nobody takes over by silence, so no clock and no cut makes two speakers.
#[test]
fn no_seed_breaks_a_law_where_nobody_is_asked() {
    let reached = all_seeds(Some(Way::Nobody), never_two);
    assert!(reached.words > 0 && reached.takeovers > 0, "{reached:?}");
}

/// Who was switched off does not speak, whatever its clock says.
#[test]
fn no_seed_breaks_a_law_where_the_other_host_is_switched_off() {
    let reached = all_seeds(Some(Way::Command), never_two);
    assert!(reached.shot > 0 && reached.takeovers > 0, "{reached:?}");
}

/// A gateway is no proof: two speak where the members do not hear each other, and only there. That is
/// where the path between them is cut; and where one that is alone stands still, or has lost its daemon,
/// so that its kernel speaks on, which needs another fault before.
#[test]
fn with_a_gateway_two_speak_only_where_the_members_are_cut_off() {
    let mut both = 0;
    all_seeds(Some(Way::Gateway), |plan, outcome| {
        both += u64::from(outcome.by_gateway > 0);
        let is_cut = plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Cut { .. }));
        let is_apart = is_cut || plan.faults.len() > 1;
        assert!(outcome.by_gateway == 0 || is_apart, "seed {}", outcome.seed);
    });
    assert!(both > 0, "it is not safe, and that is seen");
}

/// Only a member that was copied makes two speakers.
fn never_two(plan: &Plan, outcome: &Outcome) {
    let is_copied = plan.faults.iter().any(|(_, it)| matches!(it, Fault::MemberCopied { .. }));
    let two = outcome.by_clock > 0 || outcome.by_gateway > 0 || outcome.by_copy;
    assert!(!two || is_copied, "seed {}", outcome.seed);
}

fn all_seeds(way: Option<Way>, mut each: impl FnMut(&Plan, &Outcome)) -> Reached {
    let wanted = std::env::var("HOLDFAST_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let (mut reached, mut rows) = (Reached::default(), BTreeMap::<&str, Row>::new());
    let mut failures = Vec::new();
    for seed in 0..seeds {
        let plan = draw(seed, way);
        let kind = kind(&plan);
        let outcome = simulate(plan.clone(), false);
        each(&plan, &outcome);
        rows.entry(kind).or_default().add(&outcome);
        failures.extend(outcome.failure());
        reached += outcome.reached;
    }
    for (kind, row) in &rows {
        println!("{kind:42} {}", row.line());
    }
    println!("{way:?}: {seeds} seeds, {reached:?}");
    let first: Vec<_> = failures.iter().take(20).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), first.join("\n"));
    reached
}

#[test]
fn the_same_seed_is_the_same_run() {
    for (seed, way) in [(3, None), (14, Some(Way::Command)), (159, Some(Way::Nobody))] {
        let [one, other] = [(); 2].map(|()| simulate(draw(seed, way), true));
        assert_eq!(one.trace, other.trace);
        assert_eq!(one.events, simulate(draw(seed, way), false).events);
    }
}

/// Tells what happens in the seed that is asked for.
#[test]
fn a_seed_is_told() {
    let Ok(seed) = std::env::var("HOLDFAST_TRACE") else { return };
    let way = std::env::var("HOLDFAST_WAY").ok().map(|way| match way.as_str() {
        "nobody" => Way::Nobody,
        "command" => Way::Command,
        _ => Way::Gateway,
    });
    let plan = draw(seed.parse().expect("a seed"), way);
    println!("{plan}");
    let outcome = simulate(plan, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
}
