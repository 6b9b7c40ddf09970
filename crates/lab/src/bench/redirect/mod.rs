//! `holdfast-lab bench redirect`: HYDRANET's measurements of its redirector
//! (Fig. 3), beside address translation and a proxy.

mod cost;
mod traffic;
mod ways;

use anyhow::{Context as _, Result};
use clap::Args;
use cost::Costs;
use holdfast_report::{Interval, progress};
use serde::Serialize;
use std::time::Duration;
use traffic::{BULK_BYTES, Competitor, Share, Sink};
use ways::{Beds, Way};

/// Sizes of the writes in bytes; the last is the bulk.
const SIZES: [usize; 9] = [64, 256, 512, 1024, 1400, 1448, 1500, 1600, BULK_BYTES];
/// Sizes of the writes in bytes where a part of the path is confined, to save time.
const SIZES_CONFINED: [usize; 4] = [64, 1024, 1500, BULK_BYTES];
const CONNECTS: usize = 60;
/// Share of a processor that a confined server has, in percent.
const SHARE_PERCENT: u32 = 25;

/// Options of the redirector bench.
#[derive(Args, Clone, Debug)]
pub struct RedirectArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often every way is measured, one after the other.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// How long each measurement lasts, ms.
    #[arg(long, default_value_t = 150)]
    pub duration_ms: u64,
}

/// Which part of the path is the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetUp {
    /// No part, by intention.
    Free,
    /// The edge's work on clients' packets has one processor, and a competitor
    /// that always runs there (Fig. 3a).
    Redirector,
    /// The server has a quarter of a processor (Fig. 3b).
    HostServer,
}

/// One number of one path, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where the bottleneck is.
    pub set_up: SetUp,
    /// `throughput_mbit`, `connect_us`, `first_byte_us` or `udp64_kpps`.
    pub what: &'static str,
    /// Size of a write in bytes; 0 where there is none.
    pub size_bytes: usize,
    /// The path that was measured.
    pub way: Way,
    /// The number, over all rounds.
    pub value: Interval,
    /// Ratio of the number to that of the plain route in the same round.
    pub ratio: Interval,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct RedirectReport {
    bench: &'static str,
    rounds: usize,
    /// All numbers of all paths.
    pub rows: Vec<Row>,
    /// Times of the redirector's program for one packet.
    pub program_ns: Costs,
}

/// Runs the bench.
///
/// # Errors
/// When something cannot be set up, or a way does not carry.
pub fn run(args: &RedirectArgs) -> Result<RedirectReport> {
    let testbeds = ways::build()?;
    let mut beds = Beds::start(&testbeds)?;
    let sinks = traffic::sinks(beds.all())?;
    beds.wait_redirected()?;
    let time = Duration::from_millis(args.duration_ms);
    let bench = Bench { beds: &beds, sinks: &sinks, time };
    let progress = progress("redirect", 3 * args.rounds as u64);
    let mut rows = Vec::new();
    let plan = [
        (SetUp::Free, &Way::ALL[..], &SIZES[..]),
        (SetUp::Redirector, &Way::ALL[..3], &SIZES_CONFINED[..]),
        (SetUp::HostServer, &Way::ALL[..3], &SIZES_CONFINED[..]),
    ];
    for (set_up, ways, sizes) in plan {
        let _confined = bench.confine(set_up)?;
        let mut rounds = Vec::new();
        for round in 0..args.rounds {
            rounds.push(bench.round(set_up, round, ways, sizes)?);
            progress.inc(1);
        }
        for testbed in beds.all() {
            ways::steer(testbed, None)?;
        }
        rows.extend(sum_up(set_up, &rounds));
    }
    progress.finish_and_clear();
    let program_ns = cost::measure(&testbeds[0]).context("the program's cost")?;
    Ok(RedirectReport { bench: "redirect", rounds: args.rounds, rows, program_ns })
}

/// What is measured: the number's name, the size of a write, and the path.
type Of = (&'static str, usize, Way);

struct Bench<'a> {
    beds: &'a Beds<'a>,
    sinks: &'a [(Way, Sink)],
    time: Duration,
}

/// What confines a part of the path; undone when it is dropped.
struct Confined {
    _share: Option<Share>,
    _competitor: Option<Competitor>,
}

impl Bench<'_> {
    fn confine(&self, set_up: SetUp) -> Result<Confined> {
        let mut confined = Confined { _share: None, _competitor: None };
        match set_up {
            SetUp::Free => {}
            SetUp::Redirector => {
                for testbed in self.beds.all() {
                    ways::steer(testbed, Some(1))?;
                }
                confined._competitor = Some(Competitor::start());
            }
            SetUp::HostServer => {
                let tids: Vec<u32> = self.sinks.iter().flat_map(|(_, s)| s.tids.clone()).collect();
                confined._share = Some(Share::of(&tids, SHARE_PERCENT)?);
            }
        }
        Ok(confined)
    }

    /// The server at the end of a path.
    fn sink(&self, way: Way) -> Result<&Sink> {
        let served = if way == Way::Haproxy { Way::Route } else { way };
        let found = self.sinks.iter().find(|(of, _)| *of == served);
        found.map(|(_, sink)| sink).context("every way has a server")
    }

    /// Measures every number of every path once; the order rotates from round to round.
    fn round(
        &self,
        set_up: SetUp,
        round: usize,
        ways: &[Way],
        sizes: &[usize],
    ) -> Result<Vec<(Of, f64)>> {
        let mut found = Vec::new();
        let turned = |ways: &[Way]| -> Vec<Way> {
            let mut ways = ways.to_vec();
            let turns = round % ways.len();
            ways.rotate_left(turns);
            ways
        };
        for &size in sizes {
            for way in turned(ways) {
                let (bed, sink) = (self.beds.bed(way), self.sink(way)?);
                let bits = traffic::throughput(bed, way, sink, size, self.time)?;
                found.push((("throughput_mbit", size, way), bits / 1e6));
            }
        }
        if set_up != SetUp::Free {
            return Ok(found);
        }
        for way in turned(ways) {
            let (connect, first) = traffic::connects(self.beds.bed(way), way, CONNECTS)?;
            found.push((("connect_us", 0, way), connect));
            found.push((("first_byte_us", 0, way), first));
        }
        for way in turned(ways).into_iter().filter(|way| way.has_udp()) {
            let (bed, sink) = (self.beds.bed(way), self.sink(way)?);
            let rate = traffic::datagrams(bed, way, sink, self.time)?;
            found.push((("udp64_kpps", 64, way), rate / 1e3));
        }
        Ok(found)
    }
}

fn sum_up(set_up: SetUp, rounds: &[Vec<(Of, f64)>]) -> Vec<Row> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let mut kinds: Vec<Of> = first.iter().map(|(of, _)| *of).collect();
    kinds.sort_unstable();
    let value = |round: &[(Of, f64)], of: &Of| {
        round.iter().find(|(known, _)| known == of).map(|(_, value)| *value)
    };
    let row = |of: &Of| {
        let plain = (of.0, of.1, Way::Route);
        let values: Vec<f64> = rounds.iter().filter_map(|round| value(round, of)).collect();
        let ratio = |round: &Vec<(Of, f64)>| Some(value(round, of)? / value(round, &plain)?);
        let ratios: Vec<f64> = rounds.iter().filter_map(ratio).collect();
        Row {
            set_up,
            what: of.0,
            size_bytes: of.1,
            way: of.2,
            value: Interval::of(&values),
            ratio: Interval::of(&ratios),
        }
    };
    kinds.iter().map(row).collect()
}

impl RedirectReport {
    /// A table for people.
    pub fn print(&self) {
        println!(
            "set-up       what             bytes  way          median [95 %]            / route"
        );
        for row in &self.rows {
            println!(
                "{:<12} {:<16} {:>5}  {:<11} {:>8.1} [{:.1} .. {:.1}]   {:.2} [{:.2} .. {:.2}]",
                format!("{:?}", row.set_up),
                row.what,
                row.size_bytes,
                format!("{:?}", row.way),
                row.value.median,
                row.value.low,
                row.value.high,
                row.ratio.median,
                row.ratio.low,
                row.ratio.high
            );
        }
        self.program_ns.print();
    }
}
