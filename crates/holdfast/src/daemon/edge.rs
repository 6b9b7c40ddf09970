//! The edge's daemon: grants epochs and keeps the fence.
//!
//! The data path is eBPF and does not need this process: while it is dead, the
//! current member stays current, the tap goes on, and nobody can be promoted.
//! A grant is on disk before it is in the fence, and in the fence before the
//! member hears of it (decisions 19, 21 and 22).

mod disk;
mod flows;
mod grant;
mod host;
mod members;
mod report;
mod ways;

use super::edge_state::StateFile;
use super::pulse::Pulse;
use super::recover::Recoverer;
use super::said::Repetition;
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::channel::{Channel, ChannelError, Identity, Kind, Listener};
use crate::config::{Config, Role};
use crate::poll::{Interest, Poll, Signals, Timers};
use crate::status::Takeover;
use anyhow::{Context, Result};
use disk::Disk;
use grant::{Asked, agree};
use holdfast_cluster::Nanos;
use holdfast_cluster::membership::{EdgeMembership, Greeting};
use holdfast_linux::bpf::{Edge, EdgeConfig, MemberPort};
use holdfast_linux::changes::Changes;
use holdfast_linux::process;
use holdfast_member::timing::edge::{FLOW_AGE_PERIOD, TAP_LINGER};
use holdfast_wire::message::{ConnKey, Message};
use host::Host;
use members::Links;
use report::Distrusted;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use ways::Ways;

/// Real-time priority; above ordinary servers, below the kernel's own threads.
const PRIORITY: i32 = 20;
/// After the host was started again, members that live have said so by then: the
/// time of a connection attempt whose first packets were lost.
const SETTLE: Duration = Duration::from_secs(3);
/// A host that uses another's name is there until it was not seen for so long.
const DOUBLE_LASTS: Duration = Duration::from_secs(3);
/// How long a host that uses another's name is left to read why it is refused.
const TURNED_AWAY: Duration = Duration::from_millis(500);

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const RECOVER: u64 = 3;
const DISK: u64 = 4;
/// Member `i` has the token `MEMBERS + i`.
const MEMBERS: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Age,
    /// The tap of a member that went away is switched off.
    TapOff(usize),
    /// Who has not said hello by now does not hold up the others.
    Settled,
    /// The channel of a host that uses another's name is closed.
    TurnedAway,
}

/// What a member's message asks the edge to do.
enum Wish {
    Hello(Greeting),
    Ask,
    InStep {
        epoch: u64,
        yes: bool,
    },
    Promote {
        epoch: u64,
    },
    /// Of the connections asked about these are over.
    NotAlive {
        epoch: u64,
        keys: Vec<ConnKey>,
    },
    /// The edge's way to it has proved itself.
    SignSeen {
        number: u64,
        mac: [u8; 6],
    },
    /// It tells of its takeover.
    TookOver(Takeover),
    /// It has shown that it lives.
    Nothing,
    /// It may not stay connected.
    Leave(String),
}

struct EdgeDaemon<'a> {
    config: &'a Config,
    poll: Poll,
    listener: Listener,
    timers: Timers<Timer>,
    bpf: Edge,
    recoverer: Recoverer,
    machine: EdgeMembership,
    disk: Disk,
    links: Links,
    events: Events,
    started: Instant,
    /// Closed by hand until the next takeover; not remembered.
    held: bool,
    /// The grant that is being written.
    asked: Option<Asked>,
    /// The last refusal, so that one that is repeated is one event.
    refused: Option<(usize, u64, String)>,
    /// A host that connected with the name of another, and when it was last seen,
    /// by the index of that name.
    doubles: BTreeMap<usize, Instant>,
    turned_away: Option<Channel>,
    grants: u64,
    /// Packets of the current member that had passed when the members were last judged.
    spoken: u64,
    /// Flows whose clients had vanished.
    vanished: u64,
    /// From a member's request to its answer, the last time.
    last_grant: Duration,
    /// Members whose handshakes fail, by index.
    distrusted: BTreeMap<usize, Distrusted>,
    ways: Ways,
    host: Host,
    /// Tells when programs and ports are to be looked for.
    changes: Changes,
    /// As its survivor tells it.
    last_takeover: Option<Takeover>,
    /// When the members are told what the edge itself is.
    repetition: Repetition,
}

/// Runs the edge until a signal ends it. The programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &Config) -> Result<()> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let mut admin = AdminSocket::bind(&config.admin_socket(Role::Edge)).context("admin socket")?;
    // Before the programs are loaded: until they are, nobody can take over.
    if config.group.realtime
        && let Err(error) = process::set_realtime(PRIORITY)
    {
        tracing::warn!("no real-time priority: {error}; takeovers take longer under load");
    }
    let mut daemon = EdgeDaemon::start(config)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals)
}

impl<'a> EdgeDaemon<'a> {
    fn start(config: &'a Config) -> Result<Self> {
        let key = config.key()?;
        let file = StateFile::open(&config.edge.state_file)?;
        let names = names_by_preference(config);
        let mut machine = EdgeMembership::new(&names, file.state().clone())?;
        let mut bpf = Edge::attach(&edge_config(config))?;
        let agreed = agree(&mut bpf, config, file.state())?;
        let started = Instant::now();
        let mut disk = Disk::start(file, config.group.realtime.then_some(PRIORITY), started)?;
        let mut events = Events::default();
        if let Some(newer) = agreed.newer {
            let current = newer.current.as_deref().unwrap_or("nobody");
            let epoch = newer.epoch;
            events.add("disk", format!("older than the fence: epoch {epoch}, {current} it is"));
            disk.keep(newer.clone(), started);
            machine = EdgeMembership::new(&names, newer)?;
        }
        if agreed.booted {
            machine.handle_boot();
        }
        let hops = (0..config.members.len()).map(|index| bpf.hop(index));
        let hops = hops.collect::<Result<Vec<_>, _>>()?;
        let copies = bpf.take_copies().context("no copies")?;
        let recoverer = Recoverer::new(&config.recover, copies, Instant::now())?;
        let identity = Identity {
            key: key.channel_key(),
            group: config.group.name.clone(),
            me: "edge".to_owned(),
            kind: Kind::Edge,
        };
        let listen = config.edge.listen;
        let mut listener = Listener::bind(listen, identity)
            .with_context(|| format!("cannot listen at edge.listen = {listen}"))?;
        let pulse = Pulse::of_edge(config, key.pulse_key(), started);
        listener.prefer(config.members.iter().map(|member| member.address.ip()));
        let mut daemon = Self {
            config,
            poll: Poll::new()?,
            listener,
            timers: Timers::new(),
            bpf,
            recoverer,
            machine,
            disk,
            links: Links::new(config, pulse),
            events,
            started,
            held: false,
            asked: None,
            refused: None,
            doubles: BTreeMap::new(),
            turned_away: None,
            grants: 0,
            spoken: 0,
            vanished: 0,
            last_grant: Duration::ZERO,
            distrusted: BTreeMap::new(),
            ways: Ways::new(hops, Instant::now())?,
            host: Host::new(started),
            changes: Changes::open().context("a netlink socket")?,
            last_takeover: None,
            repetition: Repetition::new(Instant::now()),
        };
        daemon.poll.add(&daemon.listener, LISTENER, Interest::Read)?;
        daemon.poll.add(&daemon.recoverer.fd(), RECOVER, Interest::Read)?;
        daemon.poll.add(&daemon.disk, DISK, Interest::Read)?;
        daemon.timers.set(Timer::Settled, started + SETTLE);
        // Whoever was lost while this daemon was away must be missed all the same.
        for index in 0..daemon.links.count() {
            daemon.machine.handle_answers(daemon.links.name(index), true);
        }
        let state = daemon.machine.handle_ask();
        let current = state.current.as_deref().unwrap_or("nobody");
        daemon.events.add("started", format!("epoch {}, current: {current}", state.epoch));
        Ok(daemon)
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<()> {
        let start = Instant::now();
        self.timers.set(Timer::Age, start + FLOW_AGE_PERIOD);
        loop {
            let watch = self.links.deadline().map(|at| self.started + Duration::from_nanos(at.0));
            let recover = self.recoverer.deadline();
            let ways = Some(self.ways.deadline(Instant::now()).min(self.host.look_at));
            let disk = self.disk.deadline();
            let deadline =
                [self.timers.next(), self.listener.deadline(), ways, watch, recover, disk];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            self.links.turned();
            // Members first: one of them may be waiting to take over.
            for &token in ready.iter().filter(|&&token| token >= MEMBERS) {
                self.hear((token - MEMBERS) as usize, now);
            }
            self.written(now);
            self.accept(now);
            self.watch(now);
            self.expire(now)?;
            if ready.contains(&RECOVER) {
                self.recoverer.on_readable(now);
            }
            self.recoverer.poll(now);
            if ready.contains(&ADMIN) && admin.serve(|request| self.answer(request)) {
                self.events.add("mended", "files of the run_dir had been removed");
            }
            self.look(now);
            self.say(now);
            if ready.contains(&SIGNALS)
                && let Some(signal) = super::ending(signals)
            {
                tracing::info!("signal {signal}: ending; forwarding, tap and fence go on");
                return Ok(());
            }
        }
    }

    /// Takes members whose handshake is over.
    fn accept(&mut self, now: Instant) {
        loop {
            match self.listener.accept(now) {
                Ok(None) => return,
                Ok(Some(channel)) => match self.links.index(channel.peer()) {
                    Some(index) => self.admit(index, channel, now),
                    None => {
                        let name = channel.peer().to_owned();
                        self.events.add("refused", format!("`{name}` is not a member"));
                    }
                },
                Err(error) => {
                    tracing::warn!("{error}");
                    self.doubt(&error, now);
                }
            }
        }
    }

    /// A handshake from a member's address that failed tells why that member does
    /// not come.
    fn doubt(&mut self, error: &ChannelError, now: Instant) {
        let ChannelError::Refused { from, why, .. } = error else { return };
        let index = self.config.members.iter().position(|member| member.address.ip() == *from);
        let Some(index) = index else { return };
        let Some((reason, remedy)) = why.distrust(self.links.name(index)) else { return };
        let known = self.distrusted.get(&index).is_some_and(|d| d.reason == reason);
        if !known {
            self.events.add("refused", reason.clone());
        }
        self.distrusted.insert(index, Distrusted { reason, remedy, seen: now });
    }

    fn admit(&mut self, index: usize, channel: Channel, now: Instant) {
        // The end of its last life comes before this one.
        self.hear(index, now);
        let name = self.links.name(index).to_owned();
        if self.links.is_connected(index) && self.machine.answers(&name) {
            return self.turn_away(index, channel, now);
        }
        let epoch = self.machine.handle_ask().epoch;
        if let Err(error) = self.links.adopt(index, channel, epoch, &self.poll) {
            return tracing::warn!("{name}: {error}");
        }
        // It may be another life of the member, of which the old channel has
        // not told yet; one that is in step says so again.
        self.machine.handle_in_step(&name, epoch, false);
        self.events.add("joined", name);
        self.timers.clear(Timer::TapOff(index));
        self.update_taps();
        self.repetition.hurry(now);
        self.ways.joined(index, now);
        self.distrusted.remove(&index);
        // It may have spoken along with its handshake.
        self.hear(index, now);
    }

    /// Another host uses the name of a member that answers: the first one stays.
    fn turn_away(&mut self, index: usize, mut channel: Channel, now: Instant) {
        let reason = format!(
            "another host is connected as `{}`; stop holdfast on one of them, or give it a name of its own",
            self.links.name(index)
        );
        if self.doubles.insert(index, now).is_none_or(|seen| now - seen > DOUBLE_LASTS) {
            self.events.add("refused", reason.clone());
        }
        let _ = channel.send(&Message::Refused { reason: &reason, again: true });
        let _ = channel.flush();
        // Closing it at once might take the words back.
        if self.turned_away.is_none() {
            self.turned_away = Some(channel);
            self.timers.set(Timer::TurnedAway, now + TURNED_AWAY);
        }
    }

    /// Receives from a member and does what it wishes.
    fn hear(&mut self, index: usize, now: Instant) {
        let (wishes, result) = self.links.receive(index, self.nanos(now));
        if !wishes.is_empty() {
            self.reach(index, true, now);
        }
        for wish in wishes {
            self.fulfil(index, wish, now);
        }
        if let Err(error) = result.and_then(|()| self.links.flush(index, &self.poll)) {
            self.lose(index, &error.to_string(), now);
        }
    }

    fn fulfil(&mut self, index: usize, wish: Wish, now: Instant) {
        let name = self.links.name(index).to_owned();
        match wish {
            Wish::Hello(greeting) => {
                self.machine.handle_hello(&name, greeting);
                self.tell_epoch(index);
                self.adopt_claim(now);
            }
            Wish::Ask => self.tell_epoch(index),
            Wish::InStep { epoch, yes } => {
                let before = self.machine.is_in_step(&name);
                if self.machine.handle_in_step(&name, epoch, yes) && before != yes {
                    self.events.add(
                        if yes { "in step" } else { "out of step" },
                        format!("{name}, epoch {epoch}"),
                    );
                }
            }
            Wish::Promote { epoch } => self.promote(index, &name, epoch, now),
            Wish::NotAlive { epoch, keys } => self.forget_vanished(index, epoch, &keys),
            Wish::SignSeen { number, mac } => self.ways.seen(index, number, mac, now),
            Wish::TookOver(takeover) => {
                if self.is_current(index) {
                    self.last_takeover = Some(takeover);
                }
            }
            Wish::Nothing => {}
            Wish::Leave(reason) => {
                self.links.send(index, &Message::Refused { reason: &reason, again: false });
                let _ = self.links.flush(index, &self.poll);
                self.lose(index, &reason, now);
            }
        }
    }

    fn nanos(&self, now: Instant) -> Nanos {
        Nanos((now - self.started).as_nanos() as u64)
    }

    /// Beats, and who has been silent for too long.
    fn watch(&mut self, now: Instant) {
        let at = self.nanos(now);
        if self.links.deadline().is_none_or(|due| due > at) {
            return;
        }
        let spoken = self.bpf.spoken();
        let passing = spoken != std::mem::replace(&mut self.spoken, spoken);
        for index in 0..self.links.count() {
            // What has come already is not missing.
            self.hear(index, now);
            let was_suspected = self.links.is_suspected(index);
            // The fence lets nobody else speak.
            if self.links.watch(index, at, passing && self.is_current(index)) {
                self.reach(index, false, now);
            }
            let is_news = !was_suspected && self.machine.answers(self.links.name(index));
            if is_news && self.links.is_suspected(index) && self.is_current(index) {
                self.events.add("suspect", self.links.name(index).to_owned());
            }
            self.cache_if_suspected(index, now);
            if let Err(error) = self.links.flush(index, &self.poll) {
                self.lose(index, &error.to_string(), now);
            }
        }
    }

    fn is_current(&self, index: usize) -> bool {
        self.machine.handle_ask().current.as_deref() == Some(self.links.name(index))
    }

    /// Whether a member is heard decides who may run on alone, and the others
    /// act upon it: a backup whose primary only the edge has lost takes over.
    fn reach(&mut self, index: usize, yes: bool, now: Instant) {
        let name = self.links.name(index).to_owned();
        if !self.machine.handle_answers(&name, yes) {
            return;
        }
        let what = match (yes, self.is_current(index)) {
            (true, _) => "heard",
            (false, true) => "declare",
            (false, false) => "silent",
        };
        self.events.add(what, name.clone());
        self.tell_all_but(index, &Message::Reach { member: &name, yes }, now);
    }

    /// Whoever is in step hears that the current member has lost it.
    fn tell_of_lone(&mut self, alone: usize, now: Instant) {
        let member = self.links.name(alone).to_owned();
        self.tell_all_but(alone, &Message::Alone { member: &member }, now);
    }

    /// A member that learns of a newer epoch stands down.
    fn tell_others(&mut self, granted: usize, now: Instant) {
        let state = self.machine.handle_ask().clone();
        let current = state.current.as_deref().unwrap_or("");
        self.tell_all_but(granted, &Message::Epoch { epoch: state.epoch, current }, now);
    }

    /// Whether this host forwards, and its frames reach the members.
    fn look(&mut self, now: Instant) {
        if self.host.look_at <= now {
            self.mend();
            self.host.look(self.config, now);
        }
        for index in 0..self.links.count() {
            self.ways.turn(index, self.links.is_connected(index), now);
        }
    }

    /// Tells the members what the edge is by itself.
    fn say(&mut self, now: Instant) {
        let own = self.own();
        if self.repetition.is_news(&own) {
            let words = if own.is_fine() { "in order".to_owned() } else { own.to_string() };
            self.events.add_at(own.state.level(), "own part", words);
        }
        if !self.repetition.is_due(&own, now) {
            return;
        }
        let (mut bytes, none) = (Vec::new(), self.links.count());
        own.tell(|message| message.encode(&mut bytes));
        if let Ok(message) = Message::decode(&bytes) {
            self.tell_all_but(none, &message, now);
        }
    }

    fn tell_all_but(&mut self, but: usize, message: &Message<'_>, now: Instant) {
        for index in (0..self.links.count()).filter(|&index| index != but) {
            self.links.send(index, message);
            if let Err(error) = self.links.flush(index, &self.poll) {
                self.lose(index, &error.to_string(), now);
            }
        }
    }

    fn tell_epoch(&mut self, index: usize) {
        let state = self.machine.handle_ask();
        let current = state.current.as_deref().unwrap_or("");
        self.links.send(index, &Message::Epoch { epoch: state.epoch, current });
    }

    fn lose(&mut self, index: usize, why: &str, now: Instant) {
        let name = self.links.name(index).to_owned();
        if self.links.drop_link(index, self.nanos(now)) {
            self.events.add("left", format!("{name}: {why}"));
            self.timers.set(Timer::TapOff(index), now + TAP_LINGER);
            // It says so again when it comes back, if it still is.
            let epoch = self.machine.handle_ask().epoch;
            self.machine.handle_in_step(&name, epoch, false);
        }
    }

    /// Copies go to every member that is here and not current.
    fn update_taps(&mut self) {
        let current = self.machine.handle_ask().current.clone();
        for index in 0..self.links.count() {
            let is_current = current.as_deref() == Some(self.links.name(index));
            let wanted = self.links.is_connected(index) && !is_current;
            if let Err(error) = self.bpf.set_tap(index, wanted) {
                tracing::error!("tap of {}: {error}", self.links.name(index));
            }
        }
    }

    fn expire(&mut self, now: Instant) -> Result<()> {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Age => {
                    self.timers.set(Timer::Age, now + FLOW_AGE_PERIOD);
                    self.age_flows(now)?;
                }
                Timer::TapOff(_) => self.update_taps(),
                Timer::Settled => {
                    self.machine.handle_settled();
                    self.adopt_claim(now);
                }
                Timer::TurnedAway => self.turned_away = None,
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.events.answer(since),
            Request::Show => self.show(),
            Request::Trace(question) => self.trace(&question),
            Request::Drain { .. } => {
                refusal("a replicated group has nobody to drain; it has a primary")
            }
            Request::Fence { until_takeover } => self.fence(until_takeover),
            Request::Unfence => self.unfence(),
        }
    }
}

fn edge_config(config: &Config) -> EdgeConfig {
    EdgeConfig {
        client_interfaces: config.edge.clients.clone(),
        members: config
            .members
            .iter()
            .map(|m| MemberPort { interface: m.edge_port.clone(), mac: m.mac.0 })
            .collect(),
        l3_interface: config.edge.l3.clone(),
        services: config.group.services.iter().map(|s| (s.ip(), s.port())).collect(),
        pin_dir: config.pin_dir(Role::Edge),
        flows_max: config.edge.flows_max,
    }
}

fn names_by_preference(config: &Config) -> Vec<&str> {
    let mut names: Vec<&str> = config.members.iter().map(|m| m.name.as_str()).collect();
    names.sort_by_key(|name| *name != config.edge.first);
    names
}
