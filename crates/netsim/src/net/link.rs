//! One direction of a wire: a queue, a rate, a delay, losses, outages.
//!
//! With a FIFO queue in front of a constant rate, the end of a packet's transmission needs no
//! event: it is known when the packet arrives. So a hop costs one event, the packet's exit at the
//! far end, and only the first packet of a link has its exit scheduled: a long queue costs no more
//! than a short one.

use super::loss::{Loss, LossModel};
use super::packet::{NONE, Slab};
use crate::{Ns, Rng};
use std::collections::VecDeque;

/// Limit on what waits in front of a wire; what exceeds it is dropped at the tail. The packet in
/// transmission does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// No limit.
    #[default]
    None,
    /// At most this many packets.
    Packets(u32),
    /// At most packets of this many bytes together.
    Bytes(u64),
}

/// A wire in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Rate in bits per second; 0 means no limit.
    pub rate_bps: u64,
    /// Time from the end of the transmission to the arrival.
    pub delay_ns: Ns,
    /// Limit on what waits for the transmission.
    pub queue: QueueLimit,
    /// Losses on the way.
    pub loss: LossModel,
}

/// Counts of a link's packets, by what happened to them.
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

/// Factor for transmission times: bits of a byte times nanoseconds of a second.
const BIT_S: u64 = 8_000_000_000;

/// A link. What every packet touches fits into one cache line, since with thousands of links that
/// decides the cost of a hop.
#[repr(align(64))]
pub(super) struct Link {
    /// Transmission time of one byte in ns, if that is a whole number; else 0.
    byte_ns: u64,
    delay_ns: Ns,
    busy_until: Ns,
    /// The packet that comes out next, or [`NONE`].
    first: u32,
    /// The packet that comes out last, or [`NONE`].
    last: u32,
    /// Number of outages that keep the link down.
    pub(super) down: u16,
    /// Whether the number of waiting packets is wanted.
    pub(super) is_watched: bool,
    passed: u64,
    cut: u64,
    /// State for queue, losses or rate that need more than the usual steps.
    special: Option<Box<Special>>,
}

const _: () = assert!(size_of::<Link>() == 64);

/// State that most links do not have.
struct Special {
    rate_bps: u64,
    /// Bytes of the last packet and its transmission time: most packets have one size, and a
    /// division is slow.
    took: (u32, Ns),
    /// Whether waiting packets are counted, because their number is wanted or limited.
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

    /// When a packet that arrives now comes out at the far end; `None` if it is lost.
    #[inline]
    pub(super) fn offer(&mut self, now: Ns, bytes: u32) -> Option<Ns> {
        let takes = match &mut self.special {
            None => u64::from(bytes) * self.byte_ns,
            Some(special) => special.offer(now, self.busy_until, bytes)?,
        };
        self.busy_until = self.busy_until.max(now).saturating_add(takes);
        Some(self.busy_until.saturating_add(self.delay_ns))
    }

    /// Puts packet number `packet` on the wire; returns whether it is the first.
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

    /// Takes the first packet out; returns it, and when the next one comes out.
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

    /// Counts of the link's packets.
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

    /// Time of a packet's transmission; `None` if it is dropped.
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
            // A transmission without a rate takes no time.
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
        // A packet that need not wait never exceeds the limit.
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
