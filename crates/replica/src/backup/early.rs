//! What the tap showed of connections that the primary has not announced yet:
//! their SYNs, and the segments that followed.

use super::SYN_AGE_MAX;
use crate::Nanos;
use crate::limits::Limits;
use crate::segment::OwnedSegment;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::TcpPacket;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// Longest time after its SYN in which the primary announces a connection, if it ever
/// does.
const RECORD_AFTER_MAX: Nanos = Nanos::from_ms(100);

/// Early SYNs and segments; see the module.
#[derive(Debug)]
pub(super) struct Early {
    limits: Limits,
    /// SYNs in the order of arrival.
    syns: BTreeMap<u64, (Nanos, OwnedSegment)>,
    /// The place of each SYN, by tuple and sequence number.
    numbers: BTreeMap<(ConnKey, u32), u64>,
    /// Place of the next SYN or segment.
    next: u64,
    /// Segments in the order of arrival.
    segments: BTreeMap<u64, OwnedSegment>,
    /// The places of each tuple's segments.
    places: BTreeMap<ConnKey, VecDeque<u64>>,
    bytes: usize,
    /// Whether segments of tuples without a SYN are kept, too: a joiner hears later of
    /// connections that are older than its tap. The oldest of a tuple that has several give way,
    /// for the image that is yet to be taken has them; a single one may wait to be accepted.
    keeps_strangers: bool,
}

impl Early {
    pub(super) fn new(limits: Limits) -> Self {
        let (syns, numbers) = (BTreeMap::new(), BTreeMap::new());
        let (segments, places) = (BTreeMap::new(), BTreeMap::new());
        let (next, bytes, keeps_strangers) = (0, 0, false);
        Self { limits, syns, numbers, next, segments, places, bytes, keeps_strangers }
    }

    /// Keeps every segment from now on, whatever its tuple.
    pub(super) fn keep_strangers(&mut self) {
        self.keeps_strangers = true;
    }

    /// Forgets the segments of strangers: all connections older than the tap have
    /// been announced, and what is left belongs to connections that are over.
    pub(super) fn forget_strangers(&mut self, now: Nanos) {
        self.keeps_strangers = false;
        while let Some(syn) = self.syns.first_entry()
            && now.since(syn.get().0) >= RECORD_AFTER_MAX
        {
            let (_, syn) = syn.remove();
            self.numbers.remove(&(syn.key(), syn.view().seq.0));
        }
        let is_stranger = |key: &&ConnKey| !self.knows(key);
        let strangers: Vec<_> = self.places.keys().filter(is_stranger).copied().collect();
        for key in strangers {
            self.take(&key);
        }
    }

    /// Whether the tuple's SYN is here.
    fn knows(&self, key: &ConnKey) -> bool {
        self.numbers.range((*key, 0)..=(*key, u32::MAX)).next().is_some()
    }

    /// Keeps a SYN; a repeated one replaces the older copy, and the oldest gives
    /// way to it.
    pub(super) fn keep_syn(&mut self, now: Nanos, syn: &TcpPacket<'_>) {
        while self.syns.first_key_value().is_some_and(|(_, (at, _))| {
            self.syns.len() >= self.limits.syns_max || now.since(*at) >= SYN_AGE_MAX
        }) {
            if let Some((_, (_, syn))) = self.syns.pop_first() {
                let (key, seq) = (syn.key(), syn.view().seq);
                self.numbers.remove(&(key, seq.0));
                self.take(&key);
            }
        }
        let number = (syn.client_to_server_key(), syn.seq.0);
        if let Some(older) = self.numbers.insert(number, self.next) {
            self.syns.remove(&older);
        }
        self.syns.insert(self.next, (now, OwnedSegment::new(syn)));
        self.next += 1;
        assert!(self.syns.len() <= self.limits.syns_max, "L6: more SYNs than the limit");
        assert!(self.numbers.len() == self.syns.len(), "every SYN is found by its number");
    }

    /// Keeps a segment of a tuple whose SYN is here, or of any tuple while strangers are
    /// kept, if there is room.
    pub(super) fn keep(&mut self, segment: &TcpPacket<'_>) {
        let key = segment.client_to_server_key();
        if !self.keeps_strangers && !self.knows(&key) {
            return;
        }
        let size = segment.payload.len() + segment.raw.len() + size_of::<OwnedSegment>();
        let max = self.limits.early_bytes_max;
        while self.keeps_strangers && self.bytes + size > max && self.drop_oldest() {}
        if self.bytes + size <= max {
            self.bytes += size;
            self.segments.insert(self.next, OwnedSegment::new(segment));
            self.places.entry(key).or_default().push_back(self.next);
            self.next += 1;
        }
        assert!(self.bytes <= max, "L6: more early bytes than the limit");
    }

    /// Makes room; false if no tuple has more than one segment.
    fn drop_oldest(&mut self) -> bool {
        while self.segments.len() > self.places.len()
            && let Some((_, oldest)) = self.segments.pop_first()
        {
            let places = self.places.entry(oldest.key()).or_default();
            places.pop_front();
            if !places.is_empty() {
                self.bytes -= oldest.bytes();
                return true;
            }
            // It is as good as new, so that it is not met again with each one that is dropped.
            places.push_back(self.next);
            self.segments.insert(self.next, oldest);
            self.next += 1;
        }
        false
    }

    /// Takes the SYN of a connection that is being announced.
    pub(super) fn take_syn(&mut self, key: &ConnKey, irs: SeqNo) -> Option<OwnedSegment> {
        let number = self.numbers.remove(&(*key, irs.0))?;
        self.syns.remove(&number).map(|(_, syn)| syn)
    }

    /// Takes the segments of this tuple, in the order of arrival.
    pub(super) fn take(&mut self, key: &ConnKey) -> Vec<OwnedSegment> {
        let places = self.places.remove(key).unwrap_or_default();
        let segments = places.iter().filter_map(|place| self.segments.remove(place));
        let segments: Vec<_> = segments.collect();
        self.bytes -= segments.iter().map(OwnedSegment::bytes).sum::<usize>();
        segments
    }

    /// Takes all SYNs that are not too old, in the order of arrival.
    pub(super) fn take_syns(&mut self, now: Nanos) -> VecDeque<OwnedSegment> {
        self.numbers.clear();
        let syns = std::mem::take(&mut self.syns).into_values();
        syns.filter(|(at, _)| now.since(*at) < SYN_AGE_MAX).map(|(_, syn)| syn).collect()
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.bytes, self.syns.len())
    }
}
