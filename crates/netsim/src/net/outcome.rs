//! The result of a simulation.

use super::link::LinkCounts;
use super::packet::Packet;
use crate::Ns;
use crate::tcp::Counts;
use holdfast_edge::{PfrcCounts, RecoveryCounts};

/// Results of one flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowOutcome {
    /// When its SYN left, in ns.
    pub start_ns: Ns,
    /// When its SYN was acknowledged, in ns.
    pub connected_ns: Option<Ns>,
    /// When the receiver had everything, in ns.
    pub received_ns: Option<Ns>,
    /// When the sender knew that, in ns.
    pub finished_ns: Option<Ns>,
    /// Timeouts and repetitions.
    pub counts: Counts,
    /// Whether it used a string that failed.
    pub moved: bool,
    /// Bytes delivered in each bin, if that was watched.
    pub bins: Vec<u32>,
    /// Time in ns, window and slow-start threshold at each change, if that was watched.
    pub windows: Vec<(Ns, f64, f64)>,
    /// Time in ns and smoothed round trip in ns at each change, if that was watched.
    pub round_trips: Vec<(Ns, Ns)>,
}

impl FlowOutcome {
    /// Time from the first SYN until the sender knew that everything had arrived, in s.
    #[must_use]
    pub fn completion_s(&self) -> Option<f64> {
        self.finished_ns.map(|at| (at - self.start_ns) as f64 / 1e9)
    }

    /// Time from the first SYN until the receiver had everything, in s.
    #[must_use]
    pub fn received_s(&self) -> Option<f64> {
        self.received_ns.map(|at| (at - self.start_ns) as f64 / 1e9)
    }
}

/// Results of one watched queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOutcome {
    /// Number of the link.
    pub link: u32,
    /// Largest number of packets that waited in each bin of 10 ms.
    pub bins: Vec<u32>,
    /// Times in ns at which packets found the queue full, the first [`OVERFLOWS_MAX`] of them.
    pub overflows: Vec<Ns>,
}

/// Width of a bin of a watched queue, in ns.
pub const QUEUE_BIN_NS: Ns = 10_000_000;

/// Most overflows of a watched queue that are recorded.
pub const OVERFLOWS_MAX: usize = 1 << 20;

/// Most bins of any series; later ones are not counted.
pub const BINS_MAX: usize = 1 << 20;

impl QueueOutcome {
    /// Largest number of packets that waited between two times.
    #[must_use]
    pub fn max_between(&self, from_ns: Ns, until_ns: Ns) -> u32 {
        let first = (from_ns / QUEUE_BIN_NS) as usize;
        let count = (until_ns.saturating_sub(from_ns) / QUEUE_BIN_NS) as usize;
        self.bins.iter().skip(first).take(count).copied().max().unwrap_or(0)
    }

    /// Number of clusters of overflows between two times that are more than `apart_ns` apart.
    #[must_use]
    pub fn surges(&self, from_ns: Ns, until_ns: Ns, apart_ns: Ns) -> usize {
        let mut last = None;
        let mut surges = 0;
        for at in self.overflows.iter().copied().filter(|at| (from_ns..until_ns).contains(at)) {
            surges += usize::from(last.is_none_or(|last| at - last > apart_ns));
            last = Some(at);
        }
        surges
    }
}

/// Results of a whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Results of the flows, in the order of the scenario.
    pub flows: Vec<FlowOutcome>,
    /// Counts of the links, in the order of the scenario.
    pub links: Vec<LinkCounts>,
    /// Results of the watched queues.
    pub queues: Vec<QueueOutcome>,
    /// Counts of local recovery, for each switch that has it.
    pub recovery: Vec<RecoveryCounts>,
    /// Counts of rate control, for each switch that has it.
    pub rate_control: Vec<PfrcCounts>,
    /// Number of events.
    pub events: u64,
    /// Number of packets that crossed a link, counted for each link.
    pub hops: u64,
    /// When the last event happened, in ns.
    pub ended_ns: Ns,
}

/// Observer of every packet that enters a link.
pub trait Tap {
    /// Takes a packet; `lost`: it will not come out.
    fn packet(&mut self, now: Ns, link: u32, packet: &Packet, lost: bool);
}
