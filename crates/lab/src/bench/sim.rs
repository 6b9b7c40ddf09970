//! How fast the packet simulator is: CPU seconds, packet-hops and memory, in turn with an installed
//! ns-3, and beside the numbers of ns-3.48 (`-O3 -march=native`).

use super::beside::{Comparison, compare, cpu_seconds, peak_memory_mb};
use super::plans::{ACTIVE, THOUSAND};
use anyhow::Result;
use clap::Args;
use holdfast_netsim::net::dumbbell::Dumbbell;
use holdfast_netsim::net::link::QueueLimit;
use holdfast_netsim::net::scenario::FlowSpec;
use holdfast_netsim::net::{Scenario, run as simulate};
use holdfast_netsim::tcp::Profile;
use serde::Serialize;
use std::path::PathBuf;

const MS: u64 = 1_000_000;

/// One-way delays of ns-3's dumb-bell, in ms.
const DUMBBELL_MS: [u64; 4] = [45, 2, 2, 1];

/// Number of segments of all flows together where the cost per hop is compared.
const SHARED_SEGMENTS: u32 = 400_000;

/// Share of the link's rate for each flow, in bits per second.
const FLOW_BPS: u64 = 10_000_000;

/// CPU seconds and MB that ns-3.48 took for section 7.4 on two cores of a Xeon.
const NS3_ACTIVE: (f64, f64) = (7.0, 26.0);
/// CPU seconds and MB that ns-3.48 took for 1000 flows on two cores of a Xeon.
const NS3_THOUSAND: (f64, f64) = (56.3, 195.0);

/// Options of the bench.
#[derive(Args, Clone, Debug)]
pub struct SimBenchArgs {
    /// Runs of each scenario; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub runs: u64,
    /// Write what ns-3 and this simulator say of the same scenarios into this page (docs/NS3.md), in
    /// the place of what it has.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Results of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct SimBenchRow {
    pub scenario: String,
    pub flows: usize,
    /// CPU seconds of a run, the median.
    pub cpu_seconds: f64,
    pub events: u64,
    pub hops: u64,
    pub hops_per_cpu_second: f64,
    pub ns_per_hop: f64,
    /// Peak memory of the whole process up to the end of this scenario, in MB.
    pub peak_memory_mb: f64,
    /// CPU seconds that ns-3.48 took on another machine, if measured.
    pub ns3_cpu_seconds: Option<f64>,
    pub ns3_memory_mb: Option<f64>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct SimBenchReport {
    pub schema: &'static str,
    pub rows: Vec<SimBenchRow>,
    /// Ratio of the most expensive packet-hop of 10 to 10,000 flows to the cheapest.
    pub hop_cost_ratio: f64,
    /// Comparison with an ns-3 that is installed.
    pub ns3: Option<Comparison>,
    /// Why there is no comparison with ns-3.
    pub ns3_not_measured: Option<String>,
}

/// Runs the bench.
///
/// # Errors
/// When a scenario cannot be run, or there is a page to write and no ns-3.
pub fn run(args: &SimBenchArgs) -> Result<SimBenchReport> {
    // What is smallest is the first, since memory is a peak of the process.
    let compared = compare(args.runs);
    let mut rows = vec![measure("section 7.4", &ACTIVE.scenario(), args.runs, Some(NS3_ACTIVE))?];
    let mut costs = Vec::new();
    for flows in [10, 100, 1000, 10_000] {
        // Each flow has the same share however many there are, so there are no losses and no
        // timeouts.
        let scenario = shared(flows, SHARED_SEGMENTS / flows, u64::from(flows) * FLOW_BPS);
        let row = measure("shared link", &scenario, args.runs, None)?;
        costs.push(row.ns_per_hop);
        rows.push(row);
    }
    let thousand = "1000 flows of 1000 segments";
    rows.push(measure(thousand, &THOUSAND.scenario(), args.runs, Some(NS3_THOUSAND))?);
    let dearest = costs.iter().copied().fold(0.0, f64::max);
    let cheapest = costs.iter().copied().fold(f64::MAX, f64::min);
    let hop_cost_ratio = dearest / cheapest;
    if let (Some(page), Ok(found)) = (&args.page, &compared) {
        found.write(page)?;
    }
    let (ns3, ns3_not_measured) = match compared {
        Ok(found) => (Some(found), None),
        Err(error) if args.page.is_some() => return Err(error),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let schema = "holdfast.lab.bench.sim/2";
    Ok(SimBenchReport { schema, rows, hop_cost_ratio, ns3, ns3_not_measured })
}

/// A scenario of flows that begin within a second and share a link.
fn shared(flows: u32, segments: u32, rate_bps: u64) -> Scenario {
    let dumbbell = Dumbbell {
        delays_ns: DUMBBELL_MS.map(|ms| ms * MS),
        string_rates_bps: vec![rate_bps],
        buffer: QueueLimit::Packets(100_000),
        ..Dumbbell::thesis()
    };
    let profile = Profile { window_segments: 64, ..Profile::NS3 };
    let mut scenario = dumbbell.scenario(flows, profile);
    scenario.flows = (0..flows)
        .map(|path| FlowSpec {
            start_ns: u64::from(path) * 1000 * MS / u64::from(flows),
            segments,
            profile: 0,
            path,
            string: None,
        })
        .collect();
    scenario
}

fn measure(
    name: &str,
    scenario: &Scenario,
    runs: u64,
    ns3: Option<(f64, f64)>,
) -> Result<SimBenchRow> {
    let mut times = Vec::new();
    let (mut events, mut hops) = (0, 0);
    for _ in 0..runs {
        let begun = cpu_seconds();
        let outcome = simulate(scenario)?;
        times.push(cpu_seconds() - begun);
        (events, hops) = (outcome.events, outcome.hops);
    }
    let cpu_seconds = holdfast_report::Summary::of(&times).median;
    Ok(SimBenchRow {
        scenario: name.to_owned(),
        flows: scenario.flows.len(),
        cpu_seconds,
        events,
        hops,
        hops_per_cpu_second: hops as f64 / cpu_seconds,
        ns_per_hop: cpu_seconds * 1e9 / hops as f64,
        peak_memory_mb: peak_memory_mb(),
        ns3_cpu_seconds: ns3.map(|it| it.0),
        ns3_memory_mb: ns3.map(|it| it.1),
    })
}

impl SimBenchReport {
    /// Prints the report for people.
    pub fn print(&self) {
        println!(
            "{:<28} {:>7} {:>8} {:>10} {:>8} {:>7} {:>9} {:>7}",
            "scenario", "flows", "CPU s", "hops", "ns/hop", "MB", "ns-3: s", "MB"
        );
        for row in &self.rows {
            let other = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.1}"));
            println!(
                "{:<28} {:>7} {:>8.3} {:>10} {:>8.0} {:>7.1} {:>9} {:>7}",
                row.scenario,
                row.flows,
                row.cpu_seconds,
                row.hops,
                row.ns_per_hop,
                row.peak_memory_mb,
                other(row.ns3_cpu_seconds),
                other(row.ns3_memory_mb)
            );
        }
        println!("dearest hop of 10 to 10,000 flows over the cheapest: {:.2}", self.hop_cost_ratio);
        println!(
            "ns-3: 3.48, -O3 -march=native, measured once on two cores of a Xeon; MB is the peak so far"
        );
        if let Some(reason) = &self.ns3_not_measured {
            println!("ns-3 on this machine: not measured: {reason}");
        }
        if let Some(found) = &self.ns3 {
            found.print();
        }
    }
}
