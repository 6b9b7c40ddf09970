//! One direction of a wire: a queue, a rate, a delay, losses, outages.
//!
//! A FIFO queue before a constant rate needs no event when a packet's
//! transmission ends: the moment is known when the packet arrives. So a hop
//! costs one event, the packet's exit at the far end, and only the first packet
//! of a link has it scheduled: a long queue costs no more than a short one.

use super::loss::{Loss, LossModel};
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

pub(super) struct Link {
    rate_bps: u64,
    /// Of one byte, if that is a whole number; else 0.
    byte_ns: u64,
    delay_ns: Ns,
    busy_until: Ns,
    /// The packet that comes out next, if any, and when.
    next: Option<(Ns, u32)>,
    /// How many outages have it down.
    pub(super) down: u16,
    /// Waiting packets are counted only if somebody wants to know.
    counted: bool,
    lossy: bool,
    pub(super) counts: LinkCounts,
    /// Those that come out after it.
    behind: VecDeque<(Ns, u32)>,
    queue: QueueLimit,
    loss: Loss,
    rng: Rng,
    /// When the transmission of each packet that waited begins, and its bytes.
    waiting: VecDeque<(Ns, u32)>,
    waiting_bytes: u64,
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, rng: Rng) -> Self {
        Self {
            rate_bps: spec.rate_bps,
            byte_ns: if BIT_S.checked_rem(spec.rate_bps) == Some(0) {
                BIT_S / spec.rate_bps
            } else {
                0
            },
            delay_ns: spec.delay_ns,
            next: None,
            behind: VecDeque::new(),
            lossy: spec.loss != LossModel::Never,
            queue: spec.queue,
            loss: Loss::new(spec.loss),
            rng,
            busy_until: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            counted: spec.queue != QueueLimit::None,
            down: 0,
            counts: LinkCounts::default(),
        }
    }

    /// Somebody wants to know how many packets wait.
    pub(super) fn count_waiting(&mut self) {
        self.counted = true;
    }

    /// When a packet that arrives now comes out at the far end; `None` if it
    /// does not.
    #[inline]
    pub(super) fn offer(&mut self, now: Ns, bytes: u32) -> Option<Ns> {
        if self.counted && self.is_full(now, bytes) {
            self.counts.overflowed += 1;
            return None;
        }
        if self.lossy && self.loss.loses(&mut self.rng) {
            self.counts.lost += 1;
            return None;
        }
        if self.rate_bps == 0 {
            return Some(now + self.delay_ns);
        }
        let begins = self.busy_until.max(now);
        if self.counted && begins > now {
            self.waiting.push_back((begins, bytes));
            self.waiting_bytes += u64::from(bytes);
        }
        let takes = match self.byte_ns {
            0 => u64::from(bytes) * BIT_S / self.rate_bps,
            byte_ns => u64::from(bytes) * byte_ns,
        };
        self.busy_until = begins.saturating_add(takes);
        Some(self.busy_until.saturating_add(self.delay_ns))
    }

    /// Packet number `packet` is on its way; true if it is the first.
    #[inline]
    pub(super) fn carry(&mut self, exit: Ns, packet: u32) -> bool {
        if self.next.is_some() {
            self.behind.push_back((exit, packet));
            return false;
        }
        self.next = Some((exit, packet));
        true
    }

    /// The first packet comes out; answers it, and when the next one does.
    #[inline]
    pub(super) fn release(&mut self) -> Option<(u32, Option<Ns>)> {
        let (_, packet) = self.next.take()?;
        self.next = self.behind.pop_front();
        Some((packet, self.next.map(|it| it.0)))
    }

    /// How many packets wait for their transmission.
    pub(super) fn waiting(&mut self, now: Ns) -> usize {
        while let Some((begins, bytes)) = self.waiting.front().copied() {
            if begins > now {
                break;
            }
            self.waiting.pop_front();
            self.waiting_bytes -= u64::from(bytes);
        }
        self.waiting.len()
    }

    fn is_full(&mut self, now: Ns, bytes: u32) -> bool {
        let waiting = self.waiting(now);
        // A packet that need not wait is never too much.
        self.busy_until > now
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
        assert_eq!((packets.waiting(0), packets.counts.overflowed), (2, 2));
        assert_eq!(packets.waiting(120_000), 1);
        let mut bytes = link(QueueLimit::Bytes(2999));
        assert_eq!(taken(&mut bytes), 2);
    }
}
