//! What flows send and what is promised to them, one by one: does to a simulator's
//! packets what `bpf/regulate.h` does to real ones, with its rule for windows
//! ([`clamp`]). Unlike that program, it does not bound what receivers promise before a
//! failure.

use super::{Law, Measurement, PfrcConfig, PfrcHost, RightEdge, clamp};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// What was done to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfrcCounts {
    /// Acknowledgements whose window was reduced.
    pub capped: u64,
    /// Flows for which there was no room.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The furthest right edge that was ever advertised.
    edge: Option<SeqNo>,
    /// Whether it has sent something in this interval.
    is_active: bool,
    /// Whether it was promised more than the cap, and does not feel the cap
    /// yet.
    is_free: bool,
}

/// The flows of one switch. `K` names a flow.
///
/// Contract: every data packet and every acknowledgement that passes is shown to it,
/// also before a failure, so that it knows who is there and what was promised.
#[derive(Debug)]
pub struct Flows<K> {
    flows: BTreeMap<K, Flow>,
    flows_max: usize,
    right_edge: RightEdge,
    /// Whether flows that send nothing count, too (thesis §6.3).
    counts_idle: bool,
    cap_bytes: u32,
    received: Measurement,
    counts: PfrcCounts,
}

impl<K: Ord + Copy> Flows<K> {
    /// No flows, and no cap.
    #[must_use]
    pub fn new(config: &PfrcConfig) -> Self {
        Self {
            flows: BTreeMap::new(),
            flows_max: config.flows_max,
            right_edge: config.right_edge,
            counts_idle: config.law == Law::Printed,
            cap_bytes: u32::MAX,
            received: Measurement::default(),
            counts: PfrcCounts::default(),
        }
    }

    /// A data packet passes.
    pub fn handle_data(&mut self, key: K, bytes: u32) {
        self.received.bytes += u64::from(bytes);
        if self.flows.len() >= self.flows_max && !self.flows.contains_key(&key) {
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

    /// Forgets a flow that has ended.
    pub fn forget(&mut self, key: K) {
        self.flows.remove(&key);
    }

    /// Takes an acknowledgement that advertises `window_bytes` from `ack` on.
    /// Returns what it may advertise, never more.
    pub fn handle_ack(&mut self, key: K, ack: SeqNo, window_bytes: u32) -> u32 {
        // An unknown flow's promises are unknown: it is left alone.
        let Some(flow) = self.flows.get_mut(&key) else {
            return window_bytes;
        };
        let (allowed, edge) = match self.right_edge {
            RightEdge::MayShrink => (window_bytes.min(self.cap_bytes), flow.edge),
            RightEdge::Keeps => {
                let promised = flow.edge.map_or(0, |edge| edge.since(ack));
                flow.is_free = is_free(promised, self.cap_bytes);
                clamp(self.cap_bytes, flow.edge, ack, window_bytes, 0)
            }
        };
        flow.edge = edge;
        self.counts.capped += u64::from(allowed < window_bytes);
        allowed
    }

    /// Flows that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether no flow is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Counts of what was done so far.
    #[must_use]
    pub fn counts(&self) -> PfrcCounts {
        self.counts
    }
}

impl<K: Ord + Copy> PfrcHost for Flows<K> {
    type Error = Infallible;

    fn measured(&mut self) -> Measurement {
        let measured = std::mem::take(&mut self.received);
        let flows = if self.counts_idle { self.flows.len() } else { measured.flows };
        Measurement { flows, ..measured }
    }

    fn set_window(&mut self, window_bytes: u32) -> Result<(), Infallible> {
        self.cap_bytes = window_bytes;
        self.flows.values_mut().for_each(|flow| flow.is_active = false);
        Ok(())
    }

    fn uncap(&mut self) -> Result<(), Infallible> {
        self.cap_bytes = u32::MAX;
        Ok(())
    }
}

/// Whether a flow has been promised so much more than the cap that it will not
/// feel the cap in the next round trip. `bpf/regulate.h` asks the same.
fn is_free(promised: i32, cap_bytes: u32) -> bool {
    promised > 0 && promised.unsigned_abs() / 5 > cap_bytes / 4
}
