//! How fast the packet simulator is: CPU seconds, packet-hops and memory, in turn with an installed
//! ns-3, and beside the numbers of ns-3.48 (`-O3 -march=native`).

use super::ns3::Ns3;
use anyhow::Result;
use clap::Args;
use holdfast_netsim::net::dumbbell::{Dumbbell, active_active};
use holdfast_netsim::net::link::QueueLimit;
use holdfast_netsim::net::scenario::{FlowSpec, Watch};
use holdfast_netsim::net::{Scenario, run as simulate};
use holdfast_netsim::tcp::Profile;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fs;

const MS: u64 = 1_000_000;

/// One-way delays of ns-3's dumb-bell, in ms.
const DUMBBELL_MS: [u64; 4] = [45, 2, 2, 1];
/// One-way delays of section 7.4's scenario, in ms.
const ACTIVE_MS: [u64; 4] = [40, 2, 2, 6];

/// Number of segments of all flows together where the cost per hop is compared.
const SHARED_SEGMENTS: u32 = 400_000;

/// Share of the link's rate for each flow, in bits per second.
const FLOW_BPS: u64 = 10_000_000;

/// CPU seconds and MB that ns-3.48 took for section 7.4 on two cores of a Xeon.
const NS3_ACTIVE: (f64, f64) = (7.0, 26.0);
/// CPU seconds and MB that ns-3.48 took for 1000 flows on two cores of a Xeon.
const NS3_THOUSAND: (f64, f64) = (56.3, 195.0);

/// Names of section 7.4's scenario, here and in the ns-3 program.
const ACTIVE: (&str, &str) = ("section 7.4", "active");
/// Names of the scenario with 1000 flows, here and in the ns-3 program.
const THOUSAND: (&str, &str) = ("1000 flows of 1000 segments", "thousand");

/// Options of the bench.
#[derive(Args, Clone, Debug)]
pub struct SimBenchArgs {
    /// Runs of each scenario; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub runs: u64,
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

/// One scenario, run here and in ns-3 in turn.
#[derive(Clone, Debug, Serialize)]
pub struct Ns3Row {
    pub scenario: &'static str,
    /// CPU seconds of a run here, the median.
    pub cpu_seconds: f64,
    pub ns3_cpu_seconds: f64,
}

/// All scenarios that were run in ns-3 too.
#[derive(Clone, Debug, Serialize)]
pub struct Ns3Comparison {
    pub version: String,
    pub rows: Vec<Ns3Row>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct SimBenchReport {
    pub schema: &'static str,
    pub rows: Vec<SimBenchRow>,
    /// Ratio of the most expensive packet-hop of 10 to 10,000 flows to the cheapest.
    pub hop_cost_ratio: f64,
    /// Comparison with an ns-3 that is installed.
    pub ns3: Option<Ns3Comparison>,
    /// Why there is no comparison with ns-3.
    pub ns3_not_measured: Option<String>,
}

/// Runs the bench.
///
/// # Errors
/// When a scenario cannot be run.
pub fn run(args: &SimBenchArgs) -> Result<SimBenchReport> {
    // The smallest scenario is the first, since memory is a peak of the process.
    let mut rows = vec![measure(ACTIVE.0, &section_7_4(), args.runs, Some(NS3_ACTIVE))?];
    let mut costs = Vec::new();
    for flows in [10, 100, 1000, 10_000] {
        // Each flow has the same share however many there are, so there are no losses and no
        // timeouts.
        let scenario = shared(flows, SHARED_SEGMENTS / flows, u64::from(flows) * FLOW_BPS);
        let row = measure("shared link", &scenario, args.runs, None)?;
        costs.push(row.ns_per_hop);
        rows.push(row);
    }
    let thousand = shared(1000, 1000, 100_000_000);
    rows.push(measure(THOUSAND.0, &thousand, args.runs, Some(NS3_THOUSAND))?);
    let dearest = costs.iter().copied().fold(0.0, f64::max);
    let cheapest = costs.iter().copied().fold(f64::MAX, f64::min);
    let hop_cost_ratio = dearest / cheapest;
    // The large scenario runs once: ns-3 takes minutes for it.
    let scenarios = [(ACTIVE, section_7_4(), args.runs), (THOUSAND, thousand, 1)];
    let (ns3, ns3_not_measured) = match beside(&scenarios) {
        Ok(beside) => (Some(beside), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let schema = "holdfast.lab.bench.sim/1";
    Ok(SimBenchReport { schema, rows, hop_cost_ratio, ns3, ns3_not_measured })
}

/// Runs scenarios here and in ns-3 in turn, each as often as it says, so that both see the same
/// machine.
fn beside(scenarios: &[((&'static str, &str), Scenario, u64)]) -> Result<Ns3Comparison> {
    let ns3 = Ns3::find()?;
    eprintln!("ns-{} runs the same scenarios, which takes minutes", ns3.version);
    let mut rows = Vec::new();
    for ((name, theirs), scenario, runs) in scenarios {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..*runs {
            let begun = cpu_seconds();
            simulate(scenario)?;
            times[0].push(cpu_seconds() - begun);
            times[1].push(ns3.run(theirs)?);
        }
        let [cpu_seconds, ns3_cpu_seconds] =
            times.map(|times| holdfast_report::Summary::of(&times).median);
        rows.push(Ns3Row { scenario: name, cpu_seconds, ns3_cpu_seconds });
    }
    Ok(Ns3Comparison { version: ns3.version.clone(), rows })
}

/// The scenario of section 7.4: 100 flows, two strings, buffers of 750 packets, 60 s.
fn section_7_4() -> Scenario {
    let dumbbell = Dumbbell {
        delays_ns: ACTIVE_MS.map(|ms| ms * MS),
        string_rates_bps: vec![100_000_000; 2],
        buffer: QueueLimit::Packets(750),
        ..Dumbbell::thesis()
    };
    Scenario { watch: Watch::default(), ..active_active(&dumbbell, Profile::NS3) }
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

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Peak memory of this process as the kernel counts it, in MB.
fn peak_memory_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|it| it.split_whitespace().next()).and_then(|it| it.parse().ok());
    kib.unwrap_or(0.0) * 1024.0 / 1e6
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
        if let Some(it) = &self.ns3 {
            for row in &it.rows {
                println!(
                    "{:<28} {:>8.3} CPU s here, {:>8.3} in ns-{} on this machine, in turn",
                    row.scenario, row.cpu_seconds, row.ns3_cpu_seconds, it.version
                );
            }
        }
    }
}
