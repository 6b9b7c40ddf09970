//! `holdfast-lab bench cold`: the primary's server dies beside a cold backup. How long do
//! clients wait, for how much memory and how much log?

use super::fill::{asked, each, fill, in_client};
use super::{Verdict, start_again, wait_until};
use crate::bench::service::{Service, Variant, with_service};
use crate::testbed::ours::{ColdOptions, Group, GroupOptions, Signal};
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role, Testbed};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;
use serde_json::Value;
use std::net::TcpStream;
use std::time::Instant;

/// Data that the server holds when its image is taken, in MB.
const MEMORY_MB: [u64; 2] = [3, 100];
/// Data that a large server holds when its image is taken, in MB.
const LARGE_MEMORY_MB: u64 = 1_000;
/// Log that follows the image, in MB.
const LOG_MB: [u64; 2] = [10, 100];

/// Takeover time of FT-TCP's cold backup of a server that echoes (DSN 2003), in ms for each MB of
/// log.
const PAPER_MS_PER_MB: f64 = 20.0;
/// Limit on the time to build a server, in ms for each MB of its image.
const IMAGE_ASKED_MS: f64 = 1.0;
/// Limit on the time to replay a log, in ms for each MB of it.
const LOG_ASKED_MS: f64 = 2.0;

/// Bytes of a value in the log's large requests.
const LARGE_BYTES: usize = 100_000;
/// Number of small requests that go out at once.
const AT_ONCE: usize = 200;
/// Number of large requests that go out at once: kernels grow their buffers at their own pace.
const LARGE_AT_ONCE: usize = 1;
/// Time to wait for an answer while a server is built, in s.
const PATIENCE_S: u64 = 60;

/// Options of the bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct ColdArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// How many takeovers of each case, each of a fresh pair.
    #[arg(long, default_value_t = 5)]
    pub runs: u64,
    /// A server of 1 GB, too: the machine needs 6 GB of memory.
    #[arg(long)]
    pub large: bool,
}

/// Which requests make the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Requests {
    /// Increments, which are almost nothing but calls.
    Small,
    /// Values of 100 kB, which are almost nothing but bytes.
    Large,
}

/// The server and log that are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    memory_mb: u64,
    log_mb: u64,
    requests: Requests,
}

impl Case {
    fn all(large: bool) -> Vec<Self> {
        let memory = MEMORY_MB.into_iter().chain(large.then_some(LARGE_MEMORY_MB));
        let logs = [(0, Requests::Small)].into_iter();
        let logs = logs.chain(LOG_MB.map(|log_mb| (log_mb, Requests::Small)));
        let logs: Vec<_> = logs.chain([(LOG_MB[1], Requests::Large)]).collect();
        let of = |memory_mb| {
            let case = move |(log_mb, requests)| Self { memory_mb, log_mb, requests };
            logs.clone().into_iter().map(case)
        };
        memory.flat_map(of).collect()
    }

    fn name(self) -> String {
        let of = match self.requests {
            _ if self.log_mb == 0 => "",
            Requests::Small => " of small requests",
            Requests::Large => " of large requests",
        };
        format!("{} MB of memory, {} MB of log{of}", self.memory_mb, self.log_mb)
    }
}

/// Results of one takeover.
#[derive(Clone, Copy, Debug, Serialize)]
struct Takeover {
    image_mb: f64,
    log_mb: f64,
    /// Time from the server's death until a client had its next reply, in ms.
    outage_ms: f64,
    /// Time until the server was built from its image, in ms.
    built_ms: f64,
    /// Time from then until the log was replayed, in ms.
    replayed_ms: f64,
    total_ms: f64,
}

/// All takeovers of a case.
#[derive(Clone, Debug, Serialize)]
struct Takeovers {
    case: Case,
    runs: Vec<Takeover>,
    outage_ms: Summary,
    built_ms: Summary,
    replayed_ms: Summary,
    image_mb: Summary,
    log_mb: Summary,
    ms_per_mb_of_image: Summary,
    ms_per_mb_of_log: Summary,
    verdicts: Vec<Verdict>,
    failures: Vec<String>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct ColdReport {
    bench: &'static str,
    options: ColdArgs,
    paper_ms_per_mb: f64,
    cases: Vec<Takeovers>,
}

/// Runs the bench.
///
/// # Errors
/// When a pair cannot be built; a takeover that fails is a result.
pub fn run(args: &ColdArgs) -> Result<ColdReport> {
    let cases = Case::all(args.large);
    let progress = progress("cold", args.runs * cases.len() as u64);
    let mut found = Vec::new();
    for case in cases {
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for _ in 0..args.runs {
            match one(case)? {
                Ok(takeover) => runs.push(takeover),
                Err(error) => failures.push(format!("{}: {error:#}", case.name())),
            }
            progress.inc(1);
        }
        found.push(sum_up(case, runs, failures));
    }
    progress.finish_and_clear();
    let (bench, options) = ("cold", args.clone());
    Ok(ColdReport { bench, options, paper_ms_per_mb: PAPER_MS_PER_MB, cases: found })
}

fn one(case: Case) -> Result<Result<Takeover>> {
    let cold = ColdOptions { snapshot_every_mb: Some(4096), ..ColdOptions::default() };
    let options = GroupOptions { cold: Some(cold), ..GroupOptions::default() };
    let plan = Plan::default();
    with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        Ok(takeover(service, case))
    })
}

fn takeover(service: &mut Service<'_>, case: Case) -> Result<Takeover> {
    let testbed = service.testbed;
    fill(testbed, case.memory_mb)?;
    let group = service.group()?;
    // The backup starts anew, so that what the server holds by now is in the image.
    group.stop_daemon(Role::Backup, Signal::KILL)?;
    let alone = || (group.status(Role::Primary).ok()?["state"] == "unprotected").then_some(());
    wait_until("the primary serves alone", alone).with_context(|| group.log_tails())?;
    start_again(group, Role::Backup)?;
    let mut client = connect(testbed)?;
    grow_log(group, &mut client, case)?;
    let begun = Instant::now();
    group.signal_server(Role::Primary, Signal::KILL)?;
    asked(&mut client, &[b"INCR", b"kept"], PATIENCE_S).with_context(|| group.log_tails())?;
    let outage_ms = begun.elapsed().as_secs_f64() * 1e3;
    let status = group.status(Role::Backup)?;
    let counter = |name: &str| status["counters"][name].as_f64().unwrap_or(0.0);
    let takeover = &status["last_takeover"];
    let drain_ms = takeover["phases_us"]["drain"].as_f64().context("a takeover")? / 1e3;
    let built_ms = counter("spool.built_us") / 1e3;
    ensure!(built_ms > 0.0, "its server was not built: {status}");
    Ok(Takeover {
        image_mb: counter("spool.image_bytes") / 1e6,
        log_mb: counter("spool.log_bytes") / 1e6,
        outage_ms,
        built_ms,
        replayed_ms: replayed_ms(takeover, drain_ms - built_ms),
        total_ms: takeover["total_us"].as_f64().unwrap_or(0.0) / 1e3,
    })
}

/// Time until the log was executed, in ms: `fed_ms` until it was in the replica's ring, and the time
/// of the probe, which waits for its execution.
pub(crate) fn replayed_ms(takeover: &Value, fed_ms: f64) -> f64 {
    fed_ms + takeover["phases_us"]["probe"].as_f64().unwrap_or(0.0) / 1e3
}

fn connect(testbed: &Testbed) -> Result<TcpStream> {
    in_client(testbed, |address| Ok(TcpStream::connect(address)?))
}

/// Sends requests until the backup has as much log as the case wants.
fn grow_log(group: &Group<'_>, client: &mut TcpStream, case: Case) -> Result<()> {
    let value = vec![b'v'; LARGE_BYTES];
    let words: Vec<&[u8]> = match case.requests {
        Requests::Small => vec![b"INCR", b"grows"],
        Requests::Large => vec![b"SET", b"large", &value],
    };
    let at_once = if case.requests == Requests::Small { AT_ONCE } else { LARGE_AT_ONCE };
    let has = || -> Result<f64> {
        let status = group.status(Role::Backup)?;
        ensure!(status["state"] == "protected", "it protects no more: {status}");
        Ok(status["counters"]["spool.log_bytes"].as_f64().unwrap_or(0.0) / 1e6)
    };
    while has()? < case.log_mb as f64 {
        let until = Instant::now() + super::LOOK_EVERY;
        while Instant::now() < until {
            each(client, &words, at_once, PATIENCE_S)?;
        }
    }
    Ok(())
}

fn sum_up(case: Case, runs: Vec<Takeover>, failures: Vec<String>) -> Takeovers {
    let of = |pick: fn(&Takeover) -> f64| Summary::of(&runs.iter().map(pick).collect::<Vec<_>>());
    let ms_per_mb_of_image = of(|it| it.built_ms / it.image_mb.max(1e-9));
    let ms_per_mb_of_log = of(|it| it.replayed_ms / it.log_mb.max(1e-9));
    let mut verdicts = Vec::new();
    let name = case.name();
    if !runs.is_empty() && case.memory_mb > MEMORY_MB[0] {
        let what = format!("{name}: for each MB of the image");
        verdicts.push(Verdict::at_most(what, ms_per_mb_of_image.median, IMAGE_ASKED_MS, "ms"));
    }
    if !runs.is_empty() && case.log_mb >= LOG_MB[1] {
        let what = format!("{name}: for each MB of the log");
        verdicts.push(Verdict::at_most(what, ms_per_mb_of_log.median, LOG_ASKED_MS, "ms"));
    }
    Takeovers {
        case,
        outage_ms: of(|it| it.outage_ms),
        built_ms: of(|it| it.built_ms),
        replayed_ms: of(|it| it.replayed_ms),
        image_mb: of(|it| it.image_mb),
        log_mb: of(|it| it.log_mb),
        ms_per_mb_of_image,
        ms_per_mb_of_log,
        runs,
        verdicts,
        failures,
    }
}

impl ColdReport {
    /// Whether every takeover came about. Times are not judged here: they are as good as the
    /// machine is idle.
    pub fn is_good(&self) -> bool {
        self.cases.iter().all(|it| it.failures.is_empty())
    }

    /// Some lines for people.
    pub fn print(&self) {
        for it in &self.cases {
            let (done, runs) = (it.runs.len(), self.options.runs);
            println!("{}: {done} of {runs} taken over", it.case.name());
            let line = |what: &str, Summary { median, min, max }: Summary, unit: &str| {
                println!("  {what:>18}: {median:.1} {unit} ({min:.1} to {max:.1})");
            };
            line("outage", it.outage_ms, "ms");
            line("image", it.image_mb, "MB");
            line("built after", it.built_ms, "ms");
            line("log", it.log_mb, "MB");
            line("replayed in", it.replayed_ms, "ms");
            if it.case.log_mb > 0 {
                line("for each MB of log", it.ms_per_mb_of_log, "ms");
                println!("  {:>18}: {:.1} ms", "the paper's", self.paper_ms_per_mb);
            }
            it.verdicts.iter().for_each(Verdict::print);
            it.failures.iter().for_each(|failure| println!("{failure}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takeover(replayed_ms: f64) -> Takeover {
        Takeover {
            image_mb: 100.0,
            log_mb: 100.0,
            outage_ms: 500.0,
            built_ms: 90.0,
            replayed_ms,
            total_ms: 400.0,
        }
    }

    #[test]
    fn times_are_of_each_mb_and_beside_what_is_asked() {
        let case = Case { memory_mb: 100, log_mb: 100, requests: Requests::Small };
        let found = sum_up(case, vec![takeover(150.0), takeover(1000.0), takeover(250.0)], vec![]);
        assert_eq!(found.ms_per_mb_of_log.median, 2.5);
        let kept: Vec<bool> = found.verdicts.iter().map(|it| it.kept).collect();
        assert_eq!(kept, [true, false]);
    }

    #[test]
    fn each_memory_is_tried_with_each_log() {
        assert_eq!((Case::all(false).len(), Case::all(true).len()), (8, 12));
        assert_eq!(Case::all(false)[0].name(), "3 MB of memory, 0 MB of log");
    }
}
