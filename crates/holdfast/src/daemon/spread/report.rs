//! The answers of a spread group's edge to `edge show` and `edge trace`.

use super::edge::SpreadEdge;
use super::gateway::Gateway;
use crate::admin::EDGE_SCHEMA;
use crate::config::Kind;
use crate::daemon::distrust::explain;
use crate::daemon::shown;
use crate::status::{Peer, Role, Status};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

impl SpreadEdge<'_> {
    /// The answer to `edge show`.
    pub(super) fn show(&self) -> Value {
        let flows = self.wire.bpf.recent_flows();
        let services = self.machine.roster().services().map(|(service, slots)| {
            let mut members: Vec<&str> =
                slots.iter().map(|&slot| self.machine.name_of(slot)).collect();
            // Slots are numbered in the order of joining, so names are sorted.
            members.sort_unstable();
            json!({ "address": service.to_string(), "members": members })
        });
        let members = self.machine.placed().iter().map(|placed| {
            let host = self.wire.host_of(placed);
            let ways = host.v4.iter().chain(&host.v6);
            json!({
                "name": placed.name,
                "state": self.machine.roster().condition(placed.slot).name(),
                "weight": self.machine.roster().weight(placed.slot),
                "flows": flows.per_host.get(usize::from(placed.slot)),
                "tunnels": placed.tunnels,
                "method": if placed.layer2 { "layer-2" } else { "ip-in-ip" },
                "mtu": ways.filter(|way| way.ifindex != 0).map(|way| way.mtu).min(),
            })
        });
        let counters: BTreeMap<&str, u64> = self.wire.bpf.counters().into_iter().collect();
        json!({
            "schema": EDGE_SCHEMA,
            "group": self.config.group.name,
            "kind": Kind::Spread,
            "services": services.collect::<Vec<_>>(),
            "members": members.collect::<Vec<_>>(),
            "flows": {
                "count": flows.count(),
                "max": 2 * u64::from(flows.max),
                "ipv4": { "count": flows.ipv4, "max": flows.max },
                "ipv6": { "count": flows.ipv6, "max": flows.max },
            },
            "healthy": self.edges.is_healthy(),
            "serves": self.edges.serves(),
            "edges": self.others(),
            "cache": self.wire.syns.as_ref().map(super::syns::Syns::show),
            "regulate": null,
            "counters": counters,
        })
    }

    /// The status without peers and what is counted.
    pub(super) fn head(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, &self.me.name);
        status.role = Role::Edge;
        let now = self.wire.clock.nanos(Instant::now());
        let spread = self.machine.shown();
        (status.state, status.reason, status.remedy) = shown(self.edges.shown(now, spread));
        let is_away = |index: usize| !self.machine.is_here(&self.config.hosts[index].name);
        let distrusted = self.distrust.fresh(Instant::now(), is_away);
        explain(&mut status, distrusted.map(|it| (it.reason.as_str(), it.remedy)));
        self.kept.show(&mut status);
        self.intact.show(&mut status);
        status
    }

    pub(super) fn status(&self) -> Status {
        let mut status = self.head();
        let now = self.wire.clock.nanos(Instant::now());
        status.connections = self.wire.bpf.recent_flows().count() as u64;
        status.peers = self
            .machine
            .placed()
            .iter()
            .map(|placed| self.peer(&placed.name, placed.slot))
            .collect();
        status.peers.extend(self.edges.others(now).map(|(name, connected)| Peer {
            name: name.to_owned(),
            connected,
            note: if connected { "edge" } else { "does not answer" }.to_owned(),
        }));
        status.list_members(true);
        let gateway = self.wire.gateway.iter().flat_map(Gateway::counters);
        let counters = self.wire.bpf.counters().into_iter().chain(gateway);
        status.counters = counters.map(|(name, count)| (format!("edge.{name}"), count)).collect();
        let refused = self.listener.refused();
        status.counters.insert("edge.channels_refused".to_owned(), refused);
        status
    }

    fn others(&self) -> Vec<Value> {
        let now = self.wire.clock.nanos(Instant::now());
        let other = |(name, heard): (&str, bool)| json!({ "name": name, "heard": heard });
        self.edges.others(now).map(other).collect()
    }

    fn peer(&self, name: &str, slot: u8) -> Peer {
        let connected = self.machine.is_here(name);
        let note = self.machine.roster().condition(slot).name().to_owned();
        Peer { name: name.to_owned(), connected, note }
    }
}
