//! The edge's table of flows, word by word: what user space has no use for, too.

use aya::maps::{HashMap, Map, MapData};
use holdfast_sim::models::FlowWords;
use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;
use std::path::Path;

/// `struct conn_key` and `struct edge_flow`.
const KEY_BYTES: usize = 36;
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
        let mut raw = [0; KEY_BYTES];
        raw[..16].copy_from_slice(&key.server);
        raw[16..32].copy_from_slice(&key.client);
        raw[32..34].copy_from_slice(&key.server_port.to_ne_bytes());
        raw[34..].copy_from_slice(&key.client_port.to_ne_bytes());
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
