//! Packets: small values, kept in a slab while they are under way.

use super::route::Step;
use crate::Ns;
use prefetch_index::prefetch_index;

/// Bytes of the IPv4 and TCP headers without options.
pub const HEADER_BYTES: u32 = 40;

/// Most SACK blocks of one acknowledgement (RFC 2018 §3: three beside timestamps).
pub const SACK_BLOCKS: usize = 3;

/// What a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Opens a connection: segment 0.
    Syn,
    /// Acknowledges the SYN.
    SynAck,
    /// A full-sized segment, 1 being the first.
    #[default]
    Data,
    /// Acknowledges data.
    Ack,
}

/// A packet. Sequence numbers count segments, as all are of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Number of the flow.
    pub flow: u32,
    /// Number of the segment.
    pub seq: u32,
    /// The next segment that the receiver waits for.
    pub ack: u32,
    /// Number of segments that the receiver can take, from `ack` on.
    pub window: u32,
    /// Ranges that arrived beyond `ack`, `first..end`, the newest first; `0..0`
    /// is none.
    pub sack: [(u32, u32); SACK_BLOCKS],
    /// When its sender made it, in ns.
    pub sent_at: Ns,
    /// `sent_at` of the packet that caused it, in ns (RFC 7323 §4.3).
    pub echo: Ns,
    /// Number of its next hop among those of all paths, so that forwarding need not look at its
    /// flow, which may be far away in memory.
    pub(crate) hop: u32,
    /// Bytes at the IP level.
    pub bytes: u16,
    /// What it is.
    pub kind: Kind,
    /// Whether it is the last segment that the application asked for.
    pub push: bool,
}

impl Packet {
    /// Whether it goes from the data's sender to its receiver.
    #[must_use]
    pub fn is_forward(&self) -> bool {
        matches!(self.kind, Kind::Syn | Kind::Data)
    }
}

/// Number that stands for no packet.
pub(super) const NONE: u32 = u32::MAX;

/// A packet in a link's queue or on its wire. It knows the packet behind it, so that a link that
/// lets it out need not look at that one, which is far away in memory if there are many flows.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct QueuedPacket {
    flow: u32,
    seq: u32,
    ack: u32,
    window: u32,
    sent_at: Ns,
    echo: Ns,
    hop: u32,
    /// The step behind that hop.
    then: Step,
    /// Place of its SACK blocks, which few packets have.
    blocks: u32,
    bytes: u16,
    kind: Kind,
    push: bool,
    /// The next packet of the same link.
    behind: u32,
    /// When the next packet of the same link comes out, in ns.
    behind_exit: Ns,
}

// A packet fits into one cache line.
const _: () = assert!(size_of::<QueuedPacket>() == 64);

/// Packets by number; the numbers are reused.
#[derive(Default)]
pub(super) struct Slab {
    packets: Vec<QueuedPacket>,
    free: Vec<u32>,
    blocks: Vec<[(u32, u32); SACK_BLOCKS]>,
    free_blocks: Vec<u32>,
}

impl Slab {
    #[inline]
    pub(super) fn insert(&mut self, packet: &Packet) -> u32 {
        let blocks = if packet.sack == [(0, 0); SACK_BLOCKS] {
            NONE
        } else {
            put(&mut self.blocks, &mut self.free_blocks, packet.sack)
        };
        let carried = QueuedPacket {
            flow: packet.flow,
            seq: packet.seq,
            ack: packet.ack,
            window: packet.window,
            sent_at: packet.sent_at,
            echo: packet.echo,
            hop: packet.hop,
            then: Step::END,
            blocks,
            bytes: packet.bytes,
            kind: packet.kind,
            push: packet.push,
            behind: NONE,
            behind_exit: 0,
        };
        put(&mut self.packets, &mut self.free, carried)
    }

    /// A copy of a packet.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Packet {
        let it = &self.packets[number as usize];
        let sack = match it.blocks {
            NONE => [(0, 0); SACK_BLOCKS],
            blocks => self.blocks[blocks as usize],
        };
        Packet {
            flow: it.flow,
            seq: it.seq,
            ack: it.ack,
            window: it.window,
            sack,
            sent_at: it.sent_at,
            echo: it.echo,
            hop: it.hop,
            bytes: it.bytes,
            kind: it.kind,
            push: it.push,
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> Packet {
        let packet = self.get(number);
        self.free.push(number);
        let blocks = self.packets[number as usize].blocks;
        if blocks != NONE {
            self.free_blocks.push(blocks);
        }
        packet
    }

    /// Notes that an edge has reduced a packet's window.
    pub(super) fn set_window(&mut self, number: u32, window: u32) {
        self.packets[number as usize].window = window;
    }

    #[inline]
    pub(super) fn flow(&self, number: u32) -> u32 {
        self.packets[number as usize].flow
    }

    #[inline]
    pub(super) fn bytes(&self, number: u32) -> u32 {
        u32::from(self.packets[number as usize].bytes)
    }

    #[inline]
    pub(super) fn is_forward(&self, number: u32) -> bool {
        matches!(self.packets[number as usize].kind, Kind::Syn | Kind::Data)
    }

    /// The place of a packet in its route, and the step after that.
    #[inline]
    pub(super) fn place(&self, number: u32) -> (u32, Step) {
        let it = &self.packets[number as usize];
        (it.hop, it.then)
    }

    #[inline]
    pub(super) fn set_place(&mut self, number: u32, hop: u32, then: Step) {
        let it = &mut self.packets[number as usize];
        (it.hop, it.then) = (hop, then);
    }

    /// Appends `number` behind `last`; it comes out at `exit`.
    #[inline]
    pub(super) fn append(&mut self, last: u32, number: u32, exit: Ns) {
        let it = &mut self.packets[last as usize];
        (it.behind, it.behind_exit) = (number, exit);
    }

    /// The packet that comes out behind this one, and when.
    #[inline]
    pub(super) fn behind(&self, number: u32) -> (u32, Ns) {
        let it = &self.packets[number as usize];
        (it.behind, it.behind_exit)
    }

    /// Prefetches a packet that will be looked at soon.
    #[inline]
    pub(super) fn prefetch(&self, number: u32) {
        prefetch_index(&self.packets, number as usize);
    }
}

/// Puts `it` in a free place, or in a new one.
#[inline]
fn put<T>(places: &mut Vec<T>, free: &mut Vec<u32>, it: T) -> u32 {
    if let Some(place) = free.pop() {
        places[place as usize] = it;
        return place;
    }
    places.push(it);
    (places.len() - 1) as u32
}
