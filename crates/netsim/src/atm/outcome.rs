//! The result of a run.

use crate::Ns;

/// Width of a bin of response times, in ns.
pub const RESPONSE_BIN_NS: Ns = 10_000_000;
/// Number of bins of response times; the last one holds all longer ones.
const BINS: usize = 6000;

/// Results of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowOutcome {
    /// Number of packets that the receiver got completely.
    pub delivered: u64,
    /// Sum of the packets' response times, in ns.
    pub response_ns: u128,
    /// Sum of the squares of the packets' response times, in µs².
    response_us_squared: u128,
    /// Number of packets that took longer than the deadline.
    pub missed: u64,
    /// Time during which some packet had been out for longer than the deadline, in ns.
    pub overdue_ns: u128,
    overdue_until: Ns,
    /// Number of expiries of the retransmission timer.
    pub timeouts: u64,
    /// Number of reductions of the window other than by the timer.
    pub cuts: u64,
}

/// Response times: from the departure of a packet's first byte to the arrival of its last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Responses {
    pub mean_s: f64,
    pub deviation_s: f64,
    /// Share of packets that took longer than the deadline.
    pub missed_share: f64,
}

impl Responses {
    fn of<'a>(flows: impl Iterator<Item = &'a FlowOutcome> + Clone) -> Self {
        let count = flows.clone().map(|it| it.delivered).sum::<u64>() as f64;
        let sum: u128 = flows.clone().map(|it| it.response_ns).sum();
        let squares: u128 = flows.clone().map(|it| it.response_us_squared).sum();
        let missed: u64 = flows.map(|it| it.missed).sum();
        let mean_s = sum as f64 / 1e9 / count;
        let variance = squares as f64 / 1e12 / count - mean_s.powi(2);
        Self { mean_s, deviation_s: variance.max(0.0).sqrt(), missed_share: missed as f64 / count }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub flows: Vec<FlowOutcome>,
    /// Simulated time.
    pub duration_ns: Ns,
    /// IP bytes of a packet.
    pub packet_bytes: u32,
    /// Packets that were sent, including retransmissions and repairs.
    pub transmissions: u64,
    /// Transmissions after which the receiver had the whole packet.
    pub usable: u64,
    /// Transmissions of which at least one cell arrived.
    pub noticed: u64,
    /// Cells that left the sources.
    pub cells_sent: u64,
    /// Cells sent that repeat or repair.
    pub cells_again: u64,
    /// Cells sent that are redundancy.
    pub cells_redundant: u64,
    /// Rows sent beyond the 256 of the code, which would have to be sent twice.
    pub rows_beyond_code: u64,
    /// Cells that the switches dropped.
    pub cells_dropped: u64,
    /// Cells that the sink received.
    pub cells_received: u64,
    /// Response times in bins of [`RESPONSE_BIN_NS`].
    pub response_bins: Vec<u32>,
}

impl Outcome {
    pub(super) fn new(sources: usize) -> Self {
        Self {
            flows: vec![FlowOutcome::default(); sources],
            response_bins: vec![0; BINS],
            ..Self::default()
        }
    }

    /// Notes that a packet is complete.
    pub(super) fn note_delivered(
        &mut self,
        flow: usize,
        now: Ns,
        response_ns: Ns,
        deadline_ns: Ns,
    ) {
        let it = &mut self.flows[flow];
        let overdue_from = (now - response_ns + deadline_ns).max(it.overdue_until);
        if now > overdue_from {
            it.overdue_ns += u128::from(now - overdue_from);
            it.overdue_until = now;
        }
        it.delivered += 1;
        it.response_ns += u128::from(response_ns);
        it.missed += u64::from(response_ns > deadline_ns);
        it.response_us_squared += u128::from(response_ns / 1000).pow(2);
        self.response_bins[((response_ns / RESPONSE_BIN_NS) as usize).min(BINS - 1)] += 1;
    }

    /// Number of packets that the receivers got completely.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.flows.iter().map(|it| it.delivered).sum()
    }

    /// Effective throughput (TCP Boston §3.2), in Mb/s.
    #[must_use]
    pub fn goodput_mbps(&self) -> f64 {
        let bits = self.delivered() as f64 * f64::from(self.packet_bytes) * 8.0;
        bits * 1000.0 / self.duration_ns.max(1) as f64
    }

    /// Response times of the packets of all connections together.
    #[must_use]
    pub fn all(&self) -> Responses {
        Responses::of(self.flows.iter())
    }

    /// Response times averaged over the connections, as TCP Boston §3.2 defines them. A connection
    /// that delivered nothing has none.
    #[must_use]
    pub fn by_connection(&self) -> Responses {
        let mut mean = Responses { mean_s: 0.0, deviation_s: 0.0, missed_share: 0.0 };
        let served = || self.flows.iter().filter(|it| it.delivered > 0);
        let count = served().count() as f64;
        for flow in served() {
            let it = Responses::of(std::iter::once(flow));
            mean.mean_s += it.mean_s / count;
            mean.deviation_s += it.deviation_s / count;
            mean.missed_share += it.missed_share / count;
        }
        mean
    }

    /// Share of transmissions after which the receiver did not have the packet.
    #[must_use]
    pub fn packet_loss(&self) -> f64 {
        1.0 - self.usable as f64 / self.transmissions as f64
    }

    /// Share of transmissions of which no cell arrived: Boston's third case (TCP
    /// Boston §2.2), "an entire packet is missing".
    #[must_use]
    pub fn missing_share(&self) -> f64 {
        1.0 - self.noticed as f64 / self.transmissions as f64
    }

    /// Share of the time during which a connection had a packet out for longer than the deadline,
    /// averaged over the connections.
    #[must_use]
    pub fn overdue_share(&self) -> f64 {
        let overdue: u128 = self.flows.iter().map(|it| it.overdue_ns).sum();
        overdue as f64 / self.flows.len() as f64 / self.duration_ns.max(1) as f64
    }

    /// Share of cells that switches dropped.
    #[must_use]
    pub fn cell_loss(&self) -> f64 {
        self.cells_dropped as f64 / self.cells_sent as f64
    }

    /// Number of expiries of retransmission timers.
    #[must_use]
    pub fn timeouts(&self) -> u64 {
        self.flows.iter().map(|it| it.timeouts).sum()
    }

    /// Jain's index of the connections' goodput.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let squares: f64 = self.flows.iter().map(|it| (it.delivered as f64).powi(2)).sum();
        (self.delivered() as f64).powi(2) / squares / self.flows.len() as f64
    }
}
