//! The clamp of the MSS: hosts behind a tunnel are told how long a segment may be that goes through it
//! whole, because they know only the MTUs of their own links, and because the ICMP messages that would
//! tell them of a shorter one (RFC 1191, RFC 8201) are dropped in many networks.

use crate::inner::{
    IPV4_FRAGMENT, IPV4_HEADER, IPV4_PROTOCOL, IPV6_HEADER, IPV6_PROTOCOL, IS_FRAGMENT, TCP,
    TCP_HEADER, TCP_SYN, u16_at, updated_checksum,
};

/// Where a segment has its flags, the length of its header and its checksum (RFC 9293 §3.1).
const OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
/// Options (RFC 9293 §3.2).
const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const MSS_BYTES: u8 = 4;

/// Lowers the MSS that a SYN or SYN-ACK announces to what fits into packets of `mtu` bytes, and keeps
/// its checksum as right or wrong as it was; whether it was lowered. It is the MTU without the fixed
/// headers of IP and TCP, whatever options there will be (RFC 6691 §2, RFC 9293 §3.7.1). All other
/// packets are left alone, and so are fragments, segments behind IPv6 extension headers, and SYNs
/// without the option, whose sender takes 536 or 1,220 bytes.
pub fn clamp_mss(packet: &mut [u8], mtu: usize) -> bool {
    let Some(Place { fixed, checksum_at, value_at, is_straddling }) = find(packet) else {
        return false;
    };
    let most = mtu.saturating_sub(fixed + TCP_HEADER).min(usize::from(u16::MAX)) as u16;
    let (Some(announced), Some(checksum)) = (u16_at(packet, value_at), u16_at(packet, checksum_at))
    else {
        return false;
    };
    if announced <= most {
        return false;
    }
    let word = |value: u16| if is_straddling { value.swap_bytes() } else { value };
    let checksum = updated_checksum(checksum, word(announced), word(most));
    packet[value_at..value_at + 2].copy_from_slice(&most.to_be_bytes());
    packet[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Where an MSS lies in a packet.
struct Place {
    /// Length of a fixed IP header of the packet's version.
    fixed: usize,
    checksum_at: usize,
    value_at: usize,
    /// Behind an odd number of bytes it straddles two words of the sum, which is the same with its
    /// bytes exchanged (RFC 1071 §2 (B)).
    is_straddling: bool,
}

/// The option of a SYN.
fn find(packet: &[u8]) -> Option<Place> {
    let (fixed, segment_at, protocol) = match packet.first()? >> 4 {
        4 if u16_at(packet, IPV4_FRAGMENT)? & IS_FRAGMENT == 0 => {
            (IPV4_HEADER, usize::from(packet[0] & 0x0f) * 4, *packet.get(IPV4_PROTOCOL)?)
        }
        6 => (IPV6_HEADER, IPV6_HEADER, *packet.get(IPV6_PROTOCOL)?),
        _ => return None,
    };
    let segment = packet.get(segment_at..)?;
    if protocol != TCP || segment_at < fixed || segment.get(FLAGS)? & TCP_SYN == 0 {
        return None;
    }
    let header = segment.get(..usize::from(segment[OFFSET] >> 4) * 4)?;
    let mut at = TCP_HEADER;
    loop {
        match (*header.get(at)?, header.get(at + 1)) {
            (END, _) => return None,
            (NOTHING, _) => at += 1,
            (MSS, Some(&MSS_BYTES)) if header.len() >= at + usize::from(MSS_BYTES) => {
                return Some(Place {
                    fixed,
                    checksum_at: segment_at + CHECKSUM,
                    value_at: segment_at + at + 2,
                    is_straddling: at % 2 == 1,
                });
            }
            // A length below two would never end.
            (_, Some(&bytes)) if bytes >= 2 => at += usize::from(bytes),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::ipv4;
    use holdfast_wire::packet::{Checksum, TcpPacket, complete_checksum, internet_checksum};
    use proptest::prelude::*;

    const SYN: u8 = 0x02;
    const SYN_ACK: u8 = 0x12;

    fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
        let words = (TCP_HEADER + options.len()).div_ceil(4) as u8;
        let mut segment =
            vec![0x9c, 0x40, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, words << 4, flags, 0xff, 0];
        segment.extend([0, 0, 0, 0]);
        segment.extend(options);
        segment.resize(usize::from(words) * 4, 0);
        segment
    }

    fn ipv6(segment: &[u8]) -> Vec<u8> {
        let length = (segment.len() as u16).to_be_bytes();
        let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], TCP, 64];
        packet.extend([0x20; 32]);
        packet.extend(segment);
        packet
    }

    fn mss_of(packet: &[u8]) -> u16 {
        u16_at(packet, find(packet).expect("an option").value_at).expect("a value")
    }

    /// The option where it usually is, behind an odd number of bytes, and behind another one.
    const OPTIONS: [&[u8]; 3] = [
        &[2, 4, 0x05, 0xb4, 1, 3, 3, 7],
        &[1, 2, 4, 0x05, 0xb4],
        &[8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 4, 0x05, 0xb4, 0],
    ];

    #[test]
    fn a_syn_and_its_answer_announce_what_goes_through_and_keep_a_right_checksum() {
        for flags in [SYN, SYN_ACK] {
            for options in OPTIONS {
                let segment = segment(flags, options);
                for (mut packet, headers) in [(ipv4(TCP, 0, &segment), 40), (ipv6(&segment), 60)] {
                    complete_checksum(&mut packet).unwrap();
                    assert!(!clamp_mss(&mut packet, 1460 + headers), "it fits");
                    assert!(clamp_mss(&mut packet, 1420), "{options:?}");
                    assert_eq!(usize::from(mss_of(&packet)), 1420 - headers);
                    assert!(TcpPacket::parse(&packet, Checksum::Verify).is_ok(), "{options:?}");
                    assert!(!clamp_mss(&mut packet, 1420), "once");
                }
            }
        }
    }

    #[test]
    fn all_else_is_left_alone() {
        let with_option = |flags| ipv4(TCP, 0, &segment(flags, OPTIONS[0]));
        let mut fragment = with_option(SYN);
        fragment[IPV4_FRAGMENT] = 0x20;
        let mut behind_a_header = ipv6(&segment(SYN, OPTIONS[0]));
        behind_a_header[IPV6_PROTOCOL] = 0;
        let others = [
            with_option(0x10),
            ipv4(17, 0, &segment(SYN, OPTIONS[0])),
            fragment,
            behind_a_header,
            ipv4(TCP, 0, &segment(SYN, &[])),
            // Options that end before it, that never end, and that are cut off.
            ipv4(TCP, 0, &segment(SYN, &[0, 2, 4, 5, 0xb4, 0, 0, 0])),
            ipv4(TCP, 0, &segment(SYN, &[8, 0, 2, 4, 5, 0xb4, 0, 0])),
            ipv4(TCP, 0, &segment(SYN, &[1, 2, 4, 5])),
        ];
        for packet in others {
            let mut clamped = packet.clone();
            assert!(!clamp_mss(&mut clamped, 600), "{packet:x?}");
            assert_eq!(clamped, packet);
        }
    }

    proptest! {
        #[test]
        fn whatever_it_is_its_length_and_its_sum_stay(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            kind in 0u8..3,
            mtu in 0usize..70_000,
        ) {
            bytes = match kind {
                0 => bytes,
                1 => ipv4(TCP, 0, &segment(SYN, &bytes[..bytes.len().min(40)])),
                _ => ipv6(&segment(SYN, &bytes[..bytes.len().min(40)])),
            };
            let (before, sum) = (bytes.clone(), internet_checksum(&bytes));
            if clamp_mss(&mut bytes, mtu) {
                // Zero has two forms in this sum (RFC 1624 §3).
                let same = |sum: u16| if sum == u16::MAX { 0 } else { sum };
                prop_assert_eq!(same(internet_checksum(&bytes)), same(sum));
                prop_assert_eq!(bytes.len(), before.len());
            } else {
                prop_assert_eq!(bytes, before);
            }
        }
    }
}
