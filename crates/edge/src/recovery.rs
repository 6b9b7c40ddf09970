//! HALR: high-availability local recovery (thesis chapter 3). While packets
//! pass, the edge keeps for each flow what the outage may swallow; when the
//! service is back it resends that, and no endpoint waits for its timer.

#[cfg(test)]
mod tests;

use crate::Ns;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// What is kept, and how much of it at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Unacknowledged segments kept per flow: 1 keeps the lowest (thesis §3.3),
    /// 2 the lowest and the highest, so that a SACK receiver reports the hole
    /// between them; more keeps the lowest and the highest.
    pub segments_max: usize,
    /// Keep SYNs and nothing else.
    pub syn_only: bool,
    /// How often the latest acknowledgement is resent; 0 keeps none. Three
    /// start a fast retransmit (thesis §3.3), but not where SACK was negotiated.
    pub ack_copies: u32,
    /// Flows that are remembered. One more is not, and passes unprotected.
    pub flows_max: usize,
    /// Bytes that are kept. What would exceed them is not kept.
    pub bytes_max: u64,
    /// A packet that is older is not resent: its ports may have a new owner.
    pub age_max_ns: Ns,
    /// Resends are spaced to this rate; 0 is at once.
    pub pace_bytes_per_s: u64,
    /// The further segments of a flow follow its first one after this time.
    pub tail_delay_ns: Ns,
}

impl Default for RecoveryConfig {
    /// One segment and three acknowledgements per flow, at once, for 10,000
    /// flows: 15.78 MB (thesis §3.4).
    fn default() -> Self {
        Self {
            segments_max: 1,
            syn_only: false,
            ack_copies: 3,
            flows_max: 10_000,
            bytes_max: 16 << 20,
            age_max_ns: 60_000_000_000,
            pace_bytes_per_s: 0,
            tail_delay_ns: 1_000_000,
        }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the part of the network that may fail.
    IntoCluster,
    /// Out of it.
    OutOfCluster,
}

/// What the machine must know of a packet that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// Where it goes.
    pub direction: Direction,
    /// Its first sequence number.
    pub seq: SeqNo,
    /// One beyond its last: SYN and FIN count (RFC 9293 §3.4).
    pub end: SeqNo,
    /// What it acknowledges, if it does.
    pub ack: Option<SeqNo>,
    /// Opens a connection.
    pub is_syn: bool,
    /// Ends it: FIN or RST.
    pub is_end: bool,
    /// Does this flow use SACK?
    pub sack: bool,
    /// Bytes that keeping it takes.
    pub bytes: u32,
}

/// A packet to send again, as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend<P> {
    /// The packet.
    pub packet: P,
    /// Where it goes.
    pub direction: Direction,
}

/// What the machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Packets it has taken in.
    pub kept: u64,
    /// Packets it has resent.
    pub resent: u64,
    /// Packets that found no place: a limit was reached.
    pub refused: u64,
    /// The most bytes it held at once.
    pub bytes_peak: u64,
}

#[derive(Clone, Debug)]
struct Kept<P> {
    packet: P,
    seq: SeqNo,
    end: SeqNo,
    bytes: u32,
    at: Ns,
}

#[derive(Clone, Debug)]
struct Flow<P> {
    /// Unacknowledged, by sequence number.
    segments: Vec<Kept<P>>,
    ack: Option<Kept<P>>,
    acked: Option<SeqNo>,
    sack: bool,
}

/// The cache and the kick-start of one edge. `K` names a flow in one direction
/// of its data, `P` is a packet as the caller keeps it.
///
/// Contract: [`Recovery::handle_packet`] sees every packet that passes, in both
/// directions of a flow. After [`Recovery::handle_restored`] call
/// [`Recovery::poll_resend`] until it answers `None`, and again when the time
/// that [`Recovery::poll_timeout`] names has come.
#[derive(Debug)]
pub struct Recovery<K, P> {
    config: RecoveryConfig,
    // Ordered: there is no hash to flood, and resends have the same order in
    // every run.
    flows: BTreeMap<K, Flow<P>>,
    bytes: u64,
    resends: VecDeque<(Ns, Resend<P>, u32)>,
    paced_until: Ns,
    counts: RecoveryCounts,
}

impl<K: Ord + Copy, P: Clone> Recovery<K, P> {
    /// An empty cache.
    #[must_use]
    pub fn new(config: RecoveryConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            bytes: 0,
            resends: VecDeque::new(),
            paced_until: 0,
            counts: RecoveryCounts::default(),
        }
    }

    /// A packet passes; `packet` makes the copy if it is to be kept.
    pub fn handle_packet(
        &mut self,
        now: Ns,
        key: K,
        passing: &Passing,
        packet: impl FnOnce() -> P,
    ) {
        match passing.direction {
            Direction::IntoCluster => self.data(now, key, passing, packet),
            Direction::OutOfCluster => self.acknowledgement(now, key, passing, packet),
        }
    }

    /// The flow has ended, or its ports have a new owner.
    pub fn forget(&mut self, key: K) {
        if let Some(flow) = self.flows.remove(&key) {
            self.bytes -= flow.bytes();
        }
    }

    fn data(&mut self, now: Ns, key: K, passing: &Passing, packet: impl FnOnce() -> P) {
        if passing.is_syn && self.flows.get(&key).is_some_and(|flow| flow.is_other(passing)) {
            self.forget(key);
        }
        if passing.is_end {
            // The end itself is not protected: nothing follows it.
            return self.forget(key);
        }
        let is_empty = passing.seq == passing.end;
        if is_empty || (self.config.syn_only && !passing.is_syn) || self.config.segments_max == 0 {
            return;
        }
        if !self.has_room(&key, passing.bytes) {
            self.counts.refused += 1;
            return;
        }
        let flow = self.flows.entry(key).or_insert_with(Flow::new);
        flow.sack |= passing.sack;
        if flow.acked.is_some_and(|acked| !passing.end.after(acked)) {
            return;
        }
        let Some(at) = flow.place(passing.seq, self.config.segments_max) else {
            return;
        };
        flow.segments.insert(at, Kept::new(now, passing, packet()));
        if let Some(gives_way) = gives_way(flow.segments.len(), self.config.segments_max) {
            self.bytes -= u64::from(flow.segments.remove(gives_way).bytes);
        }
        self.took(passing.bytes);
    }

    fn acknowledgement(&mut self, now: Ns, key: K, passing: &Passing, packet: impl FnOnce() -> P) {
        let Some(ack) = passing.ack else {
            return;
        };
        if passing.is_end {
            return self.forget(key);
        }
        let wanted = self.config.ack_copies > 0 && !self.config.syn_only;
        let room = self.has_room(&key, passing.bytes);
        // What is acknowledged is freed, room or not.
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        flow.sack |= passing.sack;
        if flow.acked.is_some_and(|acked| !ack.after(acked)) {
            return;
        }
        flow.acked = Some(ack);
        let mut freed = 0;
        flow.segments.retain(|kept| {
            let stays = kept.end.after(ack);
            freed += if stays { 0 } else { u64::from(kept.bytes) };
            stays
        });
        freed += flow.ack.take().map_or(0, |kept| u64::from(kept.bytes));
        self.bytes -= freed;
        if wanted && room {
            flow.ack = Some(Kept::new(now, passing, packet()));
            self.took(passing.bytes);
        }
    }

    fn has_room(&self, key: &K, bytes: u32) -> bool {
        self.bytes + u64::from(bytes) <= self.config.bytes_max
            && (self.flows.len() < self.config.flows_max || self.flows.contains_key(key))
    }

    fn took(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.counts.kept += 1;
        self.counts.bytes_peak = self.counts.bytes_peak.max(self.bytes);
    }

    /// The service is back: everything that is kept goes out again, first
    /// segments before further ones, and is then released.
    pub fn handle_restored(&mut self, now: Ns) {
        let oldest = now.saturating_sub(self.config.age_max_ns);
        let later = now + self.config.tail_delay_ns;
        let (mut first, mut further) = (Vec::new(), Vec::new());
        for flow in self.flows.values_mut() {
            let fresh = flow.segments.drain(..).filter(|kept| kept.at >= oldest);
            for (index, kept) in fresh.enumerate() {
                let list = if index == 0 { &mut first } else { &mut further };
                let at = if index == 0 { now } else { later };
                let resend = Resend { packet: kept.packet, direction: Direction::IntoCluster };
                list.push((at, resend, kept.bytes));
            }
            // Linux does not take bare duplicates for a loss once SACK is on.
            let copies = if flow.sack { 0 } else { self.config.ack_copies };
            if let Some(kept) = flow.ack.take().filter(|kept| kept.at >= oldest) {
                let resend = Resend { packet: kept.packet, direction: Direction::OutOfCluster };
                first.extend((0..copies).map(|_| (now, resend.clone(), kept.bytes)));
            }
        }
        self.bytes = 0;
        self.flows.clear();
        self.resends.extend(first);
        self.resends.extend(further);
    }

    /// The next packet to resend now.
    pub fn poll_resend(&mut self, now: Ns) -> Option<Resend<P>> {
        if self.poll_timeout()? > now {
            return None;
        }
        let (_, resend, bytes) = self.resends.pop_front()?;
        // No rate is no pause.
        let takes = (u64::from(bytes) * 1_000_000_000).checked_div(self.config.pace_bytes_per_s);
        self.paced_until = self.paced_until.max(now) + takes.unwrap_or(0);
        self.counts.resent += 1;
        Some(resend)
    }

    /// When the next packet is to be resent.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.resends.front().map(|(at, ..)| (*at).max(self.paced_until))
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> RecoveryCounts {
        self.counts
    }

    /// Bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Flows it remembers.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
}

impl<P> Kept<P> {
    fn new(at: Ns, passing: &Passing, packet: P) -> Self {
        Self { packet, seq: passing.seq, end: passing.end, bytes: passing.bytes, at }
    }
}

impl<P> Flow<P> {
    fn new() -> Self {
        Self { segments: Vec::new(), ack: None, acked: None, sack: false }
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().chain(&self.ack).map(|kept| u64::from(kept.bytes)).sum()
    }

    /// Is this SYN another connection's than what is remembered?
    fn is_other(&self, syn: &Passing) -> bool {
        self.acked.is_some_and(|acked| acked != syn.end)
            || self.segments.iter().any(|kept| kept.seq != syn.seq)
    }

    /// Where a segment goes among those that are kept; `None` if it is known
    /// or would have to give way itself.
    fn place(&self, seq: SeqNo, segments_max: usize) -> Option<usize> {
        let at = self.segments.partition_point(|kept| seq.after(kept.seq));
        let known = self.segments.get(at).is_some_and(|kept| kept.seq == seq);
        let stays = gives_way(self.segments.len() + 1, segments_max) != Some(at);
        (!known && stays).then_some(at)
    }
}

/// Which of so many segments is one too many: the lowest are waited for, and
/// beside them the highest is what tells a receiver of the hole.
fn gives_way(segments: usize, segments_max: usize) -> Option<usize> {
    (segments > segments_max).then_some(if segments_max == 1 { 1 } else { segments_max - 1 })
}
