//! One direction of a wire: a queue, a rate, a delay, losses, outages.
//!
//! A FIFO queue before a constant rate needs no event when a packet's
//! transmission ends: the moment is known when the packet arrives. So a hop
//! costs one event, the packet's exit at the far end, and only the first packet
//! of a link has it scheduled: a long queue costs no more than a short one.

use super::loss::{Loss, LossModel};
use super::packet::{Packet, Slab};
use crate::{Ns, Rng};
use std::collections::VecDeque;

/// What may wait before a wire; what exceeds it is dropped at the tail. The
/// packet in transmission does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// Anything.
    #[default]
    None,
    /// So many packets.
    Packets(u32),
    /// Packets of so many bytes together.
    Bytes(u64),
}

/// A wire in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits per second; 0 is without limit.
    pub rate_bps: u64,
    /// From the end of the transmission to the arrival.
    pub delay_ns: Ns,
    /// What may wait for the transmission.
    pub queue: QueueLimit,
    /// What is lost on the way.
    pub loss: LossModel,
}

/// What became of the packets that a link was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Came out at the far end.
    pub passed: u64,
    /// Found the queue full.
    pub overflowed: u64,
    /// Lost by the wire.
    pub lost: u64,
    /// Lost because the link was down.
    pub cut: u64,
}

/// Bits of a byte times nanoseconds of a second.
const BIT_S: u64 = 8_000_000_000;

/// No packet.
const NONE: u32 = u32::MAX;

/// What every packet touches fits into one cache line: with thousands of links
/// that decides what a hop costs.
#[repr(align(64))]
pub(super) struct Link {
    /// Of one byte, if that is a whole number; else 0.
    byte_ns: u64,
    delay_ns: Ns,
    busy_until: Ns,
    /// The packet that comes out next.
    next: u32,
    /// How many outages have it down.
    pub(super) down: u16,
    /// Others come out after the next one.
    more: bool,
    /// The queue, the losses or the rate need a closer look.
    special: bool,
    passed: u64,
    rest: Box<Rest>,
}

/// What most packets do not touch.
struct Rest {
    rate_bps: u64,
    /// Waiting packets are counted only if somebody wants to know.
    counted: bool,
    queue: QueueLimit,
    loss: Loss,
    rng: Rng,
    /// Those that come out after the next one: by value, so that a long queue is
    /// memory that is written and read in its order.
    behind: VecDeque<(Ns, Packet)>,
    /// When the transmission of each packet that waited begins, and its bytes.
    waiting: VecDeque<(Ns, u32)>,
    waiting_bytes: u64,
    counts: LinkCounts,
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, rng: Rng) -> Self {
        let whole = BIT_S.checked_rem(spec.rate_bps) == Some(0);
        let counted = spec.queue != QueueLimit::None;
        Self {
            byte_ns: if whole { BIT_S / spec.rate_bps } else { 0 },
            delay_ns: spec.delay_ns,
            busy_until: 0,
            next: NONE,
            down: 0,
            more: false,
            special: counted || !whole || spec.loss != LossModel::Never,
            passed: 0,
            rest: Box::new(Rest {
                rate_bps: spec.rate_bps,
                counted,
                queue: spec.queue,
                loss: Loss::new(spec.loss),
                rng,
                behind: VecDeque::new(),
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                counts: LinkCounts::default(),
            }),
        }
    }

    /// Somebody wants to know how many packets wait.
    pub(super) fn count_waiting(&mut self) {
        self.rest.counted = true;
        self.special = true;
    }

    /// When a packet that arrives now comes out at the far end; `None` if it
    /// does not.
    #[inline]
    pub(super) fn offer(&mut self, now: Ns, bytes: u32) -> Option<Ns> {
        if self.special {
            return self.offer_special(now, bytes);
        }
        self.transmit(now, u64::from(bytes) * self.byte_ns)
    }

    #[inline]
    fn transmit(&mut self, now: Ns, takes: Ns) -> Option<Ns> {
        self.busy_until = self.busy_until.max(now).saturating_add(takes);
        Some(self.busy_until.saturating_add(self.delay_ns))
    }

    fn offer_special(&mut self, now: Ns, bytes: u32) -> Option<Ns> {
        if self.rest.counted && self.is_full(now, bytes) {
            self.rest.counts.overflowed += 1;
            return None;
        }
        let rest = &mut *self.rest;
        if rest.loss.loses(&mut rest.rng) {
            rest.counts.lost += 1;
            return None;
        }
        if rest.rate_bps == 0 {
            return Some(now.saturating_add(self.delay_ns));
        }
        if rest.counted && self.busy_until > now {
            rest.waiting.push_back((self.busy_until, bytes));
            rest.waiting_bytes += u64::from(bytes);
        }
        let takes = u64::from(bytes) * BIT_S / rest.rate_bps;
        self.transmit(now, takes)
    }

    /// Packet number `packet` is on its way; true if it is the first.
    #[inline]
    pub(super) fn carry(&mut self, exit: Ns, packet: u32, packets: &mut Slab) -> bool {
        if self.next != NONE {
            self.rest.behind.push_back((exit, packets.remove(packet)));
            self.more = true;
            return false;
        }
        self.next = packet;
        true
    }

    /// The first packet comes out; answers it, and when the next one does.
    #[inline]
    pub(super) fn release(&mut self, packets: &mut Slab) -> (u32, Option<Ns>) {
        let packet = std::mem::replace(&mut self.next, NONE);
        if !self.more {
            return (packet, None);
        }
        let after = self.rest.behind.pop_front().map(|(exit, after)| {
            self.next = packets.insert(after);
            exit
        });
        self.more = !self.rest.behind.is_empty();
        (packet, after)
    }

    /// A packet has come out.
    #[inline]
    pub(super) fn count_passed(&mut self) {
        self.passed += 1;
    }

    /// A packet was lost because the link was down.
    pub(super) fn count_cut(&mut self) {
        self.rest.counts.cut += 1;
    }

    /// What became of its packets.
    pub(super) fn counts(&self) -> LinkCounts {
        LinkCounts { passed: self.passed, ..self.rest.counts }
    }

    /// How many packets wait for their transmission.
    pub(super) fn waiting(&mut self, now: Ns) -> usize {
        let rest = &mut *self.rest;
        while let Some((begins, bytes)) = rest.waiting.front().copied() {
            if begins > now {
                break;
            }
            rest.waiting.pop_front();
            rest.waiting_bytes -= u64::from(bytes);
        }
        rest.waiting.len()
    }

    fn is_full(&mut self, now: Ns, bytes: u32) -> bool {
        let waiting = self.waiting(now);
        // A packet that need not wait is never too much.
        self.busy_until > now
            && match self.rest.queue {
                QueueLimit::None => false,
                QueueLimit::Packets(limit) => waiting >= limit as usize,
                QueueLimit::Bytes(limit) => self.rest.waiting_bytes + u64::from(bytes) > limit,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(queue: QueueLimit) -> Link {
        let spec =
            LinkSpec { rate_bps: 100_000_000, delay_ns: 1_000_000, queue, loss: LossModel::Never };
        Link::new(&spec, Rng::new(0, 0))
    }

    #[test]
    fn a_rate_spaces_packets_and_a_delay_moves_them() {
        let mut link = link(QueueLimit::None);
        assert_eq!(link.offer(0, 1500), Some(1_120_000));
        assert_eq!(link.offer(0, 1500), Some(1_240_000));
        assert_eq!(link.offer(500_000, 40), Some(1_503_200));
    }

    #[test]
    fn the_packet_in_transmission_does_not_wait() {
        let mut packets = link(QueueLimit::Packets(2));
        let taken = |link: &mut Link| (0..5).filter(|_| link.offer(0, 1500).is_some()).count();
        assert_eq!(taken(&mut packets), 3);
        assert_eq!((packets.waiting(0), packets.counts().overflowed), (2, 2));
        assert_eq!(packets.waiting(120_000), 1);
        let mut bytes = link(QueueLimit::Bytes(2999));
        assert_eq!(taken(&mut bytes), 2);
    }
}
