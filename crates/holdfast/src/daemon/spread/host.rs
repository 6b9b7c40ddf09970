//! A host server's daemon: has the service addresses, takes packets out of the
//! edge's tunnel, and announces what its servers serve.

use super::super::edge_link::{EdgeLink, LinkEvent};
use super::edge::outers;
use super::health::Health;
use super::looks::Looks;
use super::services::Finder;
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::channel::{Identity, Kind};
use crate::config::admin_socket;
use crate::config::spread::{Method, Service, SpreadConfig, SpreadHost};
use crate::poll::{Interest, Poll, Signals, Timers};
use crate::status::{Peer, Role, State, Status};
use anyhow::{Context, Result};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{BindWatch, HostEnd, HostEndConfig, Watched};
use holdfast_linux::link::Link;
use holdfast_linux::route;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, VERSION};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How often listeners are asked whether they answer.
const HEALTH: Duration = Duration::from_secs(1);

const EDGE: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const BINDS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Look,
    Health,
}

struct HostDaemon<'a> {
    config: &'a SpreadConfig,
    me: &'a SpreadHost,
    bpf: HostEnd,
    link: EdgeLink,
    poll: Poll,
    timers: Timers<Timer>,
    /// None where the kernel refuses: then listeners are only looked up.
    binds: Option<BindWatch>,
    looks: Looks,
    finder: Finder,
    health: Health,
    events: Events,
    listening: Vec<Service>,
    announced: Vec<Service>,
    /// Services that were announced because their bind was noticed.
    announced_at_bind: u64,
}

/// Runs the host server's daemon until a signal ends it. The programs stay in
/// the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub(super) fn run(config: &SpreadConfig, me: &SpreadHost) -> Result<()> {
    let signals = Signals::block()?;
    let socket = admin_socket(&config.group.run_dir, &me.name);
    let mut admin = AdminSocket::bind(&socket).context("admin socket")?;
    let mut daemon = HostDaemon::start(config, me)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals)
}

impl<'a> HostDaemon<'a> {
    fn start(config: &'a SpreadConfig, me: &'a SpreadHost) -> Result<Self> {
        take_addresses(config, me)?;
        let bpf = HostEnd::attach(&end_config(config, me)?)?;
        let identity = Identity {
            key: config.key()?.channel_key(),
            group: config.group.name.clone(),
            me: me.name.clone(),
            kind: Kind::Spread,
        };
        let mut events = Events::default();
        events.add("started", format!("{}, weight {}", me.name, me.weight));
        let binds = watch_binds(config, me).inspect_err(|error| {
            let how = "listeners are only looked up, five times a second";
            let cause = error.root_cause();
            events.add("polling", format!("{how}: binds are not noticed: {error} ({cause})"));
        });
        let now = Instant::now();
        Ok(Self {
            config,
            me,
            bpf,
            link: EdgeLink::new(config.edge.listen, identity, EDGE, now),
            poll: Poll::new()?,
            timers: Timers::new(),
            binds: binds.ok(),
            looks: Looks::new(now),
            finder: Finder::new(me, &config.group.addresses)?,
            health: Health::start(),
            events,
            listening: Vec::new(),
            announced: Vec::new(),
            announced_at_bind: 0,
        })
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<()> {
        if let Some(binds) = &self.binds {
            self.poll.add(binds, BINDS, Interest::Read)?;
        }
        self.timers.set(Timer::Look, self.looks.due());
        self.timers.set(Timer::Health, Instant::now());
        loop {
            let deadline = [self.timers.next(), self.link.deadline()];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            if ready.contains(&EDGE) || self.link.deadline().is_some_and(|at| at <= now) {
                self.turn(now);
            }
            if ready.contains(&BINDS) {
                self.hear_of_binds(now);
            }
            self.expire(now);
            if ready.contains(&ADMIN) {
                admin.serve(|request| self.answer(request));
            }
            if ready.contains(&SIGNALS)
                && let Some(signal) = super::super::ending(signals)
            {
                tracing::info!("signal {signal}: ending; established connections go on");
                return Ok(());
            }
        }
    }

    /// Hears the edge, and answers its heartbeats.
    fn turn(&mut self, now: Instant) {
        let (mut beat, mut refused) = (None, None);
        let event = self.link.turn(now, &self.poll, |message| match message {
            Message::Beat { number, .. } => beat = Some(number),
            Message::Refused { reason, .. } => refused = Some(reason.to_owned()),
            _ => {}
        });
        if let Some(reason) = refused {
            self.events.add("refused", reason);
        }
        match event {
            LinkEvent::Opened => {
                self.events.add("joined", "the edge".to_owned());
                self.link.send(&Message::Hello {
                    version: VERSION,
                    log_version: LOG_VERSION,
                    group: &self.config.group.name,
                    member: &self.me.name,
                    epoch: 0,
                    speaks: false,
                    world: Vec::new(),
                });
                self.say(now);
            }
            LinkEvent::Lost(error) => self.events.add("left", format!("the edge: {error}")),
            LinkEvent::Failed(error) => tracing::debug!("the edge: {error}"),
            LinkEvent::Nothing => {}
        }
        if let Some(number) = beat {
            self.link.send(&Message::Beat { number, echo: number, executed: 0 });
            self.link.flush(now, &self.poll);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Health => {
                    self.timers.set(Timer::Health, now + HEALTH);
                    self.health.ask(&self.listening);
                }
                Timer::Look => self.look(now),
            }
        }
    }

    fn hear_of_binds(&mut self, now: Instant) {
        if self.binds.as_mut().is_some_and(BindWatch::take) {
            self.looks.bind(now);
            self.timers.set(Timer::Look, self.looks.due());
        }
    }

    fn look(&mut self, now: Instant) {
        self.health.take();
        let found = self.finder.look();
        // The kernel tells of a bind before it is done: that of whatever was found
        // has been told.
        self.hear_of_binds(now);
        let at_bind = self.looks.follow_a_bind();
        self.looks.looked(now, Instant::now());
        self.timers.set(Timer::Look, self.looks.due());
        match found {
            Ok(found) => self.listening = found,
            Err(error) => {
                tracing::warn!("listeners: {error}");
                return;
            }
        }
        self.announce(now, at_bind);
    }

    /// Tells the edge what has changed.
    fn announce(&mut self, now: Instant, at_bind: bool) {
        let good = self.listening.iter().filter(|service| self.health.is_good(service));
        let good: Vec<Service> = good.copied().collect();
        if good != self.announced {
            let names: Vec<String> = good.iter().map(ToString::to_string).collect();
            let what = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            self.events.add("announced", what);
            if at_bind {
                let new = good.iter().filter(|service| !self.announced.contains(service));
                self.announced_at_bind += new.count() as u64;
            }
            self.announced = good;
            self.say(now);
        }
    }

    /// Announces everything; an edge that does not hear it asks by coming back.
    fn say(&mut self, now: Instant) {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let offer = |service: &Service| Offer {
            address: octets(service.address.ip()),
            port: service.address.port(),
            udp: service.udp,
        };
        self.link.send(&Message::Announce {
            weight: self.me.weight,
            layer2: self.me.method == Method::Layer2,
            tunnels: self.me.tunnels().into_iter().map(octets).collect(),
            services: self.announced.iter().map(offer).collect(),
        });
        self.link.flush(now, &self.poll);
    }

    fn answer(&mut self, request: Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.events.answer(since),
            _ => refusal("only the edge can do that; ask its socket"),
        }
    }

    fn status(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, &self.me.name);
        status.role = Role::Host;
        let binds = self.binds.iter().flat_map(BindWatch::counters);
        let at_bind = [("announced_at_bind", self.announced_at_bind)];
        let counters = self.bpf.counters().into_iter().chain(binds).chain(at_bind);
        status.counters = counters.map(|(name, count)| (format!("host.{name}"), count)).collect();
        let connected = self.link.is_open();
        let note = if connected { "" } else { "does not answer" };
        status.peers = vec![Peer { name: "edge".into(), connected, note: note.into() }];
        (status.state, status.reason) = if !connected {
            (State::Waiting, "the edge does not answer".to_owned())
        } else if self.announced.is_empty() {
            (State::Waiting, "no server listens at an address of the group".to_owned())
        } else {
            (State::Protected, String::new())
        };
        status
    }
}

/// The service addresses belong to the loopback: packets to them end here, and
/// neighbours are not told (else two host servers would claim the same address).
fn take_addresses(config: &SpreadConfig, me: &SpreadHost) -> Result<()> {
    let lo = Link::by_name("lo")?;
    let mut socket = AddressSocket::open()?;
    for interface in ["all", &me.interface] {
        for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            let path = format!("/proc/sys/net/ipv4/conf/{interface}/{name}");
            std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
        }
    }
    for address in &config.group.addresses {
        let mapped = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        socket.add(lo.index, &mapped)?;
    }
    Ok(())
}

/// A bind of what this host server may announce is to be noticed.
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
    let (outer4, outer6) = outers(&config.edge.outer4, &config.edge.outer6);
    let own = route::mtu(&me.interface).context("the MTU of this host's interface")?;
    let mtu = config.edge.mtu.map_or(own, |mtu| own.min(mtu.into()));
    Ok(HostEndConfig {
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
