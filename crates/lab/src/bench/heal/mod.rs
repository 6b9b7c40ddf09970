//! What clients notice while a group heals (`rejoin`), swaps its members (`switchover`), or gets
//! another build (`upgrade`): each client's longest time without a reply, compared with the
//! same load, for as long, in which nothing happens.

pub(crate) mod chain;
pub(crate) mod cold;
pub(crate) mod fill;
pub(crate) mod rejoin;
pub(crate) mod switchover;
pub(crate) mod upgrade;

use super::service::address;
use crate::load::{ConnectionReport, Group as LoadGroup, Report, Spec, Workload};
use crate::testbed::Role;
use crate::testbed::ours::Group;
use crate::testbed::server::Program;
use anyhow::{Context as _, Result};
use holdfast_report::{Stalls, Summary};
use serde::Serialize;
use serde_json::Value;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time for which the load runs before anything happens.
const BEFORE: Duration = Duration::from_secs(1);

/// Time for which the load goes on after everything has happened.
const AFTER: Duration = Duration::from_millis(500);

/// Longest wait for a member to join; many times the limit that is asked for.
const HEAL_LIMIT: Duration = Duration::from_secs(60);

/// Time between two questions to the members whether they protect. Each question starts three
/// programs beside the clients whose gaps are measured.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether a run uses IPv6: seeds 1 and 2 use IPv4, 3 and 4 IPv6, and so on.
fn uses_ipv6(seed: u64) -> bool {
    seed.wrapping_sub(1) / 2 % 2 == 1
}

/// The clients of a redis-server.
struct Clients {
    /// Number of clients that send requests, each at its own pace.
    busy: usize,
    /// Time between two requests of a client, in µs.
    interval_us: u64,
    /// Number of clients that send nothing.
    idle: usize,
    ipv6: bool,
}

impl Clients {
    /// The load of these clients; `duration_ms` and `seed`: see [`Spec`].
    fn spec(&self, duration_ms: u64, seed: u64) -> Result<Spec> {
        let port = Program::Redis.port();
        let count = LoadGroup::usual(Workload::Incr, self.busy, port);
        let mut groups = vec![LoadGroup { interval_us: self.interval_us, ..count }];
        if self.idle > 0 {
            groups.push(LoadGroup::usual(Workload::Idle, self.idle, port));
        }
        Ok(Spec {
            address: address(self.ipv6)?,
            groups,
            duration_ms,
            congestion: None,
            fault: None,
            seed,
            points: Vec::new(),
        })
    }
}

/// Seed of the load without an event. The seed determines the keys, and of two loads at one server
/// each has to count from 1.
fn quiet_seed(seed: u64) -> u64 {
    !seed
}

/// Fate of a load's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// Number of all connections.
    pub connections: u64,
    /// Number of connections that were reset, ended, or waited in vain.
    pub lost: u64,
    /// Replies with a wrong byte, and shared counters that do not add up.
    pub wrong: u64,
}

impl Fate {
    fn of(report: &Report) -> Self {
        let broken = |it: &&ConnectionReport| !it.survived() || it.connects != 1;
        Self {
            connections: report.connections.len() as u64,
            lost: report.connections.iter().filter(broken).count() as u64,
            wrong: report.total(|it| it.byte_errors) + u64::from(report.shared_error.is_some()),
        }
    }

    fn of_all<'a>(fates: impl Iterator<Item = &'a Self>) -> Self {
        fates.fold(Self::default(), |sum, it| Self {
            connections: sum.connections + it.connections,
            lost: sum.lost + it.lost,
            wrong: sum.wrong + it.wrong,
        })
    }

    /// The first line of a report: how many of `runs` were done, and what became of the clients.
    fn print(self, bench: &str, done: usize, runs: u64) {
        let Self { connections, lost, wrong } = self;
        println!(
            "{bench}: {done} of {runs}; {lost} of {connections} connections lost, {wrong} wrong replies"
        );
    }

    /// Whether every connection survived, and got only correct replies.
    fn is_good(self) -> bool {
        self.lost == 0 && self.wrong == 0
    }
}

/// The first mistake of a load, in words.
fn mistake(report: &Report) -> Option<String> {
    let of_one = report.connections.iter().find_map(|it| it.error.clone());
    of_one.or_else(|| report.shared_error.clone())
}

/// The longest gap of each client that sends requests, in ns, in the order of the clients.
fn gaps_ns(report: &Report) -> Vec<u64> {
    let busy = report.connections.iter().filter(|it| it.workload != Workload::Idle);
    busy.map(|it| it.stall_ns).collect()
}

/// Time from a moment of this machine until the longest gap began, in ms; negative if it began
/// before.
fn longest_after_ms(report: &Report, since_ns: u64) -> f64 {
    let longest = report.connections.iter().max_by_key(|it| it.stall_ns);
    longest.map_or(0.0, |it| (it.stall_start_ns as f64 - since_ns as f64) / 1e6)
}

/// The longest gaps of clients, over all runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Gaps {
    /// Gaps in the load with the event that the bench is about.
    pub with_ms: Stalls,
    /// Gaps in the same load without the event.
    pub without_ms: Stalls,
    /// Difference of each client's gap to its own in the load without the event.
    pub added_ms: Stalls,
}

impl Gaps {
    /// Computes the stalls from pairs of gaps of the same client, with and without the event, in
    /// ns.
    fn of(pairs: &[(u64, u64)]) -> Self {
        let of = |pick: fn(&(u64, u64)) -> u64| {
            Stalls::of_ns(&pairs.iter().map(pick).collect::<Vec<_>>())
        };
        Self {
            with_ms: of(|it| it.0),
            without_ms: of(|it| it.1),
            added_ms: of(|it| it.0.saturating_sub(it.1)),
        }
    }

    fn print(&self) {
        for (what, gap) in
            [("longest gap", self.with_ms), ("without", self.without_ms), ("added", self.added_ms)]
        {
            let Stalls { min, p50, p99, max } = gap;
            println!("  {what:>11} ms: p50 {p50:.2} ({min:.2} to {max:.2}), p99 {p99:.2}");
        }
    }
}

/// What the clients of one run noticed.
#[derive(Clone, Debug, Serialize)]
pub struct Noticed {
    /// Time from the event until the longest gap began, in ms; negative if it began before.
    longest_after_ms: f64,
    /// The load's own longest delay in waking up, ms.
    own_pause_ms: f64,
    fate: Fate,
    /// The clients' first mistake.
    mistake: Option<String>,
    /// Gaps of the run's clients.
    gaps: Gaps,
    /// Gaps of each client, with the event and without, in ns.
    #[serde(skip)]
    gaps_ns: Vec<(u64, u64)>,
}

impl Noticed {
    /// What was noticed in the load with the event, which happened at `since_ns` by this machine's
    /// clock, and in the load without it.
    fn of(report: &Report, since_ns: u64, quiet: &Report) -> Self {
        let gaps_ns: Vec<_> = gaps_ns(report).into_iter().zip(gaps_ns(quiet)).collect();
        Self {
            longest_after_ms: longest_after_ms(report, since_ns),
            own_pause_ms: report.own_pause_ns as f64 / 1e6,
            fate: Fate::of(report),
            mistake: mistake(report).or_else(|| mistake(quiet)),
            gaps: Gaps::of(&gaps_ns),
            gaps_ns,
        }
    }

    /// Gaps and fate over all runs.
    fn sum<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> (Gaps, Fate) {
        let gaps: Vec<(u64, u64)> = all.clone().flat_map(|it| it.gaps_ns.clone()).collect();
        (Gaps::of(&gaps), Fate::of_all(all.map(|it| &it.fate)))
    }
}

/// Runs `one` for each of these seeds; returns the results, and what went wrong with the options
/// that repeat it.
fn each_seed<T>(
    seeds: Range<u64>,
    noticed: fn(&T) -> &Noticed,
    mut one: impl FnMut(u64) -> Result<Result<T, String>>,
) -> Result<(Vec<T>, Vec<String>)> {
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    for seed in seeds {
        let found = one(seed)?;
        let mistake = found.as_ref().map_or_else(Some, |it| noticed(it).mistake.as_ref());
        failures.extend(mistake.map(|why| format!("--runs 1 --seed {seed}: {why}")));
        done.extend(found.ok());
    }
    Ok((done, failures))
}

/// Prints when the longest gap of each run began, and how late the load itself woke up.
fn print_longest<'a>(runs: impl Iterator<Item = &'a Noticed>, since: &str) {
    let (after, pauses): (Vec<f64>, Vec<f64>) =
        runs.map(|it| (it.longest_after_ms, it.own_pause_ms)).unzip();
    let Summary { median, min, max } = Summary::of(&after);
    let pause = Summary::of(&pauses).max;
    println!(
        "  the longest began {median:.0} ms ({min:.0} to {max:.0}) after the {since}; \
         the load's own pauses up to {pause:.2} ms"
    );
}

/// A measured number, and its limit.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    what: String,
    measured: f64,
    /// Largest value that is allowed.
    asked: f64,
    unit: &'static str,
    /// Whether the measured number is within the limit.
    pub kept: bool,
}

impl Verdict {
    fn at_most(what: String, measured: f64, asked: f64, unit: &'static str) -> Self {
        Self { what, measured, asked, unit, kept: measured <= asked }
    }

    fn print(&self) {
        let Self { what, measured, asked, unit, kept } = self;
        let kept = if *kept { "kept" } else { "MISSED" };
        println!("{kept:>6}: {what}: {measured:.1} {unit}, {asked:.0} asked");
    }
}

/// Kills a member's daemon and server, and waits until the other member serves alone.
///
/// # Errors
/// When it does not run, or nobody takes over.
pub fn kill(group: &mut Group<'_>, victim: Role) -> Result<()> {
    group.kill_member(victim)?;
    let survivor = victim.other();
    let alone = |status: Value| status["role"] == "primary" && status["state"] == "unprotected";
    let serves = || group.status(survivor).is_ok_and(alone).then_some(());
    wait_until("the other member serves alone", serves).with_context(|| group.log_tails())
}

/// Starts a member's daemon; returns the time until both members say that they are protected.
///
/// # Errors
/// When it runs already, or does not join.
pub fn start_again(group: &mut Group<'_>, member: Role) -> Result<Duration> {
    let begun = Instant::now();
    group.start_daemon(member)?;
    let is_protected = |role| group.status(role).is_ok_and(|it| it["state"] == "protected");
    // The joiner is asked last: it cannot be protected before the other member has let it in.
    let both = || (is_protected(member) && is_protected(member.other())).then_some(());
    wait_until("both members are protected again", both).with_context(|| group.log_tails())?;
    Ok(begun.elapsed())
}

fn wait_until(what: &str, ready: impl Fn() -> Option<()>) -> Result<()> {
    crate::command::wait_for(what, HEAL_LIMIT, || {
        let is_so = ready();
        if is_so.is_none() {
            std::thread::sleep(LOOK_EVERY);
        }
        is_so
    })
}

#[cfg(test)]
mod tests;
