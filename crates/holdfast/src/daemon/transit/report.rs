//! The answer of a transit group's edge to `edge show`.

use super::TransitDaemon;
use crate::admin::EDGE_SCHEMA;
use crate::config::Kind;
use crate::daemon::shown;
use crate::status::{Peer, Role, Status};
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl TransitDaemon<'_> {
    /// The status without what is counted.
    pub(super) fn head(&self) -> Status {
        let mut status = Status::new(&self.wire.config.group.name, self.wire.side.name());
        status.role = Role::Edge;
        status.epoch = u64::from(self.machine.epoch());
        (status.state, status.reason, status.remedy) = shown(self.machine.shown());
        self.kept.show(&mut status);
        self.intact.show(&mut status);
        status
    }

    pub(super) fn status(&self) -> Status {
        let mut status = self.head();
        // Its peers are strings.
        status.list_members(false);
        status.connections = self.wire.flow_counts().iter().sum();
        status.peers =
            (0..self.wire.config.strings.len()).map(|string| self.peer(string)).collect();
        status.counters = self.counters();
        status
    }

    fn peer(&self, string: usize) -> Peer {
        let word = self.machine.strings().word(string);
        let connected = matches!(word, "alive" | "suspected");
        Peer { name: self.machine.name(string).to_owned(), connected, note: word.to_owned() }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counted = self.wire.bpf.counters().into_iter();
        let mut counters: BTreeMap<String, u64> =
            counted.map(|(name, count)| (format!("transit.{name}"), count)).collect();
        let rejected = self.wire.lines.rejected();
        for (name, count) in [
            ("forged", rejected.forged),
            ("replayed", rejected.replayed),
            ("unproven", rejected.unproven),
        ] {
            counters.insert(format!("beats.{name}"), count);
        }
        counters
    }

    /// The answer to `edge show`, one object of the schema [`EDGE_SCHEMA`].
    pub(super) fn show(&self) -> Value {
        let flows = self.wire.flow_counts();
        let traffic = self.wire.bpf.traffic();
        let strings = self.machine.strings();
        let slots = strings.table().slots;
        let members: Vec<Value> = self
            .wire
            .config
            .strings
            .iter()
            .enumerate()
            .map(|(string, it)| {
                let (into, out) = traffic.get(string).copied().unwrap_or_default();
                let parts = slots.iter().filter(|slot| usize::from(**slot) == string).count();
                let usable = strings.usable() >> string & 1 == 1;
                json!({
                    "name": it.name,
                    "state": strings.word(string),
                    "weight": if usable { parts } else { 0 },
                    "flows": flows.get(string),
                    "capacity_bit_per_s": it.capacity,
                    "packets_into": into.packets,
                    "packets_out": out.packets,
                    "bytes_into": into.bytes,
                    "bytes_out": out.bytes,
                })
            })
            .collect();
        json!({
            "schema": EDGE_SCHEMA,
            "group": self.wire.config.group.name,
            "kind": Kind::Transit,
            "services": [],
            "members": members,
            "flows": { "count": flows.iter().sum::<u64>(), "max": self.wire.config.group.flows_max },
            "cache": self.wire.recoverer.show(),
            "regulate": self.wire.regulator.show(),
            "counters": self.counters(),
        })
    }
}
