//! What is kept of each flow: its segments as a ring through one pool, in the
//! order of their sequence numbers. So a flow without packets takes twenty
//! bytes, and one with a SYN fifty, plus the packet.

use crate::Ns;
use crate::pool::{NONE, Pool};
use crate::recovery::Passing;
use holdfast_wire::seq::SeqNo;

/// Unit in which times are kept, as a power of two: 2^20 ns, about 1 ms.
const UNIT_BITS: u32 = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<P> {
    pub packet: P,
    pub seq: SeqNo,
    pub end: SeqNo,
    pub bytes: u32,
    at: u32,
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The lowest segment, or NONE.
    pub first: u32,
    /// The latest acknowledgement, or NONE.
    pub ack: u32,
    acked: SeqNo,
    /// When the flow was last seen; for a flow that is being resent, since when
    /// packets may have been lost.
    at: u32,
    pub segments: u16,
    marks: u8,
}

/// Flag: `acked` is known.
const ACKED: u8 = 1;
/// Flag: the flow uses SACK.
pub(super) const SACK: u8 = 2;
/// Flag: the flow's last segment has passed; the flow ends when that is
/// acknowledged.
pub(super) const ENDING: u8 = 4;
/// Flag: all of the flow has been resent; what its receiver then asks for may
/// follow.
pub(super) const RESENT: u8 = 8;

impl Flow {
    pub fn new(now: Ns) -> Self {
        Self { first: NONE, ack: NONE, acked: SeqNo(0), at: units(now), segments: 0, marks: 0 }
    }

    pub fn acked(&self) -> Option<SeqNo> {
        self.has(ACKED).then_some(self.acked)
    }

    pub fn set_acked(&mut self, ack: SeqNo) {
        self.acked = ack;
        self.mark(ACKED, true);
    }

    pub fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Sets or clears a flag.
    pub fn mark(&mut self, mark: u8, yes: bool) {
        self.marks |= if yes { mark } else { 0 };
    }

    pub fn unmark(&mut self, mark: u8) {
        self.marks &= !mark;
    }

    pub fn touch(&mut self, now: Ns) {
        self.at = units(now);
    }

    pub fn is_older(&self, now: Ns, age: Ns) -> bool {
        is_older(self.at, now, age)
    }

    pub fn is_bare(&self) -> bool {
        self.first == NONE && self.ack == NONE
    }
}

fn units(now: Ns) -> u32 {
    (now >> UNIT_BITS) as u32
}

fn is_older(at: u32, now: Ns, age: Ns) -> bool {
    u64::from(units(now).wrapping_sub(at)) << UNIT_BITS > age
}

impl<P> Kept<P> {
    pub fn new(now: Ns, passing: &Passing, packet: P) -> Self {
        let Passing { seq, end, bytes, .. } = *passing;
        Self { packet, seq, end, bytes, at: units(now), prev: NONE, next: NONE }
    }

    pub fn is_older(&self, now: Ns, age: Ns) -> bool {
        is_older(self.at, now, age)
    }

    pub fn touch(&mut self, now: Ns) {
        self.at = units(now);
    }

    /// Whether the segment passed when packets may have been lost; true in
    /// doubt.
    pub fn is_since(&self, leaving: &Flow) -> bool {
        self.at.wrapping_sub(leaving.at).cast_signed() >= 0
    }

    /// The next segment of its flow; behind the last one, the first.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The previous segment of its flow; before the first one, the last.
    pub fn prev(&self) -> u32 {
        self.prev
    }
}

/// All flows and everything that is kept of them.
#[derive(Debug)]
pub(super) struct Lists<P> {
    pub flows: Pool<Flow>,
    pub kept: Pool<Kept<P>>,
}

/// Place of a segment among those that are kept.
pub(super) enum Place {
    /// The segment is already kept, under this number.
    Known(u32),
    /// Before this segment (NONE: behind all), at this index.
    At { before: u32, index: usize },
}

impl<P: Copy> Lists<P> {
    pub fn new() -> Self {
        Self { flows: Pool::new(), kept: Pool::new() }
    }

    /// The numbers of a flow's segments, from the lowest on.
    pub fn segments(&self, flow: u32) -> impl Iterator<Item = u32> + '_ {
        let flow = self.flows[flow];
        let mut next = flow.first;
        (0..flow.segments).map(move |_| {
            let at = next;
            next = self.kept[at].next;
            at
        })
    }

    /// Finds a segment's place. Searches from the end: data mostly comes in
    /// order.
    pub fn place(&self, flow: u32, seq: SeqNo) -> Place {
        let flow = self.flows[flow];
        let (mut before, mut index) = (NONE, usize::from(flow.segments));
        while index > 0 {
            let at = self.kept[if before == NONE { flow.first } else { before }].prev;
            let kept = &self.kept[at];
            if kept.seq == seq {
                return Place::Known(at);
            }
            if seq.after(kept.seq) {
                break;
            }
            before = at;
            index -= 1;
        }
        Place::At { before, index }
    }

    /// The segment at an index in the order.
    pub fn nth(&self, flow: u32, index: usize) -> Option<u32> {
        let Flow { first, segments, .. } = self.flows[flow];
        let back = usize::from(segments).checked_sub(index).filter(|back| *back > 0)?;
        if index <= back {
            return self.segments(flow).nth(index);
        }
        Some((0..back).fold(first, |at, _| self.kept[at].prev))
    }

    pub fn insert(&mut self, flow: u32, before: u32, kept: Kept<P>) {
        let first = self.flows[flow].first;
        let at = self.kept.put(kept);
        if first == NONE {
            self.kept[at].prev = at;
            self.kept[at].next = at;
        } else {
            let next = if before == NONE { first } else { before };
            let prev = self.kept[next].prev;
            self.kept[at].prev = prev;
            self.kept[at].next = next;
            self.kept[prev].next = at;
            self.kept[next].prev = at;
        }
        let flow = &mut self.flows[flow];
        if before == first {
            flow.first = at;
        }
        flow.segments += 1;
    }

    /// Takes a segment out of its flow.
    pub fn remove(&mut self, flow: u32, at: u32) -> Kept<P> {
        let kept = self.kept.take(at);
        let flow = &mut self.flows[flow];
        flow.segments -= 1;
        if flow.segments == 0 {
            flow.first = NONE;
            return kept;
        }
        if flow.first == at {
            flow.first = kept.next;
        }
        self.kept[kept.prev].next = kept.next;
        self.kept[kept.next].prev = kept.prev;
        kept
    }

    /// Takes the acknowledgement out of its flow.
    pub fn remove_ack(&mut self, flow: u32) -> Option<Kept<P>> {
        let ack = std::mem::replace(&mut self.flows[flow].ack, NONE);
        (ack != NONE).then(|| self.kept.take(ack))
    }
}
