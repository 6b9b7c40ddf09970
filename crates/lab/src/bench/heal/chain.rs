//! One failover after the other, each followed by a join, under one load: no
//! connection ever ends.

use super::fill::fill;
use super::{Clients, Fate, kill, mistake, start_again};
use crate::bench::service::{Service, Variant, with_service};
use crate::load::{Group as LoadGroup, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::Result;
use holdfast_chance::Rng;
use holdfast_report::Stalls;
use serde::Serialize;
use std::time::Duration;

/// Time between the requests of each client, in µs.
const INTERVAL_US: u64 = 2_000;

/// Number of clients of each load that share one counter: a request that is run twice, or never,
/// shows in the replies to all of them.
const SHARING: usize = 2;

/// Data that the server holds in addition, in MB.
const FILL_MB: u64 = 3;

/// Least time for which a primary is protected before it dies, in ms.
const PROTECTED_MS: u64 = 100;
/// Span from which additional time before the primary's death is drawn, in ms.
const SPAN_MS: u64 = 400;

/// What a chain of failovers did to the connections that saw all of it.
#[derive(Clone, Debug, Serialize)]
pub struct ChainReport {
    /// Number of planned failovers.
    failovers: u64,
    /// Number of failovers that happened.
    done: u64,
    /// Fate of the loads, over IPv4 and IPv6.
    fate: Fate,
    /// Replies that were right.
    replies: u64,
    /// Time from the start of a daemon until both members were protected.
    protected_ms: Stalls,
    /// The longest gap of each connection, takeovers included.
    gap_ms: Stalls,
    /// What went wrong in the chain.
    failures: Vec<String>,
}

/// Runs a chain of failovers on a fresh pair; calls `step` after each.
///
/// # Errors
/// When the pair cannot be built or the loads cannot begin.
pub fn run(failovers: u64, busy: usize, seed: u64, step: impl Fn()) -> Result<ChainReport> {
    let (plan, options) = (Plan::default(), GroupOptions::default());
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        fill(service.testbed, FILL_MB)?;
        chain(service, failovers, busy, seed, step)
    })
}

fn spec(busy: usize, ipv6: bool, seed: u64) -> Result<Spec> {
    let mut spec = Clients { busy, interval_us: INTERVAL_US, idle: 0, ipv6 }.spec(0, seed)?;
    let shared = LoadGroup::usual(Workload::Shared, SHARING, Program::Redis.port());
    spec.groups.push(LoadGroup { interval_us: INTERVAL_US, ..shared });
    Ok(spec)
}

fn chain(
    service: &mut Service<'_>,
    failovers: u64,
    busy: usize,
    seed: u64,
    step: impl Fn(),
) -> Result<ChainReport> {
    let client = service.testbed.host(Role::Client);
    // The seed determines the keys, so each load needs its own.
    let families = [(false, 2 * seed), (true, 2 * seed + 1)];
    let start = |(ipv6, seed)| Run::start(client, &spec(busy, ipv6, seed)?);
    let mut loads = families.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(super::BEFORE);
    let (mut took_ns, mut failures) = (Vec::new(), Vec::new());
    let mut rng = Rng::of_state(seed);
    while (took_ns.len() as u64) < failovers && !loads.iter_mut().any(Run::has_ended) {
        std::thread::sleep(Duration::from_millis(PROTECTED_MS + rng.below(SPAN_MS)));
        match fail_over(service) {
            Ok(took) => took_ns.push(took.as_nanos() as u64),
            Err(error) => {
                failures.push(format!("failover {}: {error:#}", took_ns.len() + 1));
                break;
            }
        }
        step();
    }
    let finish = |load: Run| load.finish();
    let reports = loads.into_iter().map(finish).collect::<Result<Vec<_>>>()?;
    failures.extend(reports.iter().filter_map(mistake));
    let gaps: Vec<u64> =
        reports.iter().flat_map(|it| &it.connections).map(|it| it.stall_ns).collect();
    let fates: Vec<Fate> = reports.iter().map(Fate::of).collect();
    Ok(ChainReport {
        failovers,
        done: took_ns.len() as u64,
        fate: Fate::of_all(fates.iter()),
        replies: reports.iter().map(|it| it.total(|it| it.replies)).sum(),
        protected_ms: Stalls::of_ns(&took_ns),
        gap_ms: Stalls::of_ns(&gaps),
        failures,
    })
}

/// Kills the primary, and starts it again as the backup.
fn fail_over(service: &mut Service<'_>) -> Result<Duration> {
    let group = service.group()?;
    let primary = group.wait_primary()?;
    kill(group, primary)?;
    start_again(group, primary)
}

impl ChainReport {
    /// Whether all failovers were survived by all connections.
    pub fn is_good(&self) -> bool {
        self.done == self.failovers && self.failures.is_empty() && self.fate.is_good()
    }

    pub(super) fn print(&self) {
        let Fate { connections, lost, wrong } = self.fate;
        println!(
            "chain: {} of {} failovers; {} of {connections} connections lived through all of it, \
             {} replies, {wrong} wrong",
            self.done,
            self.failovers,
            connections - lost,
            self.replies
        );
        let Stalls { min, p50, p99, max } = self.protected_ms;
        println!("  protected ms: p50 {p50:.0} ({min:.0} to {max:.0}), p99 {p99:.0}");
        let Stalls { p50, max, .. } = self.gap_ms;
        println!(
            "  longest gap of a connection, takeovers included, ms: p50 {p50:.1}, max {max:.1}"
        );
        self.failures.iter().for_each(|failure| println!("{failure}"));
    }
}
