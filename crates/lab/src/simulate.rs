//! `holdfast-lab simulate`: whole groups in virtual time, seed by seed, and
//! `holdfast-lab bench simulate`: how fast that is.

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdfast_program::BUILD;
use holdfast_report::progress;
use holdfast_sim::{Case, Outcome, Plan, Violation, simulate, spread, trace_tail, transit};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::process::ExitCode;

/// Most failing seeds that are listed.
const FAILURES_MAX: usize = 20;

/// Which kind of group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// A primary and its backup.
    #[default]
    Pair,
    /// An edge in front of host servers.
    Spread,
    /// Edges with strings between them.
    Transit,
}

/// Options of the simulation.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// Which kind of group to run.
    #[arg(long, value_enum, default_value_t)]
    pub group: Group,
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000, conflicts_with = "trace")]
    pub seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Run one seed, and tell what happens in it.
    #[arg(long)]
    pub trace: bool,
    /// Run a case of the sweep with that seed instead: what breaks, and right after which
    /// record or message, such as host@record:37.
    #[arg(long, requires = "trace", conflicts_with = "group")]
    pub case: Option<Case>,
    /// Print one JSON object.
    #[arg(long, conflicts_with_all = ["trace", "group"])]
    pub json: bool,
}

/// Options of the bench.
#[derive(Args, Clone, Debug)]
pub struct SimulateBenchArgs {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2000)]
    pub seeds: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SimulateReport {
    pub first_seed: u64,
    pub seeds: u64,
    pub cpu_seconds: f64,
    pub seeds_per_cpu_second: f64,
    pub events_per_seed: f64,
    /// Time that passed in the cluster in a run, on average, in s.
    pub virtual_seconds_per_seed: f64,
    /// Number of replies that clients checked.
    pub replies: u64,
    pub takeovers: u64,
    /// Number of seeds in which both members were lost, so that the service had to stop.
    pub service_ended: u64,
    pub violations: u64,
    /// One line for each of the first failing seeds, with the command that replays it.
    pub failures: Vec<String>,
}

/// Runs the verb.
///
/// # Errors
/// If the report cannot be written. A broken law is the exit code 1.
pub fn run(args: &SimulateArgs) -> Result<ExitCode> {
    match args.group {
        Group::Pair => run_pair(args),
        Group::Spread if args.trace => {
            let plan = spread::Plan::draw(args.seed);
            println!("{plan}");
            let outcome = spread::simulate(plan, true);
            Ok(tell(&outcome.trace, &outcome.violations, &format!("{:?}", outcome.reached)))
        }
        Group::Spread => Ok(many(args, |seed| {
            let outcome = spread::simulate(spread::Plan::draw(seed), false);
            (outcome.failure(), outcome.events)
        })),
        Group::Transit if args.trace => {
            let plan = transit::Plan::draw(args.seed);
            println!("{plan}");
            let outcome = transit::simulate(plan, true);
            Ok(tell(&outcome.trace, &outcome.violations, &format!("{:?}", outcome.reached)))
        }
        Group::Transit => Ok(many(args, |seed| {
            let outcome = transit::simulate(transit::Plan::draw(seed), false);
            (outcome.failure(), outcome.events)
        })),
    }
}

/// Prints what happened in one run of a group other than a pair.
fn tell(trace: &[String], violations: &[Violation], reached: &str) -> ExitCode {
    trace.iter().for_each(|line| println!("{line}"));
    violations.iter().for_each(|violation| println!("{violation}"));
    println!("{reached}");
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs many seeds of a group other than a pair; `one` returns what failed, and the number of
/// events.
fn many(args: &SimulateArgs, one: impl Fn(u64) -> (Option<String>, u64)) -> ExitCode {
    let bar = progress("simulating", args.seeds);
    let (begun, mut events, mut failures) = (cpu_seconds(), 0, Vec::new());
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let (failure, happened) = one(seed);
        events += happened;
        failures.extend(failure.map(|line| format!("{line} (holdfast {BUILD})")));
        bar.inc(1);
    }
    bar.finish_and_clear();
    failures.iter().take(FAILURES_MAX).for_each(|line| println!("{line}"));
    let (seconds, count) = ((cpu_seconds() - begun).max(1e-9), args.seeds.max(1));
    println!(
        "{count} seeds from {} on: {} violations; {:.0} seeds per CPU-second, {} events per seed",
        args.seed,
        failures.len(),
        count as f64 / seconds,
        events / count
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_pair(args: &SimulateArgs) -> Result<ExitCode> {
    if args.trace {
        return Ok(trace(
            args.case.map_or_else(|| Plan::draw(args.seed), |case| Plan::swept(args.seed, case)),
        ));
    }
    let report = sweep(args.seed, args.seeds);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the bench.
pub fn bench(args: &SimulateBenchArgs) -> SimulateReport {
    sweep(0, args.seeds)
}

fn trace(plan: Plan) -> ExitCode {
    println!("{plan}");
    let outcome = simulate(plan, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    for violation in &outcome.violations {
        println!("{violation}");
    }
    let Outcome { events, replies, takeovers, virtual_ns, .. } = outcome;
    let seconds = virtual_ns as f64 / 1e9;
    println!("{events} events in {seconds:.3} s, {replies} replies, {takeovers} takeovers");
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn sweep(first: u64, seeds: u64) -> SimulateReport {
    let mut report = SimulateReport { first_seed: first, seeds, ..SimulateReport::default() };
    let bar = progress("simulating", seeds);
    let begun = cpu_seconds();
    let (mut events, mut virtual_ns) = (0, 0);
    for seed in first..first.saturating_add(seeds) {
        let outcome = simulate(Plan::draw(seed), false);
        events += outcome.events;
        virtual_ns += outcome.virtual_ns;
        report.replies += outcome.replies;
        report.takeovers += outcome.takeovers;
        report.service_ended += u64::from(outcome.service_ended);
        if let Some(line) = outcome.failure().map(|line| format!("{line} (holdfast {BUILD})")) {
            report.violations += 1;
            if report.failures.is_empty() {
                bar.suspend(|| eprintln!("{}\n{line}", trace_tail(Plan::draw(seed))));
            }
            if report.failures.len() < FAILURES_MAX {
                report.failures.push(line);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.cpu_seconds = cpu_seconds() - begun;
    let count = seeds.max(1) as f64;
    report.seeds_per_cpu_second = seeds as f64 / report.cpu_seconds.max(1e-9);
    report.events_per_seed = events as f64 / count;
    report.virtual_seconds_per_seed = virtual_ns as f64 / 1e9 / count;
    report
}

/// Processor time of this process, in s.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

impl SimulateReport {
    /// Whether no law was broken.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations == 0
    }

    /// Prints the report for people.
    pub fn print(&self) {
        for line in &self.failures {
            println!("{line}");
        }
        println!(
            "{} seeds from {} on: {} violations, {} takeovers, {} times both members were lost",
            self.seeds, self.first_seed, self.violations, self.takeovers, self.service_ended
        );
        println!(
            "{:.0} seeds per CPU-second, {:.0} events and {:.2} s of virtual time per seed, {} replies checked",
            self.seeds_per_cpu_second,
            self.events_per_seed,
            self.virtual_seconds_per_seed,
            self.replies
        );
    }
}
