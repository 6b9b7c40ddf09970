//! The machines of a spread group's edge act through this: the kernel and the channels.

use super::edge::{HOSTS, PEERS};
use super::gateway::Gateway;
use super::links::Link;
use super::peers::{PeerEvent, PeerLink};
use super::syns::Syns;
use crate::admin::Events;
use crate::channel::{Channel, ChannelError};
use crate::config::spread::{SpreadConfig, SpreadEdge};
use crate::daemon::clock::Clock;
use crate::poll::Poll;
use anyhow::Result;
use holdfast_cluster::Nanos;
use holdfast_linux::bpf::{FORGET_MAX, Host, HostState, Redirect, ServiceKey, Way};
use holdfast_linux::route::{RouteSocket, table};
use holdfast_member::spread::{EdgesHost, Elsewhere, Placed, Service, SpreadHost, State};
use holdfast_wire::message::{EdgeFlow, Message};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime};

/// The parts of the daemon that the machine acts upon.
pub(super) struct Wire<'a> {
    config: &'a SpreadConfig,
    me: &'a SpreadEdge,
    pub bpf: Redirect,
    pub links: Vec<Link>,
    /// The other edges, by their place in the file; `None` for this one.
    pub peers: Vec<Option<PeerLink>>,
    /// What acts on packets to a shared gateway, or leaves them.
    pub gateway: Option<Gateway>,
    /// Whether nothing keeps clients' packets from coming to this host, and leaving it.
    pub is_sound: bool,
    /// The cache of SYNs; `None` if it is off, or the kernel refuses.
    pub syns: Option<Syns>,
    pub poll: Poll,
    routes: RouteSocket,
    /// The path to each tunnel address (interface and hardware address).
    ways: BTreeMap<IpAddr, Way>,
    pub events: Events,
    pub clock: Clock,
}

impl<'a> Wire<'a> {
    pub fn new(
        (config, me): (&'a SpreadConfig, usize),
        bpf: Redirect,
        syns: Option<Syns>,
        poll: Poll,
        events: Events,
    ) -> Result<Self> {
        let known = bpf.hosts();
        let ways = known.iter().flat_map(|(_, host)| host.v4.into_iter().chain(host.v6));
        Ok(Self {
            config,
            me: &config.edges[me],
            links: Vec::new(),
            peers: Vec::new(),
            gateway: None,
            is_sound: true,
            syns,
            poll,
            routes: RouteSocket::open()?,
            ways: ways.map(|way| (way.address, way)).collect(),
            events,
            clock: Clock::new(Instant::now()),
            bpf,
        })
    }

    /// Takes a new channel of a host server.
    pub fn adopt(&mut self, index: usize, channel: Channel) -> Result<(), ChannelError> {
        self.links[index].adopt(channel, &self.poll, HOSTS + index as u64)
    }

    /// Writes what is queued for a host server.
    pub fn flush(&mut self, index: usize) -> Result<(), ChannelError> {
        self.links[index].flush(&self.poll, HOSTS + index as u64)
    }

    /// Writes what is queued for another edge.
    pub fn flush_peer(&mut self, edge: usize, now: Instant) -> PeerEvent {
        let Some(peer) = &mut self.peers[edge] else { return PeerEvent::Nothing };
        peer.flush(&self.poll, PEERS + edge as u64, now)
    }

    fn order_gateway(&mut self, order: impl FnOnce(&mut Gateway) -> Result<()>) {
        if let Some(gateway) = &mut self.gateway
            && let Err(error) = order(gateway)
        {
            self.events.add("refused", format!("the gateway: {error:#}"));
        }
    }

    /// Puts the group's addresses into the table that a routing daemon reads, where they may have been
    /// removed, or takes them out.
    pub fn put_routes(&mut self, able: bool) {
        let Some(number) = self.config.clients.routes_table else { return };
        for &address in &self.config.group.addresses {
            let change = if able { table::put } else { table::take };
            if let Err(error) = change(number, address) {
                self.events.add("refused", format!("{address} in table {number}: {error}"));
            }
        }
    }

    /// The redirector's entry for a host server.
    pub fn host_of(&self, placed: &Placed) -> Host {
        let way = |is_v4: bool| {
            let address = placed.tunnels.iter().find(|address| address.is_ipv4() == is_v4)?;
            self.ways.get(address).copied()
        };
        let state = match placed.state {
            State::Up => HostState::Up,
            State::Draining => HostState::Draining,
            State::Dead => HostState::Dead,
            State::DeadDrained => HostState::DeadDrained,
        };
        Host { v4: way(true), v6: way(false), state, layer2: placed.layer2 }
    }
}

impl SpreadHost for Wire<'_> {
    type Error = anyhow::Error;

    fn send(&mut self, link: usize, message: &Message<'_>) {
        self.links[link].send(message);
    }

    fn close(&mut self, link: usize) {
        // The peer may be gone already.
        let _gone = self.flush(link);
        self.links[link].close();
    }

    fn find_ways(&mut self, placed: &[Placed]) {
        let mtu = self.me.mtu.map_or(u32::MAX, u32::from);
        let known = std::mem::take(&mut self.ways);
        for address in placed.iter().flat_map(|placed| placed.tunnels.iter().copied()) {
            let new = Way { address, next_hop: address, ifindex: 0, mtu: 0 };
            let mut way = known.get(&address).copied().unwrap_or(new);
            match self.routes.next_hop(address) {
                Ok(hop) => {
                    way.next_hop = hop.address;
                    way.ifindex = hop.ifindex;
                    way.mtu = hop.mtu.min(mtu);
                }
                Err(error) => {
                    if way.ifindex != 0 {
                        tracing::warn!("no route to {address}: {error}");
                    }
                    way.ifindex = 0;
                }
            }
            self.ways.insert(address, way);
        }
    }

    fn set_hosts(&mut self, placed: &[Placed]) {
        let known = self.bpf.hosts();
        for placed in placed {
            let host = self.host_of(placed);
            let is_known = known.iter().any(|(slot, it)| *slot == placed.slot && *it == host);
            if !is_known && let Err(error) = self.bpf.set_host(placed.slot, &host) {
                tracing::error!("{}: {error}", placed.name);
            }
        }
    }

    fn set_service(&mut self, service: &Service, table: &[u8]) -> Result<(), String> {
        self.bpf.set_service(&service_key(service), table).map_err(|error| error.to_string())
    }

    fn remove_service(&mut self, service: &Service) -> Result<()> {
        Ok(self.bpf.remove_service(&service_key(service))?)
    }

    fn tick(&mut self) -> Result<()> {
        Ok(self.bpf.tick()?)
    }

    fn age_flows(&mut self) -> Result<bool> {
        Ok(self.bpf.age_flows()? >= FORGET_MAX)
    }

    fn has_flows(&mut self) -> bool {
        self.bpf.flows().count() > 0
    }

    fn resend(&mut self, slots: &[u8]) -> usize {
        self.syns.as_mut().map_or(0, |syns| syns.resend(Instant::now(), slots))
    }

    fn set_cache(&mut self, on: bool) -> Result<()> {
        self.syns.as_mut().map_or(Ok(()), |syns| syns.turn(Instant::now(), on))
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.events.add(what, words);
    }
}

impl EdgesHost for Wire<'_> {
    fn tell(&mut self, edge: usize, message: &Message<'_>) {
        if let Some(peer) = &mut self.peers[edge] {
            peer.send(message);
        }
    }

    fn has_room(&self, edge: usize) -> bool {
        self.peers[edge].as_ref().is_some_and(PeerLink::has_room)
    }

    fn hang_up(&mut self, edge: usize) {
        let now = Instant::now();
        // The peer may be gone already.
        let _gone = self.flush_peer(edge, now);
        if let Some(peer) = &mut self.peers[edge] {
            peer.close(now);
        }
    }

    fn is_sound(&self) -> bool {
        self.is_sound
    }

    fn elsewhere(&mut self) -> Vec<Elsewhere> {
        let found = self.bpf.elsewhere().unwrap_or_else(|error| {
            tracing::error!("the other edges are not told of connections: {error}");
            Vec::new()
        });
        found.into_iter().map(|(slot, flow)| Elsewhere { slot, flow }).collect()
    }

    fn adopt(&mut self, slot: u8, flows: &[EdgeFlow]) {
        if let Err(error) = self.bpf.adopt(slot, flows) {
            tracing::debug!("connections of another edge: {error}");
        }
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }

    fn seen(&mut self) -> u64 {
        self.gateway.as_ref().map_or(0, Gateway::seen)
    }

    fn serve(&mut self, since: Option<Nanos>) {
        let since = since.map(|at| self.clock.instant(at));
        self.order_gateway(|gateway| gateway.serve(since));
    }

    fn rest(&mut self) {
        self.order_gateway(Gateway::rest);
    }

    fn show_able(&mut self, able: bool) {
        let words = if able { "for clients" } else { "not ready for clients" };
        self.events.add(if able { "ready" } else { "withdrawn" }, words.to_owned());
        self.put_routes(able);
    }
}

/// A host server that an earlier daemon has left in the redirector's table.
pub(super) fn placed_of((slot, host): &(u8, Host)) -> Placed {
    let tunnels: Vec<IpAddr> = host.v4.iter().chain(&host.v6).map(|way| way.address).collect();
    let state = match host.state {
        HostState::Free | HostState::Up => State::Up,
        HostState::Draining => State::Draining,
        HostState::Dead => State::Dead,
        HostState::DeadDrained => State::DeadDrained,
    };
    // The name is not in the table; the machine finds it by the tunnel addresses.
    Placed { slot: *slot, name: String::new(), tunnels, layer2: host.layer2, state }
}

/// The machine's name for a service in the redirector's table.
pub(super) fn key_of(key: &ServiceKey) -> Service {
    Service { address: SocketAddr::new(key.address, key.port), udp: key.udp }
}

fn service_key(service: &Service) -> ServiceKey {
    let Service { address, udp } = service;
    ServiceKey { address: address.ip(), port: address.port(), udp: *udp }
}
