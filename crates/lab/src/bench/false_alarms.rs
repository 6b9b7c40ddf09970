//! `holdfast-lab bench false-alarms`: how often a healthy primary is replaced or
//! gives its healthy backup up, and how long clients wait for a takeover that must
//! be, for several heartbeats, on an idle machine and on a busy one. The default of
//! `heartbeat_ms` comes from it.

use super::faults::{FaultKind, fault_steps};
use super::service::{Service, Variant, address, with_service};
use crate::command::Hogs;
use crate::load::{Fault, Group, Run, Spec, Workload};
use crate::testbed::config::ArbiterKind;
use crate::testbed::ours::{Group as TestGroup, GroupOptions};
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Stalls, progress};
use holdfast_wire::segment::Mode;
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Time between two questions to the edge whether its epoch has changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Failures before the bench gives up: of pairs that do not start and of watches, at each place
/// where one pair is watched, and of cuts in each cell.
const FAILURES_MAX: u64 = 5;

/// Factor by which watching pairs takes longer if each is replaced at the first look.
const STARTS_PER_WATCH: u32 = 20;

/// Time within which a pair is built and its load has ended or failed.
const PAIR_LIMIT: Duration = Duration::from_secs(120);

/// Time between a client's requests while links are cut, in µs.
const INTERVAL_US: u64 = 5_000;
const CONNECTIONS: usize = 4;
const FAULT_AFTER_US: u64 = 200_000;
const REDRAW_US: u64 = 100_000;
/// Time for which the load goes on after the cut, in ms.
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

impl Beside {
    fn hogs(self) -> usize {
        match self {
            Beside::Idle => 0,
            Beside::Busy => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
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
    /// Without an edge: how clients' packets reach both members: flood, chain, clone.
    #[arg(long, value_parser = super::takeover::mode)]
    pub segment: Option<Mode>,
    /// Who decides between the members of a pair without an edge.
    #[arg(long, value_enum, default_value = "witness", requires = "segment")]
    pub arbiter: ArbiterKind,
    /// Determines the moments of the cuts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// One heartbeat under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    heartbeat_ms: u64,
    beside: Beside,
    /// Time for which pairs were watched, all together, in minutes.
    minutes: f64,
    /// Takeovers of healthy primaries in that time.
    pub false_takeovers: u64,
    /// Takeovers of healthy primaries per hour.
    per_hour: f64,
    /// Primaries that went on alone in that time although nothing was done to the backup.
    pub false_losses: u64,
    /// Leases of pairs without an edge that ran out in that time before they were renewed.
    lapses: u64,
    /// Pairs that did not start, or were replaced before they were protected.
    pub starts_failed: u64,
    /// Pairs that could not be watched to the end, because a daemon did not answer or did not tell
    /// its epoch.
    pub watches_failed: u64,
    /// Longest delay of a heartbeat's sending, over all three hosts, in ms.
    late_worst_ms: f64,
    /// Number of links that were cut.
    cuts: u64,
    /// Cuts after which every connection went on.
    survived: u64,
    /// Pairs that did not start, or had no load, when their link was to be cut.
    pub cuts_failed: u64,
    /// Longest interval without progress of any connection, in ms.
    stall_ms: Stalls,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct FalseAlarmReport {
    bench: &'static str,
    /// Results for each heartbeat and load.
    pub cells: Vec<Cell>,
}

/// Runs the bench.
///
/// # Errors
/// When pairs cannot be built, again and again.
pub fn run(args: &FalseAlarmArgs) -> Result<FalseAlarmReport> {
    let count = args.beside.len() * args.heartbeats.len();
    let progress = progress("false alarms", count as u64);
    let mut cells = Vec::new();
    for &beside in &args.beside {
        for &heartbeat_ms in &args.heartbeats {
            let mut hogs = Hogs::start(beside.hogs(), hogs_limit(args))?;
            cells.push(measure(args, beside, heartbeat_ms)?);
            ensure!(hogs.all_run(), "the programs beside the pairs ended before the bench did");
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(FalseAlarmReport { bench: "false-alarms", cells })
}

/// More time than one heartbeat under one load ever takes: pairs that are replaced at once take
/// many times as long as they are watched.
fn hogs_limit(args: &FalseAlarmArgs) -> Duration {
    let others = u32::try_from(args.rounds + 3 * FAILURES_MAX).unwrap_or(u32::MAX);
    let watching = watch_time(args.minutes).saturating_mul(STARTS_PER_WATCH);
    watching.saturating_add(PAIR_LIMIT.saturating_mul(others))
}

fn watch_time(minutes: f64) -> Duration {
    Duration::try_from_secs_f64(minutes * 60.0).unwrap_or_default()
}

fn measure(args: &FalseAlarmArgs, beside: Beside, heartbeat_ms: u64) -> Result<Cell> {
    let (segment, arbiter) = (args.segment, args.arbiter);
    let heartbeat = Some(heartbeat_ms);
    let options =
        GroupOptions { heartbeat_ms: heartbeat, segment, arbiter, ..GroupOptions::default() };
    let watched = watch_pairs(&options, args)?;
    let minutes = watched.lasted.as_secs_f64() / 60.0;
    let mut cell = Cell {
        heartbeat_ms,
        beside,
        minutes,
        false_takeovers: watched.false_takeovers,
        per_hour: watched.false_takeovers as f64 * 60.0 / minutes.max(f64::MIN_POSITIVE),
        false_losses: watched.false_losses,
        lapses: watched.lapses,
        starts_failed: watched.starts_failed,
        watches_failed: watched.watches_failed,
        late_worst_ms: watched.late_worst_ms,
        cuts: 0,
        survived: 0,
        cuts_failed: 0,
        stall_ms: Stalls::default(),
    };
    let mut stalls = Vec::new();
    while cell.cuts < args.rounds {
        let seed = args.seed + cell.cuts;
        match on_a_pair(&options, |service| cut(service, seed)) {
            Ok((survived, stall_ns)) => {
                cell.cuts += 1;
                cell.survived += u64::from(survived);
                stalls.push(stall_ns);
            }
            Err(error) => note_failure(&mut cell.cuts_failed, error)?,
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

fn note_failure(failures: &mut u64, error: anyhow::Error) -> Result<()> {
    *failures += 1;
    if *failures > FAILURES_MAX {
        return Err(error);
    }
    Ok(())
}

/// What happened to one pair, and to the pairs that replaced it.
#[derive(Default)]
struct Watched {
    lasted: Duration,
    false_takeovers: u64,
    false_losses: u64,
    lapses: u64,
    starts_failed: u64,
    watches_failed: u64,
    late_worst_ms: f64,
}

impl Watched {
    fn add(&mut self, other: &Self) {
        self.lasted += other.lasted;
        self.false_takeovers += other.false_takeovers;
        self.false_losses += other.false_losses;
        self.lapses += other.lapses;
        self.starts_failed += other.starts_failed;
        self.watches_failed += other.watches_failed;
        self.late_worst_ms = self.late_worst_ms.max(other.late_worst_ms);
    }

    /// Notes a change that nobody had a reason for. Every pair begins with `Role::Primary`: if that
    /// still is current, it was granted an epoch to run on alone.
    fn note_change(&mut self, current: Role) {
        if current == Role::Primary {
            self.false_losses += 1;
        } else {
            self.false_takeovers += 1;
        }
    }
}

/// Watches as many pairs as were asked for, side by side.
fn watch_pairs(options: &GroupOptions, args: &FalseAlarmArgs) -> Result<Watched> {
    let mut all = Watched::default();
    std::thread::scope(|scope| {
        let watch = || scope.spawn(|| watch_a_pair(options, args.minutes));
        let pairs: Vec<_> = (0..args.pairs).map(|_| watch()).collect();
        pairs.into_iter().try_for_each(|pair| {
            all.add(&pair.join().expect("a watch never panics")?);
            Ok::<(), anyhow::Error>(())
        })
    })?;
    Ok(all)
}

/// Watches a pair without a fault; a pair that is replaced makes room for the next.
fn watch_a_pair(options: &GroupOptions, minutes: f64) -> Result<Watched> {
    let mut watched = Watched::default();
    loop {
        let left = watch_time(minutes).saturating_sub(watched.lasted);
        if left.is_zero() {
            return Ok(watched);
        }
        match on_a_pair(options, |service| Ok(quiet(service, left, &mut watched))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => note_failure(&mut watched.watches_failed, error)?,
            Err(error) => note_failure(&mut watched.starts_failed, error)?,
        }
    }
}

/// Watches one pair until it is replaced, or the time is over.
fn quiet(service: &mut Service<'_>, at_most: Duration, watched: &mut Watched) -> Result<()> {
    let group = service.group()?;
    let start = Instant::now();
    let changed = wait_for_change(group, at_most);
    watched.lasted += start.elapsed();
    if changed? {
        watched.note_change(group.current()?);
    }
    for role in [Role::Edge, Role::Primary, Role::Backup] {
        // An etcd has no daemon of ours.
        if !group.has_daemon(role) {
            continue;
        }
        let counters = &group.status(role)?["counters"];
        let late_us = counters["pulse.late_worst_us"].as_f64().unwrap_or(0.0);
        watched.late_worst_ms = watched.late_worst_ms.max(late_us / 1e3);
        watched.lapses += counters["lease.lapses"].as_u64().unwrap_or(0);
    }
    Ok(())
}

/// Whether the edge has left the pair's epoch before the time was over.
fn wait_for_change(group: &TestGroup<'_>, at_most: Duration) -> Result<bool> {
    let start = Instant::now();
    // Who knows the epoch without a member.
    let third = if group.has_daemon(Role::Edge) { Role::Edge } else { Role::Primary };
    let first = epoch(&group.status(third)?)?;
    // A pair that stands now stood in that epoch, since one that has ended stays so.
    if !group.stands()? {
        return Ok(true);
    }
    while start.elapsed() < at_most {
        std::thread::sleep(LOOK_EVERY.min(at_most.saturating_sub(start.elapsed())));
        if epoch(&group.status(third)?)? != first {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The epoch in a status. Without one nothing would ever seem to change, so that is an error.
fn epoch(status: &Value) -> Result<u64> {
    status["epoch"].as_u64().with_context(|| format!("no epoch is told: {status}"))
}

/// Cuts the primary's link. Returns whether every connection survived, and the longest stall in ns.
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
            "{:>9} {:>6} {:>8} {:>6} {:>8} {:>6} {:>7} {:>7} {:>7} {:>10} {:>8} {:>7} {:>9} {:>9} {:>9}",
            "heartbeat",
            "beside",
            "minutes",
            "taken",
            "per hour",
            "lost",
            "lapsed",
            "unstart",
            "unwatch",
            "late worst",
            "survived",
            "uncut",
            "stall p50",
            "p99",
            "max"
        );
        for it in &self.cells {
            let beside = if it.beside == Beside::Idle { "idle" } else { "busy" };
            println!(
                "{:>6} ms {beside:>6} {:>8.1} {:>6} {:>8.1} {:>6} {:>7} {:>7} {:>7} {:>7.1} ms {:>8} {:>7} {:>6.1} ms {:>6.1} ms {:>6.1} ms",
                it.heartbeat_ms,
                it.minutes,
                it.false_takeovers,
                it.per_hour,
                it.false_losses,
                it.lapses,
                it.starts_failed,
                it.watches_failed,
                it.late_worst_ms,
                format!("{}/{}", it.survived, it.cuts),
                it.cuts_failed,
                it.stall_ms.p50,
                it.stall_ms.p99,
                it.stall_ms.max,
            );
        }
        println!(
            "taken: primaries that were replaced, lost: backups that were given up, all of them healthy; \
             lapsed: leases that ran out before they were renewed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use serde_json::json;

    #[test]
    fn an_edge_that_tells_no_epoch_is_an_error() {
        assert_eq!(epoch(&json!({"epoch": 3})).unwrap(), 3);
        assert!(epoch(&json!({"state": "protected"})).is_err());
    }

    #[test]
    fn a_backup_that_is_given_up_is_no_takeover() {
        let mut watched = Watched::default();
        watched.note_change(Role::Primary);
        assert_eq!((watched.false_takeovers, watched.false_losses), (0, 1));
        watched.note_change(Role::Backup);
        assert_eq!((watched.false_takeovers, watched.false_losses), (1, 1));
    }

    #[test]
    fn some_failures_are_borne() {
        let mut failures = 0;
        for _ in 0..FAILURES_MAX {
            note_failure(&mut failures, anyhow!("no start")).unwrap();
        }
        assert!(note_failure(&mut failures, anyhow!("no start")).is_err());
    }
}
