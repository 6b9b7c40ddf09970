//! `holdfast-lab bench throughput`: bytes and requests per second through real
//! servers, by the lab's checking load where bytes are counted and by
//! redis-benchmark and wrk where requests are.

use super::busy;
use super::service::{CpuSeconds, Service, Variant, address, variants, with_service};
use crate::load::{Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::{DOCUMENT_BYTES, Program};
use crate::testbed::{Plan, Role, Shape, addresses};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;
use std::process::Stdio;

/// Options of the throughput bench.
#[derive(Args, Clone, Debug)]
pub struct ThroughputArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Limit every link to this rate, Mbit/s; without it only the cores limit.
    #[arg(long)]
    pub link_mbit: Option<u64>,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// How long each measurement lasts, ms.
    #[arg(long, default_value_t = 2000)]
    pub duration_ms: u64,
    /// Measure only these cases.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub cases: Vec<Case>,
    /// Let the server's threads send their log to the backup themselves.
    #[arg(long)]
    pub direct: bool,
    /// Measure HAProxy in front of two servers, too.
    #[arg(long)]
    pub haproxy: bool,
    /// Measure only this variant.
    #[arg(long, value_enum)]
    pub variant: Option<Variant>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// A stream of 256 KiB SETs, MB/s.
    Upload,
    /// The same with one SET at a time: every value comes out of a warm cache
    /// and waits for its commit, MB/s.
    UploadP1,
    /// 4 MiB GETs, MB/s.
    Download,
    /// Pipelined 16 KiB ECHOs, MB/s.
    Echo,
    /// redis-benchmark GET without pipelining, requests/s.
    RedisP1,
    /// redis-benchmark GET with 16 in the pipeline, requests/s.
    RedisP16,
    /// wrk on a 1 KiB document, requests/s.
    Nginx1k,
    /// wrk on a 256 KiB document, requests/s.
    Nginx256k,
}

impl Case {
    const ALL: [Case; 8] = [
        Case::Upload,
        Case::UploadP1,
        Case::Download,
        Case::Echo,
        Case::RedisP1,
        Case::RedisP16,
        Case::Nginx1k,
        Case::Nginx256k,
    ];

    fn program(self) -> Program {
        match self {
            Case::Nginx1k | Case::Nginx256k => Program::Nginx,
            _ => Program::Redis,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Case::Upload | Case::UploadP1 | Case::Download | Case::Echo => "MB/s",
            _ => "requests/s",
        }
    }
}

/// Results of one measurement.
#[derive(Clone, Debug, Default)]
struct Sample {
    rate: f64,
    requests: f64,
    cpu: CpuSeconds,
    busy: Vec<f64>,
}

/// Results of a case in one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Rate in the case's unit.
    pub rate: Summary,
    /// CPU time per request of server and daemon on the primary, in µs.
    pub primary_cpu_us_per_request: Summary,
    /// CPU time per request of replica and daemon on the backup, in µs.
    pub backup_cpu_us_per_request: Summary,
    /// CPU time per request of the proxy or the daemon on the edge, in µs.
    pub edge_cpu_us_per_request: Summary,
    /// Share of each processor's time in which it worked, 0 to 1.
    pub busy: Vec<Summary>,
}

/// Results of a case in all variants.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// What was measured.
    pub case: Case,
    unit: &'static str,
    /// Results without Holdfast.
    pub clean: Option<Side>,
    /// Results with HAProxy.
    pub haproxy: Option<Side>,
    /// Results with Holdfast.
    pub ours: Option<Side>,
    /// Median rate with HAProxy divided by that without anything.
    pub haproxy_ratio: Option<f64>,
    /// Median rate with Holdfast divided by that without.
    pub ratio: Option<f64>,
    /// What the ratio would be at most if each member had processors of its own and the primary's
    /// were the limit with Holdfast and without: CPU time per request without it, divided by that
    /// with it. Left out are the kernel's work for packets, which no process is charged for, and
    /// the time that a commit spends between the members, which other connections fill.
    pub projected_ratio_max: Option<f64>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughputReport {
    bench: &'static str,
    link_mbit: Option<u64>,
    rounds: u64,
    /// Results of the cases, in a fixed order.
    pub cases: Vec<CaseReport>,
}

/// Runs the bench.
///
/// # Errors
/// When a variant cannot be built, a tool fails or a byte is wrong.
pub fn run(args: &ThroughputArgs) -> Result<ThroughputReport> {
    let cases = if args.cases.is_empty() { Case::ALL.to_vec() } else { args.cases.clone() };
    let variants = variants(args.variant, args.haproxy);
    let programs: Vec<Program> = [Program::Redis, Program::Nginx]
        .into_iter()
        .filter(|program| cases.iter().any(|case| case.program() == *program))
        .collect();
    let steps = args.rounds * (variants.len() * programs.len()) as u64;
    let progress = progress("throughput", steps);
    let mut samples: Vec<(Variant, Case, Sample)> = Vec::new();
    for round in 0..args.rounds {
        for program in &programs {
            for variant in &variants {
                let cases = cases.iter().copied().filter(|case| case.program() == *program);
                let measured = measure(args, *variant, *program, cases, round)?;
                samples.extend(measured.into_iter().map(|(case, sample)| (*variant, case, sample)));
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    let cases = cases.iter().map(|case| sum_up(*case, &samples)).collect();
    Ok(ThroughputReport {
        bench: "throughput",
        link_mbit: args.link_mbit,
        rounds: args.rounds,
        cases,
    })
}

fn measure(
    args: &ThroughputArgs,
    variant: Variant,
    program: Program,
    cases: impl Iterator<Item = Case>,
    round: u64,
) -> Result<Vec<(Case, Sample)>> {
    let shape =
        args.link_mbit.map_or(Shape::None, |mbit| Shape::Tbf { bits_per_second: mbit * 1_000_000 });
    let plan = Plan { shape, ..Plan::default() };
    let options = GroupOptions { direct: args.direct, ..GroupOptions::default() };
    with_service(variant, program, &plan, &options, DOCUMENT_BYTES[1], |service| {
        cases
            .map(|case| {
                let (before, ticks) = (service.cpu(), busy::read());
                let (rate, requests) = match case {
                    Case::Upload => checked(args, service, stream_of_sets(), round)?,
                    Case::UploadP1 => checked(args, service, usual(Workload::Upload), round)?,
                    Case::Download => checked(args, service, large_gets(), round)?,
                    Case::Echo => checked(args, service, usual(Workload::Echo), round)?,
                    Case::RedisP1 => redis_benchmark(args, service, 1)?,
                    Case::RedisP16 => redis_benchmark(args, service, 16)?,
                    Case::Nginx1k => wrk(args, service, DOCUMENT_BYTES[0])?,
                    Case::Nginx256k => wrk(args, service, DOCUMENT_BYTES[1])?,
                };
                let after = service.cpu();
                let busy = busy::shares(&ticks, &busy::read());
                service.ensure_protected().with_context(|| format!("after {case:?}"))?;
                Ok((case, Sample { rate, requests, cpu: after - before, busy }))
            })
            .collect()
    })
}

fn usual(workload: Workload) -> Group {
    Group::usual(workload, 4, Program::Redis.port())
}

/// Requests like those of a bulk sender: the next value is sent before the last one is answered.
fn stream_of_sets() -> Group {
    Group { depth: 4, ..usual(Workload::Upload) }
}

fn large_gets() -> Group {
    Group { size_bytes: 4 << 20, ..usual(Workload::Download) }
}

/// Runs the lab's own load; returns MB/s of application bytes, and the number of requests.
fn checked(
    args: &ThroughputArgs,
    service: &Service<'_>,
    group: Group,
    round: u64,
) -> Result<(f64, f64)> {
    let workload = group.workload;
    let spec = Spec {
        address: address(false)?,
        groups: vec![group],
        duration_ms: args.duration_ms,
        congestion: None,
        fault: None,
        seed: round * 16 + workload as u64,
        points: Vec::new(),
    };
    let report = Run::start(service.testbed.host(Role::Client), &spec)?.finish()?;
    ensure!(report.all_survived(), "a byte was wrong");
    let bytes = if workload == Workload::Upload {
        report.total(|it| it.bytes_out)
    } else {
        report.total(|it| it.bytes_in)
    };
    Ok((bytes as f64 / report.seconds() / 1e6, report.total(|it| it.replies) as f64))
}

/// Runs a tool on the client's host; returns what it printed.
fn tool(service: &Service<'_>, program: &str, arguments: &[String]) -> Result<String> {
    let done = service
        .testbed
        .host(Role::Client)
        .network_command(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program} failed: {text}{errors}");
    Ok(text)
}

/// Runs redis-benchmark with as many requests as a first short run suggests for the duration.
fn redis_benchmark(args: &ThroughputArgs, service: &Service<'_>, depth: u32) -> Result<(f64, f64)> {
    let once = |requests: u64| -> Result<f64> {
        let words = format!(
            "-h {} -p {} -c 16 -n {requests} -P {depth} -t get --csv",
            addresses::SERVICE_V4,
            Program::Redis.port()
        );
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let text = tool(service, "redis-benchmark", &words)?;
        let row = text.lines().find(|line| line.starts_with("\"GET\"")).context("no result")?;
        let rate = row.split(',').nth(1).context("no rate")?.trim_matches('"').parse()?;
        Ok(rate)
    };
    const TRIAL_REQUESTS: u64 = 10_000;
    let trial = once(TRIAL_REQUESTS)?;
    let requests = ((trial * args.duration_ms as f64 / 1e3) as u64).max(TRIAL_REQUESTS);
    Ok((once(requests)?, (requests + TRIAL_REQUESTS) as f64))
}

fn wrk(args: &ThroughputArgs, service: &Service<'_>, size: u64) -> Result<(f64, f64)> {
    let seconds = args.duration_ms.div_ceil(1000).max(1);
    let url = format!(
        "http://{}:{}/{}",
        addresses::SERVICE_V4,
        Program::Nginx.port(),
        crate::load::http_file(size)
    );
    let words = ["-t1".to_owned(), "-c16".to_owned(), format!("-d{seconds}s"), url];
    let text = tool(service, "wrk", &words)?;
    ensure!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "wrk: {text}");
    let row = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let rate: f64 = row.context("no result of wrk")?.trim().parse()?;
    Ok((rate, rate * seconds as f64))
}

fn sum_up(case: Case, samples: &[(Variant, Case, Sample)]) -> CaseReport {
    let side = |variant| {
        let of: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.0 == variant && sample.1 == case)
            .map(|sample| &sample.2)
            .collect();
        let all = |pick: fn(&Sample) -> f64| {
            Summary::of(&of.iter().map(|sample| pick(sample)).collect::<Vec<_>>())
        };
        (!of.is_empty()).then(|| Side {
            rate: all(|it| it.rate),
            primary_cpu_us_per_request: all(|it| it.cpu.primary * 1e6 / it.requests.max(1.0)),
            backup_cpu_us_per_request: all(|it| it.cpu.backup * 1e6 / it.requests.max(1.0)),
            edge_cpu_us_per_request: all(|it| it.cpu.edge * 1e6 / it.requests.max(1.0)),
            busy: busy::sum_up(of.iter().map(|sample| &sample.busy)),
        })
    };
    let (clean, ours) = (side(Variant::Clean), side(Variant::Ours));
    let haproxy = side(Variant::Haproxy).or_else(|| side(Variant::HaproxyEager));
    let ratio = |side: &Option<Side>| {
        let both = clean.as_ref().zip(side.as_ref());
        both.map(|(clean, side)| side.rate.median / clean.rate.median)
    };
    let (haproxy_ratio, ratio) = (ratio(&haproxy), ratio(&ours));
    let projected_ratio_max = clean.as_ref().zip(ours.as_ref()).and_then(|(clean, ours)| {
        let [clean, ours] = [clean, ours].map(|side| side.primary_cpu_us_per_request.median);
        (ours > 0.0).then(|| (clean / ours).min(1.0))
    });
    let unit = case.unit();
    CaseReport { case, unit, clean, haproxy, ours, haproxy_ratio, ratio, projected_ratio_max }
}

impl ThroughputReport {
    /// A table for people.
    pub fn print(&self) {
        println!(
            "{:<10} {:>12} {:>12} {:>6} {:>13}  {:>15} {:>6} {:>15}",
            "case", "clean", "ours", "ratio", "unit", "us per request", "at most", "busy %"
        );
        for case in &self.cases {
            case.print();
        }
        println!(
            "us per request: CPU time of server and daemon on the primary, clean and ours; at most: the \
             ratio if that were the limit, on hosts of their own; busy: each processor of this machine, \
             which carries all hosts, clean and ours"
        );
        let with_haproxy = self.cases.iter().filter(|case| case.haproxy.is_some());
        with_haproxy.for_each(CaseReport::print_haproxy);
    }
}

impl CaseReport {
    fn print(&self) {
        let of = |pick: &dyn Fn(&Side) -> String| {
            [&self.clean, &self.ours].map(|side| side.as_ref().map_or("-".to_owned(), pick))
        };
        let [clean, ours] = of(&|side| format!("{:.0}", side.rate.median));
        let cost = of(&|side| format!("{:.1}", side.primary_cpu_us_per_request.median)).join(" ");
        let busy = of(&|side| busy::percent(&side.busy)).join(" | ");
        println!(
            "{:<10} {clean:>12} {ours:>12} {:>6} {:>13}  {cost:>15} {:>6} {busy:>15}",
            format!("{:?}", self.case),
            shown(self.ratio),
            self.unit,
            shown(self.projected_ratio_max),
        );
    }

    /// What HAProxy makes of the case: its own line, since it has a processor's work at the edge.
    fn print_haproxy(&self) {
        let Some(side) = &self.haproxy else { return };
        println!(
            "{:<10} HAProxy: {:.0} {} ({:.0} to {:.0}), {} of clean; us per request: {:.1} on the \
             primary, {:.1} on the edge; busy {} %",
            format!("{:?}", self.case),
            side.rate.median,
            self.unit,
            side.rate.min,
            side.rate.max,
            shown(self.haproxy_ratio),
            side.primary_cpu_us_per_request.median,
            side.edge_cpu_us_per_request.median,
            busy::percent(&side.busy),
        );
    }
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |it| format!("{it:.2}"))
}
