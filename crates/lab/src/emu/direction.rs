//! One direction of an emulated wire as a machine: frames go in with the time,
//! and come out with the time at which they are due. It reads no clock and no
//! device, so its decisions are those of its seed.

use super::segment::{VNET_LEN, destination, for_each_packet};
use super::spec::EmuSpec;
use holdfast_chance::Rng;
use holdfast_netsim::net::loss::{Loss, LossModel};
use serde::{Deserialize, Serialize};
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

/// Packets, and their bytes from the IP header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let packets = self.packets.saturating_sub(earlier.packets);
        Self { packets, bytes: self.bytes.saturating_sub(earlier.bytes) }
    }
}

/// What became of the packets of one direction. Packets that the wire does not touch (`only to`, or
/// a wire that does nothing) are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Came to the wire.
    pub offered: Amount,
    /// Vanished before the queue.
    pub lost: Amount,
    /// Vanished behind the queue.
    pub lost_behind: Amount,
    /// Vanished in an outage.
    pub cut: Amount,
    /// Found no room in the queue.
    pub overflowed: Amount,
    /// Came out at the other end, duplicates included.
    pub passed: Amount,
    /// Were sent out of turn.
    pub reordered: u64,
    /// Were sent twice.
    pub duplicated: u64,
}

impl Counts {
    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            offered: self.offered.since(earlier.offered),
            lost: self.lost.since(earlier.lost),
            lost_behind: self.lost_behind.since(earlier.lost_behind),
            cut: self.cut.since(earlier.cut),
            overflowed: self.overflowed.since(earlier.overflowed),
            passed: self.passed.since(earlier.passed),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            duplicated: self.duplicated.saturating_sub(earlier.duplicated),
        }
    }

    /// Share of the packets that came to the wire and vanished, full queues apart.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let lost = self.lost.packets + self.lost_behind.packets + self.cut.packets;
        lost as f64 / self.offered.packets.max(1) as f64
    }
}

pub(super) struct Direction {
    spec: EmuSpec,
    link_len: usize,
    delay_ns: u64,
    jitter_ns: u64,
    per_packet: bool,
    rng: Rng,
    bursts: Loss,
    loss_behind: Loss,
    /// When the first packet came, from which outages are counted.
    begun_ns: Option<u64>,
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
            || spec.bursts != LossModel::Never
            || spec.loss_behind != LossModel::Never
            || spec.reorder > 0.0
            || spec.duplicate > 0.0
            || spec.rate_bits_per_second.is_some_and(|rate| rate < CUT_BELOW_RATE);
        Self {
            rng: Rng::of_state(spec.seed.wrapping_mul(2).wrapping_add(which)),
            bursts: Loss::new(spec.bursts),
            loss_behind: Loss::new(spec.loss_behind),
            begun_ns: None,
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

    /// What became of its packets so far.
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
        let lost = self.rng.chance(self.spec.loss);
        let reordered = self.rng.chance(self.spec.reorder);
        let duplicated = self.rng.chance(self.spec.duplicate);
        let jitter = self.rng.below(2 * self.jitter_ns + 1);
        let lost = self.bursts.loses(&mut self.rng) || lost;
        let lost_behind = self.loss_behind.loses(&mut self.rng);
        let bytes = self.ip_bytes(packet);
        self.counts.offered.add(bytes);
        if self.is_cut(now_ns) {
            return self.counts.cut.add(bytes);
        }
        if lost {
            return self.counts.lost.add(bytes);
        }
        let Some(sent_ns) = self.transmit(now_ns, packet.len() as u64) else {
            return self.counts.overflowed.add(bytes);
        };
        if lost_behind {
            return self.counts.lost_behind.add(bytes);
        }
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

    fn ip_bytes(&self, packet: &[u8]) -> u64 {
        packet.len().saturating_sub(VNET_LEN + self.link_len) as u64
    }

    /// Whether an outage swallows what comes now.
    fn is_cut(&mut self, now_ns: u64) -> bool {
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let Some(outage) = self.spec.outage else { return false };
        let (length_ns, every_ns) = (nanos(outage.length), nanos(outage.every).max(1));
        now_ns.saturating_sub(begun_ns) % every_ns >= every_ns.saturating_sub(length_ns)
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
            self.counts.overflowed.add(self.ip_bytes(packet));
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
        self.counts.passed.add(self.ip_bytes(&frame));
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
        let spec = text.parse().unwrap();
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
        assert_eq!(wire.counts().overflowed.packets, 7);
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
        assert!((900..1100).contains(&run().lost.packets), "{:?}", run());
        assert_eq!(run(), run());
    }

    #[test]
    fn what_is_lost_behind_the_queue_has_taken_its_time() {
        // Other bytes would be those of a frame that is cut into packets.
        let offer = |words: &str, times| {
            let mut wire = direction(words);
            (0..times).for_each(|_| wire.offer(0, &[0; 1500]));
            wire
        };
        let wire = offer("rate 1gbit loss-behind gemodel 100% 0%", 3);
        assert_eq!(wire.busy_until_ns, 36_000);
        assert_eq!((wire.counts().lost_behind.packets, wire.counts().passed.packets), (3, 0));
        assert_eq!(offer("rate 1gbit loss 100%", 1).busy_until_ns, 0);
        let count = |words: &str| {
            let counts = offer(words, 10).counts();
            (counts.lost.packets, counts.lost_behind.packets, counts.overflowed.packets)
        };
        assert_eq!(count("rate 1gbit queue 2 loss-behind 100%"), (0, 3, 7));
        assert_eq!(count("rate 1gbit queue 2 loss 100%"), (10, 0, 0));
    }

    #[test]
    fn bursts_are_in_runs_of_the_length_asked_for() {
        let mut wire = direction("loss gemodel 3.7% 33.3% seed 5");
        let lost: Vec<bool> = (0..100_000u64)
            .map(|at| {
                let before = wire.counts().lost.packets;
                wire.offer(at, &[0; 60]);
                wire.counts().lost.packets > before
            })
            .collect();
        let runs = lost.windows(2).filter(|pair| pair[0] && !pair[1]).count();
        let share = wire.counts().loss();
        assert!((share - 0.1).abs() < 0.01, "{share}");
        let length = share * lost.len() as f64 / runs as f64;
        assert!((2.8..3.2).contains(&length), "{length}");
    }

    #[test]
    fn an_outage_swallows_all_for_its_time_and_comes_again() {
        let mut wire = direction("outage 100ms every 1s");
        for at_ms in 0..2000u64 {
            wire.offer(7 + at_ms * 1_000_000, &[0; 10 + 14 + 40]);
        }
        let counts = wire.counts();
        assert_eq!((counts.cut.packets, counts.cut.bytes), (200, 8000));
        drain(&mut wire);
        assert_eq!(wire.counts().passed.packets, 1800);
        assert_eq!(wire.counts().since(counts).cut.packets, 0);
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
