//! A packet on the wire, both ways, with what only the simulation knows of it.

use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, SackBlocks, TcpOptions, TcpPacket};
use holdfast_wire::seq::SeqNo;
use std::rc::Rc;

/// `wscale` of a packet without the option.
pub const NO_SCALING: u8 = 255;
pub const ACK: Flags = Flags::ACK;

/// A TCP packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Always from the client to the server.
    pub key: ConnKey,
    pub seq: SeqNo,
    /// Meaningless without [`Flags::ACK`].
    pub ack: SeqNo,
    pub flags: Flags,
    /// As on the wire: not shifted.
    pub window: u16,
    /// Of a SYN.
    pub wscale: u8,
    /// Of a SYN: SACK is permitted.
    pub sack_permitted: bool,
    pub sack: SackBlocks,
    pub tsval: u32,
    /// The path is congested, which the IP header says (RFC 3168 §5).
    pub ce: bool,
    pub payload: Rc<[u8]>,
    /// Of a client's packet: its number, which stands for the raw bytes.
    pub id: u64,
    /// Of a server's packet: where its payload, or its RST, comes from, in truth.
    pub truth: Truth,
    /// And its FIN.
    pub fin_truth: Truth,
    /// Its first SACK block tells of bytes that came twice (RFC 2883).
    pub is_dsack: bool,
}

/// What the checkers know of a packet of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// The server process that wrote the payload or asked for the FIN; 0: none.
    pub server: u32,
    /// Records of its log on which that depends.
    pub depends: u64,
}

impl Packet {
    pub fn is(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }

    /// How many sequence numbers it takes.
    pub fn len(&self) -> u64 {
        self.payload.len() as u64 + u64::from(self.is(Flags::SYN)) + u64::from(self.is(Flags::FIN))
    }

    pub fn seq_end(&self) -> SeqNo {
        self.seq.plus(self.len())
    }

    /// Without anything that could be read as the start of a stream.
    pub fn is_pure(&self) -> bool {
        self.payload.is_empty() && self.flags.0 & (Flags::SYN | Flags::FIN | Flags::RST).0 == 0
    }

    /// As the replica's machines take it.
    pub fn with_view<R>(&self, f: impl FnOnce(&TcpPacket<'_>) -> R) -> R {
        let options = TcpOptions {
            timestamps: Some((self.tsval, 0)),
            mss: self.is(Flags::SYN).then_some(1460),
            wscale: (self.is(Flags::SYN) && self.wscale != NO_SCALING).then_some(self.wscale),
            sack_permitted: self.is(Flags::SYN) && self.sack_permitted,
            ..TcpOptions::default()
        };
        f(&TcpPacket {
            source: self.key.client,
            destination: self.key.server,
            source_port: self.key.client_port,
            destination_port: self.key.server_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options,
            payload: &self.payload,
            raw: &self.id.to_le_bytes(),
        })
    }
}

/// A window's shift.
pub fn shift(wscale: u8) -> u8 {
    if wscale == NO_SCALING { 0 } else { wscale }
}

impl std::fmt::Display for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.key.client_port)?;
        for (flag, name) in [
            (Flags::SYN, "S"),
            (Flags::FIN, "F"),
            (Flags::RST, "R"),
            (Flags::ECE, "E"),
            (Flags::CWR, "W"),
            (Flags::ACK, "."),
        ] {
            f.write_str(if self.is(flag) { name } else { "" })?;
        }
        write!(
            f,
            " seq {} ack {} win {} len {}",
            self.seq.0,
            self.ack.0,
            self.window,
            self.payload.len()
        )?;
        for (left, right) in self.sack.as_slice() {
            write!(f, " sack {}-{}", left.0, right.0)?;
        }
        Ok(())
    }
}
