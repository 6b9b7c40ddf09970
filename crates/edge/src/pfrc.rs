//! PFRC: post-failover rate control (thesis chapter 6). After a failover less
//! bandwidth is left than the flows were used to. The controller computes one
//! window for all of them, every interval, and caps what their
//! acknowledgements advertise, so that the queue need not overflow.
//!
//! [`Pfrc`] says when windows are capped and at what; a host counts what flows send
//! and caps their acknowledgements: an eBPF program on the wire, [`Flows`] in the
//! simulator.

mod control;
mod drive;
mod flows;
mod queue;
#[cfg(test)]
mod tests;

pub use control::{Law, Measurement, WindowControl};
pub use drive::{Pfrc, PfrcHost};
pub use flows::{Flows, PfrcCounts};
pub use queue::QueueDelay;

use crate::Ns;
use holdfast_wire::seq::SeqNo;

/// Whether a cap may take back what was already promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightEdge {
    /// No: the advertised right edge never moves left (law L4; RFC 9293
    /// §3.8.6, RFC 7323 §2.4).
    Keeps,
    /// Yes, as in the simulations of the thesis.
    MayShrink,
}

/// The controller's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PfrcConfig {
    /// Capacity of the bottleneck, in bytes per second.
    pub capacity_bytes_per_s: u64,
    /// Length of one measurement (Δ). The thesis does not say; 0.25 s gives its
    /// queue of 600 packets.
    pub interval_ns: Ns,
    /// Round trip of the flows.
    pub rtt_ns: Ns,
    /// Weight of a measurement (α). Stable below 2, if the interval is longer
    /// than the round trip; else 1/4 and less converges without swinging.
    pub alpha: f64,
    /// Share of the capacity that the controller aims at (u).
    pub utilization: f64,
    /// How the window follows the measurements.
    pub law: Law,
    /// The smallest window that is ever set; two segments keep ACKs coming.
    pub window_min_bytes: u32,
    /// Whether promises may be taken back.
    pub right_edge: RightEdge,
    /// Most flows that are counted and capped. Further flows are neither.
    pub flows_max: usize,
}

impl PfrcConfig {
    /// Weight of a measurement (α) under [`Law::SHIPPED`]: it converges without
    /// swinging although a round trip may be longer than an interval.
    pub const ALPHA_SHIPPED: f64 = 0.25;

    /// The configuration as shipped, with the settings of the group's file.
    /// Nothing is capped before the capacity that is left is known.
    #[must_use]
    pub fn shipped(settings: &PfrcSettings, flows_max: usize) -> Self {
        Self {
            capacity_bytes_per_s: 0,
            interval_ns: settings.interval_ns,
            rtt_ns: settings.rtt_ns,
            alpha: Self::ALPHA_SHIPPED,
            utilization: settings.utilization_percent as f64 / 100.0,
            law: Law::SHIPPED,
            window_min_bytes: settings.window_min_bytes,
            right_edge: RightEdge::Keeps,
            flows_max,
        }
    }
}

/// Rate-control settings of a group's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfrcSettings {
    pub interval_ns: Ns,
    pub rtt_ns: Ns,
    pub utilization_percent: u64,
    pub window_min_bytes: u32,
}

impl PfrcSettings {
    /// Settings of a group whose file says nothing.
    pub const STANDARD: Self = Self {
        interval_ns: 100_000_000,
        rtt_ns: 100_000_000,
        utilization_percent: 98,
        window_min_bytes: 3000,
    };
}

/// What a window field may say instead of `field`, if the receiver shifts its
/// windows by `scale`, and the right edge that is then promised. `edge` is the
/// promise so far; if it is not known, nothing is changed.
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
