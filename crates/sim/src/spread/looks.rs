//! What the checkers are shown of the edge.

use super::check::Look;
use super::packet::Tuple;
use super::plan::SERVICES;
use super::server::{ADDRESS, service_of, tunnel_of};
use super::world::World;
use holdfast_edge::{Recovery, Slabs};
use holdfast_member::spread::Service;
use std::net::IpAddr;

/// Memory that a cache may take beyond its limit, in bytes: one chunk of the packet store
/// (`Slabs`), and one of the lists.
const SLACK_BYTES: u64 = 192 << 10;

impl World {
    /// Checks after every turn: the tables, the limits, and what the edge's file allows.
    pub fn check_edge(&mut self) {
        self.check_tables();
        self.check_limits();
        self.check_file();
    }

    fn number_of(service: &Service) -> Option<u8> {
        (0..SERVICES).find(|number| service_of(*number) == *service)
    }

    fn check_tables(&mut self) {
        for made in std::mem::take(&mut self.edge.wire.made) {
            let Some(service) = Self::number_of(&made.service) else { continue };
            self.reached.tables += 1;
            let share = |(slot, entries): &(u8, usize)| {
                let server = self.server_at(*slot)?;
                Some((server, self.servers[server].plan.weight, *entries))
            };
            let shares: Vec<_> = made.shares.iter().filter_map(share).collect();
            // A server that announces a false weight has another share.
            let lies = shares.iter().any(|(server, ..)| {
                matches!(self.servers[*server].desk.lie, Some(super::plan::Lie::Weight(_)))
            });
            if !lies {
                self.check.table(self.now, service, &shares);
            }
        }
    }

    fn check_limits(&mut self) {
        let limits = self.plan.limits;
        let wire = &self.edge.wire;
        let flows = (wire.redirector.flows(), limits.flows_max);
        let embryos = (wire.redirector.embryos(), limits.embryos_max);
        let places = (wire.redirector.hosts.len(), limits.hosts_max);
        let cache = wire.cache.as_ref().map(|cache| {
            let cache = cache.cache();
            (cache.flows(), (cache.memory_bytes() + cache.shelf().memory_bytes()) as u64)
        });
        let links = self.edge.daemon.as_ref().map_or(0, |daemon| daemon.links.len());
        for (name, (used, most)) in [
            ("flows", flows),
            ("embryos", embryos),
            ("places", places),
            ("links", (links, limits.hosts_max)),
        ] {
            self.check.limit(self.now, name, used, most);
        }
        let Some((kept, bytes)) = cache else { return };
        let memory = limits.cache.memory_bytes + SLACK_BYTES;
        self.check.limit(self.now, "SYNs", kept, limits.cache.flows_max);
        self.check.limit(self.now, "bytes of SYNs", bytes as usize, memory as usize);
        let each = Recovery::<Tuple, Slabs>::flow_overhead_bytes();
        self.reached.kept_most = self.reached.kept_most.max((kept * each) as u64);
    }

    /// Checks that no server has more than the file allows, whatever it announces.
    fn check_file(&mut self) {
        let Some(daemon) = &self.edge.daemon else { return };
        let mut wrong = Vec::new();
        for placed in daemon.machine.placed() {
            let server = self.servers.iter().find(|server| server.name == placed.name);
            let own = server.map(|server| tunnel_of(server.number));
            let foreign = placed.tunnels.iter().find(|tunnel| Some(**tunnel) != own);
            if let Some(tunnel) = foreign.filter(|_| placed.name != "?") {
                wrong.push(format!("{} has the tunnel {tunnel}", placed.name));
            }
            let weight = daemon.machine.roster().weight(placed.slot);
            if server.is_some_and(|server| weight > server.plan.weight_max) {
                wrong.push(format!("{} has the weight {weight}", placed.name));
            }
            if placed.layer2 {
                wrong.push(format!("{} is not encapsulated", placed.name));
            }
        }
        for (service, slots) in daemon.machine.roster().services() {
            if service.address.ip() != IpAddr::from(ADDRESS) {
                wrong.push(format!("{service} is redirected"));
            }
            for slot in slots {
                let server = self.server_at(slot).map(|number| &self.servers[number]);
                let number = Self::number_of(service);
                let named = server.and_then(|server| server.plan.named.as_ref());
                if named.is_some_and(|named| number.is_none_or(|it| !named.contains(&it))) {
                    wrong.push(format!("{} gets {service}", daemon.machine.name_of(slot)));
                }
            }
        }
        for what in wrong {
            self.check.not_allowed(self.now, what);
        }
    }

    /// Checks what `status` and `edge show` report.
    pub fn check_shown(&mut self) {
        let Some(daemon) = self.edge.daemon.as_ref().filter(|_| self.edge.frozen.is_none()) else {
            return;
        };
        let servers_at = |slots: &[u8]| -> Vec<usize> {
            slots.iter().filter_map(|slot| self.server_at(*slot)).collect()
        };
        let roster = daemon.machine.roster();
        let service = |(service, slots): (&Service, Vec<u8>)| {
            let redirected = self.edge.wire.redirector.members(service)?;
            Some((Self::number_of(service)?, servers_at(&slots), servers_at(redirected)))
        };
        // Until all servers have come back, services are unchanged.
        let settled = daemon.machine.is_settled();
        let shown: Vec<(&Service, Vec<u8>)> = roster.services().collect();
        let missing = shown.iter().find(|(service, slots)| {
            !slots.is_empty() && self.edge.wire.redirector.members(service).is_none()
        });
        let missing = missing.map(|(service, _)| service.to_string());
        let note = |placed: &holdfast_member::spread::Placed| {
            let word = roster.condition(placed.slot).name();
            Some((self.server_at(placed.slot)?, word))
        };
        let look = Look {
            protection: daemon.machine.shown().protection,
            services: roster.services().filter_map(service).collect(),
            notes: daemon.machine.placed().iter().filter_map(note).collect(),
        };
        if let Some(service) = missing {
            let what = format!("{service} is shown as served, and is not redirected");
            self.check.violation(self.now, "status", what);
        }
        if settled {
            self.check.look(self.now, &look);
        }
    }
}
