//! The daemon of a spread group's edge: the host of the state machines that listen to host servers
//! and other edges, and tell the redirector in the kernel which host serves what. The data path
//! does not need this process: while it is dead, every flow goes where it went.

use super::gateway::Gateway;
use super::links::{Link, WORDS_MAX};
use super::peers::{PeerEvent, PeerLink};
use super::syns::Syns;
use super::wire::{Wire, key_of, placed_of};
use crate::admin::{AdminSocket, Events, NO_PRIMARY, Request, TraceRequest, refusal};
use crate::channel::{Channel, ChannelError, Identity, Kind, Listener};
use crate::config::Settings as _;
use crate::config::recover::Policy;
use crate::config::spread::{
    EDGES_MAX, HOSTS_MAX, Method, Prefix, SpreadConfig, SpreadEdge as EdgeConfig,
};
use crate::daemon::clients::{deaf, unreached};
use crate::daemon::distrust::Distrust;
use crate::daemon::intact::{Intact, Names, Trouble, lost_address, note_mended, note_removed};
use crate::daemon::kept::Kept;
use crate::daemon::reload::{Ended, Life, Reader, Reloads};
use crate::daemon::{asked, service_manager, trace};
use crate::leavings;
use crate::poll::{Interest, Poll, Signals};
use crate::status::State;
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_linux::bpf::{Redirect, RedirectConfig};
use holdfast_linux::inlet::Inlet;
use holdfast_member::spread::{Edges, EdgesSetup, Given, Service, Setup, SpreadMachine, Word};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const SYNS: u64 = 3;
/// First token of the other edges' channels: edge `i` has `PEERS + i`.
pub(super) const PEERS: u64 = 4;
/// First token of the links: link `i` has `HOSTS + i`.
pub(super) const HOSTS: u64 = PEERS + EDGES_MAX as u64;

pub(super) struct SpreadEdge<'a> {
    pub config: &'a SpreadConfig,
    pub me: &'a EdgeConfig,
    pub machine: SpreadMachine,
    pub edges: Edges,
    pub wire: Wire<'a>,
    pub listener: Listener,
    pub kept: Kept,
    pub intact: Intact,
    pub distrust: Distrust,
    names: Names,
    /// What the last handshake with each other edge has failed for, told once.
    refused: Vec<Option<String>>,
    reloads: Reloads,
}

/// Runs the edge until a signal ends it, or its file has changed. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub(super) fn run(config: &SpreadConfig, me: usize, life: &mut Life<'_>) -> Result<Ended> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let name = &config.edges[me].name;
    let admin = AdminSocket::of_daemon(&config.common(), name).context("admin socket")?;
    let mut admin = admin.with_pins(config.pin_dir(name));
    let mut edge = SpreadEdge::start(config, me, life)?;
    edge.wire.poll.add(&admin, ADMIN, Interest::Read)?;
    edge.wire.poll.add(&signals, SIGNALS, Interest::Read)?;
    edge.run(&mut admin, &signals)
}

impl<'a> SpreadEdge<'a> {
    fn start(config: &'a SpreadConfig, number: usize, life: &mut Life<'_>) -> Result<Self> {
        let me = &config.edges[number];
        let key = config.keyring(&me.name)?;
        let roles = config.roles().into_iter().map(|(name, _)| name);
        let identity = Identity {
            keyring: key.clone(),
            peers: roles.filter(|name| *name != me.name).collect(),
            attempt: 0,
            group: config.group.name.clone(),
            me: me.name.clone(),
            kind: Kind::Spread,
        };
        let mut listener = Listener::bind(me.listen, identity.clone())
            .with_context(|| format!("cannot listen at edge.listen = {}", me.listen))?;
        let others = config.edges.iter().map(|edge| edge.listen.ip());
        listener.prefer(config.hosts.iter().flat_map(|host| host.tunnels()).chain(others));
        // Only after the listener is bound: another edge's daemon may run here, and its programs
        // must not be touched.
        let mut events = life.events();
        let pins = config.pin_dir(&me.name);
        let left = leavings::earlier(&["redirect", "speak"], &pins);
        let Attached { bpf, syns, inlet } =
            attach(config, me, key.own().spread_seed(), &mut events)?;
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER, Interest::Read)?;
        if let Some(syns) = &syns {
            poll.add(&syns.fd(), SYNS, Interest::Read)?;
        }
        let mut wire = Wire::new((config, number), bpf, syns, poll, events)?;
        wire.peers = peers(config, number, &identity);
        let gateway = inlet.map(|inlet| Gateway::open(config, me, inlet)).transpose()?;
        // By now new programs have taken the place of all that this file names.
        let removed = leavings::remove_earlier_spread_edge(config, me, &left)?;
        note_removed(&removed, &mut wire.events);
        let (gateway, acts) = gateway.map_or((None, false), |(it, acts)| (Some(it), acts));
        wire.gateway = gateway;
        let mut machine = SpreadMachine::new(setup(config, me), Nanos(0));
        // Services that an earlier daemon left in the kernel.
        let services: Vec<Service> = wire.bpf.services().iter().map(key_of).collect();
        let placed = wire.bpf.hosts().iter().map(placed_of).collect();
        machine.handle_start(&services, placed, &mut wire);
        let mut edges = Edges::new(edges_setup(config, number), acts, Nanos(0));
        edges.handle_start(&machine);
        let intact = Intact::open(Instant::now()).context("a netlink socket")?;
        let (kept, names, distrust) = (Kept::default(), Names::default(), Distrust::default());
        let reloads = life.begin((Reader::Edge, &key), &mut wire.events);
        Ok(Self {
            config,
            me,
            machine,
            edges,
            wire,
            listener,
            kept,
            intact,
            distrust,
            names,
            refused: vec![None; config.edges.len()],
            reloads,
        })
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<Ended> {
        loop {
            let watch = Some(self.wire.clock.instant(self.machine.next_deadline()));
            let syns = self.wire.syns.as_ref().and_then(Syns::deadline);
            let look = Some(self.intact.deadline());
            let peers = self.wire.peers.iter().flatten().filter_map(PeerLink::deadline).min();
            let duty = Some(self.wire.clock.instant(self.edges.next_deadline()));
            let deadline = [self.listener.deadline(), watch, syns, look, peers, duty];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.wire.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            for &token in ready.iter().filter(|&&token| token >= HOSTS) {
                self.hear((token - HOSTS) as usize, now);
            }
            self.accept(now);
            self.turn(now, ready.contains(&SYNS))?;
            self.look(now);
            self.note(now);
            service_manager::turn(|| service_manager::line(&self.head()));
            if ready.contains(&ADMIN) {
                let look = admin.serve(|request| self.answer(request));
                self.kept.take(look, &self.config.group.run_dir, &mut self.wire.events);
            }
            let signalled = asked(signals, ready.contains(&SIGNALS));
            let goes_on = "redirection goes on without me";
            let ended = self.reloads.heed(signalled, goes_on, &mut self.wire.events);
            if let Some(ended) = ended.or_else(|| self.reloads.take(&mut self.wire.events)) {
                return Ok(ended);
            }
        }
    }

    /// Notes now and then whether the state has changed, for events and hooks.
    fn note(&mut self, now: Instant) {
        if self.wire.events.is_due(now) {
            let head = self.head();
            self.wire.events.note_status(&head);
        }
    }

    fn turn(&mut self, now: Instant, is_readable: bool) -> Result<()> {
        let at = self.wire.clock.nanos(now);
        // A heartbeat that waits in the socket does not count as missing.
        for index in self.machine.due(at) {
            self.hear(index, now);
        }
        self.machine.handle_timeout(at, &mut self.wire)?;
        if is_readable && let Some(syns) = &mut self.wire.syns {
            syns.on_readable(now);
        }
        self.machine.handle_turned(&mut self.wire)?;
        self.turn_edges(now);
        for index in 0..self.wire.links.len() {
            if let Err(error) = self.wire.flush(index) {
                self.lose(index, &error.to_string());
            }
        }
        Ok(())
    }

    /// Hears the other edges, says what is to be said to them, and does what follows.
    fn turn_edges(&mut self, now: Instant) {
        for edge in 0..self.wire.peers.len() {
            self.hear_edge(edge, now);
        }
        let at = self.wire.clock.nanos(now);
        if let Some(gateway) = &mut self.wire.gateway {
            gateway.turn(now);
        }
        self.edges.handle_timeout(at, &mut self.machine, &mut self.wire);
        if let Some(gateway) = &mut self.wire.gateway {
            gateway.renew(self.edges.has_company(at), now);
        }
        for edge in 0..self.wire.peers.len() {
            let event = self.wire.flush_peer(edge, now);
            self.follow_edge(edge, event);
        }
    }

    fn hear_edge(&mut self, edge: usize, now: Instant) {
        let Self { config, machine, edges, wire, refused, .. } = self;
        let at = wire.clock.nanos(now);
        let Some(peer) = &mut wire.peers[edge] else { return };
        let (words, event) = peer.turn(&config.group.name, &wire.poll, now);
        if matches!(event, PeerEvent::Opened) {
            refused[edge] = None;
            edges.handle_opened(edge, machine, wire);
        }
        for word in words {
            if !edges.handle_word(edge, word, at, machine, wire) {
                return;
            }
        }
        self.follow_edge(edge, event);
    }

    fn follow_edge(&mut self, edge: usize, event: PeerEvent) {
        match event {
            PeerEvent::Nothing | PeerEvent::Opened => {}
            PeerEvent::Lost(why) => {
                if let Some(peer) = &mut self.wire.peers[edge] {
                    peer.close(Instant::now());
                }
                self.edges.handle_closed(edge, &why, &mut self.wire);
            }
            PeerEvent::Failed(error) => {
                let name = &self.config.edges[edge].name;
                if let Some((reason, _)) = error.distrust(name)
                    && self.refused[edge].as_ref() != Some(&reason)
                {
                    self.wire.events.add("refused", reason.clone());
                    self.refused[edge] = Some(reason);
                }
            }
        }
    }

    /// Attaches the redirector again where somebody has removed it, and looks whether host servers
    /// and clients can still come.
    fn look(&mut self, now: Instant) {
        if !self.intact.is_due(now) {
            return;
        }
        let edge = self.me;
        let torn = note_mended(self.wire.bpf.mend(), &mut self.wire.events);
        let renamed = self.names.renamed(&edge.clients);
        let unreached = unreached("clients'", &edge.clients, &deaf(&edge.clients));
        let Wire { gateway, events, .. } = &mut self.wire;
        let lost = gateway.as_mut().and_then(|gateway| gateway.mend(self.config, edge, events));
        let trouble = renamed
            .or(unreached.map(|found| Trouble::of(State::Waiting, found)))
            .or(torn)
            .or(lost)
            .or_else(|| lost_address("edge.listen", edge.listen.ip(), None));
        self.wire.is_sound = trouble.is_none();
        if self.edges.is_healthy() {
            self.wire.put_routes(true);
        }
        self.intact.found(trouble, &mut self.wire.events);
    }

    /// Accepts host servers whose handshake is complete. The configuration says which services
    /// each may announce.
    fn accept(&mut self, now: Instant) {
        loop {
            let channel = match self.listener.accept(now) {
                Ok(None) => return,
                Ok(Some(channel)) => channel,
                Err(error) => {
                    tracing::warn!("{error}");
                    self.doubt(&error, now);
                    continue;
                }
            };
            let name = channel.peer().to_owned();
            let edge = self.config.edges.iter().position(|edge| edge.name == name);
            if let Some(edge) = edge {
                self.accept_edge(edge, channel);
                continue;
            }
            let Some(index) = self.machine.link_of(&name, self.wire.clock.nanos(now)) else {
                self.wire.events.add("refused", format!("{name}: there are {HOSTS_MAX} already"));
                continue;
            };
            if index == self.wire.links.len() {
                self.wire.links.push(Link::new(&name));
            }
            match self.wire.adopt(index, channel) {
                Ok(()) => {
                    self.trust(&name);
                    self.machine.handle_opened(index, &mut self.wire);
                    // The host server may have sent something along with its
                    // handshake.
                    self.hear(index, now);
                }
                Err(error) => tracing::warn!("{name}: {error}"),
            }
        }
    }

    fn accept_edge(&mut self, edge: usize, channel: Channel) {
        let Self { wire, .. } = self;
        let Some(peer) = &mut wire.peers[edge] else {
            let words = format!("{} runs on two hosts: its key is there twice", self.me.name);
            return wire.events.add("refused", words);
        };
        match peer.adopt(channel, &wire.poll, PEERS + edge as u64) {
            Ok(true) => self.edges.handle_opened(edge, &self.machine, &mut self.wire),
            Ok(false) => {
                let name = &self.config.edges[edge].name;
                let words = format!("{name} connects here: it takes this edge's name for another");
                self.wire.events.add("refused", words);
            }
            Err(error) => tracing::warn!("{}: {error}", self.config.edges[edge].name),
        }
    }

    /// Notes a failed handshake from a host server's address: it explains why that one does not
    /// connect.
    fn doubt(&mut self, error: &ChannelError, now: Instant) {
        let ChannelError::Refused { from, why, .. } = error else { return };
        let mut hosts = self.config.hosts.iter().enumerate();
        let Some((index, host)) = hosts.find(|(_, host)| host.tunnels().contains(from)) else {
            return;
        };
        if let Some(news) = self.distrust.note(index, &host.name, why, now) {
            self.wire.events.add("refused", news);
        }
    }

    fn trust(&mut self, name: &str) {
        if let Some(index) = self.config.hosts.iter().position(|host| host.name == name) {
            self.distrust.forget(index);
        }
    }

    fn hear(&mut self, index: usize, now: Instant) {
        let Self { config, machine, wire, .. } = self;
        let at = wire.clock.nanos(now);
        let Some(link) = wire.links.get_mut(index) else { return };
        let group = &config.group.name;
        let (words, result) =
            link.receive(WORDS_MAX, |message, name| Word::of(message, group, name));
        for word in words {
            if !machine.handle_word(index, word, at, wire) {
                return;
            }
        }
        let result = result.and_then(|()| wire.flush(index));
        if let Err(error) = result {
            self.lose(index, &error.to_string());
        }
    }

    fn lose(&mut self, index: usize, why: &str) {
        self.wire.links[index].close();
        self.machine.handle_closed(index, why, &mut self.wire);
    }

    fn answer(&mut self, request: Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.wire.events.answer(since),
            Request::Switchover { .. } | Request::Takeover => refusal(NO_PRIMARY),
            Request::Show => self.show(),
            Request::Trace(question) => self.trace(&question),
            Request::Reload { dry_run } => self.reloads.handle(dry_run, &mut self.wire.events),
            Request::Drain { name, end } => self.drain(&name, end),
            Request::Fence { .. } | Request::Unfence => {
                refusal("a spread group has no fence; see `holdfast edge drain`")
            }
        }
    }

    fn trace(&self, question: &TraceRequest) -> Value {
        if question.from.is_ipv4() != question.to.is_ipv4() {
            return refusal("both ends must be of one address family");
        }
        match self.wire.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => trace::answer(question, &traced, |slot| self.machine.name_of(slot)),
            Err(error) => refusal(&error.to_string()),
        }
    }

    fn drain(&mut self, name: &str, end: bool) -> Value {
        match self.machine.handle_drain(name, end, &mut self.wire) {
            Ok(()) => {
                self.edges.handle_drained(name, end, &mut self.wire);
                json!({ "name": name, "draining": !end })
            }
            Err(reason) => refusal(&reason),
        }
    }
}

fn setup(config: &SpreadConfig, me: &EdgeConfig) -> Setup {
    let given = |host: &crate::config::spread::SpreadHost| Given {
        name: host.name.clone(),
        tunnels: host.tunnels(),
        layer2: host.method == Method::Layer2,
        weight: host.weight,
        services: host.services.clone(),
    };
    Setup {
        group: config.group.name.clone(),
        me: me.name.clone(),
        addresses: config.group.addresses.clone(),
        hosts: config.hosts.iter().map(given).collect(),
        hosts_max: HOSTS_MAX,
        period: Nanos(config.heartbeat().as_nanos() as u64),
    }
}

fn edges_setup(config: &SpreadConfig, me: usize) -> EdgesSetup {
    EdgesSetup {
        group: config.group.name.clone(),
        names: config.edges.iter().map(|edge| edge.name.clone()).collect(),
        me,
        shared: !config.clients.gateway.is_empty(),
        period: Nanos(config.heartbeat().as_nanos() as u64),
    }
}

/// The channels to the other edges, by their place in the file.
fn peers(config: &SpreadConfig, me: usize, identity: &Identity) -> Vec<Option<PeerLink>> {
    let now = Instant::now();
    let own = &config.edges[me].name;
    let peer = |(number, edge): (usize, &EdgeConfig)| match edge.name.cmp(own) {
        Ordering::Less => {
            let token = PEERS + number as u64;
            Some(PeerLink::dials(&edge.name, edge.listen, identity.clone(), token, now))
        }
        Ordering::Equal => None,
        Ordering::Greater => Some(PeerLink::waits(&edge.name)),
    };
    config.edges.iter().enumerate().map(peer).collect()
}

/// What an edge has in the kernel.
struct Attached {
    bpf: Redirect,
    syns: Option<Syns>,
    /// Where what came to a shared gateway comes in again.
    inlet: Option<Inlet>,
}

/// Attaches the redirector, and makes the cache of SYNs with the interface through which they
/// are re-injected. If there can be no cache the edge works without: clients repeat their SYNs.
fn attach(
    config: &SpreadConfig,
    me: &EdgeConfig,
    seed: u64,
    events: &mut Events,
) -> Result<Attached> {
    let mut redirector = redirect_config(config, me, seed);
    let mut inlet = || {
        let inlet = Inlet::open()?;
        redirector.client_interfaces.push(inlet.name().to_owned());
        anyhow::Ok(inlet)
    };
    let shares = !config.clients.gateway.is_empty();
    let again = shares.then(&mut inlet).transpose()?;
    let cache = (config.recover.policy != Policy::Off).then(inlet).transpose();
    let cache = cache.unwrap_or_else(|error| {
        events.add("cache", format!("nothing is kept: {error}"));
        None
    });
    let mut bpf = Redirect::attach(&redirector)?;
    let syns = cache.map(|inlet| Syns::new(&config.recover, &mut bpf, inlet)).transpose()?;
    Ok(Attached { bpf, syns, inlet: again })
}

fn redirect_config(config: &SpreadConfig, me: &EdgeConfig, seed: u64) -> RedirectConfig {
    let (outer4, outer6) = outers(&me.outer4, &me.outer6);
    RedirectConfig {
        group: config.group.name.clone(),
        client_interfaces: me.clients.clone(),
        pin_dir: config.pin_dir(&me.name),
        flows_max: config.group.flows_max,
        seed,
        outer4,
        outer6,
    }
}

/// Both prefixes as address and length; the configuration has checked their families.
pub(super) fn outers(v4: &Prefix, v6: &Prefix) -> ((Ipv4Addr, u8), (Ipv6Addr, u8)) {
    let four = match v4.address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    let six = match v6.address {
        IpAddr::V6(address) => address,
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    };
    ((four, v4.bits), (six, v6.bits))
}
