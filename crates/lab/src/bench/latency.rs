//! `holdfast-lab bench latency`: one lone 64-byte request at a time, and
//! handshakes.

use super::busy;
use super::service::{Variant, address, variants, with_service};
use crate::load::{Group, Quantiles, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Result, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;

/// Options of the latency bench.
#[derive(Args, Clone, Debug)]
pub struct LatencyArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 5)]
    pub rounds: u64,
    /// How long each measurement lasts, ms.
    #[arg(long, default_value_t = 2000)]
    pub duration_ms: u64,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
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

/// Times of one variant, in µs.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    variant: Variant,
    /// Median round trip, in µs.
    pub round_trip_p50_us: Summary,
    /// 99th percentile of round trips, in µs.
    pub round_trip_p99_us: Summary,
    /// Median time of a handshake, in µs.
    pub connect_p50_us: Summary,
    /// 99th percentile of the handshakes' times, in µs.
    pub connect_p99_us: Summary,
    /// Median time from a handshake's end to the first reply, in µs. A proxy answers the handshake
    /// itself, and connects to its server then.
    pub first_reply_p50_us: Summary,
    /// Share of each processor's time in which it worked, 0 to 1.
    pub busy: Vec<Summary>,
}

/// One measurement of a variant.
struct Measured {
    round_trips: Quantiles,
    handshakes: Quantiles,
    first_replies: Quantiles,
    busy: Vec<f64>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    bench: &'static str,
    rounds: u64,
    /// Results of the variants, the clean one first.
    pub variants: Vec<Times>,
    /// What the other variants add to the clean one.
    pub added: Vec<Added>,
}

/// Medians of a variant minus those of the clean one, in µs.
#[derive(Clone, Debug, Serialize)]
pub struct Added {
    variant: Variant,
    /// To a round trip.
    pub round_trip_us: f64,
    /// To a handshake.
    pub connect_us: f64,
    /// To a handshake and the first reply after it.
    pub connect_and_reply_us: f64,
}

/// Runs the bench.
///
/// # Errors
/// When a variant cannot be built or answers wrongly.
pub fn run(args: &LatencyArgs) -> Result<LatencyReport> {
    let variants = variants(args.variant, args.haproxy);
    let progress = progress("latency", args.rounds * variants.len() as u64);
    let mut measured: Vec<Vec<Measured>> = variants.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for (variant, measured) in variants.iter().zip(&mut measured) {
            measured.push(measure(args, *variant, round)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let times: Vec<Times> =
        variants.iter().zip(&measured).map(|(variant, of)| sum_up(*variant, of)).collect();
    let added = match times.as_slice() {
        [clean, others @ ..] if clean.variant == Variant::Clean => {
            others.iter().map(|times| times.minus(clean)).collect()
        }
        _ => Vec::new(),
    };
    Ok(LatencyReport { bench: "latency", rounds: args.rounds, added, variants: times })
}

impl Times {
    fn minus(&self, clean: &Self) -> Added {
        let connect_us = self.connect_p50_us.median - clean.connect_p50_us.median;
        let reply_us = self.first_reply_p50_us.median - clean.first_reply_p50_us.median;
        Added {
            variant: self.variant,
            round_trip_us: self.round_trip_p50_us.median - clean.round_trip_p50_us.median,
            connect_us,
            connect_and_reply_us: connect_us + reply_us,
        }
    }
}

fn measure(args: &LatencyArgs, variant: Variant, round: u64) -> Result<Measured> {
    let program = Program::Redis;
    let options = GroupOptions { direct: args.direct, ..GroupOptions::default() };
    with_service(variant, program, &Plan::default(), &options, 0, |service| {
        let load = |workload, seed| {
            let spec = Spec {
                address: address(args.ipv6)?,
                groups: vec![Group::usual(workload, 1, program.port())],
                duration_ms: args.duration_ms,
                congestion: None,
                fault: None,
                seed,
                points: Vec::new(),
            };
            let report = Run::start(service.testbed.host(Role::Client), &spec)?.finish()?;
            ensure!(report.all_survived(), "a reply was wrong: {:?}", report.connections[0].error);
            Ok(report)
        };
        let ticks = busy::read();
        let round_trips = load(Workload::Pingpong, 2 * round)?.latency_ns;
        let churned = load(Workload::Churn, 2 * round + 1)?;
        let (handshakes, first_replies) = (churned.connect_ns, churned.latency_ns);
        let busy = busy::shares(&ticks, &busy::read());
        Ok(Measured { round_trips, handshakes, first_replies, busy })
    })
}

fn sum_up(variant: Variant, measured: &[Measured]) -> Times {
    let of = |pick: fn(&Measured) -> u64| {
        Summary::of(&measured.iter().map(|it| pick(it) as f64 / 1e3).collect::<Vec<_>>())
    };
    Times {
        variant,
        round_trip_p50_us: of(|it| it.round_trips.p50),
        round_trip_p99_us: of(|it| it.round_trips.p99),
        connect_p50_us: of(|it| it.handshakes.p50),
        connect_p99_us: of(|it| it.handshakes.p99),
        first_reply_p50_us: of(|it| it.first_replies.p50),
        busy: busy::sum_up(measured.iter().map(|it| &it.busy)),
    }
}

impl LatencyReport {
    /// A few lines for people.
    pub fn print(&self) {
        for times in &self.variants {
            println!(
                "{:?}: round trip p50 {:.1} us, p99 {:.1} us; connect p50 {:.1} us, p99 {:.1} us, its \
                 first reply {:.1} us later; processors busy {} %",
                times.variant,
                times.round_trip_p50_us.median,
                times.round_trip_p99_us.median,
                times.connect_p50_us.median,
                times.connect_p99_us.median,
                times.first_reply_p50_us.median,
                busy::percent(&times.busy)
            );
        }
        for added in &self.added {
            println!(
                "added by {:?}: round trip {:.1} us, connect {:.1} us, with its first reply {:.1} us",
                added.variant, added.round_trip_us, added.connect_us, added.connect_and_reply_us
            );
        }
    }
}
