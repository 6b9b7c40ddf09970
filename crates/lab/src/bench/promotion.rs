//! `holdfast-lab bench promotion`: how long a takeover takes when it has many
//! connections to carry over, and what they cost the backup in memory.

use super::faults::{FaultKind, fault_steps};
use super::service::{Variant, address, with_service};
use super::takeover::{Outcome, PHASES, failure};
use crate::load::{Fault, Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_linux::process::resident_bytes;
use holdfast_report::{Summary, progress};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Number of connections above which most of them are idle.
const LIVE_MAX: usize = 1000;

/// Number of busy connections if most are idle.
const BUSY_OF_MANY: usize = 100;

/// Time between two requests of a busy connection, in µs.
const INTERVAL_US: u64 = 100_000;

/// Time from the moment when all connections work to the fault, in µs.
const FAULT_AFTER_US: u64 = 500_000;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Time for which the load goes on after the fault, in ms.
const AFTER_FAULT_MS: u64 = 3_000;

/// Options of the promotion bench.
#[derive(Args, Clone, Debug)]
pub struct PromotionArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How many connections, one or more numbers. Up to 1000 all of them are
    /// busy, of more than that one hundred are.
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000,10000")]
    pub connections: Vec<usize>,
    /// How many takeovers for each number.
    #[arg(long, default_value_t = 3)]
    pub runs: u64,
    /// `ulimit -n` of the daemons, instead of this process' own: 1024 is what shells
    /// and services usually get.
    #[arg(long, value_name = "SOFT")]
    pub open_files: Option<u64>,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Determines the load.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Takeovers with one number of connections.
#[derive(Clone, Debug, Serialize)]
pub struct Promotions {
    connections: usize,
    runs: u64,
    /// Runs in which every connection survived.
    pub survived: u64,
    /// Time from the cause to the last kick, in µs.
    pub total_us: Summary,
    /// Times of the takeover's phases, in µs.
    pub phases_us: BTreeMap<&'static str, Summary>,
    /// Longest interval without progress of any connection, in ms.
    pub stall_ms: Summary,
    /// Resident memory of the backup's daemon at the end, in bytes.
    pub daemon_bytes: Summary,
    /// Growth of that memory since there were no connections, in bytes per connection.
    pub daemon_bytes_per_connection: Summary,
    /// What went wrong in the runs.
    pub failures: Vec<String>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct PromotionReport {
    bench: &'static str,
    /// Results for each number of connections.
    pub promotions: Vec<Promotions>,
}

/// Results of one run; resident memory is that of the backup's daemon, if it lived.
struct Measured {
    outcome: Outcome,
    before_bytes: Option<u64>,
    after_bytes: Option<u64>,
}

/// Runs the bench.
///
/// # Errors
/// When a pair cannot be built.
pub fn run(args: &PromotionArgs) -> Result<PromotionReport> {
    let progress = progress("promotion", args.runs * args.connections.len() as u64);
    let mut promotions = Vec::new();
    for &connections in &args.connections {
        let mut measured = Vec::new();
        for seed in args.seed..args.seed + args.runs {
            measured.push(one(args, connections, seed)?);
            progress.inc(1);
        }
        promotions.push(sum_up(connections, &measured));
    }
    progress.finish_and_clear();
    Ok(PromotionReport { bench: "promotion", promotions })
}

fn load(args: &PromotionArgs, connections: usize, seed: u64, fault: Fault) -> Result<Spec> {
    let port = Program::Redis.port();
    let busy = if connections > LIVE_MAX { BUSY_OF_MANY } else { connections };
    let incr = Group { interval_us: INTERVAL_US, ..Group::usual(Workload::Incr, busy, port) };
    let mut groups = vec![incr];
    if connections > busy {
        groups.push(Group::usual(Workload::Idle, connections - busy, port));
    }
    Ok(Spec {
        address: address(args.ipv6)?,
        groups,
        duration_ms: AFTER_FAULT_MS,
        congestion: None,
        fault: Some(fault),
        seed,
        points: Vec::new(),
    })
}

fn one(args: &PromotionArgs, connections: usize, seed: u64) -> Result<Measured> {
    let plan = Plan::default();
    let options = GroupOptions { open_files_soft: args.open_files, ..GroupOptions::default() };
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        let testbed = service.testbed;
        let group = service.group()?;
        let steps = fault_steps(FaultKind::Kill9, testbed, group, seed)?;
        let fault = Fault { after_us: FAULT_AFTER_US, redraw_us: REDRAW_US, steps };
        let load = load(args, connections, seed, fault)?;
        let daemon = group.daemon_pid(Role::Backup)?;
        let before_bytes = resident_bytes(daemon);
        let report = Run::start(testbed.host(Role::Client), &load)?.finish();
        let report = report.with_context(|| group.log_tails())?;
        let outcome = Outcome::of(report, Some(FaultKind::Kill9.survivor()), group);
        Ok(Measured { outcome, before_bytes, after_bytes: resident_bytes(daemon) })
    })
}

fn sum_up(connections: usize, measured: &[Measured]) -> Promotions {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    let of_takeovers = |pick: &dyn Fn(&Value) -> Option<f64>| {
        let takeovers = measured.iter().filter_map(|it| it.outcome.takeover.as_ref());
        Summary::of(&takeovers.filter_map(pick).collect::<Vec<_>>())
    };
    let of_all = |pick: &dyn Fn(&Measured) -> Option<f64>| {
        Summary::of(&measured.iter().filter_map(pick).collect::<Vec<_>>())
    };
    let phase = |name: &str| of_takeovers(&|it| number(it.get("phases_us")?.get(name)));
    let failures: Vec<String> = measured.iter().filter_map(|it| failure(&it.outcome)).collect();
    Promotions {
        connections,
        runs: measured.len() as u64,
        survived: (measured.len() - failures.len()) as u64,
        total_us: of_takeovers(&|it| number(it.get("total_us"))),
        phases_us: PHASES.iter().map(|name| (*name, phase(name))).collect(),
        stall_ms: of_all(&|it| Some(it.outcome.report.stall_ns() as f64 / 1e6)),
        daemon_bytes: of_all(&|it| it.after_bytes.map(|bytes| bytes as f64)),
        daemon_bytes_per_connection: of_all(&|it| {
            let grown = it.after_bytes?.saturating_sub(it.before_bytes?);
            Some(grown as f64 / connections.max(1) as f64)
        }),
        failures,
    }
}

impl PromotionReport {
    /// Whether every connection of every run survived.
    pub fn is_good(&self) -> bool {
        self.promotions.iter().all(|it| it.survived == it.runs)
    }

    /// A table for people.
    pub fn print(&self) {
        print!("{:>11} {:>8} {:>9} {:>9}", "connections", "survived", "total us", "stall ms");
        PHASES.iter().for_each(|name| print!(" {name:>8}"));
        println!(" {:>10} {:>8}", "daemon KiB", "per conn");
        for it in &self.promotions {
            let survived = format!("{}/{}", it.survived, it.runs);
            let (total, stall) = (it.total_us.median, it.stall_ms.median);
            print!("{:>11} {survived:>8} {total:>9.0} {stall:>9.1}", it.connections);
            PHASES.iter().for_each(|name| print!(" {:>8.0}", it.phases_us[name].median));
            let kib = it.daemon_bytes.median / 1024.0;
            println!(" {kib:>10.0} {:>8.0}", it.daemon_bytes_per_connection.median);
        }
        self.promotions.iter().flat_map(|it| &it.failures).for_each(|it| println!("{it}"));
    }
}
