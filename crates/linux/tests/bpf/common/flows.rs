//! The edges' tables of flows, word by word, including words that user space does not use.

use aya::maps::{HashMap, Map, MapData};
use holdfast_sim::models::{FlowWords, PlaceWords, StringWords};
use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Bytes of `struct conn_key`.
const KEY_BYTES: usize = 36;
/// Bytes of `struct edge_flow`.
const FLOW_BYTES: usize = 40;
const SERVER_FIN: u32 = 1;
const CLIENT_FIN: u32 = 2;
const RESET: u32 = 4;
const ESTABLISHED: u32 = 8;
const LEARNT: u32 = 16;

pub struct Flows(HashMap<MapData, [u8; KEY_BYTES], [u8; FLOW_BYTES]>);

impl Flows {
    pub fn pinned(pin_dir: &Path) -> Self {
        let map = MapData::from_pin(pin_dir.join("edge/edge_flows")).expect("pinned");
        Self(HashMap::try_from(Map::HashMap(map)).expect("a table of flows"))
    }

    pub fn words(&self, key: &ConnKey) -> Option<FlowWords> {
        let raw = raw_key(&key.server, &key.client, key.server_port, key.client_port);
        let flow = self.0.get(&raw, 0).ok()?;
        let word = |at: usize| u32::from_ne_bytes(flow[at..at + 4].try_into().expect("4"));
        let flags = word(32);
        Some(FlowWords {
            iss: SeqNo(word(8)),
            seq_end: SeqNo(word(12)),
            right_edge: SeqNo(word(16)),
            tsval: word(20),
            client_ack: SeqNo(word(24)),
            server_ack: SeqNo(word(28)),
            wscale: flow[36],
            established: flags & ESTABLISHED != 0,
            client_fin: flags & CLIENT_FIN != 0,
            server_fin: flags & SERVER_FIN != 0,
            reset: flags & RESET != 0,
            learnt: flags & LEARNT != 0,
        })
    }
}

/// Bytes of `struct spread_key4`.
const KEY4_BYTES: usize = 12;
/// Bytes of `struct spread_flow`.
const PLACE_BYTES: usize = 12;
const OPENED: u32 = 32;

/// The redirector's connections of both families, and its SYNs.
pub struct Places {
    ipv4: [HashMap<MapData, [u8; KEY4_BYTES], [u8; PLACE_BYTES]>; 2],
    ipv6: [HashMap<MapData, [u8; KEY_BYTES], [u8; PLACE_BYTES]>; 2],
}

impl Places {
    /// Opens the maps in the directory of the redirector's pins.
    pub fn pinned(pins: &Path) -> Self {
        let map = |name: &str| MapData::from_pin(pins.join(name)).expect("pinned");
        let flows = |name| Map::HashMap(map(name));
        let embryos = |name| Map::LruHashMap(map(name));
        Self {
            ipv4: [flows("spread_flows4"), embryos("spread_embryos4")]
                .map(|map| HashMap::try_from(map).expect("a table")),
            ipv6: [flows("spread_flows6"), embryos("spread_embryos6")]
                .map(|map| HashMap::try_from(map).expect("a table")),
        }
    }

    pub fn words(&self, client: SocketAddr, server: SocketAddr) -> [Option<PlaceWords>; 2] {
        match (client.ip(), server.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ports = u32::from(client.port()) << 16 | u32::from(server.port());
                let raw = [to.octets(), from.octets(), ports.to_ne_bytes()].concat();
                let raw = raw.try_into().expect("12");
                self.ipv4.each_ref().map(|table| table.get(&raw, 0).ok().map(place))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let raw = raw_key(&to.octets(), &from.octets(), server.port(), client.port());
                self.ipv6.each_ref().map(|table| table.get(&raw, 0).ok().map(place))
            }
            _ => panic!("one family per connection"),
        }
    }
}

fn place(raw: [u8; PLACE_BYTES]) -> PlaceWords {
    let flags = u32::from(raw[9]);
    PlaceWords {
        tick: u32::from_ne_bytes(raw[..4].try_into().expect("4")),
        host: raw[8],
        client_fin: flags & CLIENT_FIN != 0,
        reset: flags & RESET != 0,
        established: flags & ESTABLISHED != 0,
        opened: flags & OPENED != 0,
        learnt: flags & LEARNT != 0,
        lived: u16::from_ne_bytes([raw[10], raw[11]]),
    }
}

fn raw_key(
    server: &[u8; 16],
    client: &[u8; 16],
    server_port: u16,
    client_port: u16,
) -> [u8; KEY_BYTES] {
    let mut raw = [0; KEY_BYTES];
    raw[..16].copy_from_slice(server);
    raw[16..32].copy_from_slice(client);
    raw[32..34].copy_from_slice(&server_port.to_ne_bytes());
    raw[34..].copy_from_slice(&client_port.to_ne_bytes());
    raw
}

/// Bytes of `struct transit_key`.
const STRING_KEY_BYTES: usize = 40;
/// Bytes of `struct transit_flow`.
const STRING_FLOW_BYTES: usize = 16;
const TCP: u32 = 6;

/// The string of each flow of a transit group.
pub struct Strings(HashMap<MapData, [u8; STRING_KEY_BYTES], [u8; STRING_FLOW_BYTES]>);

impl Strings {
    pub fn pinned(pin_dir: &Path) -> Self {
        let map = MapData::from_pin(pin_dir.join("transit/transit_flows")).expect("pinned");
        Self(HashMap::try_from(Map::HashMap(map)).expect("a table of flows"))
    }

    /// Words of a connection whose `low` end comes first in the kernel's order.
    pub fn words(&self, low: SocketAddr, high: SocketAddr) -> Option<StringWords> {
        let mut raw = [0; STRING_KEY_BYTES];
        raw[..16].copy_from_slice(&mapped(low.ip()));
        raw[16..32].copy_from_slice(&mapped(high.ip()));
        raw[32..34].copy_from_slice(&low.port().to_ne_bytes());
        raw[34..36].copy_from_slice(&high.port().to_ne_bytes());
        raw[36..].copy_from_slice(&TCP.to_ne_bytes());
        let flow = self.0.get(&raw, 0).ok()?;
        Some(StringWords { string: flow[8].into(), home: flow[9].into() })
    }
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
