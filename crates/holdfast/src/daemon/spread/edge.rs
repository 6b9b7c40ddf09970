//! The edge's daemon of a spread group: hears host servers, and tells the
//! redirector in the kernel who serves what. The data path does not need it:
//! while it is dead, everything stays as it was.

use super::links::{Link, News, Word};
use super::roster::Roster;
use super::syns::Syns;
use crate::admin::{AdminSocket, Events, Request, TraceRequest, refusal};
use crate::channel::{Identity, Kind, Listener};
use crate::config::admin_socket;
use crate::config::recover::Policy;
use crate::config::spread::{HOSTS_MAX, Prefix, SpreadConfig};
use crate::daemon::trace;
use crate::poll::{Interest, Poll, Signals, Timers};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_linux::bpf::{Host, HostState, Redirect, RedirectConfig};
use holdfast_linux::inlet::Inlet;
use holdfast_linux::route::RouteSocket;
use holdfast_wire::message::Message;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The redirector's clock, and how often routes are looked at again.
const TICK: Duration = Duration::from_secs(1);
/// Flows are looked through every so many ticks.
const AGE_TICKS: u64 = 5;
/// After its start the daemon leaves everything as it is for so long, unless all
/// host servers that were up have come back before.
const GRACE: Duration = Duration::from_secs(3);

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const SYNS: u64 = 3;
/// Link `i` has the token `HOSTS + i`.
const HOSTS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Tick,
    /// Nobody is waited for any more.
    Settled,
}

/// A host server that the redirector has a slot for.
pub(super) struct Placed {
    pub slot: u8,
    pub name: String,
    /// As the kernel has it.
    pub host: Host,
}

pub(super) struct SpreadEdge<'a> {
    pub config: &'a SpreadConfig,
    pub bpf: Redirect,
    pub roster: Roster,
    pub links: Vec<Link>,
    pub placed: Vec<Placed>,
    pub listener: Listener,
    /// None where it is off, or the kernel refuses.
    pub syns: Option<Syns>,
    poll: Poll,
    timers: Timers<Timer>,
    routes: RouteSocket,
    pub events: Events,
    started: Instant,
    period: Nanos,
    settled: bool,
    ticks: u64,
}

/// Runs the edge until a signal ends it. The programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub(super) fn run(config: &SpreadConfig) -> Result<()> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let socket = admin_socket(&config.group.run_dir, "edge");
    let mut admin = AdminSocket::bind(&socket).context("admin socket")?;
    let mut edge = SpreadEdge::start(config)?;
    edge.poll.add(&admin, ADMIN, Interest::Read)?;
    edge.poll.add(&signals, SIGNALS, Interest::Read)?;
    edge.run(&mut admin, &signals)
}

impl<'a> SpreadEdge<'a> {
    fn start(config: &'a SpreadConfig) -> Result<Self> {
        let key = config.key()?;
        let mut events = Events::default();
        let (bpf, syns) = attach(config, key.spread_seed(), &mut events)?;
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
        let mut edge = Self {
            config,
            roster: Roster::default(),
            links: Vec::new(),
            placed: Vec::new(),
            listener,
            syns,
            poll: Poll::new()?,
            timers: Timers::new(),
            routes: RouteSocket::open()?,
            events,
            started: Instant::now(),
            period: Nanos(config.heartbeat().as_nanos() as u64),
            settled: false,
            ticks: 0,
            bpf,
        };
        edge.poll.add(&edge.listener, LISTENER, Interest::Read)?;
        if let Some(syns) = &edge.syns {
            edge.poll.add(&syns.fd(), SYNS, Interest::Read)?;
        }
        edge.inherit();
        Ok(edge)
    }

    /// Takes over what an earlier daemon left in the kernel.
    fn inherit(&mut self) {
        for service in self.bpf.services() {
            self.roster.inherit(service);
        }
        for (slot, host) in self.bpf.hosts() {
            self.roster.set_draining(slot, host.state == HostState::Draining);
            let is = |configured: &&crate::config::spread::SpreadHost| {
                configured.tunnels().iter().any(|t| addresses(&host).contains(t))
            };
            let name = self.config.hosts.iter().find(is).map_or("?", |h| &h.name).to_owned();
            self.placed.push(Placed { slot, name, host });
        }
        let (hosts, services) = (self.placed.len(), self.bpf.services().len());
        let found = format!("{services} services and {hosts} host servers found");
        self.events.add("started", found);
        self.settled = hosts == 0;
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<()> {
        let start = Instant::now();
        self.timers.set(Timer::Tick, start + TICK);
        self.timers.set(Timer::Settled, start + GRACE);
        loop {
            let watch = self.links.iter().filter_map(Link::deadline).min();
            let watch = watch.map(|at| self.started + Duration::from_nanos(at.0));
            let syns = self.syns.as_ref().and_then(Syns::deadline);
            let deadline = [self.timers.next(), self.listener.deadline(), watch, syns];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            for &token in ready.iter().filter(|&&token| token >= HOSTS) {
                self.hear((token - HOSTS) as usize, now);
            }
            self.accept(now);
            self.watch(now);
            self.expire(now)?;
            self.apply();
            self.resend(now, ready.contains(&SYNS))?;
            if ready.contains(&ADMIN) {
                admin.serve(|request| self.answer(request));
                self.apply();
            }
            if ready.contains(&SIGNALS)
                && let Some(signal) = super::super::ending(signals)
            {
                tracing::info!("signal {signal}: ending; redirection goes on without me");
                return Ok(());
            }
        }
    }

    /// Takes host servers whose handshake is over. What each may announce stands in
    /// the file.
    fn accept(&mut self, now: Instant) {
        loop {
            let channel = match self.listener.accept(now) {
                Ok(None) => return,
                Ok(Some(channel)) => channel,
                Err(error) => {
                    tracing::warn!("{error}");
                    continue;
                }
            };
            let name = channel.peer().to_owned();
            let Some(index) = self.link_of(&name, now) else {
                self.events.add("refused", format!("{name}: there are {HOSTS_MAX} already"));
                continue;
            };
            let token = HOSTS + index as u64;
            let group = &self.config.group.name;
            match self.links[index].adopt(channel, group, &self.poll, token) {
                Ok(()) => {
                    self.events.add("joined", name);
                    // It may have spoken along with its handshake.
                    self.hear(index, now);
                }
                Err(error) => tracing::warn!("{name}: {error}"),
            }
        }
    }

    fn link_of(&mut self, name: &str, now: Instant) -> Option<usize> {
        if let Some(index) = self.links.iter().position(|link| link.name == name) {
            return Some(index);
        }
        if self.links.len() >= HOSTS_MAX || name.is_empty() || name == "edge" {
            return None;
        }
        self.links.push(Link::new(name, self.period, self.nanos(now)));
        Some(self.links.len() - 1)
    }

    fn nanos(&self, now: Instant) -> Nanos {
        Nanos((now - self.started).as_nanos() as u64)
    }

    fn hear(&mut self, index: usize, now: Instant) {
        let at = self.nanos(now);
        let Some(link) = self.links.get_mut(index) else { return };
        let (words, mut result) = link.receive(&self.config.group.name, at);
        let name = link.name.clone();
        for word in words {
            match word {
                Word::Beat => {
                    let slots = self.slots_of(&name);
                    self.revive(&name, &slots);
                    if let Some(syns) = &mut self.syns {
                        syns.handle_beat(&name, &slots);
                    }
                }
                Word::Announce(said) => self.hear_announcement(index, &said),
                Word::Leave(reason) => {
                    self.links[index].send(&Message::Refused { reason: &reason, again: false });
                    let _ = self.links[index].flush(&self.poll, HOSTS + index as u64);
                    self.lose(index, &reason);
                    return;
                }
            }
        }
        result = result.and_then(|()| self.links[index].flush(&self.poll, HOSTS + index as u64));
        if let Err(error) = result {
            self.lose(index, &error.to_string());
        }
    }

    /// Its heartbeats say when it is out; a daemon that starts again was not.
    fn lose(&mut self, index: usize, why: &str) {
        if self.links[index].close() {
            let name = self.links[index].name.clone();
            self.events.add("left", format!("{name}: {why}"));
        }
    }

    /// A host server that was declared dead is heard again.
    fn revive(&mut self, name: &str, slots: &[u8]) {
        for &slot in slots {
            // It is only news for one that has announced something before.
            if self.roster.weight(slot) > 0 && self.roster.set_alive(slot, true) {
                self.events.add("trusted", name.to_owned());
            }
        }
    }

    fn slots_of(&self, name: &str) -> Vec<u8> {
        self.placed.iter().filter(|p| p.name == name).map(|p| p.slot).collect()
    }

    /// SYNs of a host server that died or was away come in anew.
    fn resend(&mut self, now: Instant, is_readable: bool) -> Result<()> {
        let Some(syns) = &mut self.syns else { return Ok(()) };
        if let Some(flows) = syns.turn(now, is_readable)? {
            self.events.add("resend", format!("{flows} flows"));
        }
        Ok(())
    }

    /// Asks the kernel which way packets to the host servers leave now.
    pub fn find_ways(&mut self) {
        for placed in &mut self.placed {
            let mtu = self.config.edge.mtu.map_or(u32::MAX, u32::from);
            let Host { v4, v6, .. } = &mut placed.host;
            for way in [v4, v6].into_iter().flatten() {
                match self.routes.next_hop(way.address) {
                    Ok(hop) => {
                        way.next_hop = hop.address;
                        way.ifindex = hop.ifindex;
                        way.mtu = hop.mtu.min(mtu);
                    }
                    Err(error) => {
                        if way.ifindex != 0 {
                            tracing::warn!("no route to {}: {error}", way.address);
                        }
                        way.ifindex = 0;
                    }
                }
            }
        }
        self.write_hosts();
    }

    /// Makes the kernel know the host servers as they are.
    fn write_hosts(&mut self) {
        let known = self.bpf.hosts();
        for placed in &mut self.placed {
            let condition = self.roster.condition(placed.slot);
            // Before all have come back, nobody is dead.
            placed.host.state = match (condition.alive || !self.settled, condition.draining) {
                (false, _) => HostState::Dead,
                (true, true) => HostState::Draining,
                (true, false) => HostState::Up,
            };
            let is_known = known.iter().any(|(s, h)| *s == placed.slot && *h == placed.host);
            if !is_known && let Err(error) = self.bpf.set_host(placed.slot, &placed.host) {
                tracing::error!("{}: {error}", placed.name);
            }
        }
    }

    fn watch(&mut self, now: Instant) {
        let at = self.nanos(now);
        for index in 0..self.links.len() {
            if self.links[index].deadline().is_none_or(|due| due > at) {
                continue;
            }
            // What has come already is not missing.
            self.hear(index, now);
            let news = self.links[index].watch(at, self.period);
            let name = self.links[index].name.clone();
            match news {
                Some(News::Suspected) => {
                    self.events.add("suspect", name.clone());
                    if let Some(syns) = &mut self.syns {
                        syns.handle_suspected(&name);
                    }
                }
                Some(News::Declared) => {
                    self.events.add("declare", name.clone());
                    let slots = self.slots_of(&name);
                    for slot in &slots {
                        self.roster.set_alive(*slot, false);
                    }
                    if let Some(syns) = &mut self.syns {
                        syns.handle_declared(&slots);
                    }
                }
                None => {}
            }
            if let Err(error) = self.links[index].flush(&self.poll, HOSTS + index as u64) {
                self.lose(index, &error.to_string());
            }
        }
    }

    /// Carries out what the roster says, once everybody had the time to return.
    fn apply(&mut self) {
        if !self.settled {
            let is_back = |p: &Placed| self.roster.condition(p.slot).alive;
            let mut waited_for = self.placed.iter().filter(|p| p.host.state != HostState::Dead);
            self.settled = waited_for.all(is_back);
        }
        if !self.settled {
            return;
        }
        self.write_hosts();
        for change in self.roster.changes() {
            let name = super::report::service_name(&change.service);
            match self.bpf.set_service(&change.service, &change.table) {
                Ok(()) => {
                    let members: Vec<&str> =
                        change.members.iter().map(|&slot| self.name_of(slot)).collect();
                    let to = if members.is_empty() { "nobody".into() } else { members.join(", ") };
                    self.events.add("switch", format!("{name} -> {to}"));
                }
                Err(error) => self.events.add("refused", format!("{name}: {error}")),
            }
        }
    }

    pub fn name_of(&self, slot: u8) -> &str {
        self.placed.iter().find(|p| p.slot == slot).map_or("?", |p| &p.name)
    }

    fn expire(&mut self, now: Instant) -> Result<()> {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Settled => self.settled = true,
                Timer::Tick => {
                    self.timers.set(Timer::Tick, now + TICK);
                    self.ticks += 1;
                    self.bpf.tick()?;
                    self.find_ways();
                    if self.ticks.is_multiple_of(AGE_TICKS) {
                        self.bpf.age_flows()?;
                        self.forget_unserved()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A service without host servers goes when its last flow has gone.
    fn forget_unserved(&mut self) -> Result<()> {
        let unserved = self.roster.unserved();
        if !self.settled || unserved.is_empty() || self.bpf.flows().count() > 0 {
            return Ok(());
        }
        for service in unserved {
            self.bpf.remove_service(&service)?;
            self.roster.forget(&service);
            self.events.add("removed", super::report::service_name(&service));
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.events.answer(since),
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
        match self.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => trace::answer(question, &traced, |slot| self.name_of(slot)),
            Err(error) => refusal(&error.to_string()),
        }
    }

    fn drain(&mut self, name: &str, end: bool) -> Value {
        let slots = self.slots_of(name);
        if slots.is_empty() {
            let known: Vec<&str> = self.placed.iter().map(|p| p.name.as_str()).collect();
            return refusal(&format!("no host server `{name}`; there are: {}", known.join(", ")));
        }
        for slot in slots {
            if self.roster.set_draining(slot, !end) {
                self.events.add(if end { "undrained" } else { "drained" }, name.to_owned());
            }
        }
        self.write_hosts();
        json!({ "name": name, "draining": !end })
    }
}

/// The redirector, and the cache of SYNs with an interface by which they come in
/// anew. Without one the edge works, and clients repeat their SYNs.
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

pub(super) fn addresses(host: &Host) -> Vec<IpAddr> {
    host.v4.iter().chain(&host.v6).map(|way| way.address).collect()
}

fn redirect_config(config: &SpreadConfig, seed: u64) -> RedirectConfig {
    let (outer4, outer6) = outers(&config.edge.outer4, &config.edge.outer6);
    RedirectConfig {
        client_interfaces: config.edge.clients.clone(),
        pin_dir: config.pin_dir("edge"),
        flows_max: config.group.flows_max,
        seed,
        outer4,
        outer6,
    }
}

/// Both prefixes, of whose families the configuration has made sure.
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
