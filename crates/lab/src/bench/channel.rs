//! `holdfast-lab bench channel`: a pair whose members reach each other over a path that loses packets,
//! with the channel as it is and over a coded tunnel: for how long is the server protected, and how
//! long does a client wait for a commit?

use super::service::{Variant, address, with_service};
use crate::emu::EmuSpec;
use crate::load::{Group, Quantiles, Run, Spec, Workload};
use crate::testbed::ours::{Group as Pair, GroupOptions};
use crate::testbed::server::Program;
use crate::testbed::{LogLink, Plan, Role};
use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_report::progress;
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Time between two looks at the state.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Options of the channel bench.
#[derive(Args, Clone, Debug)]
pub struct ChannelArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How long each way of the channel is under load, s.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Share of packets that is lost between the members, each way.
    #[arg(long, default_value = "10%")]
    pub loss: String,
    /// How long a packet takes between the members, ms.
    #[arg(long, default_value_t = 10)]
    pub delay_ms: u64,
    /// Clients, each of which has one 64-byte request under way. A server of one thread waits for each
    /// commit: of several clients one may wait for two of them.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Time between two heartbeats, ms.
    #[arg(long, default_value_t = 20)]
    pub heartbeat_ms: u64,
    /// Measure only this way.
    #[arg(long, value_enum)]
    pub only: Option<Way>,
    /// Seed of the losses.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How the channel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Over TCP, the default.
    Plain,
    /// Over a coded tunnel.
    Coded,
}

/// What one way did.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    way: Way,
    /// Share of the looks at which the server was protected, 0 to 1.
    pub protected: f64,
    /// How often protection was lost.
    pub lost: u64,
    /// Seconds until it was lost for the first time.
    pub first_lost_s: Option<f64>,
    /// Whether every reply was right and no connection ended.
    pub all_survived: bool,
    /// Round trips of clients in the whole time, in ns.
    pub round_trips: Quantiles,
    /// What the primary's daemon counted of its tunnel, by name.
    pub channel: Vec<(String, u64)>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct ChannelReport {
    bench: &'static str,
    loss: String,
    round_trip_ms: u64,
    seconds: u64,
    /// Both ways, or the one that was asked for.
    pub ways: Vec<Outcome>,
}

/// Runs the bench.
///
/// # Errors
/// When a group cannot be built, or never becomes protected.
pub fn run(args: &ChannelArgs) -> Result<ChannelReport> {
    let ways = args.only.map_or_else(|| vec![Way::Plain, Way::Coded], |way| vec![way]);
    let progress = progress("channel", ways.len() as u64 * args.seconds);
    let mut outcomes = Vec::new();
    for way in ways {
        outcomes.push(measure(args, way, &|| progress.inc(1))?);
    }
    progress.finish_and_clear();
    Ok(ChannelReport {
        bench: "channel",
        loss: args.loss.clone(),
        round_trip_ms: 2 * args.delay_ms,
        seconds: args.seconds,
        ways: outcomes,
    })
}

fn measure(args: &ChannelArgs, way: Way, second: &dyn Fn()) -> Result<Outcome> {
    let ChannelArgs { delay_ms, loss, seed, .. } = args;
    let spec: EmuSpec =
        format!("delay {delay_ms}ms loss {loss} seed {seed}").parse().context("--loss")?;
    let plan = Plan { log: LogLink::Emulated(spec), ..Plan::default() };
    let options = GroupOptions {
        coded: way == Way::Coded,
        heartbeat_ms: Some(args.heartbeat_ms),
        ..GroupOptions::default()
    };
    let program = Program::Redis;
    with_service(Variant::Ours, program, &plan, &options, 0, |service| {
        let spec = Spec {
            address: address(false)?,
            groups: vec![Group::usual(Workload::Pingpong, args.connections, program.port())],
            duration_ms: args.seconds * 1000,
            congestion: None,
            fault: None,
            seed: args.seed,
            points: Vec::new(),
        };
        let load = Run::start(service.testbed.host(Role::Client), &spec)?;
        let watched = watch(service.group()?, Duration::from_secs(args.seconds), second);
        let report = load.finish()?;
        Ok(Outcome {
            way,
            protected: watched.protected as f64 / watched.looks.max(1) as f64,
            lost: watched.lost,
            first_lost_s: watched.first_lost.map(|it| it.as_secs_f64()),
            all_survived: report.all_survived(),
            round_trips: report.latency_ns,
            channel: counters(service.group()?),
        })
    })
}

#[derive(Default)]
struct Watched {
    looks: u64,
    protected: u64,
    lost: u64,
    first_lost: Option<Duration>,
}

/// Looks at the pair while it is under load.
fn watch(pair: &Pair<'_>, lasts: Duration, second: &dyn Fn()) -> Watched {
    let (begun, mut watched, mut was, mut told) = (Instant::now(), Watched::default(), true, 0);
    while begun.elapsed() < lasts {
        let is = pair.ensure_protected().is_ok();
        watched.looks += 1;
        watched.protected += u64::from(is);
        if was && !is {
            watched.lost += 1;
            watched.first_lost.get_or_insert(begun.elapsed());
        }
        was = is;
        while told < begun.elapsed().as_secs() {
            second();
            told += 1;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    watched
}

/// What the members' daemons count of their tunnels; empty without one.
fn counters(pair: &Pair<'_>) -> Vec<(String, u64)> {
    let status = pair.status(Role::Primary).unwrap_or(Value::Null);
    let all = status["counters"].as_object().into_iter().flatten();
    let of = all.filter_map(|(name, value)| {
        Some((name.strip_prefix("channel.")?.to_owned(), value.as_u64()?))
    });
    of.collect()
}

impl ChannelReport {
    /// Whether nothing of a client was lost, and the coded channel protected throughout.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let is_kept = |it: &&Outcome| it.way == Way::Plain || it.lost == 0;
        self.ways.iter().all(|it| it.all_survived)
            && self.ways.iter().filter(|it| !is_kept(it)).count() == 0
    }

    /// A few lines for people.
    pub fn print(&self) {
        let Self { loss, round_trip_ms, seconds, .. } = self;
        println!(
            "{seconds} s, {loss} lost each way, round trip {round_trip_ms} ms between the members"
        );
        for Outcome { way, protected, lost, first_lost_s, all_survived, round_trips, channel } in
            &self.ways
        {
            let first = first_lost_s.map_or(String::new(), |it| format!(", first after {it:.1} s"));
            let ms = |ns: u64| ns as f64 / 1e6;
            println!(
                "{way:?}: protected {:.1} % of the time, lost {lost} times{first}; {} requests, p50 {:.1} ms, \
                 p99 {:.1} ms, at most {:.1} ms; {}",
                protected * 100.0,
                round_trips.count,
                ms(round_trips.p50),
                ms(round_trips.p99),
                ms(round_trips.max),
                if *all_survived { "every reply right" } else { "CONNECTIONS WERE LOST" },
            );
            if !channel.is_empty() {
                let words = channel.iter().map(|(name, count)| format!("{name} {count}"));
                println!("  its tunnel: {}", words.collect::<Vec<_>>().join(", "));
            }
        }
    }
}
