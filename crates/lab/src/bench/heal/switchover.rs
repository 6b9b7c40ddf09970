//! `holdfast-lab bench switchover`: the members are swapped under load. How long do
//! the clients wait, and how long is nobody protected?

use super::fill::fill;
use super::{
    AFTER, BEFORE, Clients, Fate, Gaps, Noticed, Verdict, each_seed, print_longest, quiet_seed,
    uses_ipv6,
};
use crate::bench::service::{Service, Variant, with_service};
use crate::load::Run;
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Stalls, progress};
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Time between the requests of each client, in µs.
const INTERVAL_US: u64 = 10_000;

/// Data that the server holds in addition, in MB.
const FILL_MB: u64 = 3;

/// Least time for which both loads go on after the command.
const WINDOW: Duration = Duration::from_secs(3);

/// Limit on the clients' wait for a switchover, p99, in ms.
const STALL_ASKED_MS: f64 = 10.0;

/// Options of the switchover bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct SwitchoverArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// How many switchovers, each of a fresh pair; every second pair of runs uses IPv6.
    #[arg(long, default_value_t = 10)]
    pub runs: u64,
    /// How many clients ask.
    #[arg(long, default_value_t = 100)]
    pub connections: usize,
    /// Determines the clients' moments; run N of a bench is run 1 of a bench with a
    /// seed larger by N - 1.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Results of one switchover.
#[derive(Clone, Debug, Serialize)]
pub struct Swap {
    seed: u64,
    ipv6: bool,
    /// Time from the command until the new backup was protected, in ms.
    protected_ms: f64,
    /// What clients noticed since the command.
    #[serde(flatten)]
    clients: Noticed,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchoverReport {
    bench: &'static str,
    options: SwitchoverArgs,
    /// The single switchovers.
    swaps: Vec<Swap>,
    /// Time from the command until the new backup was protected, in ms.
    protected_ms: Stalls,
    gaps: Gaps,
    fate: Fate,
    verdicts: Vec<Verdict>,
    /// What went wrong, with the options that repeat it.
    failures: Vec<String>,
}

/// Runs the bench.
///
/// # Errors
/// When a pair cannot be built; a switchover that fails is a result.
pub fn run(args: &SwitchoverArgs) -> Result<SwitchoverReport> {
    let progress = progress("switchover", args.runs);
    let seeds = args.seed..args.seed + args.runs;
    let (swaps, failures) = each_seed(
        seeds,
        |swap: &Swap| &swap.clients,
        |seed| one(args, seed).inspect(|_| progress.inc(1)),
    )?;
    progress.finish_and_clear();
    Ok(sum_up(args, swaps, failures))
}

/// Measures one switchover of a fresh pair; the inner error says why it failed.
fn one(args: &SwitchoverArgs, seed: u64) -> Result<Result<Swap, String>> {
    let (plan, options) = (Plan::default(), GroupOptions::default());
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        fill(service.testbed, FILL_MB)?;
        Ok(swap(service, args, seed).map_err(|error| format!("{error:#}")))
    })
}

fn swap(service: &mut Service<'_>, args: &SwitchoverArgs, seed: u64) -> Result<Swap> {
    let client = service.testbed.host(Role::Client);
    let group = service.group()?;
    let ipv6 = uses_ipv6(seed);
    let clients = Clients { busy: args.connections, interval_us: INTERVAL_US, idle: 0, ipv6 };
    let window_ms = (BEFORE + WINDOW + AFTER).as_millis() as u64;
    let quiet = Run::start(client, &clients.spec(window_ms, quiet_seed(seed))?)?.finish()?;
    let run = Run::start(client, &clients.spec(0, seed)?)?;
    std::thread::sleep(BEFORE);
    let (begun, begun_ns) = (Instant::now(), crate::monotonic_ns());
    let protected_ms = switch_over(group).with_context(|| group.log_tails())?;
    std::thread::sleep(AFTER.max((WINDOW + AFTER).saturating_sub(begun.elapsed())));
    let report = run.finish().with_context(|| group.log_tails())?;
    ensure!(report.ready_ns < begun_ns, "the load did not work yet when the members were swapped");
    Ok(Swap { seed, ipv6, protected_ms, clients: Noticed::of(&report, begun_ns, &quiet) })
}

/// Swaps the members; returns the time until the group was protected again, in ms.
pub(super) fn switch_over(group: &Group<'_>) -> Result<f64> {
    let primary = group.wait_primary()?;
    let done = group.verb(primary, &["switchover", "--json"])?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the switchover ended with {}: {}", done.status, said.trim());
    let now = group.primary();
    ensure!(now == Some(primary.other()), "after the switchover {now:?} is the primary");
    let said: Value = serde_json::from_slice(&done.stdout).context("its answer is not JSON")?;
    said["protected_after_ms"].as_f64().context("it does not say how long it took")
}

fn sum_up(args: &SwitchoverArgs, swaps: Vec<Swap>, failures: Vec<String>) -> SwitchoverReport {
    let times: Vec<u64> = swaps.iter().map(|it| (it.protected_ms * 1e6) as u64).collect();
    let (gaps, fate) = Noticed::sum(swaps.iter().map(|it| &it.clients));
    let stall =
        Verdict::at_most("longest gap, p99".to_owned(), gaps.with_ms.p99, STALL_ASKED_MS, "ms");
    let lost = Verdict::at_most("lost connections".to_owned(), fate.lost as f64, 0.0, "");
    SwitchoverReport {
        bench: "switchover",
        options: args.clone(),
        verdicts: if swaps.is_empty() { Vec::new() } else { vec![stall, lost] },
        swaps,
        protected_ms: Stalls::of_ns(&times),
        gaps,
        fate,
        failures,
    }
}

impl SwitchoverReport {
    /// Whether every switchover happened, and no connection was lost. Times are not judged here,
    /// since they depend on how idle the machine is.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.fate.is_good()
    }

    /// Some lines for people.
    pub fn print(&self) {
        self.fate.print("switchover", self.swaps.len(), self.options.runs);
        let Stalls { min, p50, p99, max } = self.protected_ms;
        println!("  {:>11} ms: p50 {p50:.0} ({min:.0} to {max:.0}), p99 {p99:.0}", "protected");
        self.gaps.print();
        print_longest(self.swaps.iter().map(|it| &it.clients), "command");
        self.verdicts.iter().for_each(Verdict::print);
        self.failures.iter().for_each(|failure| println!("{failure}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGS: SwitchoverArgs = SwitchoverArgs { json: false, runs: 1, connections: 2, seed: 1 };

    fn swap(lost: u64, gaps_ns: Vec<(u64, u64)>) -> Swap {
        Swap {
            seed: 1,
            ipv6: false,
            protected_ms: 900.0,
            clients: Noticed {
                longest_after_ms: 5.0,
                own_pause_ms: 0.1,
                fate: Fate { connections: 2, lost, wrong: 0 },
                mistake: None,
                gaps: Gaps::of(&gaps_ns),
                gaps_ns,
            },
        }
    }

    #[test]
    fn what_clients_wait_is_judged_as_it_is() {
        // The limit is on the whole gap, and not on what exceeds the load without a switchover:
        // clients feel all of it.
        let report = sum_up(&ARGS, vec![swap(0, vec![(12_000_000, 11_000_000)])], Vec::new());
        assert_eq!(report.verdicts.iter().map(|it| it.kept).collect::<Vec<_>>(), [false, true]);
        assert!(report.is_good());
    }

    #[test]
    fn a_lost_connection_is_no_good() {
        let report = sum_up(&ARGS, vec![swap(1, vec![(1, 1)])], Vec::new());
        assert_eq!(report.verdicts.iter().map(|it| it.kept).collect::<Vec<_>>(), [true, false]);
        assert!(!report.is_good());
    }
}
