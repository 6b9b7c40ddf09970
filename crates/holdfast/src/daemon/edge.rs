//! The edge's daemon: grants epochs and keeps the fence.
//!
//! The data path is eBPF and does not need this process: while it is dead, the
//! current member stays current, the tap goes on, and nobody can be promoted.
//! A grant is on disk before it is in the fence, and in the fence before the
//! member hears of it (decisions 19, 21 and 22).

mod members;
mod report;

use super::edge_state::StateFile;
use super::recover::{Exit, Recoverer, Way};
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::channel::{Identity, Kind, Listener};
use crate::config::{Config, Role};
use crate::poll::{Interest, Poll, Signals, Timers};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_cluster::membership::{Decision, EdgeMembership, Refusal};
use holdfast_linux::bpf::{EDGE_FLOWS_DEFAULT, Edge, EdgeConfig, MemberPort};
use holdfast_linux::process;
use holdfast_wire::message::Message;
use members::Links;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Real-time priority; above ordinary servers, below the kernel's own threads.
const PRIORITY: i32 = 20;
/// A flow that has ended is forgotten after this long (RFC 9293 §3.4.1: 2 MSL).
const FLOW_AGE: Duration = Duration::from_secs(1);
const FLOW_AGE_PERIOD: Duration = Duration::from_millis(100);
/// Flows in one message; a flow takes less than 64 bytes.
const FLOWS_PER_MESSAGE: usize = 4096;

const LISTENER: u64 = 0;
const ADMIN: u64 = 1;
const SIGNALS: u64 = 2;
const RECOVER: u64 = 3;
/// Member `i` has the token `MEMBERS + i`.
const MEMBERS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Age,
    /// The tap of a member that went away is switched off.
    TapOff(usize),
}

/// What a member's message asks the edge to do.
enum Wish {
    Ask,
    InStep {
        epoch: u64,
        yes: bool,
    },
    Promote {
        epoch: u64,
    },
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
    file: StateFile,
    links: Links,
    events: Events,
    started: Instant,
    /// Closed by the admin socket, until it is opened there or by a grant.
    fenced_by_hand: bool,
    grants: u64,
    /// From a member's request to its answer, the last time.
    last_grant: Duration,
}

/// Runs the edge until a signal ends it. The programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &Config) -> Result<()> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let mut admin = AdminSocket::bind(&config.admin_socket(Role::Edge)).context("admin socket")?;
    let mut daemon = EdgeDaemon::start(config)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    if config.group.realtime
        && let Err(error) = process::set_realtime(PRIORITY)
    {
        tracing::warn!("no real-time priority: {error}; takeovers take longer under load");
    }
    daemon.run(&mut admin, &signals)
}

impl<'a> EdgeDaemon<'a> {
    fn start(config: &'a Config) -> Result<Self> {
        let key = config.key()?;
        let file = StateFile::open(&config.edge.state_file)?;
        let machine = EdgeMembership::new(&names_by_preference(config), file.state().clone())?;
        let mut bpf = Edge::attach(&edge_config(config))?;
        agree(&mut bpf, config, &file)?;
        let copies = bpf.take_copies().context("no copies")?;
        let recoverer = Recoverer::new(&config.recover, copies, Instant::now())?;
        let identity = Identity {
            key: key.channel_key(),
            group: config.group.name.clone(),
            me: "edge".to_owned(),
            kind: Kind::Edge,
        };
        let listen = config.edge.listen;
        let listener = Listener::bind(listen, identity)
            .with_context(|| format!("cannot listen at edge.listen = {listen}"))?;
        let mut daemon = Self {
            config,
            poll: Poll::new()?,
            listener,
            timers: Timers::new(),
            bpf,
            recoverer,
            machine,
            file,
            links: Links::new(config),
            events: Events::default(),
            started: Instant::now(),
            fenced_by_hand: false,
            grants: 0,
            last_grant: Duration::ZERO,
        };
        daemon.poll.add(&daemon.listener, LISTENER, Interest::Read)?;
        daemon.poll.add(&daemon.recoverer.fd(), RECOVER, Interest::Read)?;
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
            let deadline = [self.timers.next(), self.listener.deadline(), watch, recover];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            // Members first: one of them may be waiting to take over.
            for &token in ready.iter().filter(|&&token| token >= MEMBERS) {
                self.hear((token - MEMBERS) as usize, now);
            }
            self.accept(now);
            self.watch(now);
            self.expire(now)?;
            if ready.contains(&RECOVER) {
                self.recoverer.on_readable(now);
            }
            self.recoverer.poll(now);
            if ready.contains(&ADMIN) {
                admin.serve(|request| self.answer(request))?;
            }
            if ready.contains(&SIGNALS)
                && let Some(signal) = signals.take()
            {
                tracing::info!(
                    "signal {signal}: ending; forwarding, tap and fence go on without me"
                );
                return Ok(());
            }
        }
    }

    /// Takes members whose handshake is over.
    fn accept(&mut self, now: Instant) {
        loop {
            match self.listener.accept(now) {
                Ok(None) => return,
                Ok(Some(channel)) => {
                    let Some(index) = self.links.index(channel.peer()) else {
                        let name = channel.peer().to_owned();
                        self.events.add("refused", format!("`{name}` is not a member"));
                        continue;
                    };
                    let epoch = self.machine.handle_ask().epoch;
                    if let Err(error) = self.links.adopt(index, channel, epoch, &self.poll) {
                        tracing::warn!("{}: {error}", self.links.name(index));
                        continue;
                    }
                    // It may be another life of the member, of which the old channel has
                    // not told yet; one that is in step says so again.
                    let (name, epoch) = (self.links.name(index), self.machine.handle_ask().epoch);
                    self.machine.handle_in_step(name, epoch, false);
                    self.events.add("joined", self.links.name(index).to_owned());
                    self.timers.clear(Timer::TapOff(index));
                    self.update_taps();
                    // It may have spoken along with its handshake.
                    self.hear(index, now);
                }
                Err(error) => tracing::warn!("a connection was refused: {error}"),
            }
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
            Wish::Nothing => {}
            Wish::Leave(reason) => {
                self.links.send(index, &Message::Refused { reason: &reason });
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
        for index in 0..self.links.count() {
            // What has come already is not missing.
            self.hear(index, now);
            let was_suspected = self.links.is_suspected(index);
            if self.links.watch(index, at) {
                self.reach(index, false, now);
            }
            if !was_suspected && self.links.is_suspected(index) && self.is_current(index) {
                self.events.add("suspect", self.links.name(index).to_owned());
            }
            self.cache_if_suspected(index, now);
            if let Err(error) = self.links.flush(index, &self.poll) {
                self.lose(index, &error.to_string(), now);
            }
        }
    }

    /// From the second missed heartbeat of the current member on, what clients
    /// say may be lost; it is kept until somebody answers again (thesis §3.3).
    fn cache_if_suspected(&mut self, index: usize, now: Instant) {
        if !self.is_current(index) {
            return;
        }
        let name = self.links.name(index);
        let result = if self.links.is_suspected(index) {
            self.recoverer.start(now).map(|began| began.then_some("caching"))
        } else if self.machine.answers(name) {
            self.recoverer.stop().map(|ended| ended.then_some("no more"))
        } else {
            Ok(None)
        };
        match result {
            Ok(None) => {}
            Ok(Some(what)) => self.events.add("cache", format!("{name}: {what}")),
            Err(error) => tracing::error!("caching: {error}"),
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

    /// The one moment in which speed matters: write, flip, answer.
    fn promote(&mut self, index: usize, name: &str, epoch: u64, asked: Instant) {
        let outcome = match self.machine.handle_promote(name, epoch) {
            Decision::Refuse(refusal) => {
                if refusal == Refusal::BackupInStep {
                    self.tell_of_lone(index, asked);
                }
                Err(refusal.to_string())
            }
            Decision::Reopen { .. } if self.fenced_by_hand => {
                Err("the edge was closed by hand; open it with `holdfast edge unfence`".to_owned())
            }
            Decision::Reopen { epoch } => self.open_fence(epoch, index),
            Decision::Grant { persist } => match self.file.keep(persist) {
                Err(error) => {
                    self.machine.handle_persist_failed();
                    Err(error.to_string())
                }
                Ok(()) => {
                    self.machine.handle_persisted();
                    self.open_fence(epoch, index)
                }
            },
        };
        if let Err(reason) = outcome {
            self.links.send(index, &Message::Refused { reason: &reason });
            self.events.add("refused", format!("{name}, epoch {epoch}: {reason}"));
            return;
        }
        self.links.send(index, &Message::Granted { epoch });
        let _ = self.links.flush(index, &self.poll);
        self.last_grant = asked.elapsed();
        self.send_bounds(index);
        let _ = self.links.flush(index, &self.poll);
        self.grants += 1;
        self.update_taps();
        self.tell_others(index, asked);
        let took = self.last_grant.as_micros();
        // Both are one update of one map.
        self.events.add("fence", format!("epoch {epoch}: nobody but {name} speaks"));
        self.events.add("switch", format!("clients' packets go to {name}"));
        self.events.add("granted", format!("{name}, epoch {epoch}, {took} µs"));
        self.resend(index, name);
    }

    /// Plays to a member what clients said while nobody answered. It is tried for
    /// a while: the server may not listen yet.
    fn resend(&mut self, index: usize, name: &str) {
        let exit = match self.bpf.hop(index) {
            Ok(hop) => Exit::Host(hop).into(),
            Err(error) => return tracing::error!("resending to {name}: {error}"),
        };
        let now = Instant::now();
        let flows = self.recoverer.restored(now, &[Way { way: 0, sound: now, exit }]);
        if flows > 0 {
            self.events.add("resend", format!("{flows} flows to {name}"));
        }
    }

    /// Whoever is in step hears that the current member has lost it.
    fn tell_of_lone(&mut self, alone: usize, now: Instant) {
        let member = self.links.name(alone).to_owned();
        self.tell_all_but(alone, &Message::Alone { member: &member }, now);
    }

    fn open_fence(&mut self, epoch: u64, index: usize) -> Result<(), String> {
        self.fenced_by_hand = false;
        self.bpf.set_current(epoch, Some(index)).map_err(|error| error.to_string())
    }

    /// What the wire has seen of every flow: where a silent client stands.
    fn send_bounds(&mut self, index: usize) {
        let flows = self.bpf.all_bounds();
        let mut chunks = flows.chunks(FLOWS_PER_MESSAGE).peekable();
        if chunks.peek().is_none() {
            self.links.send(index, &Message::Bounds { flows: Vec::new(), last: true });
        }
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            self.links.send(index, &Message::Bounds { flows: chunk.to_vec(), last });
        }
    }

    /// A member that learns of a newer epoch stands down.
    fn tell_others(&mut self, granted: usize, now: Instant) {
        let state = self.machine.handle_ask().clone();
        let current = state.current.as_deref().unwrap_or("");
        self.tell_all_but(granted, &Message::Epoch { epoch: state.epoch, current }, now);
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
            self.timers.set(Timer::TapOff(index), now + members::TAP_LINGER);
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
                    self.bpf.age_flows(now, FLOW_AGE)?;
                }
                Timer::TapOff(_) => self.update_taps(),
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Value {
        let (epoch, current) = {
            let state = self.machine.handle_ask();
            (state.epoch, state.current.clone())
        };
        let result = match request {
            Request::Status => return serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => return self.events.answer(since),
            Request::Show => return self.show(),
            Request::Trace(question) => return self.trace(&question),
            Request::Drain { .. } => {
                return refusal("a replicated group has nobody to drain; it has a primary");
            }
            Request::Fence => self.bpf.set_current(epoch, None),
            Request::Unfence => {
                self.bpf.set_current(epoch, current.and_then(|name| self.links.index(&name)))
            }
        };
        match result {
            Err(error) => refusal(&error.to_string()),
            Ok(()) => {
                self.fenced_by_hand = request == Request::Fence;
                self.events.add(if self.fenced_by_hand { "fenced" } else { "unfenced" }, "by hand");
                json!({ "epoch": epoch })
            }
        }
    }
}

/// The fence in the kernel may be older than the disk (we died between the
/// two) or new and closed (a reboot). Only where both say the same may it stay
/// open; else the member named on disk has to ask.
fn agree(bpf: &mut Edge, config: &Config, file: &StateFile) -> Result<()> {
    let state = file.state();
    let named =
        config.members.iter().position(|m| Some(m.name.as_str()) == state.current.as_deref());
    let (epoch, current) = bpf.current()?;
    if epoch != state.epoch || (current.is_some() && current != named) {
        bpf.set_current(state.epoch, None)?;
    }
    Ok(())
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
        flows_max: EDGE_FLOWS_DEFAULT,
    }
}

fn names_by_preference(config: &Config) -> Vec<&str> {
    let mut names: Vec<&str> = config.members.iter().map(|m| m.name.as_str()).collect();
    names.sort_by_key(|name| *name != config.edge.first);
    names
}
