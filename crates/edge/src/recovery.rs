//! HALR: high-availability local recovery (thesis chapter 3). While packets
//! pass, the edge keeps for each flow what the outage may swallow; when the
//! service is back, the edge resends that, and no endpoint waits for its timer.

mod kick;
mod lists;
#[cfg(test)]
mod tests;

use crate::Ns;
use crate::heaviest::Heaviest;
use crate::pool::NONE;
use holdfast_wire::seq::SeqNo;
use kick::{Kick, Looks};
use lists::{ENDING, Flow, Kept, Lists, Place, SACK};
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

/// Time between two searches of a full cache for flows that need not be
/// remembered.
const SWEEP_PERIOD_NS: Ns = 1_000_000_000;
/// Most bytes of an entry of the index: nodes of 144 bytes for 11 entries, at least 5
/// of which are used, and a level above them.
const INDEX_BYTES: usize = 40;

/// What is kept, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Most unacknowledged segments kept per flow: 1 keeps the lowest (thesis
    /// §3.3), 2 the lowest and the highest, so that a SACK receiver reports the
    /// hole between them; more keeps the lowest and the highest.
    pub segments_max: usize,
    /// Extra segments kept per flow while memory is plentiful. They are not
    /// resent, but the lowest segment of a busy flow is soon acknowledged, and
    /// the next one is among them.
    pub segments_spare: usize,
    /// Whether only SYNs are kept.
    pub syn_only: bool,
    /// How often the latest acknowledgement is resent; 0 keeps none. Three
    /// start a fast retransmit (thesis §3.3), but not where SACK was negotiated.
    pub ack_copies: u32,
    /// Most flows that are remembered. Further flows pass unprotected.
    pub flows_max: usize,
    /// Most of a flow's highest segments that are resent, instead of only the last
    /// one, if they passed after the service was last known to be there.
    pub recent_max: usize,
    /// Most bytes that are kept. A packet that would exceed them is not kept.
    pub bytes_max: u64,
    /// Age above which a packet is not resent: its ports may have a new owner.
    pub age_max_ns: Ns,
    /// Rate to which resends are spaced; 0 is at once.
    pub pace_bytes_per_s: u64,
    /// Time after which the further segments of a flow follow its first one.
    pub tail_delay_ns: Ns,
    /// Most times that a packet is resent while nothing acknowledges it.
    pub tries: u32,
    /// Time from one try to the next; longer than `tail_delay_ns`.
    pub retry_ns: Ns,
    /// Time after the last try in which an acknowledgement that asks for
    /// another segment than the resent one gets it: the receiver had more than
    /// the acknowledgements told that the outage has swallowed. 0: not at all.
    pub follow_ns: Ns,
    /// Time without an answer after which the head and the tail of a flow go out
    /// again, at this time and two more times within 9 of it. 0: never.
    pub overdue_ns: Ns,
    /// Number of flows that are kept, those with the most bytes (thesis §3.4);
    /// 0: all.
    pub heaviest: usize,
    /// Time over which these bytes are counted.
    pub window_ns: Ns,
}

impl Default for RecoveryConfig {
    /// One segment and three acknowledgements per flow, at once, for 10,000
    /// flows: 15.78 MB (thesis §3.4).
    fn default() -> Self {
        Self {
            segments_max: 1,
            segments_spare: 0,
            recent_max: 0,
            syn_only: false,
            ack_copies: 3,
            flows_max: 10_000,
            bytes_max: 16 << 20,
            age_max_ns: 60_000_000_000,
            pace_bytes_per_s: 0,
            tail_delay_ns: 1_000_000,
            tries: 1,
            retry_ns: 20_000_000,
            follow_ns: 0,
            overdue_ns: 0,
            heaviest: 0,
            window_ns: 100_000_000,
        }
    }
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the part of the network that may fail.
    IntoCluster,
    /// Out of the part of the network that may fail.
    OutOfCluster,
}

/// What the machine must know about a packet that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// Direction of the packet.
    pub direction: Direction,
    /// First sequence number of the packet.
    pub seq: SeqNo,
    /// Sequence number after its last one: SYN and FIN count (RFC 9293 §3.4).
    pub end: SeqNo,
    /// Sequence number that it acknowledges, if it does.
    pub ack: Option<SeqNo>,
    /// Whether it opens a connection.
    pub is_syn: bool,
    /// Whether it ends the connection at once, whatever is outstanding: RST.
    pub is_end: bool,
    /// Whether it is the last segment of its direction: FIN.
    pub is_last: bool,
    /// Whether this flow uses SACK. `None`: the packet does not tell.
    pub sack: Option<bool>,
    /// Bytes that keeping it takes.
    pub bytes: u32,
}

/// A packet to send again, as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend<P> {
    /// The packet.
    pub packet: P,
    /// Direction of the packet.
    pub direction: Direction,
}

/// Counts of what the machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Packets it has taken in.
    pub kept: u64,
    /// Packets it has resent.
    pub resent: u64,
    /// Packets for which there was no room: a limit was reached.
    pub refused: u64,
    /// The most bytes it held at once.
    pub bytes_peak: u64,
}

/// Where packets are kept.
pub trait PacketStore {
    /// Name of a packet for the machine.
    type Packet: Copy;
    /// Releases a packet that the machine will not name again.
    fn release(&mut self, packet: Self::Packet);
}

/// Packets that are their own names and need no releasing.
#[derive(Clone, Copy, Debug)]
pub struct Inline<P>(PhantomData<P>);

impl<P> Default for Inline<P> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<P: Copy> PacketStore for Inline<P> {
    type Packet = P;

    fn release(&mut self, _: P) {}
}

/// The cache and the kick-start of one edge. `K` names a flow in one direction
/// of its data, `S` is where the caller's packets are kept.
///
/// Contract: [`Recovery::handle_packet`] sees every packet that passes, in both
/// directions of a flow. After [`Recovery::handle_restored`] call
/// [`Recovery::poll_resend`] until it answers `None`, and again when the time
/// that [`Recovery::poll_timeout`] names has come. A packet that it answers
/// with is kept until the next call.
#[derive(Debug)]
pub struct Recovery<K, S: PacketStore> {
    config: RecoveryConfig,
    shelf: S,
    // Ordered: there is no hash to flood, and resends have the same order in
    // every run.
    flows: BTreeMap<K, u32>,
    /// Flows that are being resent; what passes meanwhile is kept anew.
    leaving: BTreeMap<K, u32>,
    lists: Lists<S::Packet>,
    /// Flows to release with the next call.
    spent: Vec<u32>,
    bytes: u64,
    kick: Option<Kick<K>>,
    looks: Option<Looks>,
    /// Flows whose receiver waits for the segment that is now the lowest.
    asked: BTreeSet<K>,
    paced_until: Ns,
    heaviest: Option<Heaviest<K>>,
    swept: Option<Ns>,
    counts: RecoveryCounts,
}

impl<K: Ord + Copy, S: PacketStore> Recovery<K, S> {
    /// An empty cache.
    #[must_use]
    pub fn new(config: RecoveryConfig, shelf: S) -> Self {
        let heaviest =
            (config.heaviest > 0).then(|| Heaviest::new(config.heaviest, config.window_ns));
        Self {
            config,
            shelf,
            flows: BTreeMap::new(),
            leaving: BTreeMap::new(),
            lists: Lists::new(),
            spent: Vec::new(),
            bytes: 0,
            kick: None,
            looks: None,
            asked: BTreeSet::new(),
            paced_until: 0,
            heaviest,
            swept: None,
            counts: RecoveryCounts::default(),
        }
    }

    /// Notes a packet that passes; `packet` puts a copy on the shelf if the
    /// packet is to be kept, or answers that there is no room.
    pub fn handle_packet(
        &mut self,
        now: Ns,
        key: K,
        passing: &Passing,
        packet: impl FnOnce(&mut S) -> Option<S::Packet>,
    ) {
        self.release_spent();
        match passing.direction {
            Direction::IntoCluster => self.data(now, key, passing, packet),
            Direction::OutOfCluster => self.acknowledgement(now, key, passing, packet),
        }
    }

    /// Forgets a flow that has ended, or whose ports have a new owner.
    pub fn forget(&mut self, key: K) {
        self.release_spent();
        for flow in [self.flows.remove(&key), self.leaving.remove(&key)].into_iter().flatten() {
            self.release(flow);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.release_spent();
        let (flows, leaving) = (std::mem::take(&mut self.flows), std::mem::take(&mut self.leaving));
        flows.into_values().chain(leaving.into_values()).for_each(|flow| self.release(flow));
        (self.kick, self.looks) = (None, None);
        self.asked.clear();
    }

    fn data(
        &mut self,
        now: Ns,
        key: K,
        passing: &Passing,
        packet: impl FnOnce(&mut S) -> Option<S::Packet>,
    ) {
        if passing.is_syn && self.is_other(key, passing) {
            self.forget(key);
        }
        if passing.is_end {
            return self.forget(key);
        }
        let is_empty = passing.seq == passing.end;
        if is_empty || (self.config.syn_only && !passing.is_syn) || self.config.segments_max == 0 {
            return;
        }
        if !self.is_heavy(now, key, passing) {
            return;
        }
        if !self.has_room(now, &key, passing.bytes) {
            self.counts.refused += 1;
            return;
        }
        let known = self.flows.get(&key).copied();
        let flow = known.unwrap_or_else(|| self.lists.flows.put(Flow::new(now)));
        self.flows.insert(key, flow);
        assert!(self.flows() <= self.config.flows_max, "L6: more flows than the limit");
        self.keep_segment(now, flow, passing, packet);
        // Nothing was kept, and nothing is known of it.
        if known.is_none() && self.lists.flows[flow].is_bare() {
            self.flows.remove(&key);
            self.release(flow);
        }
    }

    fn keep_segment(
        &mut self,
        now: Ns,
        flow: u32,
        passing: &Passing,
        packet: impl FnOnce(&mut S) -> Option<S::Packet>,
    ) {
        let at = &mut self.lists.flows[flow];
        at.touch(now);
        // A flow without a seen SYN is assumed to use SACK, as nearly all do:
        // bare duplicates would do nothing there.
        let is_new = at.segments == 0 && at.acked().is_none();
        at.mark(SACK, passing.sack.unwrap_or(is_new && !passing.is_syn));
        at.mark(ENDING, passing.is_last);
        if at.acked().is_some_and(|acked| !passing.end.after(acked)) {
            return;
        }
        let max = self.segments_allowed(flow);
        while let Some(goes) = self.one_too_many(flow, max) {
            self.drop_segment(flow, goes);
        }
        let segments = usize::from(self.lists.flows[flow].segments);
        let (before, index) = match self.lists.place(flow, passing.seq) {
            // The original is resent: its timestamp tells the sender that its
            // timer was wrong (RFC 3522).
            Place::Known(kept) => return self.lists.kept[kept].touch(now),
            Place::At { before, index } => (before, index),
        };
        if gives_way(segments + 1, max) == Some(index) {
            return;
        }
        let Some(packet) = packet(&mut self.shelf) else {
            self.counts.refused += 1;
            return;
        };
        self.lists.insert(flow, before, Kept::new(now, passing, packet));
        if let Some(goes) = self.one_too_many(flow, max) {
            self.drop_segment(flow, goes);
        }
        self.took(passing.bytes);
        let segments = usize::from(self.lists.flows[flow].segments);
        assert!(segments <= max, "L6: more segments of a flow than the limit");
    }

    /// Number of segments that a flow may have now: with spare ones while half of
    /// the memory is free, no more of them than it has while a quarter is, and
    /// then none.
    fn segments_allowed(&self, flow: u32) -> usize {
        let (least, most) = (self.config.segments_max, self.config.segments_spare);
        let has = usize::from(self.lists.flows[flow].segments);
        let max = match 4 * self.bytes / self.config.bytes_max.max(1) {
            0 | 1 => least + most,
            2 => has.clamp(least, least + most),
            _ => least,
        };
        max.min(usize::from(u16::MAX - 1))
    }

    fn one_too_many(&self, flow: u32, max: usize) -> Option<u32> {
        let segments = usize::from(self.lists.flows[flow].segments);
        gives_way(segments, max).and_then(|at| self.lists.nth(flow, at))
    }

    fn acknowledgement(
        &mut self,
        now: Ns,
        key: K,
        passing: &Passing,
        packet: impl FnOnce(&mut S) -> Option<S::Packet>,
    ) {
        if passing.is_end {
            return self.forget(key);
        }
        let Some(ack) = passing.ack else {
            return;
        };
        if let Some(flow) = self.leaving.get(&key).copied() {
            let before = self.lists.flows[flow].first;
            self.free_acked(flow, ack);
            self.follow(key, flow, before);
        }
        let wanted = self.config.ack_copies > 0 && !self.config.syn_only;
        // Acknowledged segments are freed, whether there is room or not.
        let room = wanted && self.has_room(now, &key, passing.bytes);
        let Some(flow) = self.flows.get(&key).copied() else {
            return;
        };
        let at = &mut self.lists.flows[flow];
        at.touch(now);
        at.mark(SACK, passing.sack.unwrap_or(false));
        if at.acked().is_some_and(|acked| !ack.after(acked)) {
            return;
        }
        at.set_acked(ack);
        let sack = at.has(SACK);
        self.free_acked(flow, ack);
        if self.lists.flows[flow].has(ENDING) && self.lists.flows[flow].first == NONE {
            return self.forget(key);
        }
        // Linux does not take bare duplicates for a loss once SACK is on.
        if room
            && !sack
            && let Some(packet) = packet(&mut self.shelf)
        {
            let kept = Kept::new(now, passing, packet);
            self.lists.flows[flow].ack = self.lists.kept.put(kept);
            self.took(passing.bytes);
        }
    }

    /// Drops the segments below `ack`, and the acknowledgement kept before it.
    fn free_acked(&mut self, flow: u32, ack: SeqNo) {
        let mut next = self.lists.flows[flow].first;
        for _ in 0..self.lists.flows[flow].segments {
            let (at, kept) = (next, &self.lists.kept[next]);
            next = kept.next();
            if !kept.end.after(ack) {
                self.drop_segment(flow, at);
            }
        }
        if let Some(kept) = self.lists.remove_ack(flow) {
            self.gone(&kept);
        }
    }

    fn drop_segment(&mut self, flow: u32, at: u32) {
        let kept = self.lists.remove(flow, at);
        self.gone(&kept);
    }

    fn gone(&mut self, kept: &Kept<S::Packet>) {
        let bytes = u64::from(kept.bytes);
        assert!(bytes <= self.bytes, "L6: more is given back than was taken");
        self.bytes -= bytes;
        self.shelf.release(kept.packet);
    }

    /// Drops a flow that is no longer in either map.
    fn release(&mut self, flow: u32) {
        while self.lists.flows[flow].first != NONE {
            self.drop_segment(flow, self.lists.flows[flow].first);
        }
        if let Some(kept) = self.lists.remove_ack(flow) {
            self.gone(&kept);
        }
        self.lists.flows.take(flow);
    }

    fn release_spent(&mut self) {
        while let Some(flow) = self.spent.pop() {
            self.release(flow);
        }
    }

    /// Whether this SYN belongs to another connection than what is remembered.
    fn is_other(&self, key: K, syn: &Passing) -> bool {
        let known = [self.flows.get(&key), self.leaving.get(&key)];
        known.into_iter().flatten().any(|flow| {
            let acked = self.lists.flows[*flow].acked();
            acked.is_some_and(|acked| acked != syn.end)
                || self.lists.segments(*flow).any(|at| self.lists.kept[at].seq != syn.seq)
        })
    }

    fn is_heavy(&mut self, now: Ns, key: K, passing: &Passing) -> bool {
        let Some(heaviest) = &mut self.heaviest else { return true };
        // Not `bytes`: keeping takes the same for one byte and a hundred.
        let sent = passing.end.since(passing.seq).unsigned_abs();
        let is_new_choice = heaviest.see(now, key, sent);
        let is_heavy = heaviest.has(key);
        if is_new_choice {
            let mut gone = Vec::new();
            for key in self.flows.keys().filter(|key| !heaviest.has(**key)) {
                gone.push(*key);
            }
            for flow in
                gone.into_iter().filter_map(|key| self.flows.remove(&key)).collect::<Vec<_>>()
            {
                self.release(flow);
            }
        }
        is_heavy
    }

    fn has_room(&mut self, now: Ns, key: &K, bytes: u32) -> bool {
        if self.fits(key, bytes) {
            return true;
        }
        let due = self.swept.is_none_or(|swept| now >= swept + SWEEP_PERIOD_NS);
        if due {
            self.swept = Some(now);
            self.sweep(now);
        }
        due && self.fits(key, bytes)
    }

    fn fits(&self, key: &K, bytes: u32) -> bool {
        self.bytes + u64::from(bytes) <= self.config.bytes_max
            && (self.flows() < self.config.flows_max || self.flows.contains_key(key))
    }

    /// Forgets flows that have nothing kept, and those that are too old.
    fn sweep(&mut self, now: Ns) {
        let age = self.config.age_max_ns;
        let lists = &self.lists;
        let is_useless =
            |flow: u32| lists.flows[flow].is_bare() || lists.flows[flow].is_older(now, age);
        let gone: Vec<K> =
            self.flows.iter().filter(|(_, flow)| is_useless(**flow)).map(|(key, _)| *key).collect();
        for key in gone {
            if let Some(flow) = self.flows.remove(&key) {
                self.release(flow);
            }
        }
    }

    fn took(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
        assert!(self.bytes <= self.config.bytes_max, "L6: more bytes than the limit");
        self.counts.kept += 1;
        self.counts.bytes_peak = self.counts.bytes_peak.max(self.bytes);
    }

    /// Counts of what the machine did so far.
    #[must_use]
    pub fn counts(&self) -> RecoveryCounts {
        self.counts
    }

    /// Bytes that it holds, as its caller counts them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of flows that it remembers.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len() + self.leaving.len()
    }

    /// Number of those flows that are not being resent.
    #[must_use]
    pub fn kept_flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes asked of the allocator, without the shelf: exact except for the
    /// index, for which this is an upper bound.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lists.flows.memory_bytes()
            + self.lists.kept.memory_bytes()
            + self.flows() * INDEX_BYTES
    }

    /// Bytes that keeping a packet takes beside its place on the shelf.
    #[must_use]
    pub fn packet_overhead_bytes() -> usize {
        size_of::<Kept<S::Packet>>()
    }

    /// Most bytes that remembering a flow takes.
    #[must_use]
    pub fn flow_overhead_bytes() -> usize {
        size_of::<Flow>() + INDEX_BYTES
    }

    /// The shelf that the packets are on.
    #[must_use]
    pub fn shelf(&self) -> &S {
        &self.shelf
    }
}

/// Index of the segment to drop if there is one too many: receivers wait for
/// the lowest ones, and beside them the highest tells a receiver of the hole.
fn gives_way(segments: usize, segments_max: usize) -> Option<usize> {
    (segments > segments_max).then_some(if segments_max == 1 { 1 } else { segments_max - 1 })
}
