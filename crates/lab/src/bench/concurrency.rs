//! `holdfast-lab bench concurrency`: FT-TCP's §5.2. Clients that each fetch
//! 50 KB/s are added until the link is full; the curves must coincide.

use super::service::{Variant, address, variants, with_service};
use crate::load::{Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role, Shape};
use anyhow::{Result, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;

/// Bytes that a client fetches ten times a second.
const PART_BYTES: u64 = 5_000;

/// Time between two fetches of a client, µs.
const PART_INTERVAL_US: u64 = 100_000;

/// Options of the concurrency bench.
#[derive(Args, Clone, Debug)]
pub struct ConcurrencyArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,25,50,100,150,200,225,250,300")]
    pub clients: Vec<usize>,
    /// Rate of every link, Mbit/s.
    #[arg(long, default_value_t = 100)]
    pub link_mbit: u64,
    /// How often both variants are measured.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// How long each number of clients runs, ms.
    #[arg(long, default_value_t = 2000)]
    pub duration_ms: u64,
    /// Measure only this variant.
    #[arg(long, value_enum)]
    pub variant: Option<Variant>,
}

/// One number of clients.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Number of clients.
    pub clients: usize,
    /// Rate of all clients together without Holdfast, in KB/s.
    pub clean_kb_per_s: Option<Summary>,
    /// Rate of all clients together with Holdfast, in KB/s.
    pub ours_kb_per_s: Option<Summary>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct ConcurrencyReport {
    bench: &'static str,
    link_mbit: u64,
    rounds: u64,
    /// One point for each number of clients, in the order asked for.
    pub points: Vec<Point>,
}

/// Runs the bench.
///
/// # Errors
/// When a variant cannot be built or answers wrongly.
pub fn run(args: &ConcurrencyArgs) -> Result<ConcurrencyReport> {
    let variants = variants(args.variant, false);
    let progress = progress("concurrency", args.rounds * variants.len() as u64);
    let mut rates = vec![vec![Vec::new(); args.clients.len()]; variants.len()];
    for round in 0..args.rounds {
        for (variant, rates) in variants.iter().zip(&mut rates) {
            for (at, rate) in measure(args, *variant, round)?.into_iter().enumerate() {
                rates[at].push(rate);
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let of = |variant, at: usize| {
        let index = variants.iter().position(|it| *it == variant)?;
        Some(Summary::of(&rates[index][at]))
    };
    let points = args.clients.iter().enumerate().map(|(at, clients)| Point {
        clients: *clients,
        clean_kb_per_s: of(Variant::Clean, at),
        ours_kb_per_s: of(Variant::Ours, at),
    });
    Ok(ConcurrencyReport {
        bench: "concurrency",
        link_mbit: args.link_mbit,
        rounds: args.rounds,
        points: points.collect(),
    })
}

fn measure(args: &ConcurrencyArgs, variant: Variant, round: u64) -> Result<Vec<f64>> {
    let plan = Plan {
        shape: Shape::Tbf { bits_per_second: args.link_mbit * 1_000_000 },
        ..Plan::default()
    };
    let program = Program::Redis;
    with_service(variant, program, &plan, &GroupOptions::default(), 0, |service| {
        let mut rates = Vec::new();
        for (at, clients) in args.clients.iter().enumerate() {
            let group = Group {
                size_bytes: PART_BYTES,
                interval_us: PART_INTERVAL_US,
                ..Group::usual(Workload::Download, *clients, program.port())
            };
            let spec = Spec {
                address: address(false)?,
                groups: vec![group],
                duration_ms: args.duration_ms,
                congestion: None,
                fault: None,
                seed: round * 1000 + at as u64,
                points: Vec::new(),
            };
            let report = Run::start(service.testbed.host(Role::Client), &spec)?.finish()?;
            ensure!(report.all_survived(), "a client did not get its bytes");
            rates.push(report.total(|it| it.bytes_in) as f64 / report.seconds() / 1e3);
        }
        Ok(rates)
    })
}

impl ConcurrencyReport {
    /// A table for people.
    pub fn print(&self) {
        println!("clients   clean KB/s    ours KB/s");
        let show =
            |rate: Option<Summary>| rate.map_or("-".to_owned(), |it| format!("{:.0}", it.median));
        for point in &self.points {
            let (clean, ours) = (show(point.clean_kb_per_s), show(point.ours_kb_per_s));
            println!("{:>7} {clean:>12} {ours:>12}", point.clients);
        }
    }
}
