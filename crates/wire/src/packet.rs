//! Views of TCP packets as they lie in memory, and one builder.
//!
//! [`TcpPacket::parse`] checks an IPv4 or IPv6 packet and its TCP header in one
//! step and borrows the payload; [`TcpSegment`] writes a packet with complete
//! checksums. Nothing here panics or allocates without bound, whatever bytes come.

mod build;
mod checksum;
mod offload;
mod options;
#[cfg(test)]
mod tests;

pub use build::{PAYLOAD_MAX, TcpSegment, complete_checksum};
pub use checksum::{Sum, internet_checksum};
pub use offload::Headers;
pub use options::{SACK_BLOCKS_MAX, SackBlocks, TcpOptions};

use crate::message::ConnKey;
use crate::seq::SeqNo;
use std::net::IpAddr;

/// IP protocol number of TCP (RFC 9293 §3.1).
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
pub(crate) const TCP_HEADER: usize = 20;
/// Where the fields of a TCP header lie (RFC 9293 §3.1).
pub(crate) mod field {
    use std::ops::Range;

    pub const SOURCE_PORT: Range<usize> = 0..2;
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    pub const SEQ: Range<usize> = 4..8;
    pub const ACK: Range<usize> = 8..12;
    /// The byte whose upper half is the header's length in words of four bytes.
    pub const DATA_OFFSET: usize = 12;
    pub const FLAGS: usize = 13;
    pub const WINDOW: Range<usize> = 14..16;
    pub const CHECKSUM: Range<usize> = 16..18;
}
/// Largest value of a header's length field, in bytes.
const LENGTH_MAX: usize = u16::MAX as usize;
/// The first twelve bytes of an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2).
pub(crate) const MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Whether the TCP checksum in memory means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It is complete and must be right.
    Verify,
    /// The kernel has not computed it yet (`CHECKSUM_PARTIAL`: it would be done
    /// by the network card) or has already validated it.
    Partial,
}

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Shorter than its headers or its own total length say.
    Truncated,
    /// Neither IPv4 nor IPv6.
    Version,
    /// An IPv4 header length below 20 bytes.
    HeaderLength,
    /// A piece of a fragmented packet.
    Fragment,
    /// Not TCP, or TCP behind an IPv6 extension header: the protocol number.
    Protocol(u8),
    /// An IPv6 packet that carries IPv4-mapped addresses: never legitimate on a
    /// wire, and its key would collide with an IPv4 connection's.
    MappedAddress,
    /// A TCP data offset below 20 bytes or beyond the packet.
    DataOffset,
    /// The IPv4 header's checksum is wrong.
    HeaderChecksum,
    /// The TCP checksum is wrong.
    Checksum,
    /// A payload beyond [`PAYLOAD_MAX`] cannot be built into one packet.
    TooLong,
}

impl std::fmt::Display for PacketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Truncated => f.write_str("packet shorter than its headers say"),
            Self::Version => f.write_str("neither IPv4 nor IPv6"),
            Self::HeaderLength => f.write_str("IPv4 header length below 20 bytes"),
            Self::Fragment => f.write_str("IP fragment"),
            Self::Protocol(number) => write!(f, "IP protocol {number} instead of TCP"),
            Self::MappedAddress => f.write_str("IPv4-mapped address in an IPv6 packet"),
            Self::DataOffset => f.write_str("TCP data offset out of range"),
            Self::HeaderChecksum => f.write_str("wrong IPv4 header checksum"),
            Self::Checksum => f.write_str("wrong TCP checksum"),
            Self::TooLong => write!(f, "payload longer than {PAYLOAD_MAX} bytes"),
        }
    }
}

impl std::error::Error for PacketError {}

/// TCP flags: the low eight bits of RFC 9293 §3.1's control bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    pub const FIN: Self = Self(0x01);
    pub const SYN: Self = Self(0x02);
    pub const RST: Self = Self(0x04);
    pub const PSH: Self = Self(0x08);
    pub const ACK: Self = Self(0x10);
    pub const URG: Self = Self(0x20);
    pub const ECE: Self = Self(0x40);
    pub const CWR: Self = Self(0x80);

    /// All of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One checked TCP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPacket<'a> {
    /// Addresses, IPv4 mapped into IPv6, and ports in host order.
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: SeqNo,
    /// Meaningless without [`Flags::ACK`].
    pub ack: SeqNo,
    pub flags: Flags,
    /// The window as on the wire: not shifted by any window scale.
    pub window: u16,
    pub options: TcpOptions,
    pub payload: &'a [u8],
    /// The whole packet as it was parsed, from the IP header on; for the headers
    /// of an offloaded frame, only those.
    pub raw: &'a [u8],
}

impl<'a> TcpPacket<'a> {
    /// Reads one packet that begins with its IP header. Bytes behind the IP
    /// total length (Ethernet padding) are ignored; a total length of 0 means the
    /// whole buffer if that is longer than the field can say (BIG TCP), and is
    /// refused if not, as kernels do. IPv4 options are skipped.
    ///
    /// # Errors
    /// [`PacketError`] for everything that is not one whole, well-formed TCP packet.
    pub fn parse(l3: &'a [u8], checksum: Checksum) -> Result<Self, PacketError> {
        let ip = Layer3::parse(l3)?;
        let packet = Self::read((ip.source, ip.destination), ip.payload, l3)?;
        // No card leaves the IPv4 header's checksum open.
        if l3[0] >> 4 == 4 && internet_checksum(&l3[..ip.start]) != 0 {
            return Err(PacketError::HeaderChecksum);
        }
        if checksum == Checksum::Verify && ip.pseudo_header().with(ip.payload).finish() != 0 {
            return Err(PacketError::Checksum);
        }
        Ok(packet)
    }

    /// Reads header, options and payload of TCP, whatever the checksum says.
    fn read(
        (source, destination): ([u8; 16], [u8; 16]),
        tcp: &'a [u8],
        raw: &'a [u8],
    ) -> Result<Self, PacketError> {
        let header: &[u8; TCP_HEADER] = tcp.first_chunk().ok_or(PacketError::Truncated)?;
        let offset = usize::from(header[field::DATA_OFFSET] >> 4) * 4;
        if offset < TCP_HEADER || offset > tcp.len() {
            return Err(PacketError::DataOffset);
        }
        Ok(Self {
            source,
            destination,
            source_port: be16(&header[field::SOURCE_PORT]),
            destination_port: be16(&header[field::DESTINATION_PORT]),
            seq: SeqNo(be32(&header[field::SEQ])),
            ack: SeqNo(be32(&header[field::ACK])),
            flags: Flags(header[field::FLAGS]),
            window: be16(&header[field::WINDOW]),
            options: TcpOptions::parse(&tcp[TCP_HEADER..offset]),
            payload: &tcp[offset..],
            raw,
        })
    }

    /// The connection, if this packet goes from its client to its server.
    #[must_use]
    pub fn client_to_server_key(&self) -> ConnKey {
        ConnKey {
            server: self.destination,
            client: self.source,
            server_port: self.destination_port,
            client_port: self.source_port,
        }
    }

    #[must_use]
    pub fn is_syn(&self) -> bool {
        self.flags.has(Flags::SYN)
    }

    /// Whether [`Self::ack`] means anything.
    #[must_use]
    pub fn is_ack(&self) -> bool {
        self.flags.has(Flags::ACK)
    }

    #[must_use]
    pub fn is_fin(&self) -> bool {
        self.flags.has(Flags::FIN)
    }

    #[must_use]
    pub fn is_rst(&self) -> bool {
        self.flags.has(Flags::RST)
    }

    /// Whether this is a SYN that opens a connection, not one that answers.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.is_syn() && !self.is_ack()
    }

    /// The sender's time stamp (RFC 7323 §3.2).
    #[must_use]
    pub fn tsval(&self) -> Option<u32> {
        self.options.timestamps.map(|(value, _)| value)
    }

    /// Sequence numbers this packet occupies: its payload, its SYN and its FIN
    /// (RFC 9293 §3.4).
    #[must_use]
    pub fn seq_len(&self) -> u64 {
        let control = u64::from(self.is_syn()) + u64::from(self.is_fin());
        self.payload.len() as u64 + control
    }

    /// The sequence number after the last one that this packet occupies.
    #[must_use]
    pub fn seq_end(&self) -> SeqNo {
        self.seq.plus(self.seq_len())
    }
}

/// A field of two bytes, in network order.
pub(crate) fn be16(field: &[u8]) -> u16 {
    field.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// A field of four bytes, in network order.
pub(crate) fn be32(field: &[u8]) -> u32 {
    field.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The IPv4 address that `address` maps, if it does.
#[must_use]
pub fn mapped_ipv4(address: &[u8; 16]) -> Option<[u8; 4]> {
    let (prefix, ipv4) = address.split_at(MAPPED_PREFIX.len());
    if prefix == MAPPED_PREFIX { ipv4.try_into().ok() } else { None }
}

/// `ipv4` mapped into IPv6 as in [`ConnKey`].
#[must_use]
pub fn map_ipv4(ipv4: [u8; 4]) -> [u8; 16] {
    let mut address = [0; 16];
    address[..12].copy_from_slice(&MAPPED_PREFIX);
    address[12..].copy_from_slice(&ipv4);
    address
}

/// `address` as in [`ConnKey`], IPv4 mapped into IPv6.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => map_ipv4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The IP half of a packet. `start..start + payload.len()` is the payload's
/// place in the buffer that was parsed.
pub(crate) struct Layer3<'a> {
    source: [u8; 16],
    destination: [u8; 16],
    pub(crate) start: usize,
    pub(crate) payload: &'a [u8],
}

impl<'a> Layer3<'a> {
    pub(crate) fn parse(l3: &'a [u8]) -> Result<Self, PacketError> {
        match l3.first().map(|byte| byte >> 4) {
            None => Err(PacketError::Truncated),
            Some(4) => Self::ipv4(l3),
            Some(6) => Self::ipv6(l3),
            Some(_) => Err(PacketError::Version),
        }
    }

    fn ipv4(l3: &'a [u8]) -> Result<Self, PacketError> {
        let header: &[u8; IPV4_HEADER] = l3.first_chunk().ok_or(PacketError::Truncated)?;
        let start = usize::from(header[0] & 0x0f) * 4;
        if start < IPV4_HEADER {
            return Err(PacketError::HeaderLength);
        }
        let end = match be16(&header[2..4]) {
            0 if l3.len() > LENGTH_MAX => l3.len(),
            total => usize::from(total),
        };
        // The fragment offset and the "more fragments" bit; "don't fragment" is no fragment.
        if be16(&header[6..8]) & 0x3fff != 0 {
            return Err(PacketError::Fragment);
        }
        if header[9] != PROTOCOL_TCP {
            return Err(PacketError::Protocol(header[9]));
        }
        Ok(Self {
            source: map_ipv4([header[12], header[13], header[14], header[15]]),
            destination: map_ipv4([header[16], header[17], header[18], header[19]]),
            start,
            payload: l3.get(start..end).ok_or(PacketError::Truncated)?,
        })
    }

    fn ipv6(l3: &'a [u8]) -> Result<Self, PacketError> {
        let header: &[u8; IPV6_HEADER] = l3.first_chunk().ok_or(PacketError::Truncated)?;
        let end = match be16(&header[4..6]) {
            0 if l3.len() - IPV6_HEADER > LENGTH_MAX => l3.len(),
            length => IPV6_HEADER + usize::from(length),
        };
        if header[6] != PROTOCOL_TCP {
            return Err(PacketError::Protocol(header[6]));
        }
        let mut source = [0; 16];
        let mut destination = [0; 16];
        source.copy_from_slice(&header[8..24]);
        destination.copy_from_slice(&header[24..40]);
        if mapped_ipv4(&source).is_some() || mapped_ipv4(&destination).is_some() {
            return Err(PacketError::MappedAddress);
        }
        let payload = l3.get(IPV6_HEADER..end).ok_or(PacketError::Truncated)?;
        Ok(Self { source, destination, start: IPV6_HEADER, payload })
    }

    /// The sum over the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1).
    pub(crate) fn pseudo_header(&self) -> Sum {
        pseudo_header(&self.source, &self.destination, self.payload.len())
    }
}

/// Mapped addresses give the IPv4 pseudo header: a zero word changes no sum, and
/// the two `ffff` words of the mapping are left out.
pub(crate) fn pseudo_header(source: &[u8; 16], destination: &[u8; 16], tcp_len: usize) -> Sum {
    let from = if mapped_ipv4(source).is_some() { 12 } else { 0 };
    Sum::default()
        .with(&source[from..])
        .with(&destination[from..])
        .with(&(tcp_len as u32).to_be_bytes())
        .with(&[0, PROTOCOL_TCP])
}
