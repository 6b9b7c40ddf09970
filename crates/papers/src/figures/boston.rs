//! The runs behind Figs 4 to 6 of TCP Boston: three protocols over all buffers,
//! for two packet sizes and 64 kB windows.

use super::Table;
use super::context::{Context, MS, line};
use holdfast_netsim::atm::{Outcome, Protocol, Repair, Responses, Scenario, run};
use holdfast_report::parallel;
use holdfast_report::plot::{Chart, Line};

/// Buffers in cells (TCP Boston §3.1).
pub const BUFFERS: [u32; 6] = [64, 256, 512, 1000, 2000, 4000];

/// Sizes of packets in bytes, with their deadlines in ns (§3.3).
pub const PACKETS: [(u32, u64); 2] = [(1500, 700 * MS), (9180, 1400 * MS)];

/// The protocols in the paper's order, and then Boston with the other reading of what a report of
/// pending cells does.
pub const PROTOCOLS: [(&str, Protocol); 5] = [
    ("Vegas", Protocol::Tcp),
    ("Boston-BP", Protocol::boston_bp(Repair::WithRetransmission)),
    ("Boston-FEC", Protocol::boston_fec(Repair::WithRetransmission)),
    ("Boston-BP, repairs at once", Protocol::boston_bp(Repair::AtOnce)),
    ("Boston-FEC, repairs at once", Protocol::boston_fec(Repair::AtOnce)),
];
pub const VEGAS: usize = 0;
pub const BP: usize = 1;
pub const FEC: usize = 2;
pub const BP_AT_ONCE: usize = 3;
pub const FEC_AT_ONCE: usize = 4;

/// Reason why ratios differ from the paper's.
pub const OPEN: &str = "The paper leaves open how Boston repairs, when sources start and what \
    the timer does; `holdfast-lab run boston-choices` shows what each does to this number.";

/// Reason why fewer of Vegas' packets miss their deadline than the paper says.
pub const SILENT: &str = "16 windows of at least two packets are more than wire and buffer hold, \
    so someone must wait. A Vegas connection waits in its timer, doubled up to 64 times, and \
    what it does not send misses no deadline; Boston keeps sending, in parts, and its packets \
    are late. By time instead of by packet see \"time with a packet overdue\".";

/// Reason why redundancy does not shorten response times in these runs.
pub const QUEUE: &str = "A cell in 32 lengthens the queue that all share by 3 %, interleaved \
    packets end later, and losses come in runs of more cells than are redundant: what \
    redundancy saves is less. No choice of `boston-choices` turns this round.";

/// Runs many scenarios on all cores.
pub fn run_all(scenarios: &[Scenario]) -> Vec<Outcome> {
    // The figures' scenarios are possible, so no run fails.
    parallel::map(scenarios, |scenario| run(scenario).unwrap_or_default())
}

/// All runs for one seed.
pub struct Runs(Vec<Outcome>);

impl Runs {
    /// Simulates all runs.
    pub fn new(context: &Context) -> Self {
        let mut scenarios = Vec::new();
        for (packet_bytes, deadline_ns) in PACKETS {
            for (_, protocol) in PROTOCOLS {
                scenarios.extend(BUFFERS.map(|buffer_cells| Scenario {
                    seed: context.seed(),
                    protocol,
                    packet_bytes,
                    deadline_ns,
                    buffer_cells,
                    ..Scenario::PAPER
                }));
            }
        }
        Self(run_all(&scenarios))
    }

    /// Outcome of one run.
    pub fn get(&self, packet: usize, protocol: usize, buffer: usize) -> &Outcome {
        &self.0[(packet * PROTOCOLS.len() + protocol) * BUFFERS.len() + buffer]
    }

    /// A number of the outcomes, over all buffers.
    pub fn series(
        &self,
        packet: usize,
        protocol: usize,
        of: impl Fn(&Outcome) -> f64,
    ) -> [f64; BUFFERS.len()] {
        std::array::from_fn(|buffer| of(self.get(packet, protocol, buffer)))
    }

    /// A chart of a number for a packet size, for the first protocols.
    pub fn chart(
        &self,
        packet: usize,
        y_name: &str,
        protocols: std::ops::Range<usize>,
        of: impl Fn(&Outcome) -> f64,
    ) -> Chart {
        let lines = protocols
            .map(|protocol| curve(PROTOCOLS[protocol].0, &self.series(packet, protocol, &of)));
        chart(packet, y_name, lines.collect())
    }

    /// The numbers of all runs.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            "packet_bytes",
            "protocol",
            "buffer_cells",
            "goodput_mbps",
            "response_s",
            "deviation_s",
            "missed_share",
            "response_all_s",
            "deviation_all_s",
            "missed_share_all",
            "packet_loss",
            "cell_loss",
            "timeouts",
            "window_cuts",
            "redundant_share",
            "fairness",
            "rows_beyond_code",
            "missing_share",
            "overdue_share",
        ]);
        for (packet, (bytes, _)) in PACKETS.iter().enumerate() {
            for protocol in 0..PROTOCOLS.len() {
                for (buffer, cells) in BUFFERS.iter().enumerate() {
                    let it = self.get(packet, protocol, buffer);
                    let mut row = vec![f64::from(*bytes), protocol as f64, f64::from(*cells)];
                    row.extend(numbers(it));
                    table.rows.push(row);
                }
            }
        }
        table
    }
}

fn numbers(it: &Outcome) -> Vec<f64> {
    let (one, all) = (it.by_connection(), it.all());
    vec![
        it.goodput_mbps(),
        one.mean_s,
        one.deviation_s,
        one.missed_share,
        all.mean_s,
        all.deviation_s,
        all.missed_share,
        it.packet_loss(),
        it.cell_loss(),
        it.timeouts() as f64,
        it.flows.iter().map(|flow| flow.cuts).sum::<u64>() as f64,
        it.cells_redundant as f64 / it.cells_sent as f64,
        it.fairness(),
        it.rows_beyond_code as f64,
        it.missing_share(),
        it.overdue_share(),
    ]
}

/// A line over all buffers.
pub fn curve(name: &str, values: &[f64; BUFFERS.len()]) -> Line {
    let points = values.iter().enumerate().filter(|it| it.1.is_finite());
    line(name, points.map(|(index, value)| (index as f64 + 0.5, *value)).collect())
}

/// A chart over all buffers.
pub fn chart(packet: usize, y_name: &str, lines: Vec<Line>) -> Chart {
    Chart {
        title: format!("{}-byte packets, 64 kB windows", PACKETS[packet].0),
        x_name: "switch buffer, cells".to_owned(),
        x_names: BUFFERS.iter().map(u32::to_string).collect(),
        y_name: y_name.to_owned(),
        x_range: (0.0, BUFFERS.len() as f64),
        lines,
        ..Chart::default()
    }
}

/// How much smaller `ours` is than `theirs`, in the three readings of "improvement".
pub struct Improvement {
    /// Relative difference, averaged over the buffers; a buffer with nothing to improve is left
    /// out.
    pub per_buffer: f64,
    /// Relative difference of the means over the buffers.
    pub of_means: f64,
    /// Absolute difference of the means: points, or seconds.
    pub absolute: f64,
}

impl Improvement {
    /// Compares numbers over the buffers.
    pub fn of(theirs: &[f64; BUFFERS.len()], ours: &[f64; BUFFERS.len()]) -> Self {
        let pairs = || theirs.iter().zip(ours);
        let some: Vec<f64> =
            pairs().filter(|it| *it.0 > 0.0).map(|(theirs, ours)| 1.0 - ours / theirs).collect();
        let count = BUFFERS.len() as f64;
        let sum = |of: &[f64]| of.iter().sum::<f64>();
        Self {
            per_buffer: sum(&some) / some.len() as f64,
            of_means: 1.0 - sum(ours) / sum(theirs),
            absolute: (sum(theirs) - sum(ours)) / count,
        }
    }
}

/// Number of buffers at which `low` does not exceed `high`, within one part in 1,000.
pub fn not_more(low: &[f64; BUFFERS.len()], high: &[f64; BUFFERS.len()]) -> f64 {
    low.iter().zip(high).filter(|(low, high)| **low <= **high * 1.001 + 1e-9).count() as f64
}

/// Ratio of `ours` to `theirs`, averaged over the buffers; one at which `theirs` is 0 is left out.
pub fn mean_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let pairs = ours.iter().zip(theirs).filter(|it| *it.1 > 0.0);
    let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

/// Share of packets that the destination's AAL does not deliver (TCP Boston §3.1): for TCP the
/// incomplete ones, for Boston those of which nothing arrives.
pub fn undelivered(it: &Outcome, protocol: usize) -> f64 {
    if protocol == VEGAS { it.packet_loss() } else { it.missing_share() }
}

/// Response times as the paper averages them.
pub fn responses(it: &Outcome) -> Responses {
    it.by_connection()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn improvement_has_three_readings() {
        let theirs = [0.5, 0.2, 0.1, 0.0, 0.0, 0.0];
        let ours = [0.4, 0.1, 0.1, 0.0, 0.0, 0.0];
        let it = Improvement::of(&theirs, &ours);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(it.per_buffer, 0.7 / 3.0) && close(it.of_means, 0.25), "{}", it.per_buffer);
        assert!(close(it.absolute, 0.2 / 6.0));
        assert_eq!((not_more(&ours, &theirs), not_more(&theirs, &ours)), (6.0, 4.0));
        assert!(close(mean_ratio(&ours, &theirs), (0.8 + 0.5 + 1.0) / 3.0));
    }
}
