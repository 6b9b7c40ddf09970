//! The packets between clients, edge and host servers.

use crate::Ns;

/// A connection's four-tuple: the client's number stands for its address, and the service's
/// number for the address and port of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    pub client: u16,
    pub port: u16,
    /// Number of the service.
    pub service: u8,
}

/// A connection: there may be several, one after the other, on the same tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conn {
    pub tuple: Tuple,
    /// The client's initial sequence number.
    pub isn: u32,
}

/// A client's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Syn,
    /// The last packet of the handshake.
    Ack,
    /// A request.
    Data(u32),
    Fin,
    Rst,
}

/// Answer of a host server's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    SynAck,
    /// The answer to a request, by the server's process.
    Reply(u32),
    FinAck,
    Rst,
}

/// A client's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub conn: Conn,
    pub said: Said,
}

/// Size of a SYN that Linux sends over IPv4, in bytes.
const SYN_BYTES: usize = 60;

impl Packet {
    /// The bytes of the SYN, as the cache keeps it.
    pub fn encode(&self) -> [u8; SYN_BYTES] {
        let Conn { tuple, isn } = self.conn;
        let mut bytes = [0; SYN_BYTES];
        bytes[..2].copy_from_slice(&tuple.client.to_be_bytes());
        bytes[2..4].copy_from_slice(&tuple.port.to_be_bytes());
        bytes[4] = tuple.service;
        bytes[5..9].copy_from_slice(&isn.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let isn = u32::from(two(5)) << 16 | u32::from(two(7));
        let tuple = Tuple { client: two(0), port: two(2), service: bytes[4] };
        Self { conn: Conn { tuple, isn }, said: Said::Syn }
    }
}

/// The finalizer of SplitMix64, as a hash of tuples and of times.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One-way delay to or from a client, in ns: constant for each client, so that packets of a
/// connection keep their order.
pub fn way_of(client: u16, base: Ns) -> Ns {
    base + mix(u64::from(client) + 1) % base.max(1)
}
