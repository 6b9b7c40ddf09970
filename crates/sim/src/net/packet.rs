//! What travels: a small value, kept in a slab while it is on its way.

use crate::Ns;

/// Bytes of the IPv4 and TCP headers without options.
pub const HEADER_BYTES: u32 = 40;

/// SACK blocks of one acknowledgement (RFC 2018 §3: three beside timestamps).
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
    /// The flow.
    pub flow: u32,
    /// Which segment this is.
    pub seq: u32,
    /// The next segment that the receiver waits for.
    pub ack: u32,
    /// Segments that the receiver can take, from `ack` on.
    pub window: u32,
    /// What arrived beyond `ack`, `first..end`, the newest first; `0..0` is none.
    pub sack: [(u32, u32); SACK_BLOCKS],
    /// When its sender made it.
    pub sent_at: Ns,
    /// `sent_at` of the packet that caused it (RFC 7323 §4.3).
    pub echo: Ns,
    /// Its next hop, among those of all paths: who forwards it need not look at
    /// its flow, which may be far away in memory.
    pub(crate) hop: u32,
    /// Bytes at the IP level.
    pub bytes: u16,
    /// What it is.
    pub kind: Kind,
    /// The last segment that the application asked for.
    pub push: bool,
}

impl Packet {
    /// Does it go from the data's sender to its receiver?
    #[must_use]
    pub fn is_forward(&self) -> bool {
        matches!(self.kind, Kind::Syn | Kind::Data)
    }
}

// A packet is a line of the cache.
const _: () = assert!(size_of::<Packet>() == 64);

/// Packets by number; numbers are reused.
#[derive(Default)]
pub(super) struct Slab {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Slab {
    #[inline]
    pub(super) fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(index) = self.free.pop() {
            self.packets[index as usize] = packet;
            return index;
        }
        self.packets.push(packet);
        (self.packets.len() - 1) as u32
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Packet {
        &mut self.packets[index as usize]
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> Packet {
        self.free.push(index);
        self.packets[index as usize]
    }
}
