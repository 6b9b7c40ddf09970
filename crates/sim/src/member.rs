//! A member's daemon: what both roles share (`daemon/member.rs`,
//! `daemon/edge_link.rs`, `daemon/pairing.rs`). It runs in turns, as the real
//! loop does: each turn takes what has come, does what is due, and says when it
//! wants the next one at the latest.

use crate::Ns;
use crate::backup::Follower;
use crate::edge::GROUP;
use crate::pipe::{Input, Kind, PipeId, Process, RETRY};
use crate::plan::Mutation;
use crate::primary::Primary;
use crate::takeover::Takeover;
use crate::world::{Event, NAMES, World};
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Watch;
use holdfast_member::request::EpochRequest;
use holdfast_member::standing::{Ask, Place, Standing, hello};
use holdfast_member::timing::HEARTBEAT_MS_DEFAULT;
use holdfast_wire::message::Message;
use std::collections::VecDeque;

pub const HEARTBEAT: Ns = HEARTBEAT_MS_DEFAULT * 1_000_000;

/// A lasting channel that this side opens, or (on the primary) the peer's.
#[derive(Debug, Default)]
pub struct Link {
    pub pipe: Option<PipeId>,
    connecting: bool,
    retry_at: Ns,
    pub inbox: VecDeque<Input>,
}

/// What the daemon is.
pub enum Phase {
    /// `Node::ask_edge`.
    Ask(Ask),
    /// `wait_for_backup`.
    Wait,
    Primary(Box<Primary>),
    /// `reach_primary`.
    Reach,
    Follow(Box<Follower>),
    Takeover(Box<Takeover>),
    /// `takeover::serve`.
    Survivor,
    /// `Follower::give_up`, `stand_down`: nothing but answers to questions.
    Idle,
}

impl Phase {
    /// The first member is the preferred one.
    pub fn asks(member: usize, now: Ns) -> Self {
        Self::Ask(Ask::new(NAMES[member], NAMES[1 - member], member == 0, Nanos(now)))
    }
}

/// A member's process.
pub struct Daemon {
    pub life: u32,
    pub member: usize,
    /// `status.epoch`.
    pub epoch: u64,
    /// It is the primary of its epoch, as far as it knows, and its server lives.
    pub speaks: bool,
    /// What the edge has said.
    pub standing: Standing,
    pub watch: Watch,
    pub edge: Link,
    pub pair: Link,
    pub phase: Phase,
}

impl Daemon {
    /// Is the socket for the other member open?
    pub fn listens(&self) -> bool {
        matches!(self.phase, Phase::Wait | Phase::Primary(_))
    }

    pub fn process(&self) -> Process {
        Process { host: self.member, life: self.life }
    }
}

impl World {
    pub fn daemon_starts(&mut self, member: usize) {
        let host = &mut self.hosts[member];
        host.lives += 1;
        let daemon = Daemon {
            life: host.lives,
            member,
            epoch: 0,
            speaks: false,
            standing: Standing::new(GROUP, NAMES[member], NAMES[1 - member]),
            watch: Watch::new(Nanos(self.now), Nanos(HEARTBEAT)),
            edge: Link::default(),
            pair: Link::default(),
            phase: Phase::asks(member, self.now),
        };
        host.daemon = Some(daemon);
        host.daemon_wakes = None;
        self.say(|| format!("{}: daemon starts", NAMES[member]));
        self.wake_daemon_soon(member);
    }

    /// SIGKILL. The server dies with its daemon (`PR_SET_PDEATHSIG`); gate and
    /// tap's drop stay as they are.
    pub fn daemon_dies(&mut self, member: usize) {
        let Some(daemon) = self.hosts[member].daemon.take() else { return };
        self.hosts[member].tap = None;
        self.say(|| format!("{}: daemon killed", NAMES[member]));
        self.kill_server(member);
        self.end_pipes_of(daemon.process());
    }

    pub fn wake_daemon_soon(&mut self, member: usize) {
        let delay = (3_000 + self.rng.below(20_000)) * self.hosts[member].slow;
        self.wake_daemon(member, self.now + delay);
    }

    /// The next turn is at the latest then.
    pub fn wake_daemon(&mut self, member: usize, at: Ns) {
        let at = at.max(self.now + 1_000);
        let host = &mut self.hosts[member];
        let Some(daemon) = &host.daemon else { return };
        if host.daemon_wakes.is_none_or(|known| at < known) {
            host.daemon_wakes = Some(at);
            let process = daemon.process();
            self.queue.push(at, Event::Daemon(process));
        }
    }

    pub fn daemon_wakes(&mut self, process: Process) {
        let member = process.host;
        let due = self.hosts[member].daemon_wakes.is_some_and(|at| at <= self.now);
        if !self.is_alive(process) || !due {
            return;
        }
        self.hosts[member].daemon_wakes = None;
        let Some(mut daemon) = self.hosts[member].daemon.take() else { return };
        let phase = std::mem::replace(&mut daemon.phase, Phase::Idle);
        let phase = self.daemon_turn(&mut daemon, phase);
        daemon.phase = phase;
        // Inputs of this very turn go to the same inboxes.
        let again = !daemon.edge.inbox.is_empty() || !daemon.pair.inbox.is_empty();
        self.hosts[member].daemon = Some(daemon);
        if again {
            self.wake_daemon_soon(member);
        }
    }

    fn daemon_turn(&mut self, d: &mut Daemon, phase: Phase) -> Phase {
        match phase {
            Phase::Ask(ask) => self.turn_ask(d, ask),
            Phase::Wait => self.turn_wait(d),
            Phase::Primary(primary) => self.turn_primary(d, primary),
            Phase::Reach => self.turn_reach(d),
            Phase::Follow(follower) => self.turn_follow(d, follower),
            Phase::Takeover(takeover) => self.turn_takeover(d, takeover),
            Phase::Survivor => {
                d.pair.inbox.clear();
                self.turn_survivor(d);
                Phase::Survivor
            }
            Phase::Idle => {
                d.pair.inbox.clear();
                self.turn_edge(d);
                Phase::Idle
            }
        }
    }

    /// `EdgeLink::turn`, for either link: connects when it is time; what came.
    pub fn turn_link(&mut self, d: &mut Daemon, kind: Kind) -> Vec<Input> {
        let (now, member, process) = (self.now, d.member, d.process());
        let link = if kind == Kind::Edge { &mut d.edge } else { &mut d.pair };
        let mut inputs = Vec::new();
        for input in std::mem::take(&mut link.inbox) {
            match &input {
                Input::Opened(pipe) => {
                    link.connecting = false;
                    link.pipe = Some(*pipe);
                }
                Input::Failed => {
                    link.connecting = false;
                    link.retry_at = now + RETRY;
                }
                Input::Lost(pipe) if link.pipe == Some(*pipe) => {
                    link.pipe = None;
                    link.retry_at = now + RETRY;
                }
                Input::Message(pipe, _) if link.pipe == Some(*pipe) => {}
                Input::Accepted(_) => {}
                Input::Lost(_) | Input::Message(..) => continue,
            }
            inputs.push(input);
        }
        if link.pipe.is_none() && !link.connecting {
            if now >= link.retry_at {
                link.connecting = true;
                self.connect(process, kind);
            } else {
                let at = link.retry_at;
                self.wake_taken(member, process, at);
            }
        }
        inputs
    }

    /// As [`Self::wake_daemon`], while the daemon is out of its place for a turn.
    fn wake_taken(&mut self, member: usize, process: Process, at: Ns) {
        let at = at.max(self.now + 1_000);
        let host = &mut self.hosts[member];
        if host.daemon_wakes.is_none_or(|known| at < known) {
            host.daemon_wakes = Some(at);
            self.queue.push(at, Event::Daemon(process));
        }
    }

    pub fn sleep(&mut self, d: &Daemon, at: Ns) {
        self.wake_taken(d.member, d.process(), at);
    }

    /// `Node::turn_edge`. Returns whether the channel has just opened.
    pub fn turn_edge_with(&mut self, d: &mut Daemon, mut each: impl FnMut(&Message<'_>)) -> bool {
        for input in self.turn_link(d, Kind::Edge) {
            match input {
                Input::Opened(_) => d.standing.handle_opened(),
                Input::Message(_, bytes) => {
                    if let Ok(message) = Message::decode(&bytes) {
                        d.standing.handle_message(&message, d.epoch);
                        each(&message);
                    }
                }
                _ => {}
            }
        }
        let asks = self.plan.mutation != Some(Mutation::NobodyAsksAgain);
        let (edge, now) = (d.edge.pipe, Nanos(self.now));
        let mut say = |message: &Message<'_>| {
            edge.map(|pipe| self.send(pipe, 0, message));
        };
        d.standing.settle(now, (d.epoch, d.speaks && asks), &mut d.watch, &mut say).opened
    }

    /// As [`Self::turn_edge_with`], for whom nothing of it concerns.
    pub fn turn_edge(&mut self, d: &mut Daemon) {
        self.turn_edge_with(d, |_| {});
    }

    /// `Node::ask_for`.
    pub fn ask_for(&mut self, d: &Daemon, request: &mut EpochRequest, opened: bool) {
        let (now, edge) = (Nanos(self.now), d.edge.pipe);
        request.settle(now, (edge.is_some(), opened), &mut |message| {
            edge.map(|pipe| self.send(pipe, 0, message));
        });
    }

    /// Whether the channel to the edge is open and took it.
    pub fn tell_edge(&mut self, d: &Daemon, message: &Message<'_>) -> bool {
        d.edge.pipe.is_some_and(|pipe| self.send(pipe, 0, message))
    }

    fn turn_ask(&mut self, d: &mut Daemon, mut ask: Ask) -> Phase {
        let now = Nanos(self.now);
        d.pair.inbox.clear();
        self.turn_edge_with(d, |message| ask.handle_message(message));
        let edge = d.edge.pipe;
        let mut say = |message: &Message<'_>| {
            edge.map(|pipe| self.send(pipe, 0, message));
        };
        let place = ask.settle(&mut say);
        ask.handle_timeout(now, edge.is_some(), &mut say);
        match place {
            Some(Place::Primary { epoch }) => {
                d.epoch = epoch;
                self.becomes_primary(d)
            }
            Some(Place::Backup { epoch }) => {
                d.epoch = epoch;
                self.becomes_backup(d)
            }
            None => {
                self.sleep(d, ask.next_deadline(now).0);
                Phase::Ask(ask)
            }
        }
    }

    fn becomes_primary(&mut self, d: &mut Daemon) -> Phase {
        let member = d.member;
        self.say(|| {
            format!("{}: primary in epoch {}, waits for the backup", NAMES[member], d.epoch)
        });
        d.speaks = true;
        let gate = crate::gate::Gate::new(self.plan.gate_slots, self.plan.mutation);
        self.hosts[member].gate = Some(gate);
        // It may be a backup's host of old.
        self.hosts[member].tap_drop = None;
        Phase::Wait
    }

    fn becomes_backup(&mut self, d: &mut Daemon) -> Phase {
        let member = d.member;
        self.say(|| format!("{}: backup in epoch {}, seeks the primary", NAMES[member], d.epoch));
        self.hosts[member].tap_drop = Some(false);
        self.hosts[member].tap = Some(VecDeque::new());
        self.turn_reach(d)
    }

    /// Answers a hello; the worlds are alike.
    fn turn_wait(&mut self, d: &mut Daemon) -> Phase {
        self.turn_edge(d);
        let mut candidate = d.pair.pipe;
        for input in std::mem::take(&mut d.pair.inbox) {
            match input {
                Input::Accepted(pipe) => candidate = Some(pipe),
                Input::Lost(pipe) if candidate == Some(pipe) => candidate = None,
                Input::Message(pipe, bytes) if candidate == Some(pipe) => {
                    if matches!(Message::decode(&bytes), Ok(Message::Hello { .. })) {
                        d.pair.pipe = candidate;
                        self.send(
                            pipe,
                            1,
                            &hello(GROUP, NAMES[d.member], (d.epoch, false), Vec::new()),
                        );
                        return self.primary_starts(d, pipe);
                    }
                }
                _ => {}
            }
        }
        d.pair.pipe = candidate;
        self.sleep(d, self.now + 50_000_000);
        Phase::Wait
    }

    fn turn_reach(&mut self, d: &mut Daemon) -> Phase {
        self.turn_edge(d);
        let mut inputs: VecDeque<Input> = self.turn_link(d, Kind::Pair).into();
        while let Some(input) = inputs.pop_front() {
            match input {
                Input::Opened(pipe) => {
                    self.send(
                        pipe,
                        0,
                        &hello(GROUP, NAMES[d.member], (d.epoch, false), Vec::new()),
                    );
                }
                Input::Message(_, bytes) => {
                    if let Ok(Message::Hello { epoch, .. }) = Message::decode(&bytes) {
                        d.epoch = epoch;
                        d.pair.inbox = inputs;
                        return self.follower_starts(d);
                    }
                }
                _ => {}
            }
        }
        Phase::Reach
    }

    /// `in_step` of `daemon/backup.rs`.
    pub fn say_in_step(&mut self, d: &Daemon, yes: bool) {
        let epoch = d.epoch;
        self.tell_edge(d, &Message::InStep { epoch, yes });
    }
}
