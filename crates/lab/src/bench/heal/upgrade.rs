//! `holdfast-lab bench upgrade`: every daemon of a pair is replaced by another build, one after the
//! other, under load. Which connections live, and how long do clients wait?

use super::fill::fill;
use super::switchover::switch_over;
use super::{
    AFTER, BEFORE, Clients, Fate, Gaps, Noticed, each_seed, print_longest, quiet_seed, uses_ipv6,
};
use crate::bench::service::{Service, Variant, with_service};
use crate::load::Run;
use crate::testbed::ours::{Group, GroupOptions, Signal};
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Time between the requests of each client, in µs.
const INTERVAL_US: u64 = 10_000;
/// Data that the server holds in addition, in MB.
const FILL_MB: u64 = 3;
/// What a package puts into its folder, as far as a pair needs it.
const FILES: [&str; 2] = ["holdfast", "libholdfast_shim.so"];

/// Options of the upgrade bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct UpgradeArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// Folder of the build that is replaced: its `holdfast` and `libholdfast_shim.so`. The one that
    /// replaces it is the `holdfast` that the laboratory runs always.
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// How many upgrades, each of a fresh pair; every second pair of runs uses IPv6.
    #[arg(long, default_value_t = 1)]
    pub runs: u64,
    /// How many clients ask.
    #[arg(long, default_value_t = 100)]
    pub connections: usize,
    /// Determines the clients' moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Results of one upgrade.
#[derive(Clone, Debug, Serialize)]
pub struct Upgrade {
    seed: u64,
    ipv6: bool,
    /// Time of all steps, in ms.
    took_ms: f64,
    /// What clients noticed since the first step.
    #[serde(flatten)]
    clients: Noticed,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct UpgradeReport {
    bench: &'static str,
    options: UpgradeArgs,
    upgrades: Vec<Upgrade>,
    gaps: Gaps,
    fate: Fate,
    /// What went wrong, with the options that repeat it.
    failures: Vec<String>,
}

/// Runs the bench.
///
/// # Errors
/// When a build or a pair is missing; an upgrade that fails is a result.
pub fn run(args: &UpgradeArgs) -> Result<UpgradeReport> {
    let newer = crate::holdfast_binary()?;
    let newer = newer.parent().context("this program stands nowhere")?.to_owned();
    let place = std::env::temp_dir().join(format!("holdfast-upgrade-{}", std::process::id()));
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    crate::run_binary_of(&place);
    let seeds = args.seed..args.seed + args.runs;
    let found =
        each_seed(seeds, |it: &Upgrade| &it.clients, |seed| one(args, (&place, &newer), seed));
    fs::remove_dir_all(&place)?;
    let (upgrades, failures) = found?;
    let (gaps, fate) = Noticed::sum(upgrades.iter().map(|it| &it.clients));
    Ok(UpgradeReport { bench: "upgrade", options: args.clone(), upgrades, gaps, fate, failures })
}

/// Measures one upgrade of a fresh pair, whose programs are at `place`; the inner error says why it
/// failed.
fn one(
    args: &UpgradeArgs,
    (place, newer): (&Path, &Path),
    seed: u64,
) -> Result<Result<Upgrade, String>> {
    install(&args.from, place)?;
    let (plan, options) = (Plan::default(), GroupOptions::default());
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        fill(service.testbed, FILL_MB)?;
        let upgraded = upgrade(service, args, (place, newer), seed);
        Ok(upgraded.map_err(|error| format!("{error:#}")))
    })
}

fn upgrade(
    service: &mut Service<'_>,
    args: &UpgradeArgs,
    (place, newer): (&Path, &Path),
    seed: u64,
) -> Result<Upgrade> {
    let client = service.testbed.host(Role::Client);
    let group = service.group()?;
    let ipv6 = uses_ipv6(seed);
    let clients = Clients { busy: args.connections, interval_us: INTERVAL_US, idle: 0, ipv6 };
    let quiet_ms = (BEFORE + AFTER).as_millis() as u64;
    let quiet = Run::start(client, &clients.spec(quiet_ms, quiet_seed(seed))?)?.finish()?;
    let run = Run::start(client, &clients.spec(0, seed)?)?;
    std::thread::sleep(BEFORE);
    let (begun, begun_ns) = (Instant::now(), crate::monotonic_ns());
    let steps = replace(group, (place, newer)).with_context(|| group.log_tails());
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    std::thread::sleep(AFTER);
    let report = run.finish().with_context(|| group.log_tails())?;
    steps?;
    ensure!(report.ready_ns < begun_ns, "the load did not work yet when the upgrade began");
    Ok(Upgrade { seed, ipv6, took_ms, clients: Noticed::of(&report, begun_ns, &quiet) })
}

/// The documented order: the files of all hosts, the backup, the members swapped, the one that was
/// the primary, the edge.
fn replace(group: &mut Group<'_>, (place, newer): (&Path, &Path)) -> Result<()> {
    install(newer, place)?;
    let first = group.wait_primary()?;
    again(group, first.other())?;
    switch_over(group)?;
    again(group, first)?;
    again(group, Role::Edge)
}

/// Starts a daemon again, and waits until the group is protected.
fn again(group: &mut Group<'_>, role: Role) -> Result<()> {
    group.stop_daemon(role, Signal::TERM)?;
    group.start_daemon(role)?;
    group.wait_protected().with_context(|| format!("after the {} was started again", role.name()))
}

/// Puts a build's files in the place of the ones before, as a package manager does: programs that
/// run keep theirs.
fn install(from: &Path, place: &Path) -> Result<()> {
    for name in FILES {
        let (from, new) = (from.join(name), place.join(format!("{name}.new")));
        fs::copy(&from, &new).with_context(|| format!("cannot copy {}", from.display()))?;
        fs::rename(&new, place.join(name)).with_context(|| format!("cannot install {name}"))?;
    }
    Ok(())
}

impl UpgradeReport {
    /// Whether every upgrade happened, and no connection was lost.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.fate.is_good()
    }

    /// Some lines for people.
    pub fn print(&self) {
        self.fate.print("upgrade", self.upgrades.len(), self.options.runs);
        self.gaps.print();
        print_longest(self.upgrades.iter().map(|it| &it.clients), "upgrade");
        self.failures.iter().for_each(|failure| println!("{failure}"));
    }
}
