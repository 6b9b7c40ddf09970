//! What the tunnel must know of a packet from the inside: its flow, its marks, whether its order
//! matters. Everything else is bytes.
//!
//! `holdfast_wire::packet` parses TCP only, and verifies checksums, which are none of a tunnel's
//! business.

use crate::Ecn;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
pub(crate) const TCP_HEADER: usize = 20;
/// Where IP headers have their protocol, and what makes an IPv4 packet a fragment (RFC 791 §3.1, RFC
/// 8200 §3).
pub(crate) const IPV4_PROTOCOL: usize = 9;
pub(crate) const IPV4_FRAGMENT: usize = 6;
pub(crate) const IS_FRAGMENT: u16 = 0x3fff;
pub(crate) const IPV6_PROTOCOL: usize = 6;
const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;

/// A view of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    /// Hash of addresses, protocol and ports: equal for the packets of a flow.
    pub flow: u64,
    pub protocol: u8,
    pub ports: Option<(u16, u16)>,
    pub dscp: u8,
    pub ecn: Ecn,
    pub tcp: Option<TcpOrder>,
}

/// A TCP segment's place in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpOrder {
    pub seq: u32,
    /// Sequence numbers that it covers, SYN and FIN included.
    pub len: u32,
    pub is_reset: bool,
    pub is_syn: bool,
}

impl TcpOrder {
    /// Nothing but an acknowledgement: its order does not matter, a later one replaces it.
    pub fn is_pure_ack(&self) -> bool {
        self.len == 0 && !self.is_reset
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Inner {
    /// `None` if it is no IPv4 or IPv6 packet, or is shorter than its header.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::ipv4(packet),
            6 => Self::ipv6(packet),
            _ => None,
        }
    }

    fn ipv4(packet: &[u8]) -> Option<Self> {
        let header = usize::from(packet[0] & 0x0f) * 4;
        let total = usize::from(u16_at(packet, 2)?);
        if header < IPV4_HEADER || total < header || total > packet.len() {
            return None;
        }
        let is_fragment = u16_at(packet, IPV4_FRAGMENT)? & IS_FRAGMENT != 0;
        let transport = if is_fragment { &[] } else { &packet[header..total] };
        let addresses = packet.get(12..20)?;
        Some(Self::of(packet[1], packet[IPV4_PROTOCOL], addresses, transport))
    }

    fn ipv6(packet: &[u8]) -> Option<Self> {
        let addresses = packet.get(8..IPV6_HEADER)?;
        let payload = usize::from(u16_at(packet, 4)?);
        let transport = packet.get(IPV6_HEADER..IPV6_HEADER + payload)?;
        let traffic_class = packet[0] << 4 | packet[1] >> 4;
        // Behind an extension header the ports are not looked for: such packets share a flow.
        Some(Self::of(traffic_class, packet[IPV6_PROTOCOL], addresses, transport))
    }

    fn of(traffic_class: u8, protocol: u8, addresses: &[u8], transport: &[u8]) -> Self {
        let has_ports = protocol == TCP || protocol == UDP;
        let ports = u16_at(transport, 0).zip(u16_at(transport, 2)).filter(|_| has_ports);
        let tcp = if protocol == TCP { tcp_order(transport) } else { None };
        let mut flow = hash(u64::from(protocol), addresses);
        if let Some((source, destination)) = ports {
            flow = hash(flow, &source.to_be_bytes());
            flow = hash(flow, &destination.to_be_bytes());
        }
        let (dscp, ecn) = (traffic_class >> 2, Ecn::of_bits(traffic_class));
        Self { flow, protocol, ports, dscp, ecn, tcp }
    }
}

fn tcp_order(segment: &[u8]) -> Option<TcpOrder> {
    if segment.len() < TCP_HEADER {
        return None;
    }
    let payload = segment.len().checked_sub(usize::from(segment[12] >> 4) * 4)?;
    let flags = segment[13];
    let seq = u32::from_be_bytes(segment[4..8].try_into().ok()?);
    let is_syn = flags & TCP_SYN != 0;
    let len = payload as u32 + u32::from(is_syn) + u32::from(flags & TCP_FIN != 0);
    Some(TcpOrder { seq, len, is_reset: flags & TCP_RST != 0, is_syn })
}

/// FNV-1a: flows need to be told apart, not hidden. What shares a hash shares a queue.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start ^ OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// The hash of the flow of opaque messages.
pub(crate) fn message_flow(flow: u32) -> u64 {
    hash(u64::from(u8::MAX) + 1, &flow.to_be_bytes())
}

/// The checksum of a header in which one word became another (RFC 1624, equation 3:
/// HC' = ~(~HC + ~m + m')).
pub(crate) fn updated_checksum(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !sum as u16
}

/// Marks a packet that said it understands marks as having met congestion (RFC 3168 §5).
/// Whether it could be marked.
pub(crate) fn mark_congestion(packet: &mut [u8]) -> bool {
    let congested = Ecn::Congested.bits();
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= IPV4_HEADER => {
            let before = [packet[0], packet[1]];
            if Ecn::of_bits(before[1]) == Ecn::NotCapable {
                return false;
            }
            packet[1] |= congested;
            let after = u16::from_be_bytes([packet[0], packet[1]]);
            let checksum = u16::from_be_bytes([packet[10], packet[11]]);
            let checksum = updated_checksum(checksum, u16::from_be_bytes(before), after);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            true
        }
        Some(6) if packet.len() >= IPV6_HEADER => {
            if Ecn::of_bits(packet[1] >> 4) == Ecn::NotCapable {
                return false;
            }
            packet[1] |= congested << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use holdfast_wire::packet::internet_checksum;
    use proptest::prelude::*;

    /// An IPv4 packet with a right header checksum.
    pub(crate) fn ipv4(protocol: u8, traffic_class: u8, transport: &[u8]) -> Vec<u8> {
        let total = (IPV4_HEADER + transport.len()) as u16;
        let mut packet = vec![0x45, traffic_class];
        packet.extend_from_slice(&total.to_be_bytes());
        packet.extend_from_slice(&[0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = internet_checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend_from_slice(transport);
        packet
    }

    /// A UDP datagram between two ports.
    pub(crate) fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
        let mut datagram = source.to_be_bytes().to_vec();
        datagram.extend_from_slice(&destination.to_be_bytes());
        datagram.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        datagram.extend_from_slice(&[0, 0]);
        datagram.extend_from_slice(payload);
        datagram
    }

    /// A TCP segment with the ACK flag.
    pub(crate) fn tcp(port: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut segment = port.to_be_bytes().to_vec();
        segment.extend_from_slice(&80u16.to_be_bytes());
        segment.extend_from_slice(&seq.to_be_bytes());
        segment.extend_from_slice(&[0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        segment.extend_from_slice(payload);
        segment
    }

    #[test]
    fn flows_are_told_apart_and_segments_have_a_place() {
        let a = Inner::parse(&ipv4(TCP, 0xb8, &tcp(1000, 7, b"hello"))).unwrap();
        let b = Inner::parse(&ipv4(TCP, 0xb8, &tcp(1000, 12, b""))).unwrap();
        let c = Inner::parse(&ipv4(UDP, 0x02, &udp(1000, 80, b"hello"))).unwrap();
        assert_eq!((a.flow == b.flow, a.flow == c.flow), (true, false));
        assert_eq!((a.dscp, a.ports), (46, Some((1000, 80))));
        let order = a.tcp.unwrap();
        assert_eq!((order.seq, order.len, order.is_pure_ack()), (7, 5, false));
        assert!(b.tcp.unwrap().is_pure_ack());
        assert_eq!((c.tcp, c.ecn), (None, Ecn::Capable0));
    }

    #[test]
    fn a_mark_keeps_the_checksum_right() {
        for traffic_class in 0..=255u8 {
            let mut packet = ipv4(UDP, traffic_class, &udp(1, 2, b"x"));
            let could = mark_congestion(&mut packet);
            assert_eq!(could, traffic_class & 3 != 0);
            assert_eq!(internet_checksum(&packet[..20]), 0, "{traffic_class:x}");
            assert_eq!(packet[1] & 3, if could { 3 } else { 0 });
        }
        let mut six = vec![0x60, 0x20, 0, 0, 0, 0, 59, 64];
        six.resize(IPV6_HEADER, 1);
        assert!(mark_congestion(&mut six));
        assert_eq!(Inner::parse(&six).unwrap().ecn, Ecn::Congested);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), first: u8) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.first_mut() {
                *byte = first & 0x2f | 0x40;
            }
            let _ = Inner::parse(&bytes);
            mark_congestion(&mut bytes);
        }
    }
}
