//! Headers of inner packets that need not be sent: after the first packets of a flow the peer knows
//! its addresses, ports and everything else that does not change, and gets a number instead. An
//! IPv4 and UDP header of 28 bytes becomes 4 to 6, which pays for much of the redundancy of small
//! messages.
//!
//! Robust against loss and disorder by construction, unlike ROHC (RFC 5795), which has states to lose:
//! a short header is used only after an acknowledgement of a symbol that defined it, nothing in it
//! depends on the packet before, and a number is never given to another header. A sender restores
//! each packet first and sends it whole if that does not give the same bytes.

use crate::inner::{
    IPV4_FRAGMENT, IPV4_HEADER, IPV4_PROTOCOL, IPV6_HEADER, IPV6_PROTOCOL, IS_FRAGMENT, TCP, UDP,
    u16_at,
};
use crate::item::Item;
use holdfast_wire::packet::internet_checksum;
use std::collections::{HashMap, VecDeque};

const PORTS: usize = 4;
const UDP_HEADER: usize = 8;
/// Where the fields lie that are computed or sent (RFC 791 §3.1, RFC 8200 §3, RFC 768).
const IPV4_LENGTH: std::ops::Range<usize> = 2..4;
const IPV4_ID: std::ops::Range<usize> = 4..6;
const IPV4_CHECKSUM: std::ops::Range<usize> = 10..12;
const IPV6_LENGTH: std::ops::Range<usize> = 4..6;
/// Headers that an end remembers of its own; the peer keeps twice as many.
const KNOWN_MAX: u64 = 256;

/// What does not change within a flow: the IP header with zeros in place of its length,
/// identification and checksum, and the ports.
type Fixed = Vec<u8>;

/// A packet taken apart.
struct Parts<'a> {
    fixed: Fixed,
    id: u16,
    checksum: Option<u16>,
    rest: &'a [u8],
}

fn take_apart(packet: &[u8]) -> Option<Parts<'_>> {
    let (header, protocol) = match packet.first()? {
        0x45 if u16_at(packet, IPV4_FRAGMENT)? & IS_FRAGMENT == 0 => {
            (IPV4_HEADER, *packet.get(IPV4_PROTOCOL)?)
        }
        first if first >> 4 == 6 => (IPV6_HEADER, *packet.get(IPV6_PROTOCOL)?),
        _ => return None,
    };
    let mut fixed = packet.get(..header + PORTS)?.to_vec();
    let mut id = 0;
    if header == IPV4_HEADER {
        id = u16_at(packet, IPV4_ID.start)?;
        for field in [IPV4_LENGTH, IPV4_ID, IPV4_CHECKSUM] {
            fixed[field].fill(0);
        }
    } else {
        fixed[IPV6_LENGTH].fill(0);
    }
    let transport = &packet[header..];
    let (checksum, rest) = match protocol {
        UDP => {
            let checksum = u16_at(transport, 6)?;
            ((checksum != 0).then_some(checksum), &transport[UDP_HEADER..])
        }
        TCP => (None, &transport[PORTS..]),
        _ => return None,
    };
    Some(Parts { fixed, id, checksum, rest })
}

/// The header of a packet of its parts; `None` if it would be longer than a packet can be.
fn header_of(fixed: &[u8], id: u16, checksum: Option<u16>, rest_bytes: usize) -> Option<Vec<u8>> {
    let is_ipv4 = fixed.first()? >> 4 == 4;
    let header = if is_ipv4 { IPV4_HEADER } else { IPV6_HEADER };
    let protocol = *fixed.get(if is_ipv4 { IPV4_PROTOCOL } else { IPV6_PROTOCOL })?;
    let mut packet = Vec::with_capacity(fixed.len() + UDP_HEADER + rest_bytes);
    packet.extend_from_slice(fixed);
    if protocol == UDP {
        let len = u16::try_from(UDP_HEADER + rest_bytes).ok()?;
        packet.extend_from_slice(&len.to_be_bytes());
        packet.extend_from_slice(&checksum.unwrap_or(0).to_be_bytes());
    }
    let bytes = packet.len() + rest_bytes;
    if is_ipv4 {
        let len = u16::try_from(bytes).ok()?;
        packet[IPV4_LENGTH].copy_from_slice(&len.to_be_bytes());
        packet[IPV4_ID].copy_from_slice(&id.to_be_bytes());
        let checksum = internet_checksum(&packet[..IPV4_HEADER]);
        packet[IPV4_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let len = u16::try_from(bytes - header).ok()?;
        packet[IPV6_LENGTH].copy_from_slice(&len.to_be_bytes());
    }
    Some(packet)
}

/// The packet of its parts; `None` as [`header_of`].
fn put_together(fixed: &[u8], id: u16, checksum: Option<u16>, rest: &[u8]) -> Option<Vec<u8>> {
    let mut packet = header_of(fixed, id, checksum, rest.len())?;
    packet.extend_from_slice(rest);
    Some(packet)
}

/// How a packet is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encoded {
    Whole(Vec<u8>),
    /// Whole, and its header has this number from now on.
    Defining(u64, Vec<u8>),
    Short {
        number: u64,
        id: Option<u16>,
        checksum: Option<u16>,
        rest: Vec<u8>,
    },
}

impl Encoded {
    pub fn item(&self) -> Item<'_> {
        match self {
            Self::Whole(packet) => Item::Packet(packet),
            Self::Defining(number, packet) => Item::Define { number: *number, packet },
            Self::Short { number, id, checksum, rest } => {
                Item::Short { number: *number, id: *id, checksum: *checksum, rest }
            }
        }
    }
}

/// The headers that this end has defined.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defined {
    numbers: HashMap<Fixed, (u64, bool)>,
    /// In the order of their numbers.
    order: VecDeque<Fixed>,
    next: u64,
}

impl Defined {
    /// How to send a packet.
    pub fn encode(&mut self, mut packet: Vec<u8>) -> Encoded {
        let Some(parts) = take_apart(&packet) else { return Encoded::Whole(packet) };
        let Some((number, is_confirmed)) = self.numbers.get(&parts.fixed).copied() else {
            let number = self.define(parts.fixed);
            return Encoded::Defining(number, packet);
        };
        if !is_confirmed {
            return Encoded::Defining(number, packet);
        }
        let Parts { fixed, id, checksum, rest } = parts;
        let (rest_at, rest_bytes) = (packet.len() - rest.len(), rest.len());
        let header = header_of(&fixed, id, checksum, rest_bytes);
        if header.as_deref() != packet.get(..rest_at) {
            return Encoded::Whole(packet);
        }
        packet.drain(..rest_at);
        let id = (id != 0).then_some(id);
        Encoded::Short { number, id, checksum, rest: packet }
    }

    fn define(&mut self, fixed: Fixed) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.order.len() as u64 >= KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        self.order.push_back(fixed.clone());
        self.numbers.insert(fixed, (number, false));
        number
    }

    /// The peer knows a header.
    pub fn confirm(&mut self, number: u64) {
        let Some(behind) = self.next.checked_sub(number + 1) else { return };
        let at = self.order.len().checked_sub(1 + behind as usize);
        let fixed = at.and_then(|at| self.order.get(at));
        if let Some(known) = fixed.and_then(|fixed| self.numbers.get_mut(fixed)) {
            known.1 = true;
        }
    }
}

/// The headers that the peer has defined.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    all: HashMap<u64, Fixed>,
    highest: u64,
}

impl Learned {
    /// Learns a header from a whole packet.
    pub fn learn(&mut self, number: u64, packet: &[u8]) {
        self.highest = self.highest.max(number);
        let least = self.highest.saturating_sub(2 * KNOWN_MAX);
        if number < least || self.all.contains_key(&number) {
            return;
        }
        if let Some(parts) = take_apart(packet) {
            self.all.insert(number, parts.fixed);
        }
        if self.all.len() as u64 > 2 * KNOWN_MAX {
            self.all.retain(|number, _| *number >= least);
        }
    }

    /// No more is remembered than may be.
    #[cfg(any(test, fuzzing))]
    pub fn check_limit(&self) {
        assert!(self.all.len() as u64 <= 2 * KNOWN_MAX + 1);
    }

    /// The packet; `None` if its header is not known.
    pub fn restore(
        &self,
        number: u64,
        id: Option<u16>,
        checksum: Option<u16>,
        rest: &[u8],
    ) -> Option<Vec<u8>> {
        put_together(self.all.get(&number)?, id.unwrap_or(0), checksum, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::{ipv4, tcp, udp};
    use proptest::prelude::*;

    fn sent(defined: &mut Defined, learned: &mut Learned, packet: &[u8]) -> usize {
        let encoded = defined.encode(packet.to_vec());
        match encoded.item() {
            Item::Packet(same) => assert_eq!(same, packet),
            Item::Define { number, packet } => {
                learned.learn(number, packet);
                defined.confirm(number);
            }
            Item::Short { number, id, checksum, rest } => {
                assert_eq!(learned.restore(number, id, checksum, rest).unwrap(), packet);
            }
            other => panic!("{other:?}"),
        }
        encoded.item().len()
    }

    #[test]
    fn a_small_udp_packet_loses_most_of_its_header() {
        let (mut defined, mut learned) = (Defined::default(), Learned::default());
        let packet = ipv4(UDP, 0, &udp(5000, 5001, &[7; 64]));
        assert!(sent(&mut defined, &mut learned, &packet) > packet.len());
        let short = sent(&mut defined, &mut learned, &packet);
        assert!(short <= 64 + 5, "{short}");
        let segment = ipv4(TCP, 0, &tcp(1000, 7, b"hello"));
        sent(&mut defined, &mut learned, &segment);
        assert!(sent(&mut defined, &mut learned, &segment) + 18 <= segment.len());
    }

    #[test]
    fn many_flows_push_each_other_out_without_mixing() {
        let (mut defined, mut learned) = (Defined::default(), Learned::default());
        for round in 0..3u16 {
            for port in 0..1000 {
                let packet = ipv4(UDP, 0, &udp(port, round, &port.to_be_bytes()));
                sent(&mut defined, &mut learned, &packet);
                sent(&mut defined, &mut learned, &packet);
            }
        }
        assert!(learned.all.len() as u64 <= 2 * KNOWN_MAX + 1 && defined.order.len() == 256);
    }

    proptest! {
        #[test]
        fn any_packet_comes_back_as_it_was(
            mut bytes in prop::collection::vec(any::<u8>(), 1..120),
            protocol in prop::sample::select(vec![TCP, UDP, 1, 50]),
            kind in 0u8..5,
        ) {
            let (mut defined, mut learned) = (Defined::default(), Learned::default());
            if kind == 0 {
                bytes[0] = 0x45;
            } else if kind == 1 {
                bytes[0] = 0x60;
            } else if kind < 4 {
                bytes = ipv4(protocol, bytes[0], &if kind == 2 { udp(1, 2, &bytes) } else { bytes });
            }
            for _ in 0..2 {
                sent(&mut defined, &mut learned, &bytes);
            }
        }
    }
}
