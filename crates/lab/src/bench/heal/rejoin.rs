//! `holdfast-lab bench rejoin`: a member dies and is started again. How long until
//! both are protected, and what do the clients of the other one notice of the image?

use super::chain::{self, ChainReport};
use super::fill::fill;
use super::{
    AFTER, BEFORE, Clients, Fate, Gaps, Noticed, Verdict, each_seed, kill, print_longest,
    quiet_seed, start_again, uses_ipv6,
};
use crate::bench::service::{Service, Variant, with_service};
use crate::load::Run;
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Stalls, Summary, progress};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Time between the requests of each client, in µs.
const INTERVAL_US: u64 = 2_000;

/// Least data of a server whose join is always tried, in MB.
const SMALL_MB: u64 = 3;
/// Usual data of a server whose join is always tried, in MB.
const USUAL_MB: u64 = 100;

/// Data of the server that is tried with `--large`, in MB.
const LARGE_MB: u64 = 1_000;

/// Number of connections that send nothing, in a case of their own.
const IDLE: usize = 1_000;

/// Options of the rejoin bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct RejoinArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// How many joins of each case, each of a fresh pair: the backup and the primary
    /// die in turn, and every second pair of runs uses IPv6.
    #[arg(long, default_value_t = 8)]
    pub runs: u64,
    /// How many clients ask.
    #[arg(long, default_value_t = 10)]
    pub connections: usize,
    /// A server of 1 GB, too: the machine needs 6 GB of memory.
    #[arg(long)]
    pub large: bool,
    /// Failovers under one load, each followed by a join.
    #[arg(long, default_value_t = 20)]
    pub chain: u64,
    /// Determines who dies and the clients' moments; run N of a bench is run 1 of a
    /// bench with a seed larger by N - 1.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The server that is joined, and its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Data that the server holds, in MB.
    megabytes: u64,
    /// Number of connections that send nothing.
    idle: usize,
}

impl Case {
    fn all(large: bool) -> Vec<Self> {
        let case = |megabytes, idle| Self { megabytes, idle };
        let mut all = vec![case(SMALL_MB, 0), case(USUAL_MB, 0), case(USUAL_MB, IDLE)];
        all.extend(large.then_some(case(LARGE_MB, 0)));
        all
    }

    /// Limit on what a join may add to a client's longest gap, p99, in ms.
    fn gap_asked_ms(self) -> f64 {
        let of_size = if self.megabytes > USUAL_MB { 15.0 } else { 10.0 };
        of_size + if self.idle > 0 { 10.0 } else { 0.0 }
    }

    /// Limit on the time until both must be protected.
    fn protected_asked(self) -> Duration {
        Duration::from_secs(if self.megabytes > USUAL_MB { 15 } else { 3 })
    }

    fn name(self) -> String {
        let idle = match self.idle {
            0 => String::new(),
            idle => format!(", {idle} idle connections"),
        };
        format!("{} MB{idle}", self.megabytes)
    }
}

/// Results of one join.
#[derive(Clone, Debug, Serialize)]
pub struct Join {
    seed: u64,
    /// The member that died and was started again.
    victim: &'static str,
    ipv6: bool,
    /// Time from the start of the member's daemon until both members were protected, in ms.
    protected_ms: f64,
    /// Bytes of the image that was copied.
    image_bytes: Option<u64>,
    /// Number of attempts to join.
    attempts: usize,
    /// What clients noticed since the start of the member's daemon.
    #[serde(flatten)]
    clients: Noticed,
}

/// All joins of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Joins {
    case: Case,
    /// The single joins.
    pub joins: Vec<Join>,
    /// Time from the start of a daemon until both members were protected, in ms.
    protected_ms: Stalls,
    image_bytes: Summary,
    gaps: Gaps,
    fate: Fate,
    verdicts: Vec<Verdict>,
    /// What went wrong, with the options that repeat it.
    pub failures: Vec<String>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct RejoinReport {
    bench: &'static str,
    options: RejoinArgs,
    /// Results of each case.
    pub cases: Vec<Joins>,
    /// Results of failovers that follow each other.
    pub chain: Option<ChainReport>,
}

/// Runs the bench.
///
/// # Errors
/// When a pair cannot be built; a member that does not join is a result.
pub fn run(args: &RejoinArgs) -> Result<RejoinReport> {
    let cases = Case::all(args.large);
    let progress = progress("rejoin", args.runs * cases.len() as u64 + args.chain);
    let mut found = Vec::new();
    for case in cases {
        let seeds = args.seed..args.seed + args.runs;
        let (joins, failures) = each_seed(
            seeds,
            |join: &Join| &join.clients,
            |seed| one(args, case, seed).inspect(|_| progress.inc(1)),
        )?;
        found.push(sum_up(case, joins, failures));
    }
    let chain = (args.chain > 0)
        .then(|| chain::run(args.chain, args.connections, args.seed, || progress.inc(1)));
    let chain = chain.transpose()?;
    progress.finish_and_clear();
    Ok(RejoinReport { bench: "rejoin", options: args.clone(), cases: found, chain })
}

/// The member that dies: the backup for odd seeds, the primary for even ones.
fn victim(seed: u64) -> Role {
    if seed % 2 == 1 { Role::Backup } else { Role::Primary }
}

/// Measures one join of a fresh pair; the inner error says why it failed.
fn one(args: &RejoinArgs, case: Case, seed: u64) -> Result<Result<Join, String>> {
    let (plan, options) = (Plan::default(), GroupOptions::default());
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        fill(service.testbed, case.megabytes).with_context(|| case.name())?;
        Ok(join(service, args, case, seed).map_err(|error| format!("{}: {error:#}", case.name())))
    })
}

fn join(service: &mut Service<'_>, args: &RejoinArgs, case: Case, seed: u64) -> Result<Join> {
    let client = service.testbed.host(Role::Client);
    let (group, victim) = (service.group()?, victim(seed));
    kill(group, victim)?;
    // Both loads last as long as a join may take.
    let window = BEFORE + case.protected_asked() + AFTER;
    let window_ms = window.as_millis() as u64;
    let ipv6 = uses_ipv6(seed);
    let clients =
        Clients { busy: args.connections, interval_us: INTERVAL_US, idle: case.idle, ipv6 };
    let quiet = Run::start(client, &clients.spec(window_ms, quiet_seed(seed))?)?.finish()?;
    let (begun, run) = (Instant::now(), Run::start(client, &clients.spec(0, seed)?)?);
    std::thread::sleep(BEFORE);
    let started_ns = crate::monotonic_ns();
    let took = start_again(group, victim)?;
    std::thread::sleep(AFTER.max(window.saturating_sub(begun.elapsed())));
    let report = run.finish().with_context(|| group.log_tails())?;
    ensure!(report.ready_ns < started_ns, "the load did not work yet when the daemon started");
    let images = group.details(victim.other(), "joins");
    Ok(Join {
        seed,
        victim: victim.name(),
        ipv6,
        protected_ms: took.as_secs_f64() * 1e3,
        image_bytes: images.last().and_then(|detail| image_bytes(detail)),
        attempts: images.len(),
        clients: Noticed::of(&report, started_ns, &quiet),
    })
}

/// The number in an event's text such as `b: an image of 5046272 bytes`.
fn image_bytes(detail: &str) -> Option<u64> {
    detail.strip_suffix(" bytes")?.rsplit(' ').next()?.parse().ok()
}

fn sum_up(case: Case, joins: Vec<Join>, failures: Vec<String>) -> Joins {
    let times: Vec<u64> = joins.iter().map(|it| (it.protected_ms * 1e6) as u64).collect();
    let images: Vec<f64> = joins.iter().filter_map(|it| Some(it.image_bytes? as f64)).collect();
    let protected_ms = Stalls::of_ns(&times);
    let (gaps, fate) = Noticed::sum(joins.iter().map(|it| &it.clients));
    let name = case.name();
    let asked_s = case.protected_asked().as_secs_f64();
    let mut verdicts = Vec::new();
    if !joins.is_empty() {
        let gap = (format!("{name}: what a join adds to the gap, p99"), gaps.added_ms.p99);
        verdicts.push(Verdict::at_most(gap.0, gap.1, case.gap_asked_ms(), "ms"));
        let slowest_s = protected_ms.max / 1e3;
        let what = format!("{name}: slowest until protected");
        verdicts.push(Verdict::at_most(what, slowest_s, asked_s, "s"));
    }
    let image_bytes = Summary::of(&images);
    Joins { case, joins, protected_ms, image_bytes, gaps, fate, verdicts, failures }
}

impl RejoinReport {
    /// Whether every member has joined, and no connection was lost. Times are not
    /// judged here: they are as good as the machine is idle.
    pub fn is_good(&self) -> bool {
        let joined = |it: &Joins| it.failures.is_empty() && it.fate.is_good();
        self.cases.iter().all(joined) && self.chain.as_ref().is_none_or(ChainReport::is_good)
    }

    /// Some lines for people.
    pub fn print(&self) {
        for it in self.cases.iter().filter(|_| self.options.runs > 0) {
            let (joined, runs) = (it.joins.len(), self.options.runs);
            let Fate { connections, lost, wrong } = it.fate;
            println!(
                "{}: {joined} of {runs} joined; {lost} of {connections} connections lost, {wrong} wrong replies",
                it.case.name()
            );
            let Stalls { min, p50, p99, max } = it.protected_ms;
            let image_mb = it.image_bytes.median / 1e6;
            println!(
                "  {:>11} ms: p50 {p50:.0} ({min:.0} to {max:.0}), p99 {p99:.0}; image {image_mb:.1} MB",
                "protected"
            );
            it.gaps.print();
            print_longest(it.joins.iter().map(|it| &it.clients), "start");
            it.verdicts.iter().for_each(Verdict::print);
            it.failures.iter().for_each(|failure| println!("{failure}"));
        }
        self.chain.iter().for_each(ChainReport::print);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_members_die_over_both_families() {
        let runs: Vec<_> = (1..=4).map(|seed| (victim(seed), uses_ipv6(seed))).collect();
        let all = [
            (Role::Backup, false),
            (Role::Primary, false),
            (Role::Backup, true),
            (Role::Primary, true),
        ];
        assert_eq!(runs, all);
    }

    #[test]
    fn an_image_tells_its_size() {
        assert_eq!(image_bytes("b: an image of 5046272 bytes"), Some(5_046_272));
        assert_eq!(image_bytes("b: an image"), None);
    }

    #[test]
    fn what_is_asked_depends_on_the_case() {
        let all = Case::all(true);
        let gaps: Vec<f64> = all.iter().map(|it| it.gap_asked_ms()).collect();
        assert_eq!(gaps, [10.0, 10.0, 20.0, 15.0]);
        let seconds: Vec<u64> = all.iter().map(|it| it.protected_asked().as_secs()).collect();
        assert_eq!(seconds, [3, 3, 3, 15]);
    }

    fn join(protected_ms: f64, gaps_ns: Vec<(u64, u64)>) -> Join {
        Join {
            seed: 1,
            victim: "backup",
            ipv6: false,
            protected_ms,
            image_bytes: Some(7),
            attempts: 1,
            clients: Noticed {
                longest_after_ms: 5.0,
                own_pause_ms: 0.1,
                fate: Fate { connections: 2, ..Fate::default() },
                mistake: None,
                gaps: Gaps::of(&gaps_ns),
                gaps_ns,
            },
        }
    }

    #[test]
    fn a_slow_join_is_a_missed_verdict_and_a_failed_one_is_no_good() {
        let (case, ms) = (Case::all(false)[1], 1_000_000);
        let gaps = vec![(9 * ms, ms), (30 * ms, 12 * ms)];
        let slow = sum_up(case, vec![join(800.0, gaps), join(3100.0, Vec::new())], Vec::new());
        assert_eq!(slow.gaps.added_ms.max, 18.0);
        assert_eq!(slow.verdicts.iter().map(|it| it.kept).collect::<Vec<_>>(), [false, false]);
        let mut report = RejoinReport {
            bench: "rejoin",
            options: RejoinArgs {
                json: false,
                runs: 2,
                connections: 2,
                large: false,
                chain: 0,
                seed: 1,
            },
            cases: vec![slow],
            chain: None,
        };
        assert!(report.is_good());
        report.cases.push(sum_up(case, Vec::new(), vec!["it did not join".to_owned()]));
        assert!(report.cases[1].verdicts.is_empty());
        assert!(!report.is_good());
    }
}
