//! The result of a simulation.

use super::link::LinkCounts;
use super::packet::Packet;
use crate::Ns;
use crate::tcp::Counts;
use holdfast_edge::{PfrcCounts, RecoveryCounts};

/// One flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowOutcome {
    /// When its SYN left.
    pub start_ns: Ns,
    /// When its SYN was acknowledged.
    pub connected_ns: Option<Ns>,
    /// When the receiver had everything.
    pub received_ns: Option<Ns>,
    /// When the sender knew.
    pub finished_ns: Option<Ns>,
    /// Timeouts and repetitions.
    pub counts: Counts,
    /// Whether it was on a string that failed.
    pub moved: bool,
    /// Bytes delivered per bin, if that was watched.
    pub bins: Vec<u32>,
    /// (time, window, slow-start threshold), if that was watched.
    pub windows: Vec<(Ns, f64, f64)>,
}

impl FlowOutcome {
    /// From the first SYN until the sender knew that all had arrived, seconds.
    #[must_use]
    pub fn completion_s(&self) -> Option<f64> {
        self.finished_ns.map(|at| (at - self.start_ns) as f64 / 1e9)
    }

    /// From the first SYN until the receiver had everything, seconds.
    #[must_use]
    pub fn received_s(&self) -> Option<f64> {
        self.received_ns.map(|at| (at - self.start_ns) as f64 / 1e9)
    }
}

/// One watched queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOutcome {
    /// The link.
    pub link: u32,
    /// The most packets that waited in each bin of 10 ms.
    pub bins: Vec<u32>,
    /// When packets found it full, the first [`OVERFLOWS_MAX`] of them.
    pub overflows: Vec<Ns>,
}

/// Width of a bin of a watched queue, in ns.
pub const QUEUE_BIN_NS: Ns = 10_000_000;

/// Most overflows of a watched queue that are remembered.
pub const OVERFLOWS_MAX: usize = 1 << 20;

/// Most bins of any series; what comes later is not counted.
pub const BINS_MAX: usize = 1 << 20;

impl QueueOutcome {
    /// The most packets that waited between two times.
    #[must_use]
    pub fn max_between(&self, from_ns: Ns, until_ns: Ns) -> u32 {
        let first = (from_ns / QUEUE_BIN_NS) as usize;
        let count = (until_ns.saturating_sub(from_ns) / QUEUE_BIN_NS) as usize;
        self.bins.iter().skip(first).take(count).copied().max().unwrap_or(0)
    }

    /// Clusters of overflows between two times that are further apart than
    /// `apart_ns`.
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

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Flows, as in the scenario.
    pub flows: Vec<FlowOutcome>,
    /// Links, as in the scenario.
    pub links: Vec<LinkCounts>,
    /// Watched queues.
    pub queues: Vec<QueueOutcome>,
    /// Counts of each switch that has the machine.
    pub recovery: Vec<RecoveryCounts>,
    /// Counts of each switch that has the machine.
    pub rate_control: Vec<PfrcCounts>,
    /// Events that happened.
    pub events: u64,
    /// Packets that crossed a link.
    pub hops: u64,
    /// When the last event happened.
    pub ended_ns: Ns,
}

/// Sees every packet that enters a link.
pub trait Tap {
    /// `lost` is true if it will not come out.
    fn packet(&mut self, now: Ns, link: u32, packet: &Packet, lost: bool);
}
