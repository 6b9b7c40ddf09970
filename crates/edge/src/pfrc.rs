//! PFRC: post-failover rate control (thesis chapter 6). After a failover less
//! bandwidth is left than the flows were used to. The controller computes one
//! window for all of them, every interval, and caps what their
//! acknowledgements advertise, so that the queue need not overflow.

#[cfg(test)]
mod tests;

use crate::Ns;
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

/// May a cap take back what was already promised?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightEdge {
    /// No: the advertised right edge never moves left (law L4; RFC 9293
    /// §3.8.6, RFC 7323 §2.4).
    Keeps,
    /// Yes, as in the thesis' simulations.
    MayShrink,
}

/// The controller's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PfrcConfig {
    /// What the bottleneck carries, bytes per second.
    pub capacity_bytes_per_s: u64,
    /// How long one measurement takes (Δ). The thesis does not say; 0.25 s
    /// gives its queue of 600 packets.
    pub interval_ns: Ns,
    /// The flows' round trip.
    pub rtt_ns: Ns,
    /// Weight of a measurement (α). Stable below 2, if the interval is longer
    /// than the round trip; else 1/4 and less converges without swinging.
    pub alpha: f64,
    /// Share of the capacity that is aimed at (u).
    pub utilization: f64,
    /// The smallest window that is ever set; two segments keep ACKs coming.
    pub window_min_bytes: u32,
    /// May promises be taken back?
    pub right_edge: RightEdge,
    /// Flows that are counted and capped. One more is neither.
    pub flows_max: usize,
}

/// What the controller did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfrcCounts {
    /// Acknowledgements whose window was reduced.
    pub capped: u64,
    /// Flows that found no place.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The furthest that was ever advertised.
    edge: Option<SeqNo>,
}

/// The rate controller of one string. `K` names a flow.
///
/// Contract: every data packet and every acknowledgement that passes is shown
/// to it, also before a failover, so that it knows who is there;
/// [`RateController::handle_failure`] switches it on,
/// [`RateController::handle_repair`] off, and when the time of
/// [`RateController::poll_timeout`] has come, [`RateController::handle_timeout`]
/// is called.
#[derive(Debug)]
pub struct RateController<K> {
    config: PfrcConfig,
    flows: BTreeMap<K, Flow>,
    received_bytes: u64,
    window_bytes: f64,
    interval_ends: Option<Ns>,
    counts: PfrcCounts,
}

impl<K: Ord + Copy> RateController<K> {
    /// A controller that is off.
    #[must_use]
    pub fn new(config: PfrcConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            received_bytes: 0,
            window_bytes: f64::INFINITY,
            interval_ends: None,
            counts: PfrcCounts::default(),
        }
    }

    /// A string has failed: less is left for all.
    pub fn handle_failure(&mut self, now: Ns) {
        if self.interval_ends.is_some() {
            return;
        }
        self.interval_ends = Some(now + self.config.interval_ns);
        self.received_bytes = 0;
        // The fair share: what eq (9) comes to rest at when no queue builds up.
        self.window_bytes = self.target_bytes() * self.round_trips() / self.active();
    }

    /// The string is back: nobody is capped any more.
    pub fn handle_repair(&mut self) {
        self.interval_ends = None;
        self.window_bytes = f64::INFINITY;
    }

    /// A data packet passes.
    pub fn handle_data(&mut self, key: K, bytes: u32) {
        self.received_bytes += u64::from(bytes);
        if self.flows.len() < self.config.flows_max {
            self.flows.entry(key).or_default();
        } else if !self.flows.contains_key(&key) {
            self.counts.refused += 1;
        }
    }

    /// The flow has ended.
    pub fn forget(&mut self, key: K) {
        self.flows.remove(&key);
    }

    /// An acknowledgement passes that advertises `window_bytes` from `ack` on.
    /// Answers what it may advertise; never more.
    pub fn handle_ack(&mut self, key: K, ack: SeqNo, window_bytes: u32) -> u32 {
        // An unknown flow's promises are unknown: it is left alone.
        let Some(flow) = self.flows.get_mut(&key) else {
            return window_bytes;
        };
        let cap = self.window_bytes.max(f64::from(self.config.window_min_bytes));
        let mut allowed = window_bytes.min(cap as u32);
        if self.config.right_edge == RightEdge::Keeps {
            let promised = flow.edge.map_or(0, |edge| edge.since(ack).max(0) as u32);
            allowed = allowed.max(promised).min(window_bytes);
            let edge = ack.plus(u64::from(allowed));
            flow.edge = Some(flow.edge.map_or(edge, |known| known.max(edge)));
        }
        self.counts.capped += u64::from(allowed < window_bytes);
        allowed
    }

    /// An interval has ended.
    pub fn handle_timeout(&mut self, now: Ns) {
        let Some(ends) = self.interval_ends.filter(|ends| *ends <= now) else {
            return;
        };
        self.interval_ends = Some(ends + self.config.interval_ns);
        // thesis §6.3 eq (9): W(n+1) = W(n) + α (RTT/Δ) (u C(n) - B(n)) / N
        let error = self.target_bytes() - self.received_bytes as f64;
        let step = self.config.alpha * self.round_trips() * error / self.active();
        // Eq (10) bounds what is advertised; the sum itself is bounded too, or
        // it would wind up while nothing arrives.
        let floor = f64::from(self.config.window_min_bytes);
        let ceiling = self.target_bytes() * self.round_trips();
        self.window_bytes = (self.window_bytes + step).clamp(floor.min(ceiling), ceiling);
        self.received_bytes = 0;
    }

    /// When the interval ends; `None` while it is off.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.interval_ends
    }

    /// The window that every flow may use; `None` while it is off.
    #[must_use]
    pub fn window_bytes(&self) -> Option<f64> {
        self.interval_ends.map(|_| self.window_bytes.max(f64::from(self.config.window_min_bytes)))
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> PfrcCounts {
        self.counts
    }

    /// `u C(n)`: bytes that are wanted in an interval.
    fn target_bytes(&self) -> f64 {
        let seconds = self.config.interval_ns as f64 / 1e9;
        self.config.utilization * self.config.capacity_bytes_per_s as f64 * seconds
    }

    /// `RTT/Δ`.
    fn round_trips(&self) -> f64 {
        self.config.rtt_ns as f64 / self.config.interval_ns.max(1) as f64
    }

    fn active(&self) -> f64 {
        self.flows.len().max(1) as f64
    }
}
