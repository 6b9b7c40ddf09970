//! One direction of a wire: a queue, a rate, a delay, losses, outages.
//!
//! A FIFO queue before a constant rate needs no event when a packet's
//! transmission ends: the moment is known when the packet arrives. So a hop
//! costs one event, the packet's exit at the far end, and only the first packet
//! of a link has it scheduled: a long queue costs no more than a short one.

use super::loss::{Loss, LossModel};
use super::packet::{NONE, Slab};
use crate::{Ns, Rng};
use std::collections::VecDeque;

/// Limit on what waits before a wire; what exceeds it is dropped at the tail.
/// The packet in transmission does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// No limit.
    #[default]
    None,
    /// This many packets.
    Packets(u32),
    /// Packets of this many bytes together.
    Bytes(u64),
}

/// A wire in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Rate in bits per second; 0 is without limit.
    pub rate_bps: u64,
    /// Time from the end of the transmission to the arrival.
    pub delay_ns: Ns,
    /// Limit on what waits for the transmission.
    pub queue: QueueLimit,
    /// Losses on the way.
    pub loss: LossModel,
}

/// What became of the packets that a link was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that came out at the far end.
    pub passed: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets lost by the wire.
    pub lost: u64,
    /// Packets lost because the link was down.
    pub cut: u64,
}

/// Bits of a byte times nanoseconds of a second.
const BIT_S: u64 = 8_000_000_000;

/// What every packet touches fits into one cache line: with thousands of links
/// that decides what a hop costs.
#[repr(align(64))]
pub(super) struct Link {
    /// Transmission time of one byte, if that is a whole number; else 0.
    byte_ns: u64,
    delay_ns: Ns,
    busy_until: Ns,
    /// The packet that comes out next, and the last one.
    first: u32,
    last: u32,
    /// Number of outages that keep it down.
    pub(super) down: u16,
    /// Whether somebody wants to know how many packets wait.
    pub(super) is_watched: bool,
    passed: u64,
    cut: u64,
    /// Set if the queue, the losses or the rate need a closer look.
    special: Option<Box<Special>>,
}

const _: () = assert!(size_of::<Link>() == 64);

/// State that most links do not have.
struct Special {
    rate_bps: u64,
    /// Bytes of the last packet and how long its transmission took: most are of
    /// one size, and dividing is dear.
    took: (u32, Ns),
    /// Whether waiting packets are counted, because somebody wants to know.
    counted: bool,
    queue: QueueLimit,
    loss: Loss,
    rng: Rng,
    /// When the transmission of each packet that waited begins, and its bytes.
    waiting: VecDeque<(Ns, u32)>,
    waiting_bytes: u64,
    overflowed: u64,
    lost: u64,
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, rng: Rng, is_watched: bool) -> Self {
        let whole = BIT_S.checked_rem(spec.rate_bps) == Some(0);
        let counted = is_watched || spec.queue != QueueLimit::None;
        let is_special = counted || !whole || spec.loss != LossModel::Never;
        Self {
            byte_ns: if whole { BIT_S / spec.rate_bps } else { 0 },
            delay_ns: spec.delay_ns,
            busy_until: 0,
            first: NONE,
            last: NONE,
            down: 0,
            is_watched,
            passed: 0,
            cut: 0,
            special: is_special.then(|| Box::new(Special::new(spec, rng, counted))),
        }
    }

    /// When a packet that arrives now comes out at the far end; `None` if it
    /// does not.
    #[inline]
    pub(super) fn offer(&mut self, now: Ns, bytes: u32) -> Option<Ns> {
        let takes = match &mut self.special {
            None => u64::from(bytes) * self.byte_ns,
            Some(special) => special.offer(now, self.busy_until, bytes)?,
        };
        self.busy_until = self.busy_until.max(now).saturating_add(takes);
        Some(self.busy_until.saturating_add(self.delay_ns))
    }

    /// Packet number `packet` is on its way; true if it is the first.
    #[inline]
    pub(super) fn carry(&mut self, exit: Ns, packet: u32, packets: &mut Slab) -> bool {
        let last = std::mem::replace(&mut self.last, packet);
        if self.first == NONE {
            self.first = packet;
            return true;
        }
        packets.append(last, packet, exit);
        false
    }

    /// The first packet comes out; answers it, and when the next one does.
    #[inline]
    pub(super) fn release(&mut self, packets: &Slab) -> (u32, Option<Ns>) {
        let packet = self.first;
        if packet == self.last {
            self.first = NONE;
            return (packet, None);
        }
        let (behind, exit) = packets.behind(packet);
        self.first = behind;
        (packet, Some(exit))
    }

    /// The packet that comes out next, or [`NONE`].
    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Notes that a packet has come out.
    #[inline]
    pub(super) fn count_passed(&mut self) {
        self.passed += 1;
    }

    /// Notes that a packet was lost because the link was down.
    pub(super) fn count_cut(&mut self) {
        self.cut += 1;
    }

    /// Counts of what became of its packets.
    pub(super) fn counts(&self) -> LinkCounts {
        let (overflowed, lost) =
            self.special.as_ref().map_or((0, 0), |special| (special.overflowed, special.lost));
        LinkCounts { passed: self.passed, overflowed, lost, cut: self.cut }
    }

    /// Number of packets that wait for their transmission.
    pub(super) fn waiting(&mut self, now: Ns) -> usize {
        self.special.as_mut().map_or(0, |special| special.waiting(now))
    }
}

impl Special {
    fn new(spec: &LinkSpec, rng: Rng, counted: bool) -> Self {
        Self {
            rate_bps: spec.rate_bps,
            took: (0, 0),
            counted,
            queue: spec.queue,
            loss: Loss::new(spec.loss),
            rng,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            overflowed: 0,
            lost: 0,
        }
    }

    /// How long the transmission of a packet takes, if it gets there.
    fn offer(&mut self, now: Ns, busy_until: Ns, bytes: u32) -> Option<Ns> {
        if self.counted && self.is_full(now, busy_until, bytes) {
            self.overflowed += 1;
            return None;
        }
        if self.loss.loses(&mut self.rng) {
            self.lost += 1;
            return None;
        }
        if self.counted && busy_until > now {
            self.waiting.push_back((busy_until, bytes));
            self.waiting_bytes += u64::from(bytes);
        }
        if self.took.0 != bytes {
            // Without a rate it takes no time.
            let takes = (u64::from(bytes) * BIT_S).checked_div(self.rate_bps).unwrap_or(0);
            self.took = (bytes, takes);
        }
        Some(self.took.1)
    }

    fn waiting(&mut self, now: Ns) -> usize {
        while let Some((begins, bytes)) = self.waiting.front().copied() {
            if begins > now {
                break;
            }
            self.waiting.pop_front();
            self.waiting_bytes -= u64::from(bytes);
        }
        self.waiting.len()
    }

    fn is_full(&mut self, now: Ns, busy_until: Ns, bytes: u32) -> bool {
        let waiting = self.waiting(now);
        // A packet that need not wait is never too much.
        busy_until > now
            && match self.queue {
                QueueLimit::None => false,
                QueueLimit::Packets(limit) => waiting >= limit as usize,
                QueueLimit::Bytes(limit) => self.waiting_bytes + u64::from(bytes) > limit,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(queue: QueueLimit) -> Link {
        let spec =
            LinkSpec { rate_bps: 100_000_000, delay_ns: 1_000_000, queue, loss: LossModel::Never };
        Link::new(&spec, Rng::new(0, 0), false)
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
