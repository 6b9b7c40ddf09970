//! `holdfast-lab bench recover`: how long flows stand still after an outage between a pair of
//! edges, with local recovery and without, in turns.

mod load;
mod memory;

pub use load::Kind;
pub(super) use load::on_host;

use crate::command;
use crate::emu::EmuSpec;
use crate::testbed::addresses;
use crate::testbed::strings::{Edge, StringPlan, Strings, StringsPlan};
use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_report::{Summary, progress};
use load::{Ends, stalls};
use memory::Memory;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Rate of a string in bits per second, as in the measurements of what Linux does alone.
const BITS_PER_SECOND: u64 = 100_000_000;
/// Least number of packets that may wait in front of a string, which is 12 ms; on longer paths as
/// many as fit into a round trip may, as in a router that is set up well.
const QUEUE_PACKETS_MIN: u32 = 100;
const FRAME_BYTES: u64 = 1514;
/// Heartbeat of the edges in ms: they notice the end of an outage at most this late.
const HEARTBEAT_MS: u64 = 5;
const PORT: u16 = 7000;
/// Number of strings. All fail and come back together, so that the outage is as long as it is meant
/// to be and no detector has a part in it.
const STRINGS: usize = 2;
/// Time after an outage in which all connections settle.
const PAUSE: Duration = Duration::from_millis(300);

/// Options of the recover bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct RecoverArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// Outages for each cell, with recovery and without.
    #[arg(long, default_value_t = 15)]
    pub pairs: usize,
    /// Durations of the outage, s.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.5,1,3,5")]
    pub outages: Vec<f64>,
    /// Round trips, ms.
    #[arg(long, value_delimiter = ',', default_value = "0,100")]
    pub round_trips: Vec<u64>,
    /// What the connections do.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "connect,request,cubic,bbr")]
    pub kinds: Vec<Kind>,
    /// What the cache keeps, with recovery.
    #[arg(long, default_value = "head+tail")]
    pub policy: String,
    /// Since when it keeps it: `always` or `suspicion`.
    #[arg(long, default_value = "always")]
    pub start: String,
}

/// Stalls of the connections of one outage without recovery and of one with it, in s.
type Pair = (Vec<f64>, Vec<f64>);

/// Stalls of all connections of a cell, in ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Side {
    pub median: f64,
    pub p99: f64,
    pub max: f64,
}

/// Results for one kind of load, one outage and one round trip.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub kind: Kind,
    pub outage_s: f64,
    pub round_trip_ms: u64,
    pub pairs: usize,
    pub connections: usize,
    pub off_ms: Side,
    pub on_ms: Side,
    /// Difference of the medians in each pair of outages, in ms; negative: faster with recovery.
    pub difference_ms: Summary,
    /// 95 % confidence interval of the median difference, in ms (order statistics).
    pub difference_ms_95: (f64, f64),
    /// Whether with recovery every connection went on within 1.5 round trips and 10 ms.
    pub in_time: bool,
    /// Packets that were resent.
    pub resent: u64,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct RecoverReport {
    bench: &'static str,
    options: RecoverArgs,
    pub cells: Vec<Cell>,
    pub memory: Memory,
}

/// Runs the bench.
///
/// # Errors
/// When a testbed cannot be built or a load cannot begin.
pub fn run(args: &RecoverArgs) -> Result<RecoverReport> {
    let cells = args.outages.len() * args.round_trips.len() * args.kinds.len();
    let progress = progress("recover", (cells * args.pairs) as u64);
    // Memory is measured first, since what a bench leaves behind would count too.
    let memory = memory::measure()?;
    let mut found = Vec::new();
    for &round_trip_ms in &args.round_trips {
        let off = testbed(round_trip_ms, "policy = \"off\"")?;
        let on = format!("policy = \"{}\"\nstart = \"{}\"", args.policy, args.start);
        let on = testbed(round_trip_ms, &on)?;
        for &outage_s in &args.outages {
            for &kind in &args.kinds {
                let before = resent(&on)?;
                let mut pairs = Vec::new();
                for number in 0..args.pairs {
                    let one = |testbed| outage(testbed, kind, outage_s);
                    // The order alternates, since the first one would always have the advantage.
                    pairs.push(if number % 2 == 0 {
                        let off = one(&off)?;
                        (off, one(&on)?)
                    } else {
                        let on = one(&on)?;
                        (one(&off)?, on)
                    });
                    progress.inc(1);
                }
                let resent = resent(&on)? - before;
                found.push(cell(kind, outage_s, round_trip_ms, &pairs, resent));
            }
        }
    }
    progress.finish_and_clear();
    Ok(RecoverReport { bench: "recover", options: args.clone(), cells: found, memory })
}

fn testbed(round_trip_ms: u64, recover: &str) -> Result<Strings> {
    let delay = format!("{}us", round_trip_ms * 500);
    let client_path = match round_trip_ms {
        0 => None,
        _ => Some(EmuSpec::parse(&["delay", &delay]).context("emulated path")?),
    };
    let in_flight = BITS_PER_SECOND * round_trip_ms / 1000 / (8 * FRAME_BYTES);
    let string = StringPlan {
        bits_per_second: BITS_PER_SECOND,
        limited: true,
        queue_packets: QUEUE_PACKETS_MIN.max(in_flight as u32),
    };
    let mut testbed = Strings::build(&StringsPlan {
        strings: vec![string; STRINGS],
        client_path,
        group: format!("heartbeat_ms = {HEARTBEAT_MS}"),
        tables: format!("[recover]\n{recover}\n"),
        ..StringsPlan::default()
    })?;
    testbed.start_daemons()?;
    Ok(testbed)
}

fn outage(testbed: &Strings, kind: Kind, outage_s: f64) -> Result<Vec<f64>> {
    let address = SocketAddr::new(addresses::SERVICE_V4.parse()?, PORT);
    let ends = Ends {
        client: testbed.client().namespace().to_owned(),
        server: testbed.server().namespace().to_owned(),
        address,
    };
    let rule = |string: usize, verb| {
        let namespace = testbed.string(string).namespace();
        command::output("ip", &["-n", namespace, "-4", "rule", verb, "prio", "1", "blackhole"])
    };
    // All strings are cut at once; otherwise the second would count as a relief of the first.
    let cut = || {
        std::thread::scope(|scope| {
            let all = [0, 1].map(|string| scope.spawn(move || rule(string, "add").map(drop)));
            all.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())))
        })
    };
    // The first string is the flows' own: with it they have a path again.
    let mend = |ended: &dyn Fn(Instant)| {
        rule(0, "del")?;
        ended(Instant::now());
        (1..STRINGS).try_for_each(|string| rule(string, "del").map(drop))
    };
    let found = stalls(&ends, kind, Duration::from_secs_f64(outage_s), cut, mend)
        .with_context(|| testbed.log_tails())?;
    std::thread::sleep(PAUSE);
    Ok(found)
}

/// Number of packets that both edges have resent.
fn resent(testbed: &Strings) -> Result<u64> {
    let of = |edge| Ok(testbed.show(edge)?["cache"]["resent"].as_u64().unwrap_or(0));
    Edge::BOTH.into_iter().map(of).sum()
}

fn cell(kind: Kind, outage_s: f64, round_trip_ms: u64, pairs: &[Pair], resent: u64) -> Cell {
    let all = |pick: fn(&Pair) -> &Vec<f64>| {
        let mut all: Vec<f64> = pairs.iter().flat_map(|it| pick(it).iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (off, on) = (all(|it| &it.0), all(|it| &it.1));
    let median = |stalls: &Vec<f64>| Summary::of(stalls).median;
    let mut differences: Vec<f64> =
        pairs.iter().map(|(off, on)| (median(on) - median(off)) * 1e3).collect();
    differences.sort_by(f64::total_cmp);
    let on_ms = side(&on);
    Cell {
        kind,
        outage_s,
        round_trip_ms,
        pairs: pairs.len(),
        connections: on.len(),
        off_ms: side(&off),
        on_ms,
        difference_ms: Summary::of(&differences),
        difference_ms_95: confidence(&differences),
        in_time: on_ms.p99 <= 1.5 * round_trip_ms as f64 + 10.0,
        resent,
    }
}

/// The numbers of one side, from sorted values in s.
fn side(sorted: &[f64]) -> Side {
    let at = |share: f64| {
        let rank = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0) * 1e3
    };
    Side { median: at(0.5), p99: at(0.99), max: at(1.0) }
}

/// The values between which the median lies with 95 % confidence: those at such a distance from the
/// ends that a fair coin falls on one side more often in 2.5 % of all cases (by the normal
/// approximation).
fn confidence(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len() as f64;
    let places = (count / 2.0 - 0.98 * count.sqrt()).floor().max(0.0) as usize;
    let low = sorted.get(places).copied().unwrap_or(0.0);
    let high = sorted.iter().rev().nth(places).copied().unwrap_or(0.0);
    (low, high)
}

impl RecoverReport {
    /// A table for people.
    pub fn print(&self) {
        println!("stalls beyond the end of the outage, ms");
        println!(
            "{:>8} {:>8} {:>6} {:>5} {:>9} {:>9} {:>9} {:>9} {:>20} {:>7}",
            "load",
            "outage s",
            "RTT ms",
            "conns",
            "off med",
            "off p99",
            "on med",
            "on p99",
            "on-off median (95 %)",
            "in time"
        );
        for it in &self.cells {
            let (low, high) = it.difference_ms_95;
            let difference = format!("{:.0} ({low:.0}..{high:.0})", it.difference_ms.median);
            println!(
                "{:>8} {:>8} {:>6} {:>5} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {difference:>20} {:>7}",
                format!("{:?}", it.kind).to_lowercase(),
                it.outage_s,
                it.round_trip_ms,
                it.connections,
                it.off_ms.median,
                it.off_ms.p99,
                it.on_ms.median,
                it.on_ms.p99,
                it.in_time
            );
        }
        self.memory.print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_order_statistics() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(confidence(&values), (4.0, 12.0));
        assert_eq!(confidence(&[3.0]), (3.0, 3.0));
        assert_eq!(confidence(&[]), (0.0, 0.0));
    }
}
