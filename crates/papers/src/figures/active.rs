//! Section 7.4: two strings, one fails at 5 s, its flows move at 8 s.

use super::context::{Context, MS, line, mean_and_deviation, ns2, rate_control};
use super::{Drawn, Table};
use holdfast_chance::Rng;
use holdfast_netsim::net::dumbbell::{Dumbbell, active_active};
use holdfast_netsim::net::link::QueueLimit;
use holdfast_netsim::net::outcome::{FlowOutcome, QUEUE_BIN_NS, QueueOutcome};
use holdfast_netsim::net::{Outcome, Scenario};
use holdfast_netsim::tcp::Congestion;
use holdfast_report::jain;
use holdfast_report::plot::{Chart, Line, Span};

/// Width of the bins of the throughput series, in ms.
const BIN_MS: u64 = 100;

/// Least distance of two clusters of overflows that count as two surges, in ms.
const SURGE_MS: u64 = 700;

/// Time after the failover in which the thesis counts surges, in ms from the run's start.
pub const AFTER_MS: (u64, u64) = (8000, 28_000);

/// What varies between the runs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The TCP.
    pub tcp: Congestion,
    /// Buffer of R1, in packets.
    pub buffer: u32,
    /// Whether there is rate control.
    pub control: bool,
    /// Rates of the strings in bits per second; the first string fails.
    pub strings_bps: Vec<u64>,
    /// When the failover is complete, ms.
    pub until_ms: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            tcp: Congestion::NewReno,
            buffer: 750,
            control: false,
            strings_bps: vec![100_000_000; 2],
            until_ms: 8000,
        }
    }
}

impl Setup {
    /// The scenario of the run.
    #[must_use]
    pub fn scenario(&self, context: &Context) -> Scenario {
        let remaining: u64 = self.strings_bps[1..].iter().sum();
        let dumbbell = Dumbbell {
            string_rates_bps: self.strings_bps.clone(),
            // ns-2's DropTail drops a packet that would make the queue as long as its limit
            // (drop-tail.cc).
            buffer: QueueLimit::Packets(self.buffer - 1),
            rate_control: self.control.then(|| rate_control(remaining)),
            ..Dumbbell::thesis()
        };
        let mut scenario = active_active(&dumbbell, ns2(self.tcp));
        scenario.outages[0].until_ns = self.until_ms * MS;
        if self.strings_bps.len() != 2 || self.strings_bps[0] != self.strings_bps[1] {
            // The switch distributes flows by the strings' rates.
            scenario.flows.iter_mut().for_each(|flow| flow.string = None);
        }
        // An application reads in order: a hole holds back everything behind it.
        scenario.watch.in_order = true;
        scenario.watch.queues =
            (1..self.strings_bps.len() as u32).map(Dumbbell::bottleneck).collect();
        if context.seed() != 0 {
            let mut rng = Rng::of_state(context.seed());
            scenario.flows.iter_mut().for_each(|flow| flow.start_ns += rng.below(10 * MS));
        }
        scenario
    }

    /// Simulates the run.
    #[must_use]
    pub fn run(&self, context: &Context) -> Run {
        runs(context, std::slice::from_ref(self)).swap_remove(0)
    }
}

/// Simulates several runs, on all cores.
pub fn runs(context: &Context, setups: &[Setup]) -> Vec<Run> {
    let scenarios: Vec<Scenario> = setups.iter().map(|it| it.scenario(context)).collect();
    context.run_all(&scenarios).into_iter().map(|outcome| Run { outcome }).collect()
}

/// The default set-up without rate control and with it.
pub fn pair(context: &Context, tcp: Congestion, buffer: u32) -> [Run; 2] {
    let setups = [false, true].map(|control| Setup { tcp, buffer, control, ..Setup::default() });
    let mut both = runs(context, &setups);
    let on = both.pop();
    let off = both.pop();
    [off, on].map(Option::unwrap_or_default)
}

/// A run of section 7.4.
#[derive(Default)]
pub struct Run {
    /// The simulated outcome.
    pub outcome: Outcome,
}

impl Run {
    /// Goodput in Mb/s of the flows that `keep` selects, averaged over `width` bins.
    pub fn series(&self, width: usize, keep: impl Fn(&FlowOutcome) -> bool) -> Vec<(f64, f64)> {
        let bins = self.outcome.flows.iter().map(|it| it.bins.len()).max().unwrap_or(0);
        let mut sums = vec![0.0; bins];
        for flow in self.outcome.flows.iter().filter(|flow| keep(flow)) {
            flow.bins.iter().enumerate().for_each(|(bin, bytes)| sums[bin] += f64::from(*bytes));
        }
        let seconds = width as f64 * BIN_MS as f64 / 1e3;
        let mbps = |bytes: &[f64]| bytes.iter().sum::<f64>() * 8.0 / 1e6 / seconds;
        let middle = |index: usize| (index as f64 + 0.5) * seconds;
        sums.chunks_exact(width).map(mbps).enumerate().map(|(i, it)| (middle(i), it)).collect()
    }

    /// Mean and deviation of the total goodput in Mb/s, in bins of 0.5 s.
    #[must_use]
    pub fn total(&self, from_s: f64, until_s: f64) -> (f64, f64) {
        let inside = |it: &(f64, f64)| it.0 >= from_s && it.0 < until_s;
        let values: Vec<f64> =
            self.series(5, |_| true).into_iter().filter(inside).map(|it| it.1).collect();
        mean_and_deviation(&values)
    }

    /// Jain's index of the flows that were active throughout.
    #[must_use]
    pub fn fairness(&self, from_s: u64, until_s: u64) -> f64 {
        let whole = |flow: &&FlowOutcome| {
            flow.connected_ns.is_some_and(|at| at < from_s * 1000 * MS)
                && flow.received_ns.is_none_or(|at| at > until_s * 1000 * MS)
        };
        let bins = |s: u64| (s * 1000 / BIN_MS) as usize;
        let share = |flow: &FlowOutcome| -> f64 {
            let inside = flow.bins.iter().take(bins(until_s)).skip(bins(from_s));
            inside.map(|bytes| f64::from(*bytes)).sum()
        };
        let shares: Vec<f64> = self.outcome.flows.iter().filter(whole).map(share).collect();
        jain(&shares)
    }

    /// Results of the watched queue.
    #[must_use]
    pub fn queue(&self) -> QueueOutcome {
        self.outcome.queues.first().cloned().unwrap_or_default()
    }

    /// Number of surges of overflows in the 20 s after the failover.
    #[must_use]
    pub fn surges(&self) -> f64 {
        self.queue().surges(AFTER_MS.0 * MS, AFTER_MS.1 * MS, SURGE_MS * MS) as f64
    }

    /// Longest queue in the 20 s after the failover, in packets.
    #[must_use]
    pub fn longest(&self) -> f64 {
        f64::from(self.queue().max_between(AFTER_MS.0 * MS, AFTER_MS.1 * MS))
    }

    /// The queue over time: the longest in each 50 ms, in packets.
    #[must_use]
    pub fn queue_series(&self) -> Vec<(f64, f64)> {
        let bin_s = QUEUE_BIN_NS as f64 / 1e9;
        let longest = |bins: &[u32]| f64::from(bins.iter().copied().max().unwrap_or(0));
        let queue = self.queue();
        let all = queue.bins.chunks(5).map(longest).enumerate();
        all.map(|(index, it)| (index as f64 * 5.0 * bin_s, it)).collect()
    }
}

/// A chart over the time of the run.
pub fn chart(title: &str, y_name: &str, x_range: (f64, f64), lines: Vec<Line>) -> Chart {
    Chart {
        title: title.to_owned(),
        x_name: "time, s".to_owned(),
        y_name: y_name.to_owned(),
        x_range,
        lines,
        spans: vec![Span { name: "failover".to_owned(), from: 5.0, to: 8.0 }],
        ..Chart::default()
    }
}

/// Throughput of total, passed and failover flows (Figs 20 and 21).
pub fn throughput(title: &str, run: &Run) -> Drawn {
    let total = run.series(5, |_| true);
    let passed = run.series(5, |flow| !flow.moved);
    let moved = run.series(5, |flow| flow.moved);
    let mut table = Table::new(&["time_s", "total_mbps", "passed_mbps", "failover_mbps"]);
    table.rows = total
        .iter()
        .zip(passed.iter().zip(&moved))
        .map(|(total, (passed, moved))| vec![total.0, total.1, passed.1, moved.1])
        .collect();
    let lines =
        vec![line("total", total), line("passed flows", passed), line("failover flows", moved)];
    let charts = vec![chart(title, "goodput, Mb/s", (0.0, 40.0), lines)];
    Drawn { charts, table, checks: Vec::new() }
}

/// Throughput of failover flows while their string is down, in Mb/s.
pub fn failover_flows_down(run: &Run) -> f64 {
    let moved = run.series(1, |flow| flow.moved);
    moved.iter().filter(|it| it.0 > 5.2 && it.0 < 8.0).map(|it| it.1).fold(0.0, f64::max)
}

/// Share of the string that each of ten sampled flows gets (Figs 23 and 24).
pub fn shares(title: &str, run: &Run) -> Drawn {
    const SAMPLED: usize = 10;
    let flows = run.outcome.flows.len();
    let mut table = Table::new(&["time_s"]);
    let mut lines = Vec::new();
    for number in 0..SAMPLED.min(flows) {
        let index = number * flows / SAMPLED;
        let start_ns = run.outcome.flows[index].start_ns;
        let series = run.series(5, |flow| std::ptr::eq(flow, &raw const run.outcome.flows[index]));
        table.columns.push(format!("flow_{index}_share"));
        for (row, point) in series.iter().enumerate() {
            if table.rows.len() <= row {
                table.rows.push(vec![point.0]);
            }
            table.rows[row].push(point.1 / 100.0);
        }
        let points = series.into_iter().map(|(at, mbps)| (at, mbps / 100.0)).collect();
        lines.push(line(&format!("flow {index}, from {:.2} s", start_ns as f64 / 1e9), points));
    }
    let charts = vec![chart(title, "share of 100 Mb/s", (0.0, 40.0), lines)];
    Drawn { charts, table, checks: Vec::new() }
}

/// R1's queue, with and without rate control (Figs 25 and 26).
pub fn queues(title: &str, both: &[Run; 2]) -> Drawn {
    let [off, on] = both.each_ref().map(Run::queue_series);
    let mut table = Table::new(&["time_s", "off_packets", "on_packets"]);
    let at = |series: &[(f64, f64)], row: usize| series.get(row).map_or(0.0, |it| it.1);
    table.rows = (0..off.len().max(on.len()))
        .map(|row| vec![row as f64 * 0.05, at(&off, row), at(&on, row)])
        .collect();
    let lines = vec![line("without rate control", off), line("with rate control", on)];
    let charts = vec![chart(title, "packets in R1's queue", (0.0, 40.0), lines)];
    Drawn { charts, table, checks: Vec::new() }
}
