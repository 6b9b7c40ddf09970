//! Series of single flows: congestion window, round trip and the queue in front of them, as CSV with
//! units in the names, and as a chart.

use super::series::{BIN_NS, longest};
use holdfast_netsim::net::outcome::{FlowOutcome, QUEUE_BIN_NS};
use holdfast_netsim::net::{Outcome, Scenario};
use holdfast_report::plot::{Chart, Line, stacked};
use std::fmt::Write as _;

/// Most flows of one chart: more could not be told apart, since the queue has a colour, too.
pub const PLOTTED_MAX: usize = 6;

/// Most flows that are watched.
pub const FLOWS_MAX: usize = 1000;

/// What a flow had at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    t_s: f64,
    cwnd_bytes: f64,
    /// `None` before the first round trip.
    srtt_ms: Option<f64>,
    queue_packets: u32,
}

/// Series of flows of all runs, as rows, and the charts of the first run.
pub struct Each {
    flows: Vec<u32>,
    link: u32,
    csv: String,
    svg: Option<String>,
}

impl Each {
    /// Begins with no rows. The queue is that of `link`; if no flows are named, the first
    /// [`PLOTTED_MAX`] are watched.
    pub fn new(flows: &[u32], link: u32) -> Self {
        let mut flows = flows.to_vec();
        flows.sort_unstable();
        flows.dedup();
        let csv = "point,seed,t_s,flow,cwnd_bytes,srtt_ms,queue_packets\n".to_owned();
        Self { flows, link, csv, svg: None }
    }

    /// Makes a run record what the series need.
    pub fn watch(&self, scenario: &mut Scenario) {
        let first = scenario.flows.len().min(PLOTTED_MAX) as u32;
        let flows = if self.flows.is_empty() { (0..first).collect() } else { self.flows.clone() };
        scenario.watch.windows = flows;
        if !scenario.watch.queues.contains(&self.link) {
            scenario.watch.queues.push(self.link);
        }
    }

    /// Adds the rows of a run.
    pub fn add(&mut self, (point, seed): (usize, u64), scenario: &Scenario, outcome: &Outcome) {
        let mut all = Vec::new();
        for flow in &scenario.watch.windows {
            let profile = scenario.flows[*flow as usize].profile as usize;
            let mss_bytes = scenario.profiles[profile].mss_bytes;
            let samples = self.samples(&outcome.flows[*flow as usize], mss_bytes, outcome);
            for it in &samples {
                let srtt = it.srtt_ms.map_or(String::new(), |ms| format!("{ms:.3}"));
                // Writing to a string cannot fail.
                let _ = writeln!(
                    self.csv,
                    "{point},{seed},{:.1},{flow},{:.0},{srtt},{}",
                    it.t_s, it.cwnd_bytes, it.queue_packets
                );
            }
            all.push((*flow, samples));
        }
        if self.svg.is_none() {
            self.svg = Some(chart(self.link, &all));
        }
    }

    /// What a flow had at the end of each bin, from its start to its end.
    fn samples(&self, flow: &FlowOutcome, mss_bytes: u32, outcome: &Outcome) -> Vec<Sample> {
        let end_ns = flow.finished_ns.unwrap_or(outcome.ended_ns);
        let queue = outcome.queues.iter().rev().find(|it| it.link == self.link);
        let per_bin = (BIN_NS / QUEUE_BIN_NS) as usize;
        let (mut windows, mut trips) =
            (flow.windows.iter().peekable(), flow.round_trips.iter().peekable());
        let (mut window, mut trip) = (None, None);
        let mut samples = Vec::new();
        for bin in flow.start_ns / BIN_NS..=end_ns / BIN_NS {
            let until = (bin + 1) * BIN_NS;
            while let Some(next) = windows.next_if(|it| it.0 < until) {
                window = Some(next.1);
            }
            while let Some(next) = trips.next_if(|it| it.0 < until) {
                trip = Some(next.1 as f64 / 1e6);
            }
            let Some(cwnd) = window else { continue };
            let first = bin as usize * per_bin;
            let waits = queue.map_or(&[][..], |it| {
                it.bins.get(first..it.bins.len().min(first + per_bin)).unwrap_or_default()
            });
            samples.push(Sample {
                t_s: (bin * BIN_NS) as f64 / 1e9,
                cwnd_bytes: cwnd * f64::from(mss_bytes),
                srtt_ms: trip,
                queue_packets: longest(waits),
            });
        }
        samples
    }

    /// All rows, below a line of names.
    pub fn csv(&self) -> &str {
        &self.csv
    }

    /// The first run as a chart, SVG; empty before there is one.
    pub fn svg(&self) -> &str {
        self.svg.as_deref().unwrap_or_default()
    }
}

/// Windows, round trips and the queue of one run, below each other on one axis. A flow has one
/// colour in all of them.
fn chart(link: u32, flows: &[(u32, Vec<Sample>)]) -> String {
    let flows = &flows[..flows.len().min(PLOTTED_MAX)];
    let times = || flows.iter().flat_map(|it| &it.1).map(|it| it.t_s);
    let end_s = times().fold(0.1, f64::max);
    let of = |what: &dyn Fn(&Sample) -> Option<f64>| -> Vec<Line> {
        let line = |(flow, samples): &(u32, Vec<Sample>)| Line {
            name: format!("flow {flow}"),
            points: samples.iter().filter_map(|it| Some((it.t_s, what(it)?))).collect(),
            ..Line::default()
        };
        flows.iter().map(line).collect()
    };
    let mut queue: Vec<(f64, f64)> =
        flows.iter().flat_map(|it| &it.1).map(|it| (it.t_s, f64::from(it.queue_packets))).collect();
    queue.sort_by(|a, b| a.0.total_cmp(&b.0));
    queue.dedup();
    let waiting = Line { name: format!("queue of link {link}"), points: queue, ..Line::default() };
    let one = |title: &str, y_name: &str, lines: Vec<Line>| {
        let highest = lines.iter().flat_map(|it| &it.points).map(|it| it.1).fold(1.0, f64::max);
        Chart {
            title: title.to_owned(),
            x_name: "time, s".to_owned(),
            y_name: y_name.to_owned(),
            x_range: (0.0, end_s),
            y_range: Some((0.0, highest * 1.05)),
            lines,
            ..Chart::default()
        }
    };
    stacked(&[
        one("Congestion window", "cwnd, kB", of(&|it| Some(it.cwnd_bytes / 1e3))),
        one("Smoothed round trip", "srtt, ms", of(&|it| it.srtt_ms)),
        one("Packets that wait", "queue, packets", vec![waiting]),
    ])
}
