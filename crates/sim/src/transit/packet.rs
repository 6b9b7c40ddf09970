//! The packets in the strings: segments of senders near one edge, and acknowledgements of
//! receivers near the other one.

use crate::spread::mix;
use holdfast_edge::{Direction, Passing, Recovery, Slabs};
use holdfast_wire::seq::SeqNo;

/// Size of the IPv4 and TCP headers with timestamps, in bytes.
pub const HEADER: usize = 52;

/// A connection's four-tuple: the sender's number, and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    pub sender: u16,
    pub port: u16,
}

/// A packet. It has no payload, only a sum that is computed from its place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub tuple: Tuple,
    /// Whether it comes from the sender.
    pub is_data: bool,
    pub syn: bool,
    pub fin: bool,
    pub seq: SeqNo,
    pub len: u16,
    pub ack: SeqNo,
    pub window: u32,
    /// Sum of the payload.
    pub sum: u64,
}

impl Packet {
    pub fn bytes(&self) -> u64 {
        (HEADER + usize::from(self.len)) as u64
    }

    /// The sequence number after its last one.
    pub fn end(&self) -> SeqNo {
        self.seq.plus(u64::from(self.len) + u64::from(self.syn) + u64::from(self.fin))
    }

    pub fn is_bare_ack(&self) -> bool {
        !self.is_data && !self.syn && !self.fin && self.len == 0
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + usize::from(self.len)];
        bytes[..2].copy_from_slice(&self.tuple.sender.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.tuple.port.to_be_bytes());
        bytes[4] = u8::from(self.is_data) | u8::from(self.syn) << 1 | u8::from(self.fin) << 2;
        bytes[6..8].copy_from_slice(&self.len.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.ack.0.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.window.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.sum.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize, count: usize| {
            bytes[at..at + count].iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte))
        };
        Self {
            tuple: Tuple { sender: number(0, 2) as u16, port: number(2, 2) as u16 },
            is_data: bytes[4] & 1 != 0,
            syn: bytes[4] & 2 != 0,
            fin: bytes[4] & 4 != 0,
            len: number(6, 2) as u16,
            seq: SeqNo(number(8, 4) as u32),
            ack: SeqNo(number(12, 4) as u32),
            window: number(16, 4) as u32,
            sum: number(20, 8),
        }
    }

    /// The packet as the cache sees it, into the strings or out of them.
    pub fn passing(&self, into: bool, sack: bool) -> Passing {
        let packet = HEADER + if into { usize::from(self.len) } else { 0 };
        let place = Slabs::footprint(packet).unwrap_or(packet);
        Passing {
            direction: if into { Direction::IntoCluster } else { Direction::OutOfCluster },
            seq: self.seq,
            end: self.end(),
            // A sender's SYN acknowledges nothing.
            ack: (!self.syn || !self.is_data).then_some(self.ack),
            is_syn: self.syn,
            is_end: false,
            is_last: self.fin,
            sack: (self.syn && !self.is_data).then_some(sack),
            bytes: (place + Recovery::<u64, Slabs>::packet_overhead_bytes()) as u32,
        }
    }

    /// The flow's key at an edge; each direction of its data has a key of its own.
    pub fn key(&self, into: bool) -> u64 {
        let tuple = u64::from(self.tuple.sender) << 16 | u64::from(self.tuple.port);
        tuple << 1 | u64::from(self.is_data != into)
    }
}

/// Sum of the payload at this place of a stream.
pub fn sum_of(tuple: Tuple, seq: SeqNo, len: u16) -> u64 {
    let tuple = u64::from(tuple.sender) << 16 | u64::from(tuple.port);
    mix(mix(tuple) ^ u64::from(seq.0) << 16 ^ u64::from(len))
}
