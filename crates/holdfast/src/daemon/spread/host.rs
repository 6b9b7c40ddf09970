//! A host server's daemon: it takes the service addresses, unpacks packets from the edge's
//! tunnel, and is the host of the state machine that announces the services of its servers.

use super::edge::outers;
use super::prober::Prober;
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::channel::{ChannelError, Identity, Kind};
use crate::check::link_trouble;
use crate::config::Settings as _;
use crate::config::spread::{Method, SpreadConfig, SpreadEdge, SpreadHost};
use crate::daemon::clock::Clock;
use crate::daemon::dialer::{Dialer, LinkEvent};
use crate::daemon::distrust::{Distrust, explain};
use crate::daemon::intact::{Intact, Names, Trouble, lost_address, note_mended, note_removed};
use crate::daemon::kept::Kept;
use crate::daemon::reload::{Ended, Life, Reader, Reloads};
use crate::daemon::{asked, service_manager, shown};
use crate::leavings;
use crate::poll::{Interest, Poll, Signals};
use crate::status::{Peer, Role, State, Status};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{BindWatch, HostEnd, HostEndConfig, Watched};
use holdfast_linux::link::{Link, carries};
use holdfast_linux::listeners::ListenerSocket;
use holdfast_linux::route;
use holdfast_member::host_server::{Answer, EdgeWords, HostServer, ListenerHost, Setup, Waiting};
use holdfast_member::spread::Service;
use holdfast_wire::message::Message;
use holdfast_wire::packet::mapped;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

const ADMIN: u64 = 0;
const SIGNALS: u64 = 1;
const BINDS: u64 = 2;
/// First token of the channels: that to edge `i` has `EDGES + i`.
const EDGES: u64 = 3;

struct HostDaemon<'a> {
    config: &'a SpreadConfig,
    me: &'a SpreadHost,
    machine: HostServer,
    wire: Wire,
    poll: Poll,
    kept: Kept,
    intact: Intact,
    names: Names,
    /// Why the last handshake with each edge has failed, and the remedy.
    distrust: Distrust,
    reloads: Reloads,
}

/// What the machine acts upon.
struct Wire {
    clock: Clock,
    bpf: HostEnd,
    links: Vec<Dialer>,
    /// Reports binds of servers at once; `None` if the kernel refuses: listeners are then found
    /// by polling only.
    binds: Option<BindWatch>,
    listeners: ListenerSocket,
    prober: Prober,
    events: Events,
}

/// Runs the host server's daemon until a signal ends it. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub(super) fn run(config: &SpreadConfig, me: &SpreadHost, life: &mut Life<'_>) -> Result<Ended> {
    let signals = Signals::block()?;
    let admin = AdminSocket::of_daemon(&config.common(), &me.name).context("admin socket")?;
    let mut admin = admin.with_pins(config.pin_dir(&me.name));
    let mut daemon = HostDaemon::start(config, me, life)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals)
}

impl<'a> HostDaemon<'a> {
    fn start(config: &'a SpreadConfig, me: &'a SpreadHost, life: &mut Life<'_>) -> Result<Self> {
        keep_neighbours_unaware(me)?;
        take_addresses(config)?;
        let left = leavings::earlier(&["host"], &config.pin_dir(&me.name));
        let bpf = HostEnd::attach(&end_config(config, me)?)?;
        let key = config.keyring(&me.name)?;
        let identity = Identity {
            keyring: key.clone(),
            peers: Vec::new(),
            attempt: 0,
            group: config.group.name.clone(),
            me: me.name.clone(),
            kind: Kind::Spread,
        };
        let mut events = life.events();
        events.add("started", format!("{}, weight {}", me.name, me.weight));
        note_removed(&leavings::remove_earlier_host(config, &left)?, &mut events);
        let binds = watch_binds(config, me).inspect_err(|error| {
            let how = "listeners are only looked up, five times a second";
            let cause = error.root_cause();
            events.add("polling", format!("{how}: binds are not noticed: {error} ({cause})"));
        });
        let (clock, now) = (Clock::new(Instant::now()), Instant::now());
        let dial = |(edge, it): (usize, &SpreadEdge)| {
            let identity = Identity { peers: vec![it.name.clone()], ..identity.clone() };
            Dialer::new(it.listen, identity, EDGES + edge as u64, now)
        };
        let mut wire = Wire {
            clock,
            bpf,
            links: config.edges.iter().enumerate().map(dial).collect(),
            binds: binds.ok(),
            listeners: ListenerSocket::open()?,
            prober: Prober::start(),
            events,
        };
        let machine = HostServer::new(setup(config, me), clock.now());
        let intact = Intact::open(Instant::now()).context("a netlink socket")?;
        let (poll, kept, names) = (Poll::new()?, Kept::default(), Names::default());
        let distrust = Distrust::default();
        let reloads = life.begin((Reader::Edge, &key), &mut wire.events);
        Ok(Self { config, me, machine, wire, poll, kept, intact, names, distrust, reloads })
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<Ended> {
        if let Some(binds) = &self.wire.binds {
            self.poll.add(binds, BINDS, Interest::Read)?;
        }
        loop {
            let due = self.wire.clock.instant(self.machine.next_deadline());
            let links = self.wire.links.iter().filter_map(Dialer::deadline);
            let deadline = links.chain([due, self.intact.deadline()]).min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            for edge in 0..self.wire.links.len() {
                let deadline = self.wire.links[edge].deadline();
                if ready.contains(&(EDGES + edge as u64)) || deadline.is_some_and(|at| at <= now) {
                    self.hear(edge, now);
                }
            }
            if ready.contains(&BINDS) {
                self.machine.handle_bind(self.wire.clock.nanos(now), &mut self.wire);
            }
            self.machine.handle_timeout(self.wire.clock.nanos(now), &mut self.wire);
            for edge in 0..self.wire.links.len() {
                let event = self.wire.links[edge].flush(now, &self.poll);
                self.follow(edge, &event);
            }
            self.look(now);
            if self.wire.events.is_due(now) {
                let head = self.head();
                self.wire.events.note_status(&head);
            }
            service_manager::turn(|| service_manager::line(&self.head()));
            if ready.contains(&ADMIN) {
                let look = admin.serve(|request| self.answer(request));
                self.kept.take(look, &self.config.group.run_dir, &mut self.wire.events);
            }
            let signalled = asked(signals, ready.contains(&SIGNALS));
            let goes_on = "established connections go on";
            let ended = self.reloads.heed(signalled, goes_on, &mut self.wire.events);
            if let Some(ended) = ended.or_else(|| self.reloads.take(&mut self.wire.events)) {
                return Ok(ended);
            }
        }
    }

    /// Puts back programs and service addresses that somebody has removed, and looks whether
    /// packets still come.
    fn look(&mut self, now: Instant) {
        if !self.intact.is_due(now) {
            return;
        }
        let (me, events) = (self.me, &mut self.wire.events);
        let mended = HostEnd::mend(&me.interface, &self.config.pin_dir(&me.name));
        let torn = note_mended(mended, events);
        let renamed = self.names.renamed([&me.interface]);
        let link = link_trouble(&me.interface, carries(&me.interface).ok());
        let key = |ip: &IpAddr| if ip.is_ipv4() { "tunnel" } else { "tunnel6" };
        let lost = |ip: IpAddr| lost_address(key(&ip), ip, Some(&me.interface));
        let trouble = renamed
            .or(link.map(|found| Trouble::of(State::Waiting, found)))
            .or(torn)
            .or(mend_addresses(self.config, events))
            .or_else(|| me.tunnels().into_iter().find_map(lost));
        self.intact.found(trouble, events);
    }

    fn hear(&mut self, edge: usize, now: Instant) {
        let mut heard = EdgeWords::default();
        let link = &mut self.wire.links[edge];
        let event = link.turn(now, &self.poll, |message| heard.take(&message));
        self.follow(edge, &event);
        self.machine.handle_heard(edge, heard, &mut self.wire);
    }

    fn follow(&mut self, edge: usize, event: &LinkEvent) {
        match event {
            LinkEvent::Opened => {
                self.distrust.forget(edge);
                self.machine.handle_opened(edge, &mut self.wire);
            }
            LinkEvent::Lost(error) => {
                self.doubt(edge, error);
                self.machine.handle_closed(edge, &error.to_string(), &mut self.wire);
            }
            LinkEvent::Failed(error) => self.doubt(edge, error),
            LinkEvent::Nothing => {}
        }
    }

    /// Notes that an edge is not trusted, or does not trust this host, if that is why.
    fn doubt(&mut self, edge: usize, error: &ChannelError) {
        let name = &self.config.edges[edge].name;
        if let Some(news) = self.distrust.note(edge, name, error, Instant::now()) {
            self.wire.events.add("refused", news);
        }
    }

    fn answer(&mut self, request: Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.wire.events.answer(since),
            Request::Reload { dry_run } => self.reloads.handle(dry_run, &mut self.wire.events),
            _ => refusal("only the edge can do that; ask its socket"),
        }
    }

    fn status(&self) -> Status {
        let mut status = self.head();
        let binds = self.wire.binds.iter().flat_map(BindWatch::counters);
        let at_bind = [("announced_at_bind", self.machine.announced_at_bind())];
        let counters = self.wire.bpf.counters().into_iter().chain(binds).chain(at_bind);
        status.counters = counters.map(|(name, count)| (format!("host.{name}"), count)).collect();
        let connected = self.connected();
        let peer = |(edge, &connected): (&SpreadEdge, &bool)| {
            let note = if connected { "" } else { "does not answer" };
            Peer { name: edge.name.clone(), connected, note: note.into() }
        };
        status.peers = self.config.edges.iter().zip(&connected).map(peer).collect();
        status.list_members(true);
        status
    }

    fn connected(&self) -> Vec<bool> {
        self.wire.links.iter().map(Dialer::is_open).collect()
    }

    /// The status without peers and what is counted.
    fn head(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, &self.me.name);
        status.role = Role::Host;
        let connected = self.connected();
        (status.state, status.reason, status.remedy) = shown(self.machine.shown(&connected));
        let distrusted = self.distrust.fresh(Instant::now(), |edge| !connected[edge]);
        explain(&mut status, distrusted.map(|it| (it.reason.as_str(), it.remedy)));
        self.kept.show(&mut status);
        self.intact.show(&mut status);
        status
    }
}

impl ListenerHost for Wire {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn send(&mut self, edge: usize, message: &Message<'_>) {
        self.links[edge].send(message);
    }

    fn listening(&mut self) -> Option<Vec<Waiting>> {
        let found = self.listeners.waiting();
        let found = found.inspect_err(|error| tracing::warn!("listeners: {error}")).ok()?;
        let waiting = |it: &holdfast_linux::listeners::Waiting| Waiting {
            address: it.address,
            port: it.port,
            udp: it.udp,
        };
        Some(found.iter().map(waiting).collect())
    }

    fn take_bind(&mut self) -> bool {
        self.binds.as_mut().is_some_and(BindWatch::take)
    }

    fn ask(&mut self, services: &[Service]) {
        self.prober.ask(services);
    }

    fn answers(&mut self) -> Option<Vec<(Service, Answer)>> {
        self.prober.take()
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.events.add(what, words);
    }
}

fn setup(config: &SpreadConfig, me: &SpreadHost) -> Setup {
    Setup {
        group: config.group.name.clone(),
        name: me.name.clone(),
        edges: config.edges.iter().map(|edge| edge.name.clone()).collect(),
        weight: me.weight,
        layer2: me.method == Method::Layer2,
        tunnels: me.tunnels(),
        addresses: config.group.addresses.clone(),
        services: me.services.clone(),
    }
}

/// Neighbours must not learn from this host who has the service addresses: otherwise two host
/// servers would claim the same one.
fn keep_neighbours_unaware(me: &SpreadHost) -> Result<()> {
    for interface in ["all", &me.interface] {
        for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            let path = format!("/proc/sys/net/ipv4/conf/{interface}/{name}");
            std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
        }
    }
    Ok(())
}

/// Adds the service addresses to the loopback interface: packets to them are for this host.
/// Returns those that were not there.
fn take_addresses(config: &SpreadConfig) -> Result<Vec<IpAddr>> {
    let lo = Link::by_name("lo")?;
    let mut socket = AddressSocket::open()?;
    let mut taken = Vec::new();
    for address in &config.group.addresses {
        if socket.restore(lo.index, &mapped(*address))? {
            taken.push(*address);
        }
    }
    Ok(taken)
}

/// Adds service addresses again that somebody has removed; returns why that fails.
fn mend_addresses(config: &SpreadConfig, events: &mut Events) -> Option<Trouble> {
    match take_addresses(config) {
        Ok(taken) => {
            for ip in taken {
                events.add("mended", format!("address {ip} of lo had been removed"));
            }
            None
        }
        Err(error) => {
            let reason = format!("a service address is gone: {error:#}");
            Some(Trouble::new(
                State::Unprotected,
                reason,
                "look at `lo`; then start this daemon again",
            ))
        }
    }
}

/// Watches for binds to the addresses or services that this host server may announce.
fn watch_binds(config: &SpreadConfig, me: &SpreadHost) -> Result<BindWatch> {
    let watch = match &me.services {
        None => BindWatch::attach(Watched::Addresses(&config.group.addresses)),
        Some(named) => {
            let named: Vec<SocketAddr> = named.iter().map(|service| service.address).collect();
            BindWatch::attach(Watched::Services(&named))
        }
    };
    Ok(watch?)
}

fn end_config(config: &SpreadConfig, me: &SpreadHost) -> Result<HostEndConfig> {
    // All edges have the same in their sections.
    let edge = &config.edges[0];
    let (outer4, outer6) = outers(&edge.outer4, &edge.outer6);
    let own = route::mtu(&me.interface).context("the MTU of this host's interface")?;
    let mtu = edge.mtu.map_or(own, |mtu| own.min(mtu.into()));
    Ok(HostEndConfig {
        group: config.group.name.clone(),
        interface: me.interface.clone(),
        tunnel4: me.tunnel,
        tunnel6: me.tunnel6,
        outer4,
        outer6,
        addresses: config.group.addresses.clone(),
        mtu: if me.method == Method::Layer2 { 0 } else { mtu },
        pin_dir: config.pin_dir(&me.name),
    })
}
