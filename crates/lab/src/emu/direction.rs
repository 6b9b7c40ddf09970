//! One direction of an emulated wire as a machine: frames go in with the time,
//! and come out with the time at which they are due. It reads no clock and no
//! device, so its decisions are those of its seed.

use super::segment::{destination, for_each_packet};
use super::spec::EmuSpec;
use holdfast_chance::Rng;
use holdfast_netsim::net::loss::{Loss, LossModel};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Most bytes that may wait in one direction; what exceeds them is dropped.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Time for which a reordered packet of an undelayed wire is held, in ns; the packets behind it
/// overtake it.
const HELD_BACK_NS: u64 = 500_000;

/// Rate in bits per second below which a frame of many segments is cut, since it would be a burst
/// that no such wire can produce.
const CUT_BELOW_RATE: u64 = 200_000_000;

/// Bytes of a full-sized packet, in which the queue limit counts.
const PACKET_BYTES: u64 = 1500;

/// Most buffers that are kept for reuse.
const SPARE_MAX: usize = 4096;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at_ns: u64,
    order: u64,
    frame: Vec<u8>,
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) lost: u64,
    pub(super) reordered: u64,
    pub(super) duplicated: u64,
    pub(super) overflowed: u64,
}

pub(super) struct Direction {
    spec: EmuSpec,
    link_len: usize,
    delay_ns: u64,
    jitter_ns: u64,
    per_packet: bool,
    rng: Rng,
    loss: Loss,
    busy_until_ns: u64,
    order: u64,
    waiting: BinaryHeap<Reverse<Due>>,
    waiting_bytes: usize,
    spare: Vec<Vec<u8>>,
    counts: Counts,
}

impl Direction {
    /// A direction without traffic; `which` distinguishes the two directions of a wire.
    pub(super) fn new(spec: EmuSpec, link_len: usize, which: u64) -> Self {
        let per_packet = spec.loss > 0.0
            || spec.reorder > 0.0
            || spec.duplicate > 0.0
            || spec.rate_bits_per_second.is_some_and(|rate| rate < CUT_BELOW_RATE);
        Self {
            rng: Rng::of_state(spec.seed.wrapping_mul(2).wrapping_add(which)),
            loss: Loss::new(LossModel::Bernoulli(spec.loss)),
            delay_ns: nanos(spec.delay),
            jitter_ns: nanos(spec.jitter),
            link_len,
            per_packet,
            busy_until_ns: 0,
            order: 0,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            spare: Vec::new(),
            counts: Counts::default(),
            spec,
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the frame passes untouched: it may be sent at once.
    pub(super) fn passes(&self, frame: &[u8]) -> bool {
        if self.spec.is_transparent() {
            return true;
        }
        match self.spec.only_to {
            Some(only) => destination(frame, self.link_len) != Some(only),
            None => false,
        }
    }

    /// Takes a frame that arrived at `now_ns`.
    pub(super) fn offer(&mut self, now_ns: u64, frame: &[u8]) {
        if self.per_packet {
            for_each_packet(frame, self.link_len, |packet| self.packet(now_ns, packet));
        } else {
            self.packet(now_ns, frame);
        }
    }

    fn packet(&mut self, now_ns: u64, packet: &[u8]) {
        // Every effect draws once for every packet, whatever the outcome of the others, so that a
        // seed loses the same packets with and without reordering.
        let lost = self.loss.loses(&mut self.rng);
        let reordered = self.rng.chance(self.spec.reorder);
        let duplicated = self.rng.chance(self.spec.duplicate);
        let jitter = self.rng.below(2 * self.jitter_ns + 1);
        if lost {
            self.counts.lost += 1;
            return;
        }
        let Some(sent_ns) = self.transmit(now_ns, packet.len() as u64) else {
            self.counts.overflowed += 1;
            return;
        };
        let delayed = (sent_ns + self.delay_ns + jitter).saturating_sub(self.jitter_ns);
        let due_ns = match (reordered, self.delay_ns) {
            (false, _) => delayed.max(sent_ns),
            (true, 0) => sent_ns + HELD_BACK_NS,
            // A reordered packet skips the delay, as in netem.
            (true, _) => sent_ns,
        };
        self.counts.reordered += u64::from(reordered);
        self.wait(due_ns, packet);
        if duplicated {
            self.counts.duplicated += 1;
            self.wait(due_ns, packet);
        }
    }

    /// When the last bit is on the wire, in ns; `None` if the queue is full.
    fn transmit(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        let Some(rate) = self.spec.rate_bits_per_second else {
            return Some(now_ns);
        };
        let start = self.busy_until_ns.max(now_ns);
        let backlog_bytes = u128::from(start - now_ns) * u128::from(rate) / 8_000_000_000;
        if backlog_bytes > u128::from(u64::from(self.spec.queue_packets) * PACKET_BYTES) {
            return None;
        }
        let duration = u128::from(bytes) * 8_000_000_000 / u128::from(rate);
        self.busy_until_ns = start + u64::try_from(duration).unwrap_or(u64::MAX / 4);
        Some(self.busy_until_ns)
    }

    fn wait(&mut self, at_ns: u64, packet: &[u8]) {
        if self.waiting_bytes + packet.len() > WAITING_BYTES_MAX {
            self.counts.overflowed += 1;
            return;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(packet);
        self.waiting_bytes += frame.len();
        self.order += 1;
        self.waiting.push(Reverse(Due { at_ns, order: self.order, frame }));
    }

    /// When the next frame is due, ns.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.waiting.peek().map(|due| due.0.at_ns)
    }

    /// The next frame that is due by `now_ns`; give it back with [`Self::reuse`].
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        let frame = self.waiting.pop()?.0.frame;
        self.waiting_bytes -= frame.len();
        self.counts.passed += 1;
        Some(frame)
    }

    /// Takes a buffer back.
    pub(super) fn reuse(&mut self, frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(text: &str) -> Direction {
        let spec = EmuSpec::parse(&text.split_whitespace().collect::<Vec<_>>()).unwrap();
        Direction::new(spec, 14, 0)
    }

    fn drain(direction: &mut Direction) -> Vec<(u64, u8)> {
        let mut out = Vec::new();
        while let Some(at) = direction.next_due_ns() {
            let frame = direction.take_due(at).unwrap();
            out.push((at, frame[0]));
            direction.reuse(frame);
        }
        out
    }

    #[test]
    fn a_delay_keeps_the_order() {
        let mut wire = direction("delay 50ms");
        wire.offer(0, &[1; 60]);
        wire.offer(10, &[2; 60]);
        assert_eq!(wire.take_due(49_999_999), None);
        assert_eq!(drain(&mut wire), [(50_000_000, 1), (50_000_010, 2)]);
    }

    #[test]
    fn a_rate_spaces_packets_and_limits_the_queue() {
        let mut wire = direction("rate 1gbit queue 2");
        for index in 0..10 {
            wire.offer(0, &[index; 1500]);
        }
        let times: Vec<u64> = drain(&mut wire).iter().map(|due| due.0).collect();
        assert_eq!(times, [12_000, 24_000, 36_000]);
        assert_eq!(wire.counts().overflowed, 7);
    }

    #[test]
    fn loss_is_the_share_asked_for_and_the_same_for_a_seed() {
        let run = || {
            let mut wire = direction("loss 1% seed 42");
            for index in 0..100_000u32 {
                wire.offer(u64::from(index), &[0; 60]);
            }
            wire.counts()
        };
        assert!((900..1100).contains(&run().lost), "{:?}", run());
        assert_eq!(run(), run());
    }

    #[test]
    fn reordered_packets_overtake_or_are_overtaken() {
        let mut wire = direction("delay 1ms reorder 50% seed 3");
        (0..20u8).for_each(|index| wire.offer(u64::from(index), &[index; 60]));
        let order: Vec<u8> = drain(&mut wire).iter().map(|due| due.1).collect();
        assert!(order.windows(2).any(|pair| pair[0] > pair[1]));
        assert_eq!(order.len(), 20);
    }

    #[test]
    fn only_the_address_named_is_touched() {
        let wire = direction("loss 100% only to 10.9.0.100");
        let mut frame = vec![0u8; 10 + 14 + 20];
        frame[22..24].copy_from_slice(&[8, 0]);
        frame[24] = 0x45;
        frame[40..44].copy_from_slice(&[10, 9, 0, 3]);
        assert!(wire.passes(&frame));
        frame[43] = 100;
        assert!(!wire.passes(&frame));
    }
}
