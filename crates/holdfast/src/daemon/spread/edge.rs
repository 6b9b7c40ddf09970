//! The daemon of a spread group's edge: the host of the state machine that listens to host
//! servers and tells the redirector in the kernel which host serves what. The data path does not
//! need this process: while it is dead, every flow goes where it went.

use super::links::Link;
use super::syns::Syns;
use super::wire::{Wire, key_of, placed_of};
use crate::admin::{AdminSocket, Events, NO_PRIMARY, Request, TraceRequest, refusal};
use crate::channel::{ChannelError, Identity, Kind, Listener};
use crate::config::admin_socket;
use crate::config::recover::Policy;
use crate::config::spread::{HOSTS_MAX, Method, Prefix, SpreadConfig};
use crate::daemon::clients::{deaf, unreached};
use crate::daemon::distrust::Distrust;
use crate::daemon::intact::{Intact, Names, Trouble, lost_address, note_mended, note_removed};
use crate::daemon::kept::Kept;
use crate::daemon::trace;
use crate::leavings;
use crate::poll::{Interest, Poll, Signals};
use crate::status::State;
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_linux::bpf::{Redirect, RedirectConfig};
use holdfast_linux::inlet::Inlet;
use holdfast_member::spread::{Given, Service, Setup, SpreadMachine};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const SYNS: u64 = 3;
/// First token of the links: link `i` has `HOSTS + i`.
pub(super) const HOSTS: u64 = 4;

pub(super) struct SpreadEdge<'a> {
    pub config: &'a SpreadConfig,
    pub machine: SpreadMachine,
    pub wire: Wire<'a>,
    pub listener: Listener,
    pub kept: Kept,
    pub intact: Intact,
    pub distrust: Distrust,
    names: Names,
}

/// Runs the edge until a signal ends it. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub(super) fn run(config: &SpreadConfig) -> Result<()> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let socket = admin_socket(&config.group.run_dir, "edge");
    let admin = AdminSocket::bind(&socket).context("admin socket")?;
    let mut admin = admin.with_pins(config.pin_dir("edge"));
    let mut edge = SpreadEdge::start(config)?;
    edge.wire.poll.add(&admin, ADMIN, Interest::Read)?;
    edge.wire.poll.add(&signals, SIGNALS, Interest::Read)?;
    edge.run(&mut admin, &signals)
}

impl<'a> SpreadEdge<'a> {
    fn start(config: &'a SpreadConfig) -> Result<Self> {
        let key = config.key()?;
        let identity = Identity {
            key: key.channel_key(),
            group: config.group.name.clone(),
            me: "edge".to_owned(),
            kind: Kind::Spread,
        };
        let listen = config.edge.listen;
        let mut listener = Listener::bind(listen, identity)
            .with_context(|| format!("cannot listen at edge.listen = {listen}"))?;
        listener.prefer(config.hosts.iter().flat_map(|host| host.tunnels()));
        // Only after the listener is bound: another edge's daemon may run here, and its programs
        // must not be touched.
        let mut events = Events::default();
        let left = leavings::earlier(&["redirect"], &config.pin_dir("edge"));
        let (bpf, syns) = attach(config, key.spread_seed(), &mut events)?;
        note_removed(&leavings::remove_earlier_edge(&left)?, &mut events);
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER, Interest::Read)?;
        if let Some(syns) = &syns {
            poll.add(&syns.fd(), SYNS, Interest::Read)?;
        }
        let mut wire = Wire::new(config, bpf, syns, poll, events)?;
        let mut machine = SpreadMachine::new(setup(config), Nanos(0));
        // Services that an earlier daemon left in the kernel.
        let services: Vec<Service> = wire.bpf.services().iter().map(key_of).collect();
        let placed = wire.bpf.hosts().iter().map(placed_of).collect();
        machine.handle_start(&services, placed, &mut wire);
        let intact = Intact::open(Instant::now()).context("a netlink socket")?;
        let (kept, names, distrust) = (Kept::default(), Names::default(), Distrust::default());
        Ok(Self { config, machine, wire, listener, kept, intact, distrust, names })
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<()> {
        loop {
            let watch = Some(self.wire.clock.instant(self.machine.next_deadline()));
            let syns = self.wire.syns.as_ref().and_then(Syns::deadline);
            let look = Some(self.intact.deadline());
            let deadline = [self.listener.deadline(), watch, syns, look];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.wire.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            for &token in ready.iter().filter(|&&token| token >= HOSTS) {
                self.hear((token - HOSTS) as usize, now);
            }
            self.accept(now);
            self.turn(now, ready.contains(&SYNS))?;
            self.look(now);
            if ready.contains(&ADMIN) {
                let look = admin.serve(|request| self.answer(request));
                self.kept.take(look, &self.config.group.run_dir, &mut self.wire.events);
            }
            if ready.contains(&SIGNALS)
                && let Some(signal) = super::super::ending(signals)
            {
                tracing::info!("signal {signal}: ending; redirection goes on without me");
                return Ok(());
            }
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
        for index in 0..self.wire.links.len() {
            if let Err(error) = self.wire.flush(index) {
                self.lose(index, &error.to_string());
            }
        }
        Ok(())
    }

    /// Attaches the redirector again where somebody has removed it, and looks whether host servers
    /// and clients can still come.
    fn look(&mut self, now: Instant) {
        if !self.intact.is_due(now) {
            return;
        }
        let edge = &self.config.edge;
        let torn = note_mended(self.wire.bpf.mend(), &mut self.wire.events);
        let renamed = self.names.renamed(&edge.clients);
        let unreached = unreached("clients'", &edge.clients, &deaf(&edge.clients));
        let trouble = renamed
            .or(unreached.map(|found| Trouble::of(State::Waiting, found)))
            .or(torn)
            .or_else(|| lost_address("edge.listen", edge.listen.ip(), None));
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
        let (words, result) = link.receive(&config.group.name);
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
            Ok(()) => json!({ "name": name, "draining": !end }),
            Err(reason) => refusal(&reason),
        }
    }
}

fn setup(config: &SpreadConfig) -> Setup {
    let given = |host: &crate::config::spread::SpreadHost| Given {
        name: host.name.clone(),
        tunnels: host.tunnels(),
        layer2: host.method == Method::Layer2,
        weight: host.weight,
        services: host.services.clone(),
    };
    Setup {
        group: config.group.name.clone(),
        addresses: config.group.addresses.clone(),
        hosts: config.hosts.iter().map(given).collect(),
        hosts_max: HOSTS_MAX,
        period: Nanos(config.heartbeat().as_nanos() as u64),
    }
}

/// Attaches the redirector, and makes the cache of SYNs with the interface through which they
/// are re-injected. If there can be no cache the edge works without: clients repeat their SYNs.
fn attach(
    config: &SpreadConfig,
    seed: u64,
    events: &mut Events,
) -> Result<(Redirect, Option<Syns>)> {
    let mut redirector = redirect_config(config, seed);
    if config.recover.policy == Policy::Off {
        return Ok((Redirect::attach(&redirector)?, None));
    }
    match Inlet::open() {
        Ok(inlet) => {
            redirector.client_interfaces.push(inlet.name().to_owned());
            let mut bpf = Redirect::attach(&redirector)?;
            let syns = Syns::new(&config.recover, &mut bpf, inlet)?;
            Ok((bpf, Some(syns)))
        }
        Err(error) => {
            events.add("cache", format!("nothing is kept: {error}"));
            Ok((Redirect::attach(&redirector)?, None))
        }
    }
}

fn redirect_config(config: &SpreadConfig, seed: u64) -> RedirectConfig {
    let (outer4, outer6) = outers(&config.edge.outer4, &config.edge.outer6);
    RedirectConfig {
        group: config.group.name.clone(),
        client_interfaces: config.edge.clients.clone(),
        pin_dir: config.pin_dir("edge"),
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
