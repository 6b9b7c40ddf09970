//! `holdfast lab bench false-alarms`: how often a healthy primary is replaced, and
//! how long clients wait for a takeover that must be, for several heartbeats, on
//! an idle machine and on a busy one. The default of `heartbeat_ms` comes from it.

use super::faults::{FaultKind, fault_steps};
use super::service::{Service, Variant, address, with_service};
use super::stats::Stalls;
use crate::load::{Fault, Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often the edge is asked whether somebody took over.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Pairs that may fail to start in one cell before the bench gives up.
const STARTS_FAILED_MAX: u64 = 5;

/// What each client asks while links are cut, µs.
const INTERVAL_US: u64 = 5_000;
const CONNECTIONS: usize = 4;
const FAULT_AFTER_US: u64 = 200_000;
const REDRAW_US: u64 = 100_000;
/// The load goes on for this long after the cut, ms.
const AFTER_FAULT_MS: u64 = 2_000;

/// What else the machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// Nothing that the bench knows of.
    Idle,
    /// One process per core that never rests.
    Busy,
}

/// Options of the bench.
#[derive(Args, Clone, Debug)]
pub struct FalseAlarmArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Heartbeats, ms.
    #[arg(long, value_delimiter = ',', default_value = "5,10,20,50,100,200")]
    pub heartbeats: Vec<u64>,
    /// What else the machine does.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle,busy")]
    pub beside: Vec<Beside>,
    /// For how long each pair without a fault is watched, for each heartbeat and load.
    #[arg(long, default_value_t = 5.0)]
    pub minutes: f64,
    /// Pairs that are watched at once, side by side on this machine.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub pairs: u16,
    /// How many links are cut, for each heartbeat and load.
    #[arg(long, default_value_t = 5)]
    pub rounds: u64,
    /// Determines the moments of the cuts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// One heartbeat under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    heartbeat_ms: u64,
    beside: Beside,
    /// How long pairs were watched, all together.
    minutes: f64,
    /// Takeovers of healthy primaries in that time.
    pub false_takeovers: u64,
    per_hour: f64,
    /// Pairs that were replaced before they were protected, or did not start.
    pub starts_failed: u64,
    /// The latest that a heartbeat was sent, of all three hosts, ms.
    late_worst_ms: f64,
    /// Links cut, and those after which every connection went on.
    cuts: u64,
    survived: u64,
    /// Longest interval without progress of any connection.
    stall_ms: Stalls,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct FalseAlarmReport {
    bench: &'static str,
    /// One for each heartbeat and load.
    pub cells: Vec<Cell>,
}

/// Processes that keep the cores busy until this is dropped.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start(beside: Beside) -> Result<Self> {
        let cores = match beside {
            Beside::Idle => 0,
            Beside::Busy => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let spin = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().context("cannot start a process that spins")
        };
        let mut spinners = Self(Vec::new());
        for _ in 0..cores {
            spinners.0.push(spin()?);
        }
        Ok(spinners)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the bench.
///
/// # Errors
/// When pairs cannot be built, again and again.
pub fn run(args: &FalseAlarmArgs) -> Result<FalseAlarmReport> {
    let count = args.beside.len() * args.heartbeats.len();
    let progress = super::progress("false alarms", count as u64);
    let mut cells = Vec::new();
    for &beside in &args.beside {
        let _spinners = Spinners::start(beside)?;
        for &heartbeat_ms in &args.heartbeats {
            cells.push(measure(args, beside, heartbeat_ms)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(FalseAlarmReport { bench: "false-alarms", cells })
}

fn measure(args: &FalseAlarmArgs, beside: Beside, heartbeat_ms: u64) -> Result<Cell> {
    let options = GroupOptions { heartbeat_ms: Some(heartbeat_ms), ..GroupOptions::default() };
    let mut cell = Cell {
        heartbeat_ms,
        beside,
        minutes: args.minutes * f64::from(args.pairs),
        false_takeovers: 0,
        per_hour: 0.0,
        starts_failed: 0,
        late_worst_ms: 0.0,
        cuts: 0,
        survived: 0,
        stall_ms: Stalls::default(),
    };
    let watched = std::thread::scope(|scope| {
        let watch = || scope.spawn(|| watch_a_pair(&options, args.minutes));
        let pairs: Vec<_> = (0..args.pairs).map(|_| watch()).collect();
        pairs.into_iter().map(|pair| pair.join().expect("a watch never panics")).collect()
    });
    let watched: Result<Vec<Watched>> = watched;
    for it in watched? {
        cell.false_takeovers += it.false_takeovers;
        cell.starts_failed += it.starts_failed;
        cell.late_worst_ms = cell.late_worst_ms.max(it.late_worst_ms);
    }
    cell.per_hour = cell.false_takeovers as f64 * 60.0 / cell.minutes.max(f64::MIN_POSITIVE);
    let mut stalls = Vec::new();
    while cell.cuts < args.rounds {
        let seed = args.seed + cell.cuts;
        match on_a_pair(&options, |service| cut(service, seed)) {
            Ok((survived, stall_ns)) => {
                cell.cuts += 1;
                cell.survived += u64::from(survived);
                stalls.push(stall_ns);
            }
            Err(error) => note_failed_start(&mut cell.starts_failed, error)?,
        }
    }
    cell.stall_ms = Stalls::of_ns(&stalls);
    Ok(cell)
}

fn on_a_pair<T>(
    options: &GroupOptions,
    work: impl FnOnce(&mut Service<'_>) -> Result<T>,
) -> Result<T> {
    with_service(Variant::Ours, Program::Redis, &Plan::default(), options, 0, work)
}

fn note_failed_start(starts_failed: &mut u64, error: anyhow::Error) -> Result<()> {
    *starts_failed += 1;
    if *starts_failed > STARTS_FAILED_MAX {
        return Err(error);
    }
    Ok(())
}

/// What happened to one pair, and to those that came in its place.
#[derive(Default)]
struct Watched {
    false_takeovers: u64,
    starts_failed: u64,
    late_worst_ms: f64,
}

/// Watches a pair without a fault; one that is replaced makes room for the next.
fn watch_a_pair(options: &GroupOptions, minutes: f64) -> Result<Watched> {
    let mut watched = Watched::default();
    let mut left = Duration::try_from_secs_f64(minutes * 60.0).unwrap_or_default();
    while !left.is_zero() {
        match on_a_pair(options, |service| quiet(service, left, &mut watched)) {
            Ok(lasted) => left = left.saturating_sub(lasted),
            Err(error) => note_failed_start(&mut watched.starts_failed, error)?,
        }
    }
    Ok(watched)
}

/// Watches one pair until it is replaced, or the time is over.
fn quiet(service: &mut Service<'_>, at_most: Duration, watched: &mut Watched) -> Result<Duration> {
    let group = service.group()?;
    let start = Instant::now();
    let epoch = |status: &serde_json::Value| status["epoch"].as_u64();
    let first = epoch(&group.status(Role::Edge)?);
    while start.elapsed() < at_most {
        std::thread::sleep(LOOK_EVERY.min(at_most.saturating_sub(start.elapsed())));
        let status = group.status(Role::Edge)?;
        if epoch(&status) != first {
            watched.false_takeovers += 1;
            break;
        }
    }
    for role in [Role::Edge, Role::Primary, Role::Backup] {
        let status = group.status(role)?;
        let late_us = status["counters"]["pulse.late_worst_us"].as_f64().unwrap_or(0.0);
        watched.late_worst_ms = watched.late_worst_ms.max(late_us / 1e3);
    }
    Ok(start.elapsed())
}

/// Cuts the primary's link. Whether everybody survived, and the longest stall, ns.
fn cut(service: &mut Service<'_>, seed: u64) -> Result<(bool, u64)> {
    let testbed = service.testbed;
    let group = service.group()?;
    let steps = fault_steps(FaultKind::LinkCut, testbed, group, seed)?;
    let incr = Group::usual(Workload::Incr, CONNECTIONS, Program::Redis.port());
    let spec = Spec {
        address: address(false)?,
        groups: vec![Group { interval_us: INTERVAL_US, ..incr }],
        duration_ms: AFTER_FAULT_MS,
        congestion: None,
        fault: Some(Fault { after_us: FAULT_AFTER_US, redraw_us: REDRAW_US, steps }),
        seed,
        points: Vec::new(),
    };
    let report = Run::start(testbed.host(Role::Client), &spec)?.finish()?;
    Ok((report.all_survived(), report.stall_ns()))
}

impl FalseAlarmReport {
    /// A table for people.
    pub fn print(&self) {
        println!(
            "{:>9} {:>6} {:>8} {:>6} {:>8} {:>7} {:>10} {:>8} {:>9} {:>9} {:>9}",
            "heartbeat",
            "beside",
            "minutes",
            "false",
            "per hour",
            "unstart",
            "late worst",
            "survived",
            "stall p50",
            "p99",
            "max"
        );
        for it in &self.cells {
            let beside = if it.beside == Beside::Idle { "idle" } else { "busy" };
            println!(
                "{:>6} ms {beside:>6} {:>8.1} {:>6} {:>8.1} {:>7} {:>7.1} ms {:>8} {:>6.1} ms {:>6.1} ms {:>6.1} ms",
                it.heartbeat_ms,
                it.minutes,
                it.false_takeovers,
                it.per_hour,
                it.starts_failed,
                it.late_worst_ms,
                format!("{}/{}", it.survived, it.cuts),
                it.stall_ms.p50,
                it.stall_ms.p99,
                it.stall_ms.max,
            );
        }
    }
}
