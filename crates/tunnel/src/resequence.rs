//! TCP packets in the order of their flow: a packet that overtook a lost one waits for its repair,
//! because TCP takes three packets out of order for congestion (delivered as they come, one flow had
//! 1.9 of 46 Mbit/s). Each flow for itself, no longer than a repair takes, and only while the tunnel
//! itself misses something that was sent before the packet: a hole that came with the packets from
//! the inside is none of its business.

use crate::frame::LANES;
use crate::inner::TcpOrder;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Flows whose place is remembered.
const FLOWS_MAX: usize = 4096;
/// Flows that may wait at once: each is looked at whenever a datagram comes.
const HOLDING_MAX: usize = 1024;

/// Where a packet came from: its lane and symbol, and what each lane was known to have when it came
/// (its own: the symbol). A flow may change its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub lane: usize,
    pub seq: u64,
    pub before: [u64; LANES],
}

#[derive(Clone, Debug)]
struct Held {
    order: TcpOrder,
    origin: Origin,
    until: Duration,
    packet: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    expected: u32,
    /// In the order of their sequence numbers.
    held: Vec<Held>,
}

#[derive(Clone, Debug)]
pub(crate) struct Resequencer {
    flows: HashMap<u64, Flow>,
    /// Flows with held packets.
    holding: VecDeque<u64>,
    bytes: usize,
    bytes_max: usize,
    ready: VecDeque<Vec<u8>>,
    /// Packets handed on without an earlier one.
    pub skipped: u64,
}

/// How far `a` is beyond `b`, sequence numbers being circular (RFC 9293 §3.4).
fn beyond(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Resequencer {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            flows: HashMap::new(),
            holding: VecDeque::new(),
            bytes: 0,
            bytes_max,
            ready: VecDeque::new(),
            skipped: 0,
        }
    }

    /// Packets that may be handed on, in their order.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Takes a segment. `is_waited_for` says whether the tunnel misses something that was sent
    /// before a place.
    pub fn segment(
        &mut self,
        id: u64,
        order: TcpOrder,
        origin: Origin,
        until: Duration,
        packet: Vec<u8>,
        is_waited_for: impl Fn(Origin) -> bool,
    ) {
        if order.is_pure_ack() || order.is_reset {
            self.ready.push_back(packet);
            return;
        }
        let is_new = !self.flows.contains_key(&id);
        if is_new && self.flows.len() >= FLOWS_MAX {
            // All but those that hold something start anew.
            self.flows.retain(|_, flow| !flow.held.is_empty());
        }
        let flow = self.flows.entry(id).or_default();
        let end = order.seq.wrapping_add(order.len);
        if is_new || order.is_syn {
            flow.expected = end;
            self.ready.push_back(packet);
            return;
        }
        if beyond(order.seq, flow.expected) <= 0 {
            if beyond(end, flow.expected) > 0 {
                flow.expected = end;
            }
            self.ready.push_back(packet);
            self.release(id, |_| false);
            return;
        }
        let is_full =
            self.bytes + packet.len() > self.bytes_max || self.holding.len() >= HOLDING_MAX;
        if is_full || !is_waited_for(origin) {
            self.hold(id, Held { order, origin, until: Duration::ZERO, packet });
            self.release(id, |held| held.until.is_zero());
            return;
        }
        self.hold(id, Held { order, origin, until, packet });
    }

    fn hold(&mut self, id: u64, held: Held) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.held.is_empty() {
            self.holding.push_back(id);
        }
        self.bytes += held.packet.len();
        let seq = held.order.seq;
        let at = flow.held.partition_point(|other| beyond(other.order.seq, seq) <= 0);
        flow.held.insert(at, held);
    }

    /// Hands on what is next, and everything up to the last one that may be skipped to.
    fn release(&mut self, id: u64, may_skip: impl Fn(&Held) -> bool) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let forced = flow.held.iter().rposition(may_skip).map_or(0, |at| at + 1);
        let mut count = 0;
        for held in &flow.held {
            let is_next = beyond(held.order.seq, flow.expected) <= 0;
            if !is_next && count >= forced {
                break;
            }
            self.skipped += u64::from(!is_next);
            let end = held.order.seq.wrapping_add(held.order.len);
            if beyond(end, flow.expected) > 0 {
                flow.expected = end;
            }
            count += 1;
        }
        for held in flow.held.drain(..count) {
            self.bytes -= held.packet.len();
            self.ready.push_back(held.packet);
        }
        if flow.held.is_empty() && count > 0 {
            self.holding.retain(|holding| *holding != id);
        }
    }

    /// Hands on what need not or must not wait any longer.
    pub fn tick(&mut self, now: Duration, is_waited_for: impl Fn(Origin) -> bool) {
        for at in (0..self.holding.len()).rev() {
            if let Some(id) = self.holding.get(at).copied() {
                self.release(id, |held| held.until <= now || !is_waited_for(held.origin));
            }
        }
    }

    /// When the next packet has waited long enough.
    pub fn wake_at(&self) -> Option<Duration> {
        let held = self.holding.iter().filter_map(|id| self.flows.get(id));
        held.flat_map(|flow| flow.held.iter().map(|held| held.until)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn order(seq: u32, len: u32) -> TcpOrder {
        TcpOrder { seq, len, is_reset: false, is_syn: false }
    }

    struct Run(Resequencer);

    impl Run {
        fn segment(&mut self, flow: u64, seq: u32, hole_before: bool) {
            let origin = Origin { lane: 0, seq: 1, before: [1, 0, 0] };
            let packet = seq.to_be_bytes().to_vec();
            self.0.segment(flow, order(seq, 10), origin, 50 * MS, packet, |_| hole_before);
        }

        fn out(&mut self) -> Vec<u32> {
            std::iter::from_fn(|| self.0.poll())
                .map(|it| u32::from_be_bytes(it.try_into().unwrap()))
                .collect()
        }
    }

    #[test]
    fn a_flow_waits_for_its_own_hole_and_no_longer_than_it_may() {
        let mut run = Run(Resequencer::new(1000));
        run.segment(1, u32::MAX - 9, true);
        run.segment(1, 10, true);
        run.segment(1, 20, true);
        run.segment(2, 500, true);
        assert_eq!(run.out(), [u32::MAX - 9, 500]);
        run.segment(1, 0, true);
        assert_eq!(run.out(), [0, 10, 20]);
        run.segment(1, 40, true);
        assert_eq!((run.out(), run.0.wake_at()), (vec![], Some(50 * MS)));
        run.0.tick(49 * MS, |_| true);
        assert_eq!(run.out(), []);
        run.0.tick(50 * MS, |_| true);
        assert_eq!((run.out(), run.0.skipped, run.0.wake_at()), (vec![40], 1, None));
        // Late, but welcome.
        run.segment(1, 30, true);
        assert_eq!(run.out(), [30]);
    }

    #[test]
    fn a_hole_that_is_not_the_tunnels_is_not_waited_for() {
        let mut run = Run(Resequencer::new(1000));
        run.segment(1, 0, true);
        run.segment(1, 20, false);
        assert_eq!(run.out(), [0, 20]);
        run.segment(1, 40, true);
        assert_eq!(run.out(), []);
        run.0.tick(MS, |_| false);
        assert_eq!(run.out(), [40]);
        assert_eq!((run.0.bytes, run.0.holding.len()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_handed_on() {
        let mut run = Run(Resequencer::new(8));
        run.segment(1, 0, true);
        for seq in [20, 40, 60] {
            run.segment(1, seq, true);
        }
        assert_eq!(run.out(), [0, 20, 40, 60]);
        assert_eq!(run.0.bytes, 0);
    }
}
