//! The edge's daemon: grants epochs and keeps the fence.
//!
//! The data path is eBPF and does not need this process: while it is dead, the
//! current member stays current, the tap goes on, and nobody can be promoted.
//! A grant is on disk before it is in the fence, and in the fence before the
//! member hears of it (decisions 19, 21 and 22).

mod announced;
mod by_hand;
mod disk;
mod host;
mod members;
mod report;
mod ways;
mod wire;

use super::edge_state::StateFile;
use super::heed;
use super::processors::Processors;
use super::pulse::Pulse;
use super::recover::Recoverer;
use super::said::{Repetition, kind_of};
use super::service_manager;
use crate::admin::{AdminSocket, Events, NO_PRIMARY, Request, refusal};
use crate::channel::{Channel, ChannelError, Identity, Kind, Listener};
use crate::check::why_taken;
use crate::config::{self, Config, Role, Settings as _};
use crate::daemon::asked;
use crate::daemon::clock::Clock;
use crate::daemon::distrust::Distrust;
use crate::daemon::intact::note_removed;
use crate::daemon::reload::{Ended, Life, Reader, Reloads};
use crate::key::Keyring;
use crate::leavings;
use crate::poll::{Interest, Poll, Signals};
use crate::status::{PastTakeover, Takeover, TakeoverKind};
use announced::Announced;
use anyhow::{Context, Result};
use disk::Disk;
use holdfast_cluster::Nanos;
use holdfast_edge::HalrConfig;
use holdfast_linux::bpf::{Edge, EdgeConfig, MemberPort, has_pins};
use holdfast_linux::changes::Changes;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::priority;
use holdfast_linux::process;
use holdfast_member::edge::{EdgeHost, EdgeMachine, Setup};
use holdfast_wire::message::Message;
use host::Host;
use members::{Links, Report};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use ways::Ways;
use wire::Wire;

/// Real-time priority: above ordinary servers, below the kernel's own threads.
const PRIORITY: i32 = 20;
/// Time after its last attempt for which a host that uses another member's name is reported.
const DOUBLE_LASTS: Duration = Duration::from_secs(3);
/// Longest time for which a takeover puts off a reload: a dead primary without a backup is none.
const RELOAD_WAITS: Duration = Duration::from_secs(10);
/// Time that a refused channel stays open, so that the host can read why it was refused.
const TURNED_AWAY: Duration = Duration::from_millis(500);

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const RECOVER: u64 = 3;
const DISK: u64 = 4;
/// First token of the members: member `i` has `MEMBERS + i`.
const MEMBERS: u64 = 5;

/// The edge's machine, and what this host adds: channels from their handshakes on,
/// texts for people, and whether the host does its part.
struct EdgeDaemon<'a> {
    config: &'a Config,
    /// This role's part of the file.
    named: &'a config::Edge,
    listener: Listener,
    machine: EdgeMachine,
    wire: Wire,
    /// When a second host last connected with the name of a connected member, by that member's
    /// index.
    doubles: BTreeMap<usize, Instant>,
    /// Channel of a host that was refused because it uses another member's name, and when it is
    /// closed.
    turned_away: Option<(Channel, Instant)>,
    /// Number of the current member's packets that had passed the fence at the last
    /// [`Self::watch`].
    spoken: u64,
    /// Members whose handshakes fail, by index.
    distrust: Distrust,
    ways: Ways,
    processors: Processors,
    host: Host,
    /// Tells when the eBPF programs and the members' ports must be checked.
    changes: Changes,
    announced: Announced,
    /// The last takeover, as its survivor reports it.
    last_takeover: Option<Takeover>,
    /// The epoch that this life began in.
    begun_in: u64,
    /// When to tell the edge's own state to the members.
    repetition: Repetition,
}

/// Runs the edge until a signal ends it. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &Config, named: &config::Edge, life: &mut Life<'_>) -> Result<Ended> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let admin = AdminSocket::of_daemon(&config.common(), "edge").context("admin socket")?;
    let mut admin = admin.with_pins(config.pin_dir(Role::Edge));
    // Before the programs are loaded: until they are, nobody can take over.
    if config.group.realtime {
        if let Err(error) = priority::set_realtime(PRIORITY) {
            tracing::warn!("no real-time priority: {error}; takeovers take longer under load");
        }
        if let Err(error) = process::lock_memory() {
            tracing::warn!("memory is not locked: {error}; takeovers take longer while it swaps");
        }
    }
    let key = config.keyring("edge")?;
    let mut daemon = EdgeDaemon::start(config, named, (&key, life.events()))?;
    let reloads = life.begin((Reader::Edge, &key), &mut daemon.wire.events);
    daemon.wire.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.wire.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals, reloads)
}

impl<'a> EdgeDaemon<'a> {
    fn start(
        config: &'a Config,
        named: &'a config::Edge,
        (key, events): (&Keyring, Events),
    ) -> Result<Self> {
        // Before anything is touched: another edge's daemon may run here, with this
        // address and other files, and its programs are in the kernel.
        let listener = listener(config, named.listen, key)?;
        let file = StateFile::open(&named.state_file)?;
        let members: Vec<&str> = config.members.iter().map(|m| m.name.as_str()).collect();
        let setup = Setup {
            group: &config.group.name,
            members: &members,
            first: &named.first,
            period: Nanos(config.heartbeat().as_nanos() as u64),
        };
        let machine = EdgeMachine::new(&setup, file.state().clone(), Nanos(0))?;
        // Pins of an earlier daemon belong to a data path that is in use, and stay.
        let is_fresh = !has_pins(&config.pin_dir(Role::Edge));
        let daemon = Self::begin(config, named, (listener, key), (file, machine, events));
        if daemon.is_err() && is_fresh {
            heed("removing what was made", Edge::undo(&edge_config(config, named)));
        }
        daemon
    }

    fn begin(
        config: &'a Config,
        named: &'a config::Edge,
        (listener, key): (Listener, &Keyring),
        (file, machine, mut events): (StateFile, EdgeMachine, Events),
    ) -> Result<Self> {
        let left = leavings::earlier(&["edge"], &config.pin_dir(Role::Edge));
        let mut bpf = Edge::attach(&edge_config(config, named))?;
        note_removed(&leavings::remove_earlier_edge(&left)?, &mut events);
        let started = Instant::now();
        let disk = Disk::start(file, config.group.realtime.then_some(PRIORITY), started)?;
        let hops = (0..config.members.len()).map(|index| bpf.hop(index));
        let hops = hops.collect::<Result<Vec<_>, _>>()?;
        let copies = bpf.take_copies().context("no copies")?;
        let keeps = config.recover.as_ref().context("the file says what an edge keeps")?;
        let recoverer = Recoverer::new(keeps, HalrConfig::shipped, copies, Instant::now())?;
        let pulse = Pulse::of_edge(config, named.listen, key, started);
        let wire = Wire {
            poll: Poll::new()?,
            bpf,
            recoverer,
            disk,
            links: Links::new(config, pulse),
            events,
            clock: Clock::new(started),
            vanished: 0,
            failed: Vec::new(),
            fatal: None,
        };
        let mut daemon = Self {
            config,
            named,
            listener,
            begun_in: machine.membership().handle_ask().epoch,
            machine,
            wire,
            doubles: BTreeMap::new(),
            turned_away: None,
            spoken: 0,
            distrust: Distrust::default(),
            ways: Ways::new(hops, Instant::now())?,
            processors: Processors::watch(config.heartbeat(), started, config.group.realtime),
            host: Host::new(started),
            changes: Changes::open().context("a netlink socket")?,
            announced: Announced::new(Announcer::open()?),
            last_takeover: None,
            repetition: Repetition::new(Instant::now()),
        };
        daemon.watch_all()?;
        let fence = daemon.wire.bpf.current()?;
        daemon.machine.handle_start(fence, &mut daemon.wire).map_err(anyhow::Error::msg)?;
        Ok(daemon)
    }

    fn watch_all(&self) -> Result<()> {
        let Wire { poll, recoverer, disk, .. } = &self.wire;
        poll.add(&self.listener, LISTENER, Interest::Read)?;
        poll.add(&recoverer.fd(), RECOVER, Interest::Read)?;
        poll.add(disk, DISK, Interest::Read)?;
        Ok(())
    }

    fn run(
        &mut self,
        admin: &mut AdminSocket,
        signals: &Signals,
        mut reloads: Reloads,
    ) -> Result<Ended> {
        loop {
            let machine = Some(self.wire.clock.instant(self.machine.next_deadline()));
            let turned_away = self.turned_away.as_ref().map(|(_, until)| *until);
            let recover = self.wire.recoverer.deadline();
            let ways = Some(self.ways.deadline(Instant::now()).min(self.host.look_at));
            let disk = self.wire.disk.deadline();
            let deadline = [turned_away, self.listener.deadline(), ways, machine, recover, disk];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.wire.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            self.wire.links.turned();
            service_manager::turn(|| service_manager::line(&self.head()));
            // Members first: one of them may be waiting to take over.
            for &token in ready.iter().filter(|&&token| token >= MEMBERS) {
                self.hear((token - MEMBERS) as usize, now);
            }
            self.written(now);
            self.accept(now);
            self.watch(now);
            self.turned_away.take_if(|(_, until)| *until <= now);
            if ready.contains(&RECOVER) {
                self.wire.recoverer.on_readable(now);
            }
            self.wire.recoverer.poll(now);
            if ready.contains(&ADMIN) {
                let look = admin.serve(|request| self.answer(request, &mut reloads));
                self.host.kept.take(look, &self.config.group.run_dir, &mut self.wire.events);
            }
            self.look(now);
            self.say(now);
            self.settle(now);
            if let Some(error) = self.wire.fatal.take() {
                return Err(error);
            }
            let signalled = asked(signals, ready.contains(&SIGNALS));
            let goes_on = "forwarding, tap and fence go on";
            if let Some(ended) = reloads.heed(signalled, goes_on, &mut self.wire.events) {
                return Ok(ended);
            }
            if reloads.waits_for().is_some_and(|waited| self.may_begin_anew(waited))
                && let Some(ended) = reloads.take(&mut self.wire.events)
            {
                return Ok(ended);
            }
        }
    }

    /// Whether nobody would miss this daemon for a moment: no takeover is near or under way, unless
    /// that lasts, and no write of the state is unfinished.
    fn may_begin_anew(&self, waited: Duration) -> bool {
        let current = &self.machine.membership().handle_ask().current;
        let index = current.as_deref().and_then(|name| self.machine.index(name));
        let is_served = index.is_none_or(|index| self.machine.is_here(index));
        let is_calm = self.machine.is_calm() && is_served;
        !self.wire.disk.is_busy() && (is_calm || waited >= RELOAD_WAITS)
    }

    /// Accepts members whose handshake is complete.
    fn accept(&mut self, now: Instant) {
        loop {
            match self.listener.accept(now) {
                Ok(None) => return,
                Ok(Some(channel)) => match self.machine.index(channel.peer()) {
                    Some(index) => self.admit(index, channel, now),
                    None => {
                        let name = channel.peer().to_owned();
                        self.wire.events.add("refused", format!("`{name}` is not a member"));
                    }
                },
                Err(error) => {
                    tracing::warn!("{error}");
                    self.doubt(&error, now);
                }
            }
        }
    }

    /// Notes a failed handshake from a member's address: it explains why that member does not
    /// connect.
    fn doubt(&mut self, error: &ChannelError, now: Instant) {
        let ChannelError::Refused { from, why, .. } = error else { return };
        let index = self.config.members.iter().position(|member| member.address.ip() == *from);
        let Some(index) = index else { return };
        if let Some(news) = self.distrust.note(index, self.machine.name(index), why, now) {
            self.wire.events.add("refused", news);
        }
    }

    fn admit(&mut self, index: usize, channel: Channel, now: Instant) {
        // Messages and the end of the member's previous channel come first.
        self.hear(index, now);
        if !self.machine.admits(index) {
            return self.turn_away(index, channel, now);
        }
        if let Err(error) = self.wire.links.adopt(index, channel, &self.wire.poll) {
            return self.lose(index, &error.to_string(), now);
        }
        self.machine.handle_opened(index, &mut self.wire);
        self.repetition.hurry(now);
        self.ways.joined(index, now);
        self.distrust.forget(index);
        // The member may have sent something along with its handshake.
        self.hear(index, now);
    }

    /// Refuses a host that uses the name of a member that is connected and answers: the first one
    /// stays.
    fn turn_away(&mut self, index: usize, mut channel: Channel, now: Instant) {
        let reason = format!(
            "another host is connected as `{}`; stop holdfast on one of them, or give it a name of its own",
            self.machine.name(index)
        );
        if self.doubles.insert(index, now).is_none_or(|seen| now - seen > DOUBLE_LASTS) {
            self.wire.events.add("refused", reason.clone());
        }
        let told = channel.send(&Message::Refused { reason: &reason, again: true });
        heed("turning away", told.and_then(|()| channel.flush()));
        // Closing the channel at once might discard this message.
        if self.turned_away.is_none() {
            self.turned_away = Some((channel, now + TURNED_AWAY));
        }
    }

    /// Receives messages from a member and handles its requests.
    fn hear(&mut self, index: usize, now: Instant) {
        let (words, result) = self.wire.links.receive(index);
        let at = self.wire.clock.nanos(now);
        for word in words {
            let heeded = self.machine.handle_wish(index, word.wish, at, &mut self.wire);
            if let Some(report) = word.report.filter(|_| heeded) {
                self.note_report(index, report, now);
            }
        }
        if let Err(error) = result.and_then(|()| self.wire.links.flush(index, &self.wire.poll)) {
            self.lose(index, &error.to_string(), now);
        }
        self.settle(now);
    }

    fn note_report(&mut self, index: usize, report: Report, now: Instant) {
        match report {
            Report::File(lines) => self.wire.links.note_file(index, &lines),
            Report::Says(says) => self.wire.links.note_says(index, says),
            Report::SignSeen { number, mac } => self.ways.seen(index, number, mac, now),
            Report::TookOver(takeover) if self.machine.is_current(index) => {
                self.note_takeover(index, takeover);
            }
            Report::TookOver(_) => {}
        }
    }

    /// Notes a takeover, which its survivor reports again and again: also one of which an earlier life
    /// of this daemon has told already.
    fn note_takeover(&mut self, index: usize, takeover: Takeover) {
        if self.last_takeover.as_ref() == Some(&takeover) {
            return;
        }
        self.last_takeover = Some(takeover.clone());
        let kind = kind_of(&takeover.cause);
        let to = self.machine.name(index).to_owned();
        let other = self.config.members.iter().find(|member| member.name != to);
        let from =
            other.filter(|_| kind != TakeoverKind::Rebuild).map_or(&to, |it| &it.name).clone();
        let epoch = self.machine.membership().handle_ask().epoch;
        if kind != TakeoverKind::Rebuild && epoch == self.begun_in {
            return;
        }
        let past = PastTakeover { kind, from, to, epoch, lost: None, takeover };
        self.wire.events.add_takeover(past);
    }

    /// Handles the channels that broke while something was sent.
    fn settle(&mut self, now: Instant) {
        let at = self.wire.clock.nanos(now);
        while let Some((index, why)) = self.wire.failed.pop() {
            self.machine.handle_closed(index, &why, at, &mut self.wire);
        }
    }

    fn lose(&mut self, index: usize, why: &str, now: Instant) {
        self.wire.links.close(index);
        self.machine.handle_closed(index, why, self.wire.clock.nanos(now), &mut self.wire);
    }

    /// Sends heartbeats, and decides who has been silent for too long.
    fn watch(&mut self, now: Instant) {
        let at = self.wire.clock.nanos(now);
        if self.machine.next_deadline() > at {
            return;
        }
        for index in 0..self.machine.count() {
            // A heartbeat that waits in the socket does not count as missing.
            self.hear(index, now);
            if let Some(heard) = self.wire.links.heard(index) {
                self.machine.handle_pulse(index, heard);
            }
        }
        if let Some(at) = self.processors.stood_still() {
            self.machine.handle_standstill(at);
        }
        let spoken = self.wire.bpf.spoken();
        let passing = spoken != std::mem::replace(&mut self.spoken, spoken);
        self.machine.handle_timeout(passing, at, &mut self.wire);
        self.settle(now);
    }

    /// Takes the results of finished disk writes, and sends the grant that waited for one.
    fn written(&mut self, now: Instant) {
        let before = self.wire.disk.failure().map(str::to_owned);
        while let Some((number, outcome)) = self.wire.disk.take(now) {
            self.machine.handle_written(number, outcome, &mut self.wire);
        }
        match (before, self.wire.disk.failure()) {
            (None, Some(why)) => self.wire.events.add("disk", why.to_owned()),
            (Some(_), None) => {
                self.wire.events.add("disk", "it takes writes again");
                self.machine.adopt_claim(self.wire.clock.nanos(now), &mut self.wire);
            }
            _ => {}
        }
        let state = self.machine.membership().handle_ask();
        self.wire.disk.try_again(state, self.machine.is_calm(), now);
    }

    /// Checks, when it is due, whether this host forwards and its frames reach the members.
    fn look(&mut self, now: Instant) {
        if self.host.look_at <= now {
            self.mend();
            self.announced.turn();
            let deaf = self.host.deaf.clone();
            self.host.look(self.config, self.named, now, &mut self.wire.events);
            for name in self.host.deaf.iter().filter(|name| !deaf.contains(name)) {
                let words =
                    format!("{name} is down, or nobody is at its other end: no client comes by it");
                self.wire.events.add("clients", words);
            }
        }
        for index in 0..self.machine.count() {
            let answers = self.machine.membership().answers(self.machine.name(index));
            self.ways.turn(index, (self.machine.is_here(index), answers), now);
        }
    }

    /// Tells the edge's own state to the members, and the group's to events and hooks.
    fn say(&mut self, now: Instant) {
        if self.wire.events.is_due(now) {
            let head = self.head();
            self.wire.events.note_status(&head);
        }
        let own = self.own();
        if self.repetition.is_news(&own) {
            let words = if own.is_fine() { "in order".to_owned() } else { own.to_string() };
            self.wire.events.add_at(own.state.level(), "own part", words);
        }
        if !self.repetition.is_due(&own, now) {
            return;
        }
        let mut bytes = Vec::new();
        own.tell(|message| message.encode(&mut bytes));
        let Ok(message) = Message::decode(&bytes) else { return };
        for index in 0..self.machine.count() {
            self.wire.send(index, &message);
        }
    }

    fn answer(&mut self, request: Request, reloads: &mut Reloads) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.wire.events.answer(since),
            Request::Switchover { .. } | Request::Takeover => refusal(NO_PRIMARY),
            Request::Show => self.show(),
            Request::Trace(question) => self.trace(&question),
            Request::Drain { .. } => {
                refusal("a replicated group has nobody to drain; it has a primary")
            }
            Request::Fence { until_takeover } => self.fence(until_takeover),
            Request::Unfence => self.unfence(),
            Request::Reload { dry_run } => reloads.handle(dry_run, &mut self.wire.events),
        }
    }
}

fn edge_config(config: &Config, named: &config::Edge) -> EdgeConfig {
    EdgeConfig {
        client_interfaces: named.clients.clone(),
        members: config
            .ports()
            .map(|port| MemberPort { interface: port.edge_port.clone(), mac: port.mac.0 })
            .collect(),
        l3_interface: named.l3.clone(),
        services: config.served(),
        pin_dir: config.pin_dir(Role::Edge),
        flows_max: named.flows_max,
    }
}

fn listener(config: &Config, listen: SocketAddr, key: &Keyring) -> Result<Listener> {
    let identity = Identity {
        keyring: key.clone(),
        peers: config.members.iter().map(|member| member.name.clone()).collect(),
        attempt: 0,
        group: config.group.name.clone(),
        me: "edge".to_owned(),
        kind: Kind::Edge,
    };
    let mut listener = Listener::bind(listen, identity)
        .with_context(|| format!("cannot listen at edge.listen = {listen}{}", why_taken(listen)))?;
    listener.prefer(config.members.iter().map(|member| member.address.ip()));
    Ok(listener)
}
