//! Frames that a segmentation offload left in one piece: their headers without
//! the payload, and single segments of them as the card would have cut them.

use super::{
    Checksum, Flags, IPV4_HEADER, IPV6_HEADER, PacketError, TcpPacket, be16, complete_checksum,
    field, map_ipv4, pseudo_header,
};
use crate::seq::SeqNo;
use std::ops::Deref;

/// The IP and the TCP header of a packet, without IP options; as a view it is a
/// packet without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    view: TcpPacket<'a>,
    /// Where the TCP header begins.
    tcp: usize,
}

impl<'a> Deref for Headers<'a> {
    type Target = TcpPacket<'a>;

    fn deref(&self) -> &TcpPacket<'a> {
        &self.view
    }
}

impl<'a> Headers<'a> {
    /// Reads headers that nothing follows.
    ///
    /// # Errors
    /// [`PacketError`] if they are not whole headers of TCP.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let (tcp, source, destination) = match bytes.first().map(|byte| byte >> 4) {
            None => return Err(PacketError::Truncated),
            Some(4) => {
                let ip: &[u8; IPV4_HEADER] = bytes.first_chunk().ok_or(PacketError::Truncated)?;
                let [.., a, b, c, d, e, f, g, h] = *ip;
                (IPV4_HEADER, map_ipv4([a, b, c, d]), map_ipv4([e, f, g, h]))
            }
            Some(6) => {
                let ip: &[u8; IPV6_HEADER] = bytes.first_chunk().ok_or(PacketError::Truncated)?;
                let mut addresses = [[0; 16]; 2];
                addresses[0].copy_from_slice(&ip[8..24]);
                addresses[1].copy_from_slice(&ip[24..]);
                (IPV6_HEADER, addresses[0], addresses[1])
            }
            Some(_) => return Err(PacketError::Version),
        };
        let header = bytes.get(tcp..).unwrap_or_default();
        let view = TcpPacket::read((source, destination), header, bytes)?;
        if view.payload.is_empty() { Ok(Self { view, tcp }) } else { Err(PacketError::DataOffset) }
    }

    /// Writes one segment of the frame that these headers precede: its `payload`
    /// begins `at` bytes into the frame's `whole` bytes, and each packet takes
    /// `segment` bytes (0: not an offloaded frame). It is cut as a card would cut
    /// it: PSH and FIN on the last segment only, CWR on the first, identifications
    /// counting up. The checksums are complete; a whole packet whose checksum is
    /// right, or was left to the card, is otherwise unchanged.
    ///
    /// # Errors
    /// [`PacketError::Checksum`] if the packet was damaged on its way;
    /// [`PacketError::TooLong`] if no packet can be that long.
    pub fn cut(
        &self,
        at: u32,
        payload: &[u8],
        (whole, segment): (u32, u16),
        out: &mut Vec<u8>,
    ) -> Result<(), PacketError> {
        self.write(payload, out)?;
        let is_whole = at == 0 && payload.len() as u64 == u64::from(whole);
        if is_whole && segment == 0 {
            return self.complete(out);
        }
        let is_last = u64::from(at) + payload.len() as u64 == u64::from(whole);
        let mut flags = self.flags.0;
        if !is_last {
            flags &= !(Flags::PSH.0 | Flags::FIN.0);
        }
        if at != 0 {
            flags &= !Flags::CWR.0;
        }
        if self.tcp == IPV4_HEADER && segment != 0 {
            let number = be16(&out[4..6]).wrapping_add((at / u32::from(segment)) as u16);
            out[4..6].copy_from_slice(&number.to_be_bytes());
        }
        self.put(self.seq.plus(u64::from(at)), flags, out);
        complete_checksum(out)
    }

    /// Writes this packet's acknowledgement as a packet without payload.
    ///
    /// # Errors
    /// As [`Headers::cut`].
    pub fn bare_ack(&self, whole: u32, out: &mut Vec<u8>) -> Result<(), PacketError> {
        self.write(&[], out)?;
        let flags = Flags::ACK.0 | self.flags.0 & Flags::ECE.0;
        self.put(self.seq.plus(u64::from(whole)), flags, out);
        complete_checksum(out)
    }

    fn put(&self, seq: SeqNo, flags: u8, out: &mut [u8]) {
        let header = &mut out[self.tcp..];
        header[field::SEQ].copy_from_slice(&seq.0.to_be_bytes());
        header[field::FLAGS] = flags;
    }

    /// Writes headers and payload, with their lengths.
    fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), PacketError> {
        out.clear();
        out.extend_from_slice(self.raw);
        out.extend_from_slice(payload);
        let (place, length) =
            if self.tcp == IPV4_HEADER { (2, out.len()) } else { (4, out.len() - IPV6_HEADER) };
        let length = u16::try_from(length).map_err(|_| PacketError::TooLong)?;
        out[place..place + 2].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Completes a checksum that was left to the card. One that is neither right
    /// nor left open was damaged, and must not be made right.
    fn complete(&self, out: &mut [u8]) -> Result<(), PacketError> {
        match TcpPacket::parse(out, Checksum::Verify) {
            Err(PacketError::Checksum) => {}
            Err(other) => return Err(other),
            Ok(_) => return Ok(()),
        }
        let said = be16(&out[self.tcp..][field::CHECKSUM]);
        let open = pseudo_header(&self.source, &self.destination, out.len() - self.tcp);
        if said != !open.finish() {
            return Err(PacketError::Checksum);
        }
        complete_checksum(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ConnKey;
    use crate::packet::{TcpOptions, TcpSegment};
    use proptest::prelude::*;

    fn frame(v6: bool, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let end = |last: u8| if v6 { [last; 16] } else { map_ipv4([10, 0, 0, last]) };
        let key = ConnKey { server: end(1), client: end(2), server_port: 80, client_port: 4000 };
        let options = TcpOptions { timestamps: Some((7, 9)), ..TcpOptions::default() };
        let (seq, ack) = (SeqNo(u32::MAX - 1500), SeqNo(5));
        TcpSegment { key, to_client: false, seq, ack, flags, window: 50, options, payload }
            .build()
            .unwrap()
    }

    fn headers_len(v6: bool) -> usize {
        if v6 { 72 } else { 52 }
    }

    proptest! {
        /// The segments of a frame, put together, are the frame.
        #[test]
        fn segments_make_the_frame(
            v6: bool, segment in 1u16..2000, bytes in proptest::collection::vec(any::<u8>(), 1..5000),
        ) {
            let flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
            let whole = frame(v6, flags, &bytes);
            let headers = Headers::parse(&whole[..headers_len(v6)]).unwrap();
            let mut out = Vec::new();
            let count = bytes.chunks(usize::from(segment)).count();
            for (index, piece) in bytes.chunks(usize::from(segment)).enumerate() {
                let at = index as u32 * u32::from(segment);
                headers.cut(at, piece, (bytes.len() as u32, segment), &mut out).unwrap();
                let packet = TcpPacket::parse(&out, Checksum::Verify).unwrap();
                prop_assert_eq!((packet.payload, packet.seq), (piece, headers.seq.plus(u64::from(at))));
                prop_assert_eq!(packet.flags.has(Flags::FIN | Flags::PSH), index + 1 == count);
                prop_assert_eq!(packet.flags.has(Flags::CWR), index == 0);
                prop_assert_eq!(packet.options, headers.options);
                if !v6 {
                    prop_assert_eq!(usize::from(u16::from_be_bytes([out[4], out[5]])), index);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(headers) = Headers::parse(&bytes) {
                let _ = headers.cut(0, &bytes, (bytes.len() as u32, 0), &mut Vec::new());
                let _ = headers.bare_ack(7, &mut Vec::new());
            }
        }
    }

    #[test]
    fn a_whole_packet_stays_as_it_is_unless_it_is_damaged() {
        for v6 in [false, true] {
            let good = frame(v6, Flags::ACK | Flags::PSH, b"hello");
            let at = headers_len(v6);
            let mut out = Vec::new();
            let mut cut = |bytes: &[u8]| {
                let headers = Headers::parse(&bytes[..at]).unwrap();
                headers.cut(0, &bytes[at..], (5, 0), &mut out).map(|()| out.clone())
            };
            assert_eq!(cut(&good).unwrap(), good);
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert_eq!(cut(&damaged), Err(PacketError::Checksum));
            // As a kernel leaves it to the card: the pseudo header's sum.
            let mut open = good.clone();
            let (tcp, headers) = (at - 32, Headers::parse(&good[..at]).unwrap());
            let sum = !pseudo_header(&headers.source, &headers.destination, 37).finish();
            open[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(cut(&open).unwrap(), good);
        }
    }

    #[test]
    fn an_acknowledgement_loses_its_payload() {
        let whole = frame(false, Flags::ACK | Flags::PSH, b"hello");
        let headers = Headers::parse(&whole[..52]).unwrap();
        let mut out = Vec::new();
        headers.bare_ack(5, &mut out).unwrap();
        let packet = TcpPacket::parse(&out, Checksum::Verify).unwrap();
        assert_eq!((packet.seq, packet.ack), (headers.seq.plus(5), SeqNo(5)));
        assert_eq!((packet.flags, packet.payload.len()), (Flags::ACK, 0));
    }
}
