//! PFRC: post-failover rate control (thesis chapter 6). After a failover less
//! bandwidth is left than the flows were used to. The controller computes one
//! window for all of them, every interval, and caps what their
//! acknowledgements advertise, so that the queue need not overflow.

mod control;
mod queue;
#[cfg(test)]
mod tests;

pub use control::{Law, Measurement, WindowControl};
pub use queue::QueueDelay;

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
    /// How the window follows what is measured.
    pub law: Law,
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
    /// It has sent something in this interval.
    is_active: bool,
    /// It was promised more than the cap, and does not feel it yet.
    is_free: bool,
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
    received: Measurement,
    control: WindowControl,
    counts: PfrcCounts,
}

impl<K: Ord + Copy> RateController<K> {
    /// A controller that is off.
    #[must_use]
    pub fn new(config: PfrcConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            received: Measurement::default(),
            control: WindowControl::new(config),
            counts: PfrcCounts::default(),
        }
    }

    /// A string has failed: less is left for all.
    pub fn handle_failure(&mut self, now: Ns) {
        if self.control.is_on() {
            return;
        }
        self.control.start(now, self.flows.len());
        self.begin_interval();
    }

    /// The string is back: nobody is capped any more.
    pub fn handle_repair(&mut self) {
        self.control.stop();
    }

    /// A data packet passes.
    pub fn handle_data(&mut self, key: K, bytes: u32) {
        self.received.bytes += u64::from(bytes);
        if self.flows.len() >= self.config.flows_max && !self.flows.contains_key(&key) {
            self.counts.refused += 1;
            return;
        }
        let flow = self.flows.entry(key).or_default();
        self.received.flows += usize::from(!flow.is_active);
        if flow.is_free {
            self.received.free_flows += usize::from(!flow.is_active);
            self.received.free_bytes += u64::from(bytes);
        }
        flow.is_active = true;
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
        let cap = self.control.window_bytes().map_or(u32::MAX, |cap| cap as u32);
        let (allowed, edge) = match self.config.right_edge {
            RightEdge::MayShrink => (window_bytes.min(cap), flow.edge),
            RightEdge::Keeps => {
                let promised = flow.edge.map_or(0, |edge| edge.since(ack));
                flow.is_free = is_free(promised, cap);
                clamp(cap, flow.edge, ack, window_bytes, 0)
            }
        };
        flow.edge = edge;
        self.counts.capped += u64::from(allowed < window_bytes);
        allowed
    }

    /// An interval has ended.
    pub fn handle_timeout(&mut self, now: Ns) {
        if self.control.poll_timeout().is_none_or(|ends| ends > now) {
            return;
        }
        let mut measured = self.received;
        if self.config.law == Law::Printed {
            measured.flows = self.flows.len();
        }
        self.control.handle_interval(now, measured);
        self.begin_interval();
    }

    fn begin_interval(&mut self) {
        self.received = Measurement::default();
        self.flows.values_mut().for_each(|flow| flow.is_active = false);
    }

    /// When the interval ends; `None` while it is off.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.control.poll_timeout()
    }

    /// The window that every flow may use; `None` while it is off.
    #[must_use]
    pub fn window_bytes(&self) -> Option<f64> {
        self.control.window_bytes()
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> PfrcCounts {
        self.counts
    }
}

/// Has a flow been promised so much more than the cap that it will not feel it in
/// the next round trip? `bpf/regulate.h` asks the same.
fn is_free(promised: i32, cap_bytes: u32) -> bool {
    promised > 0 && promised.unsigned_abs() / 5 > cap_bytes / 4
}

/// What a window field may say instead of `field`, where the receiver shifts its
/// windows by `scale`, and the right edge that is promised then. `edge`: what was
/// promised so far; where that is not known nothing is changed.
///
/// The result is `cap_bytes >> scale`, rounded up (RFC 7323 §2.4), but never 0
/// where it was not, never more than it was, and the edge never moves left (law
/// L4; RFC 9293 §3.8.6). `bpf/regulate.h` does the same, from the same vectors.
#[must_use]
pub fn clamp(
    cap_bytes: u32,
    edge: Option<SeqNo>,
    ack: SeqNo,
    field: u32,
    scale: u8,
) -> (u32, Option<SeqNo>) {
    let offered = field << scale;
    let Some(promised) = edge else {
        return (field, Some(ack.plus(u64::from(offered))));
    };
    let kept = promised.since(ack).max(0) as u32;
    let allowed = offered.min(cap_bytes.max(1)).max(kept);
    let field = if allowed < offered { allowed.div_ceil(1 << scale) } else { field };
    assert!(field << scale >= kept.min(offered), "L4: the right edge moves left");
    let reaches = promised.max(ack.plus(u64::from(field << scale)));
    assert!(!promised.after(reaches), "L4: a promise is forgotten");
    (field, Some(reaches))
}
