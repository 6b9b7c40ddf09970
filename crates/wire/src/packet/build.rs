//! Building packets: whole TCP segments, and the checksum a kernel left open.

use super::checksum::internet_checksum;
use super::options::{OPTIONS_MAX, TcpOptions};
use super::{
    Flags, IPV4_HEADER, IPV6_HEADER, Layer3, PROTOCOL_TCP, PacketError, TCP_HEADER, field,
    mapped_ipv4, pseudo_header,
};
use crate::message::ConnKey;
use crate::seq::SeqNo;

/// Largest payload of one built packet, in bytes: fits either IP version with
/// all options. A link's MTU is usually far below.
pub const PAYLOAD_MAX: usize = u16::MAX as usize - IPV4_HEADER - TCP_HEADER - OPTIONS_MAX;

/// IP's initial time to live (RFC 9293 §3.9.2.2 leaves it to configuration).
const TIME_TO_LIVE: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

/// One TCP segment to be written as an IP packet; the key's addresses tell
/// which version.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    pub key: ConnKey,
    /// Direction: from the server to its client (all that a member sends), or
    /// from the client to the server (what a member plays to its own stack).
    pub to_client: bool,
    pub seq: SeqNo,
    pub ack: SeqNo,
    pub flags: Flags,
    /// The window as on the wire: already shifted.
    pub window: u16,
    pub options: TcpOptions,
    pub payload: &'a [u8],
}

impl TcpSegment<'_> {
    /// Builds the packet, with complete checksums.
    ///
    /// # Errors
    /// [`PacketError::TooLong`] for a payload beyond [`PAYLOAD_MAX`];
    /// [`PacketError::Version`] if one address is IPv4 and the other is not.
    pub fn build(&self) -> Result<Vec<u8>, PacketError> {
        let mut out = Vec::new();
        self.build_into(&mut out)?;
        Ok(out)
    }

    /// Like [`Self::build`], into a buffer that is cleared first and can be
    /// reused.
    ///
    /// # Errors
    /// As [`Self::build`]; the buffer is then empty.
    pub fn build_into(&self, out: &mut Vec<u8>) -> Result<(), PacketError> {
        out.clear();
        if self.payload.len() > PAYLOAD_MAX {
            return Err(PacketError::TooLong);
        }
        let (source, destination) = if self.to_client {
            (&self.key.server, &self.key.client)
        } else {
            (&self.key.client, &self.key.server)
        };
        out.reserve(IPV6_HEADER + TCP_HEADER + OPTIONS_MAX + self.payload.len());
        match (mapped_ipv4(source), mapped_ipv4(destination)) {
            (Some(source), Some(destination)) => ipv4_header(out, source, destination),
            (None, None) => ipv6_header(out, source, destination),
            _ => return Err(PacketError::Version),
        }
        let start = out.len();
        self.tcp_header(out);
        out.extend_from_slice(self.payload);

        let tcp_len = out.len() - start;
        if start == IPV4_HEADER {
            // PAYLOAD_MAX keeps both lengths within 16 bits.
            let total = out.len() as u16;
            out[2..4].copy_from_slice(&total.to_be_bytes());
            let sum = internet_checksum(&out[..IPV4_HEADER]);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            out[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        }
        let sum = pseudo_header(source, destination, tcp_len).with(&out[start..]).finish();
        out[start..][field::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    /// Header and options, the checksum still zero.
    fn tcp_header(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (from, to) = if self.to_client {
            (self.key.server_port, self.key.client_port)
        } else {
            (self.key.client_port, self.key.server_port)
        };
        out.extend(from.to_be_bytes());
        out.extend(to.to_be_bytes());
        out.extend(self.seq.0.to_be_bytes());
        out.extend(self.ack.0.to_be_bytes());
        out.extend([0, self.flags.0]);
        out.extend(self.window.to_be_bytes());
        out.extend([0; 4]);
        self.options.emit(out);
        let words = (out.len() - start) / 4;
        out[start + field::DATA_OFFSET] = (words as u8) << 4;
    }
}

/// Writes the IPv4 header; total length and checksum are filled in when the
/// packet is complete.
fn ipv4_header(out: &mut Vec<u8>, source: [u8; 4], destination: [u8; 4]) {
    out.extend([0x45, 0, 0, 0, 0, 0, DONT_FRAGMENT, 0, TIME_TO_LIVE, PROTOCOL_TCP, 0, 0]);
    out.extend(source);
    out.extend(destination);
}

/// Writes the IPv6 header; the payload length is filled in when the packet is
/// complete.
fn ipv6_header(out: &mut Vec<u8>, source: &[u8; 16], destination: &[u8; 16]) {
    out.extend([0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, TIME_TO_LIVE]);
    out.extend(source);
    out.extend(destination);
}

/// Completes a packet whose TCP checksum the kernel left open
/// (`CHECKSUM_PARTIAL`), so that it can be sent again as it stands. Cuts nothing;
/// calling it on a complete packet changes nothing.
///
/// # Errors
/// [`PacketError`] if it is not a whole TCP packet, or longer than a total
/// length can say; the bytes are then unchanged.
pub fn complete_checksum(l3: &mut [u8]) -> Result<(), PacketError> {
    let ip = Layer3::parse(l3)?;
    let (start, tcp_len) = (ip.start, ip.payload.len());
    let pseudo = ip.pseudo_header();
    if tcp_len < TCP_HEADER {
        return Err(PacketError::Truncated);
    }
    let is_ipv4 = l3[0] >> 4 == 4;
    let (at, length) = if is_ipv4 { (2, start + tcp_len) } else { (4, tcp_len) };
    let length = u16::try_from(length).map_err(|_| PacketError::TooLong)?;
    l3[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if is_ipv4 {
        l3[10..12].fill(0);
        let sum = internet_checksum(&l3[..start]);
        l3[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let tcp = &mut l3[start..start + tcp_len];
    tcp[field::CHECKSUM].fill(0);
    let sum = pseudo.with(tcp).finish();
    tcp[field::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}
