//! The judges. They look at what passes the edge and at what reached the
//! backup, never at what the machines under test believe.

use crate::client::{Client, Packet};
use crate::server::{REPLY_LEN, parse_reply};
use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet};

/// What reached the backup of one client's stream.
#[derive(Debug, Default)]
struct Arrived {
    irs: SeqNo,
    offsets: BTreeSet<u64>,
}

#[derive(Debug, Default)]
pub struct Checker {
    arrived: BTreeMap<ConnKey, Arrived>,
    /// Records that the replica's ring has taken.
    pub replayed: u64,
    pub failures: Vec<String>,
}

impl Checker {
    pub fn announce(&mut self, key: ConnKey, irs: SeqNo) {
        self.arrived.insert(key, Arrived { irs, offsets: BTreeSet::new() });
    }

    pub fn arrives(&mut self, key: &ConnKey, seq: SeqNo, len: u64) {
        if let Some(arrived) = self.arrived.get_mut(key) {
            let from = i64::from(seq.since(arrived.irs.plus(1)));
            arrived.offsets.extend((from..from + len as i64).filter_map(|o| u64::try_from(o).ok()));
        }
    }

    pub fn arrives_at(&mut self, key: &ConnKey, from: u64, len: u64) {
        if let Some(arrived) = self.arrived.get_mut(key) {
            arrived.offsets.extend(from..from + len);
        }
    }

    /// A packet of the primary passes the edge.
    pub fn released(&mut self, packet: &Packet) {
        let Some(arrived) = self.arrived.get(&packet.key) else { return };
        let acked = u64::try_from(packet.ack.since(arrived.irs.plus(1))).unwrap_or(0);
        if (0..acked).any(|offset| !arrived.offsets.contains(&offset)) {
            self.failures.push(format!("L1: {acked} bytes acknowledged that the backup lacks"));
        }
        if packet.depends > self.replayed {
            self.failures.push(format!(
                "L2: output of record {} left, {} held",
                packet.depends, self.replayed
            ));
        }
    }
}

/// Law L5, seen from outside: every client's replies are right and in order,
/// and together they are those of one server that executed each request once.
pub fn clients(clients: &[Client], must_finish: bool) -> Result<(), String> {
    let mut counters = BTreeMap::new();
    for client in clients {
        let mut last = (0, 0);
        for (index, bytes) in client.received.chunks_exact(REPLY_LEN).enumerate() {
            let reply = parse_reply(bytes);
            if (reply.client, reply.index as usize) != (client.number, index) {
                return Err(format!("client {} got {reply:?} as reply {index}", client.number));
            }
            if (reply.counter, reply.clock) <= last
                || reply.counter <= last.0
                || reply.clock < last.1
            {
                return Err(format!("client {}: {reply:?} went back from {last:?}", client.number));
            }
            last = (reply.counter, reply.clock);
            if let Some(other) = counters.insert(reply.counter, client.number) {
                return Err(format!(
                    "clients {other} and {} both got counter {}",
                    client.number, reply.counter
                ));
            }
        }
        if client.reset {
            return Err(format!("client {} was reset", client.number));
        }
        if must_finish && !client.is_done() {
            return Err(format!(
                "client {} hangs: {} of {} replies",
                client.number,
                client.replies(),
                client.requests()
            ));
        }
    }
    let highest = counters.last_key_value().map_or(0, |(counter, _)| *counter);
    if must_finish && highest != counters.len() as u64 {
        return Err(format!("{} replies, but the counter reached {highest}", counters.len()));
    }
    Ok(())
}
