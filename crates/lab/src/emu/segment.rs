//! Frames as TAP and TUN devices hand them over: a virtio-net header, which
//! says what offload left undone, in front of the packet. A frame of many
//! segments is cut into the packets it stands for, because loss and order are
//! properties of packets.

use std::net::IpAddr;

/// Bytes of the virtio-net header before every frame.
pub(super) const VNET_LEN: usize = 10;

/// Bytes of the longest frame that a device can hand over: header, Ethernet, packet of 64 KiB.
pub(super) const FRAME_MAX: usize = VNET_LEN + 18 + 65_535;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The fields of the virtio-net header, in this machine's byte order as the devices use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vnet {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl Vnet {
    fn read(frame: &[u8]) -> Option<Self> {
        let header: &[u8; VNET_LEN] = frame.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        Some(Self {
            flags: header[0],
            gso_type: header[1],
            header_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    fn bytes(self) -> [u8; VNET_LEN] {
        let mut out = [0; VNET_LEN];
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.header_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        out
    }
}

/// The destination address of a frame; `link_len` is 14 for TAP and 0 for TUN.
pub(super) fn destination(frame: &[u8], link_len: usize) -> Option<IpAddr> {
    let packet = frame.get(VNET_LEN + link_len..)?;
    match packet.first()? >> 4 {
        4 if is_ip(frame, link_len, 0x0800) => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        6 if is_ip(frame, link_len, 0x86dd) => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}

fn is_ip(frame: &[u8], link_len: usize, ether_type: u16) -> bool {
    link_len < 14
        || frame.get(VNET_LEN + 12..VNET_LEN + 14) == Some(ether_type.to_be_bytes().as_slice())
}

/// Hands every packet that `frame` stands for to `each`, in order, complete
/// with virtio-net headers. A frame that is one packet, or that is not
/// understood, is handed over as it is.
pub(super) fn for_each_packet(frame: &[u8], link_len: usize, mut each: impl FnMut(&[u8])) {
    if cut(frame, link_len, &mut each).is_none() {
        each(frame);
    }
}

/// Cuts a frame into packets; `None`, before any was handed over, if the frame has to stay whole.
fn cut(frame: &[u8], link_len: usize, each: &mut impl FnMut(&[u8])) -> Option<()> {
    let vnet = Vnet::read(frame)?;
    let kind = vnet.gso_type & !GSO_ECN;
    let size = usize::from(vnet.gso_size);
    if kind == GSO_NONE || size == 0 || vnet.flags & NEEDS_CSUM == 0 {
        return None;
    }
    let packet = &frame[VNET_LEN..];
    let transport = usize::from(vnet.csum_start);
    let payload_at = match kind {
        GSO_TCPV4 | GSO_TCPV6 => {
            transport + usize::from(packet.get(transport + 12)? >> 4).max(5) * 4
        }
        GSO_UDP_L4 => transport + 8,
        _ => return None,
    };
    let payload = packet.get(payload_at..)?;
    if transport < link_len + 20 || payload.len() <= size {
        return None;
    }
    let mut out = Vec::with_capacity(VNET_LEN + payload_at + size);
    for (index, part) in payload.chunks(size).enumerate() {
        let plain = Vnet { gso_type: GSO_NONE, gso_size: 0, header_len: 0, ..vnet };
        out.clear();
        out.extend_from_slice(&plain.bytes());
        out.extend_from_slice(&packet[..payload_at]);
        out.extend_from_slice(part);
        let place =
            Place { index, offset: index * size, last: (index + 1) * size >= payload.len() };
        rewrite(&mut out[VNET_LEN..], link_len, transport, &vnet, kind, place);
        each(&out);
    }
    Some(())
}

/// The part of its frame that a packet is.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    offset: usize,
    last: bool,
}

/// Turns copied headers into those of one packet. The checksum stays partial: the field holds the
/// sum of the pseudo header (RFC 9293 §3.1), and the receiving device completes it.
fn rewrite(
    packet: &mut [u8],
    link_len: usize,
    transport: usize,
    vnet: &Vnet,
    kind: u8,
    place: Place,
) {
    let length = packet.len();
    let transport_len = length - transport;
    let (addresses, protocol);
    if packet[link_len] >> 4 == 4 {
        let id = u16::from_be_bytes([packet[link_len + 4], packet[link_len + 5]]);
        let id = id.wrapping_add(place.index as u16);
        packet[link_len + 2..link_len + 4]
            .copy_from_slice(&((length - link_len) as u16).to_be_bytes());
        packet[link_len + 4..link_len + 6].copy_from_slice(&id.to_be_bytes());
        packet[link_len + 10..link_len + 12].fill(0);
        let header_len = usize::from(packet[link_len] & 15) * 4;
        let header_end = (link_len + header_len).min(transport);
        let sum = !fold(sum(&packet[link_len..header_end]));
        packet[link_len + 10..link_len + 12].copy_from_slice(&sum.to_be_bytes());
        addresses = sum_of_addresses(packet, link_len + 12, 8);
    } else {
        // The payload length of IPv6 counts from after its 40-byte header.
        let payload_len = (length - link_len).saturating_sub(40) as u16;
        packet[link_len + 4..link_len + 6].copy_from_slice(&payload_len.to_be_bytes());
        addresses = sum_of_addresses(packet, link_len + 8, 32);
    }
    if kind == GSO_UDP_L4 {
        protocol = 17;
        packet[transport + 4..transport + 6].copy_from_slice(&(transport_len as u16).to_be_bytes());
    } else {
        protocol = 6;
        let tcp = &mut packet[transport..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&seq.wrapping_add(place.offset as u32).to_be_bytes());
        if !place.last {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        // CWR answers one mark once (RFC 3168 §6.1.2).
        if place.index > 0 {
            tcp[13] &= !TCP_CWR;
        }
    }
    let pseudo = fold(addresses + protocol + transport_len as u32);
    let field = transport + usize::from(vnet.csum_offset);
    if let Some(bytes) = packet.get_mut(field..field + 2) {
        bytes.copy_from_slice(&pseudo.to_be_bytes());
    }
}

fn sum_of_addresses(packet: &[u8], at: usize, len: usize) -> u32 {
    packet.get(at..at + len).map_or(0, sum)
}

fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An IPv4 TCP frame of a TAP with `payload` and the given segment size.
    fn frame_v4(payload: &[u8], size: u16) -> Vec<u8> {
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            header_len: 54,
            gso_size: size,
            csum_start: 34,
            csum_offset: 16,
        };
        let mut out = vnet.bytes().to_vec();
        out.extend_from_slice(&[2; 12]);
        out.extend_from_slice(&[0x08, 0x00]);
        let total = (40 + payload.len()) as u16;
        let mut ip = [0u8; 20];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&7u16.to_be_bytes());
        ip[8..10].copy_from_slice(&[64, 6]);
        ip[12..20].copy_from_slice(&[10, 8, 0, 2, 10, 9, 0, 100]);
        out.extend_from_slice(&ip);
        let mut tcp = [0u8; 20];
        tcp[4..8].copy_from_slice(&(u32::MAX - 5).to_be_bytes());
        tcp[12] = 5 << 4;
        tcp[13] = 0x10 | TCP_PSH | TCP_FIN | TCP_CWR;
        out.extend_from_slice(&tcp);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn segments_carry_the_payload_once_and_in_order() {
        let payload: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        let frame = frame_v4(&payload, 1448);
        let mut packets = Vec::new();
        for_each_packet(&frame, 14, |packet| packets.push(packet.to_vec()));
        assert_eq!(packets.len(), 4);
        let mut joined = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            let ip = &packet[VNET_LEN + 14..];
            assert_eq!(fold(sum(&ip[..20])), 0xffff, "IPv4 header checksum");
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
            let seq = u32::from_be_bytes([ip[24], ip[25], ip[26], ip[27]]);
            assert_eq!(seq, (u32::MAX - 5).wrapping_add(joined.len() as u32));
            let last = index == 3;
            assert_eq!(ip[33] & (TCP_PSH | TCP_FIN) != 0, last);
            assert_eq!(ip[33] & TCP_CWR != 0, index == 0);
            let pseudo = fold(sum(&ip[12..20]) + 6 + (ip.len() - 20) as u32);
            assert_eq!(u16::from_be_bytes([ip[36], ip[37]]), pseudo);
            joined.extend_from_slice(&ip[40..]);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn a_plain_frame_stays_whole_and_its_destination_is_found() {
        let mut frame = frame_v4(b"x", 0);
        frame[1] = GSO_NONE;
        let mut count = 0;
        for_each_packet(&frame, 14, |packet| {
            assert_eq!(packet, frame);
            count += 1;
        });
        assert_eq!(count, 1);
        assert_eq!(destination(&frame, 14), Some("10.9.0.100".parse().unwrap()));
        assert_eq!(destination(&frame[..30], 14), None);
    }

    proptest! {
        #[test]
        fn no_frame_panics(frame in proptest::collection::vec(any::<u8>(), 0..200), link_len in prop_oneof![Just(0usize), Just(14)]) {
            let mut count = 0;
            for_each_packet(&frame, link_len, |_| count += 1);
            prop_assert!(count >= 1);
            let _ = destination(&frame, link_len);
        }

        #[test]
        fn no_offload_header_panics(gso in 0u8..6, size in 1u16..100, start in 0u16..200, offset: u16, rest in proptest::collection::vec(any::<u8>(), 0..300)) {
            let vnet = Vnet { flags: NEEDS_CSUM, gso_type: gso, header_len: 0, gso_size: size, csum_start: start, csum_offset: offset };
            let mut frame = vnet.bytes().to_vec();
            frame.extend_from_slice(&rest);
            for_each_packet(&frame, 14, |_| ());
            for_each_packet(&frame, 0, |_| ());
        }
    }
}
