//! The Rust side of `bpf/layout.h`: map keys, values, limits and counter names.
//! A test has a C compiler compare the two (`layout/tests.rs`).

use aya::Pod;
use holdfast_wire::message::ConnKey;
use std::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most services (address and port) of one group.
pub const SERVICES_MAX: usize = 16;
/// Size of the group's name in a map, in bytes; a longer name is cut.
pub(crate) const GROUP_NAME_BYTES: usize = 32;
/// Most members behind one edge.
pub const MEMBERS_MAX: usize = 4;
/// Default of the most connections that a gate protects at once.
pub const GATE_SLOTS_DEFAULT: u32 = 65_536;
/// Default of the most flows whose bounds an edge keeps.
pub const EDGE_FLOWS_DEFAULT: u32 = 65_536;
/// Largest SYN-ACK (from the IP header on) that an event carries, in bytes.
pub const SYN_ACK_BYTES_MAX: usize = 128;
/// Most bytes of a captured packet that are kept.
pub(crate) const CAPTURE_BYTES_MAX: usize = 256;
pub(crate) const CAPTURE_RING_BYTES: u32 = 1 << 20;

/// Most flows whose window scales an edge of a transit group knows, for the cap on windows.
pub const REGULATE_FLOWS_DEFAULT: u32 = 65_536;
/// Most strings of one transit group.
pub const STRINGS_MAX: usize = 8;
/// Number of parts into which a transit group's flows are hashed.
pub const TRANSIT_SLOTS: usize = 256;
/// Default of the most flows that an edge of a transit group keeps on their strings.
pub const TRANSIT_FLOWS_DEFAULT: u32 = 131_072;

/// Most host servers behind one redirector.
pub const SPREAD_HOSTS_MAX: usize = 255;
/// Most services (address, port and protocol) of one redirector.
pub const SPREAD_SERVICES_MAX: usize = 64;
/// Default of the most TCP connections of each family that a redirector keeps on their hosts.
pub const SPREAD_FLOWS_DEFAULT: u32 = 262_144;
/// Number of entries in a service's Maglev table, each the slot of a host server: a prime.
pub const MAGLEV_ENTRIES: usize = 65_537;

pub(crate) const SPREAD_TABLES: u32 = 2 * SPREAD_SERVICES_MAX as u32;
pub(crate) const SPREAD_DIRECTORIES: u32 = 4;
pub(crate) const SPREAD_BUCKETS: usize = 4096;
pub(crate) const SPREAD_EMBRYOS_MAX: u32 = 65_536;
pub(crate) const SPREAD_DATAGRAMS_MAX: u32 = 65_536;
pub(crate) const SPREAD_FRAGMENTS_MAX: u32 = 4096;
/// Size of `struct spread_fragment`, which only the program looks into.
pub(crate) const SPREAD_FRAGMENT_BYTES: usize = 40;
pub(crate) const NO_SERVICE: u8 = 255;
/// The mark of a packet that only asks where it would go (see `super::trace`).
pub(crate) const TRACE_MARK: u32 = 0x686f_6c64;
/// The top byte of the mark in the answer.
pub(crate) const TRACE_BYTE: u32 = 0x68;
pub(crate) const NO_MEMBER: u32 = u32::MAX;
pub(crate) const FLOW_SERVER_FIN: u32 = 1;
pub(crate) const FLOW_CLIENT_FIN: u32 = 2;
pub(crate) const FLOW_RESET: u32 = 4;
pub(crate) const FLOW_ESTABLISHED: u32 = 8;
pub(crate) const FLOW_LEARNT: u32 = 16;
#[cfg(test)]
pub(crate) const FLOW_OPENED: u32 = 32;

/// What becomes of RSTs for connections without a slot (`enum gate_resets`).
pub(crate) const GATE_LETS_RESETS: u32 = 0;
pub(crate) const GATE_KEEPS_RESETS: u32 = 1;
pub(crate) const GATE_DEFERS_RESETS: u32 = 2;

/// Names of the counters, in the order of `enum gate_counter`.
pub(crate) const GATE_COUNTERS: [&str; 20] = [
    "syns",
    "held_syn_acks",
    "held_repeats",
    "refused_slots",
    "refused_events",
    "refused_options",
    "refused_unknown_syn",
    "stray",
    "syn_resets",
    "dead_resets",
    "unopened",
    "held_fins",
    "cleared_fins",
    "held_resets",
    "clamped",
    "repeats",
    "dsacks",
    "odd",
    "unknown_alone",
    "late_resets",
];

/// Names of the counters, in the order of `enum tapdrop_counter`.
pub(crate) const TAPDROP_COUNTERS: [&str; 1] = ["dropped"];

/// Names of the counters, in the order of `enum speak_counter`.
pub(crate) const SPEAK_COUNTERS: [&str; 9] =
    ["taken", "left", "sent", "silenced", "malformed", "odd", "handed_on", "cloned", "uncloned"];

/// Names of the counters, in the order of `enum edge_counter`.
pub(crate) const EDGE_COUNTERS: [&str; 14] = [
    "forwarded_in",
    "forwarded_out",
    "copied",
    "copy_failed",
    "closed",
    "fenced",
    "refused_flows",
    "untracked",
    "learnt",
    "implausible",
    "malformed",
    "slow_path",
    "odd",
    "too_big",
];

/// Names of the counters, in the order of `enum transit_counter`.
pub(crate) const TRANSIT_COUNTERS: [&str; 14] = [
    "into",
    "out",
    "new",
    "learned",
    "followed",
    "moved",
    "returned",
    "full",
    "stateless",
    "quoted",
    "no_string",
    "slow_path",
    "odd",
    "too_big",
];

/// Names of the counters, in the order of `enum spread_counter`.
pub(crate) const SPREAD_COUNTERS: [&str; 14] = [
    "redirected",
    "new_flows",
    "established",
    "learnt",
    "stray",
    "refused_flows",
    "nobody",
    "no_way",
    "too_big",
    "too_big_limited",
    "cut",
    "icmp_followed",
    "fragments_followed",
    "odd",
];

/// Names of the counters, in the order of `enum host_counter`.
pub(crate) const HOST_COUNTERS: [&str; 6] =
    ["decapsulated", "strangers", "not_ours", "congested", "clamped", "odd"];

/// Names of the counters, in the order of `enum bind_counter`.
pub(crate) const BIND_COUNTERS: [&str; 1] = ["binds"];

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ServiceKey {
    pub address: [u8; 16],
    pub port: u16,
    pub zero: u16,
}

impl ServiceKey {
    pub(crate) fn new(address: IpAddr, port: u16) -> Self {
        Self { address: mapped(address), port, zero: 0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawKey {
    pub server: [u8; 16],
    pub client: [u8; 16],
    pub server_port: u16,
    pub client_port: u16,
}

impl From<&ConnKey> for RawKey {
    fn from(key: &ConnKey) -> Self {
        Self {
            server: key.server,
            client: key.client,
            server_port: key.server_port,
            client_port: key.client_port,
        }
    }
}

impl From<&RawKey> for ConnKey {
    fn from(key: &RawKey) -> Self {
        Self {
            server: key.server,
            client: key.client,
            server_port: key.server_port,
            client_port: key.client_port,
        }
    }
}

/// A gate slot. It is never read as a whole, because the gate changes it at the same time:
/// `super::slots` reads and writes single words at the offsets of these fields.
#[repr(C)]
pub(crate) struct GateSlot {
    pub stable: u64,
    pub generation: u32,
    pub open_generation: u32,
    pub fin_generation: u32,
    pub free_generation: u32,
    pub iss: u32,
    pub irs: u32,
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub right_edge: u32,
    pub rcv_nxt: u32,
    pub last_ack: u32,
    pub last_edge: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub mss: u16,
    pub peer_mss: u16,
    pub window: u16,
    pub rcv_wscale: u8,
    pub snd_wscale: u8,
    pub sack: u8,
    pub has_ts: u8,
    pub zero: u16,
    pub key: RawKey,
    pub zero_tail: [u8; 16],
}

#[derive(FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct GateEvent {
    pub socket: u64,
    pub index: u32,
    pub generation: u32,
    pub iss: u32,
    pub irs: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub mss: u16,
    pub peer_mss: u16,
    pub window: u16,
    pub rcv_wscale: u8,
    pub snd_wscale: u8,
    pub sack: u8,
    pub has_ts: u8,
    pub packet_len: u16,
    pub passed: u8,
    pub zero: [u8; 7],
    pub key: RawKey,
    pub packet: [u8; SYN_ACK_BYTES_MAX],
}

#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawCaptured {
    pub at_ns: u64,
    pub ifindex: u32,
    pub what: u32,
    pub wire_bytes: u32,
    pub bytes: u32,
    pub data: [u8; CAPTURE_BYTES_MAX],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawSpeakMacs {
    pub service: [u8; 6],
    pub own: [u8; 6],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RawSpeakRelay {
    pub peer: [u8; 6],
    pub hand_on: u8,
    pub clone: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawFence {
    pub epoch: u64,
    pub current: u32,
    pub armed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawMember {
    pub ifindex: u32,
    pub l3_ifindex: u32,
    pub mac: [u8; 6],
    pub port_mac: [u8; 6],
    pub tap: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RawFlow {
    pub seen_ns: u64,
    pub iss: u32,
    pub seq_end: u32,
    pub right_edge: u32,
    pub tsval: u32,
    pub client_ack: u32,
    pub server_ack: u32,
    pub flags: u32,
    pub wscale: u8,
    pub zero: [u8; 3],
}

/// Number of a packet's string if it went through none.
pub const NO_STRING: u16 = 255;

pub(crate) const RECOVER_RING_BYTES: u32 = 4 << 20;
pub(crate) const RECOVER_INTO: u16 = 0;
pub(crate) const RECOVER_HELD: u16 = 2;
pub(crate) const RECOVER_OPENED: u16 = 3;
pub(crate) const RECOVER_HOLDS: u32 = 0x100;
pub(crate) const RECOVER_FROM_NOW: u64 = 1 << 63;
pub(crate) const REGULATE_UNCAPPED: u32 = u32::MAX;
pub(crate) const REGULATE_NEAR_FIN: u8 = 4;
pub(crate) const REGULATE_FAR_FIN: u8 = 8;
pub(crate) const REGULATE_RESET: u8 = 16;
pub(crate) const STRING_V4: u32 = 1;
pub(crate) const STRING_V6: u32 = 2;
pub(crate) const TRANSIT_LEADS: u32 = 1;
pub(crate) const TRANSIT_RETURN_ALL: u32 = 2;
pub(crate) const TRANSIT_CLOSED: u32 = 4;
pub(crate) const TRANSIT_FROM_OUTSIDE: u8 = 1;
pub(crate) const TRANSIT_FROM_STRING: u8 = 2;
pub(crate) const TRANSIT_OUTSIDE_FIN: u8 = 4;
pub(crate) const TRANSIT_STRING_FIN: u8 = 8;
pub(crate) const TRANSIT_RESET: u8 = 16;

/// The record in front of a copied packet (`struct recovered`).
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Recovered {
    pub payload: u32,
    pub tail_at: u32,
    pub direction: u16,
    pub way: u16,
    pub headers: u16,
    pub head_bytes: u16,
    pub tail_bytes: u16,
    pub tail_from: u16,
    pub gso_size: u16,
    pub zero: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRecoverCount {
    pub copied: u64,
    pub lost: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRegulateFlow {
    pub seen_ns: u64,
    pub turn_ns: u64,
    pub turn_us: u32,
    pub turn_from: u32,
    pub turn_bytes: u32,
    pub sent_end: u32,
    pub right_edge: u32,
    pub session: u16,
    pub interval: u16,
    pub near_scale: u8,
    pub far_scale: u8,
    pub flags: u8,
    pub zero: [u8; 5],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRegulateString {
    pub bytes: u64,
    pub flows: u64,
    pub free_bytes: u64,
    pub free_flows: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawRegulateCount {
    pub clamped: u64,
    pub refused: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawString {
    pub ifindex: u32,
    pub families: u32,
    pub next_hop4: [u8; 4],
    pub next_hop6: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTable {
    pub epoch: u32,
    pub armed: u32,
    pub usable: u32,
    pub flags: u32,
    pub seed: u32,
    pub strings: [RawString; STRINGS_MAX],
    pub slots: [u8; TRANSIT_SLOTS],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct RawTransitKey {
    pub low: [u8; 16],
    pub high: [u8; 16],
    pub low_port: u16,
    pub high_port: u16,
    pub protocol: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTransitFlow {
    pub seen_ns: u64,
    pub string: u8,
    pub home: u8,
    pub flags: u8,
    pub zero: [u8; 5],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTraffic {
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SpreadService {
    /// The 16 bytes of the address, in network order.
    pub address: [u64; 2],
    pub port: u16,
    /// IP protocol number; 0 in a row without a service.
    pub protocol: u16,
    pub table: u32,
}

impl SpreadService {
    pub(crate) const NONE: Self = Self { address: [0; 2], port: 0, protocol: 0, table: 0 };

    pub(crate) fn new(address: [u8; 16], port: u16, protocol: u16, table: u32) -> Self {
        let (low, high) = address.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(std::array::from_fn(|i| half[i]));
        Self { address: [word(low), word(high)], port, protocol, table }
    }

    pub(crate) fn address(&self) -> IpAddr {
        let [low, high] = self.address.map(u64::to_ne_bytes);
        unmapped(std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] }))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SpreadDirectory {
    pub factors: [u64; 3],
    pub services: [SpreadService; SPREAD_SERVICES_MAX],
    pub buckets: [u8; SPREAD_BUCKETS],
}

pub(crate) type SpreadTable = [u8; MAGLEV_ENTRIES];

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SpreadWay {
    pub address: [u8; 16],
    pub next_hop: [u8; 16],
    pub ifindex: u32,
    pub mtu: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SpreadHost {
    pub v4: SpreadWay,
    pub v6: SpreadWay,
    pub state: u32,
    pub layer2: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SpreadConfig {
    pub seed: u64,
    pub outer4: [u8; 4],
    pub outer4_mask: [u8; 4],
    pub outer6: [u8; 16],
    pub outer6_mask: [u8; 4],
    pub tick: u32,
    pub directory: u32,
    pub zero: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SpreadKey4 {
    pub server: [u8; 4],
    pub client: [u8; 4],
    pub ports: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SpreadFlow {
    pub tick: u32,
    pub hash: u32,
    pub host: u8,
    pub flags: u8,
    pub lived: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HostConfig {
    pub tunnel4: [u8; 4],
    pub outer4: [u8; 4],
    pub outer4_mask: [u8; 4],
    pub mtu: u32,
    pub tunnel6: [u8; 16],
    pub outer6: [u8; 16],
    pub outer6_mask: [u8; 16],
}

// SAFETY: the types below are `repr(C)`, have no padding (the test
// compares every field's place), and every bit pattern of their integers is valid.
unsafe impl Pod for ServiceKey {}
// SAFETY: as above.
unsafe impl Pod for RawKey {}
// SAFETY: as above.
unsafe impl Pod for RawSpeakMacs {}
// SAFETY: as above.
unsafe impl Pod for RawSpeakRelay {}
// SAFETY: as above.
unsafe impl Pod for RawFence {}
// SAFETY: as above.
unsafe impl Pod for RawMember {}
// SAFETY: as above.
unsafe impl Pod for RawFlow {}
// SAFETY: as above.
unsafe impl Pod for RawRecoverCount {}
// SAFETY: as above.
unsafe impl Pod for RawRegulateFlow {}
// SAFETY: as above.
unsafe impl Pod for RawRegulateString {}
// SAFETY: as above.
unsafe impl Pod for RawRegulateCount {}
// SAFETY: as above.
unsafe impl Pod for RawTable {}
// SAFETY: as above.
unsafe impl Pod for RawTransitKey {}
// SAFETY: as above.
unsafe impl Pod for RawTransitFlow {}
// SAFETY: as above.
unsafe impl Pod for RawTraffic {}
// SAFETY: as above.
unsafe impl Pod for SpreadDirectory {}
// SAFETY: as above.
unsafe impl Pod for SpreadKey4 {}
// SAFETY: as above.
unsafe impl Pod for SpreadHost {}
// SAFETY: as above.
unsafe impl Pod for SpreadConfig {}
// SAFETY: as above.
unsafe impl Pod for SpreadFlow {}
// SAFETY: as above.
unsafe impl Pod for HostConfig {}

/// The address of a map's entry, where IPv4 addresses are mapped into IPv6.
pub(crate) fn unmapped(address: [u8; 16]) -> IpAddr {
    std::net::Ipv6Addr::from(address).to_canonical()
}

pub(crate) use holdfast_wire::packet::mapped;

#[cfg(test)]
mod tests;
