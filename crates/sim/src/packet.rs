//! A packet on the wire, in either direction, with facts about it that only the simulator
//! knows.

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
    /// The four-tuple, always from the client to the server.
    pub key: ConnKey,
    pub seq: SeqNo,
    /// Meaningless without [`Flags::ACK`].
    pub ack: SeqNo,
    pub flags: Flags,
    /// The window field as on the wire, before scaling.
    pub window: u16,
    /// Window scale of a SYN.
    pub wscale: u8,
    /// Whether a SYN permits SACK.
    pub sack_permitted: bool,
    pub sack: SackBlocks,
    pub tsval: u32,
    /// Whether the IP header carries the CE mark, "congestion experienced" (RFC 3168 §5).
    pub ce: bool,
    pub payload: Rc<[u8]>,
    /// Number of a client's packet, which stands for its raw bytes.
    pub id: u64,
    /// True origin of the payload, or the RST, of a server's packet.
    pub truth: Truth,
    /// True origin of its FIN.
    pub fin_truth: Truth,
    /// Whether its first SACK block reports bytes that arrived twice (D-SACK, RFC 2883).
    pub is_dsack: bool,
}

/// What the checkers know about a member's packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// The server process that wrote the payload or requested the FIN; 0: none.
    pub server: u32,
    /// Number of records of that server's log on which the bytes depend.
    pub depends: u64,
}

impl Packet {
    pub fn is(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }

    /// Number of sequence numbers that it occupies, including SYN and FIN.
    pub fn len(&self) -> u64 {
        self.payload.len() as u64 + u64::from(self.is(Flags::SYN)) + u64::from(self.is(Flags::FIN))
    }

    pub fn seq_end(&self) -> SeqNo {
        self.seq.plus(self.len())
    }

    /// Whether it carries neither payload nor SYN, FIN or RST.
    pub fn is_pure(&self) -> bool {
        self.payload.is_empty() && self.flags.0 & (Flags::SYN | Flags::FIN | Flags::RST).0 == 0
    }

    /// Calls `f` with the packet in the form that the replica's machines take.
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

/// The number of bits by which a window with this scale is shifted.
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
