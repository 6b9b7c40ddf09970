//! Connections that are not where new ones with their hash would be, since the host servers were
//! others when they began: all that an edge must tell another one.

use super::super::error::BpfError;
use super::super::layout::{MAGLEV_ENTRIES, RawKey, SpreadConfig, SpreadFlow, SpreadKey4};
use super::{FlowTable, Redirect, SpreadTable, is_over};
use holdfast_wire::message::{ConnKey, EdgeFlow};
use holdfast_wire::packet::{map_ipv4, mapped, mapped_ipv4};
use std::collections::HashMap;

/// The table of a service, by its address and port.
type Tables = HashMap<([u8; 16], u16), Box<SpreadTable>>;

impl Redirect {
    /// All such connections, each with the slot of its host server.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn elsewhere(&self) -> Result<Vec<(u8, EdgeFlow)>, BpfError> {
        let config = self.config()?;
        let mut tables = Tables::new();
        for row in self.rows().iter().filter(|row| i32::from(row.protocol) == libc::IPPROTO_TCP) {
            let table = self.tables.get(&row.table, 0).map_err(BpfError::map("spread_tables"))?;
            tables.insert((mapped(row.address()), row.port), Box::new(table));
        }
        let four = self.flows4.read().into_iter().map(|(key, flow)| (long_key(&key), flow));
        let six = self.flows6.read().into_iter().map(|(key, flow)| (ConnKey::from(&key), flow));
        let is_elsewhere = |key: &ConnKey, flow: &SpreadFlow| {
            let table = tables.get(&(key.server, key.server_port));
            table.is_some_and(|table| table[entry_of(config.seed, key)] != flow.host)
        };
        let lives = |flow: &SpreadFlow| !is_over(flow, config.tick, false);
        let all = four.chain(six).filter(|(key, flow)| lives(flow) && is_elsewhere(key, flow));
        Ok(all.map(|(key, flow)| (flow.host, told(key, &flow, config.tick))).collect())
    }

    /// Enters connections that another edge has at the host server in this slot, but for those that
    /// are over, and those of which as much is known here. Returns how many were entered.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses, as where the table is full.
    pub fn adopt(&mut self, slot: u8, told: &[EdgeFlow]) -> Result<usize, BpfError> {
        let config = self.config()?;
        let mut entered = 0;
        for told in told {
            entered += usize::from(self.adopt_one(slot, told, &config)?);
        }
        Ok(entered)
    }

    fn adopt_one(
        &mut self,
        slot: u8,
        told: &EdgeFlow,
        config: &SpreadConfig,
    ) -> Result<bool, BpfError> {
        let flow = SpreadFlow {
            tick: config.tick.wrapping_sub(told.age_s),
            hash: hash_of(config.seed, &told.key) as u32,
            host: slot,
            flags: told.flags,
            lived: told.lived_s,
        };
        if is_over(&flow, config.tick, false) {
            return Ok(false);
        }
        match (mapped_ipv4(&told.key.server), mapped_ipv4(&told.key.client)) {
            (Some(server), Some(client)) => {
                self.flows4.adopt(short_key(server, client, &told.key), flow, config.tick)
            }
            (None, None) => self.flows6.adopt(RawKey::from(&told.key), flow, config.tick),
            _ => Ok(false),
        }
    }
}

impl<K: aya::Pod> FlowTable<K> {
    fn adopt(&mut self, key: K, flow: SpreadFlow, now: u32) -> Result<bool, BpfError> {
        let age = |flow: &SpreadFlow| now.wrapping_sub(flow.tick);
        match self.map.get(&key, 0) {
            Ok(known) if age(&known) <= age(&flow) => Ok(false),
            _ => {
                self.map.insert(key, flow, 0).map_err(BpfError::map(self.name))?;
                Ok(true)
            }
        }
    }
}

fn told(key: ConnKey, flow: &SpreadFlow, now: u32) -> EdgeFlow {
    let age_s = now.wrapping_sub(flow.tick);
    EdgeFlow { key, age_s, lived_s: flow.lived, flags: flow.flags }
}

/// As `flow_hash` of bpf/spread.h.
fn hash_of(seed: u64, key: &ConnKey) -> u64 {
    let words = [&key.server[..8], &key.server[8..], &key.client[..8], &key.client[8..]];
    let mut hash = seed;
    for word in words {
        let word = word.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
    }
    let ports = u64::from(key.client_port) << 16 | u64::from(key.server_port);
    hash = (hash ^ ports).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 29
}

/// The entry of a table that a connection has; below [`MAGLEV_ENTRIES`] by construction.
fn entry_of(seed: u64, key: &ConnKey) -> usize {
    (((hash_of(seed, key) >> 32) * MAGLEV_ENTRIES as u64) >> 32) as usize
}

fn long_key(key: &SpreadKey4) -> ConnKey {
    ConnKey {
        server: map_ipv4(key.server),
        client: map_ipv4(key.client),
        server_port: key.ports as u16,
        client_port: (key.ports >> 16) as u16,
    }
}

fn short_key(server: [u8; 4], client: [u8; 4], key: &ConnKey) -> SpreadKey4 {
    SpreadKey4 {
        server,
        client,
        ports: u32::from(key.client_port) << 16 | u32::from(key.server_port),
    }
}
