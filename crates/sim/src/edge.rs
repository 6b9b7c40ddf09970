//! The edge: its data path, which is `bpf/edge.bpf.c` and lives on without its
//! daemon, and what the real daemon's machine ([`EdgeMachine`]) needs of a host:
//! pipes to the members, and a disk of two blocks (`daemon/edge_state.rs`).

mod disk;
mod host;
mod syns;

use crate::Ns;
use crate::client::{Client, Ear};
use crate::member::HEARTBEAT;
use crate::packet::{ACK, NO_SCALING, Packet, shift};
use crate::pipe::{Input, PipeId, Process};
use crate::plan::Mutation;
use crate::world::{EDGE, Event, NAMES, World};
use disk::Disk;
use holdfast_cluster::Nanos;
use holdfast_cluster::state::{EdgeState, StateBlocks};
use holdfast_edge::{Direction, Halr};
use holdfast_member::edge::{EdgeHost, EdgeMachine, MemberRequest, Setup};
use holdfast_member::standing::hello;
use holdfast_wire::message::{ConnKey, FlowBounds, Message};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};
use syns::Copies;

/// Name of the only group.
pub const GROUP: &str = "sim";
const FLOW_AGE: Ns = 1_000_000_000;
/// Silence in ns after which the member is asked whether a flow still exists: it fits twice into
/// the time after which everything must be freed. The second one counts while less than a
/// quarter of the table is free.
const QUIET: Ns = 20_000_000_000;
const QUIET_CROWDED: Ns = 1_000_000_000;
/// Longest delay in ns of a copy on an uneven path: later than the log that needs it.
const COPY_LATE_MAX: Ns = 1_500_000;

/// What the edge knows about one connection.
#[derive(Clone, Debug)]
pub struct Flow {
    pub iss: SeqNo,
    pub seq_end: SeqNo,
    pub server_ack: SeqNo,
    pub right_edge: SeqNo,
    pub tsval: u32,
    pub client_ack: SeqNo,
    pub wscale: u8,
    pub established: bool,
    pub client_fin: bool,
    pub server_fin: bool,
    pub reset: bool,
    /// Whether it is known although its SYN-ACK was not seen.
    pub learnt: bool,
    pub seen: Ns,
    /// When the current member was asked about it, if it has been silent since.
    asked: Option<Ns>,
}

impl Flow {
    fn is_over(&self) -> bool {
        (self.client_fin && self.server_fin) || self.reset || !self.established
    }
}

/// The edge's process.
pub struct EdgeDaemon {
    pub life: u32,
    /// The machine; `None` during a call to it.
    machine: Option<Box<EdgeMachine>>,
    links: [Option<PipeId>; 2],
    inbox: VecDeque<Input>,
    /// The disk's content, as far as this daemon knows.
    blocks: StateBlocks,
    /// Writes that the disk does not have yet, oldest first.
    writing: VecDeque<(u64, EdgeState)>,
    writes: u64,
    /// The cache of SYNs for an outage; `None` during a call to it.
    cache: Option<Halr<World>>,
    /// The member that its packets are resent to.
    resends_to: Option<usize>,
    /// Pipes that broke while something was sent.
    failed: Vec<usize>,
    /// When the machine is called next at the latest.
    timer_at: Ns,
    /// Number of the current member's packets that had passed at the last check for silence.
    spoken: u64,
}

/// The edge; see the module.
pub struct Edge {
    /// The fence: an epoch, and the member whose packets pass in it.
    pub epoch: u64,
    pub current: Option<usize>,
    tap: [bool; 2],
    flows: BTreeMap<ConnKey, Flow>,
    /// Most flows; further ones are refused.
    flows_max: usize,
    /// Number of new flows that were refused.
    pub refused: u64,
    /// Number of clients' segments that no kernel would accept, and so were not copied.
    pub implausible: u64,
    /// Number of packets that the fence let pass.
    spoken: u64,
    copies: Copies,
    disk: Disk,
    pub daemon: Option<EdgeDaemon>,
    lives: u32,
    mutation: Option<Mutation>,
}

impl Edge {
    pub fn new(flows_max: usize, mutation: Option<Mutation>) -> Self {
        Self {
            epoch: 0,
            current: None,
            tap: [false; 2],
            flows: BTreeMap::new(),
            flows_max,
            refused: 0,
            implausible: 0,
            spoken: 0,
            copies: Copies::default(),
            disk: Disk::new(),
            daemon: None,
            lives: 0,
            mutation,
        }
    }

    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    pub fn machine(&self) -> Option<&EdgeMachine> {
        self.daemon.as_ref()?.machine.as_deref()
    }

    /// What it holds because of connections, for the check at rest.
    pub fn left(&self) -> Vec<(&'static str, usize)> {
        let unwritten = self.daemon.as_ref().map_or(0, |daemon| daemon.writing.len());
        vec![("edge flows", self.flows()), ("writes of the edge", unwritten)]
    }

    /// Whether no new flow finds room.
    pub fn is_full(&self) -> bool {
        self.flows.len() >= self.flows_max
    }

    /// Whether the disk is older than what the members know, and the member that could go on is
    /// gone.
    pub fn is_behind(&self) -> bool {
        self.machine().is_some_and(|machine| machine.membership().is_behind())
    }

    /// What is known about one connection.
    pub fn flow(&self, key: &ConnKey) -> Option<&Flow> {
        self.flows.get(key)
    }

    /// Notes a client's packet; true if backups get a copy.
    pub fn copies(&mut self, now: Ns, p: &Packet) -> bool {
        let plausible = self.track_client(now, p);
        self.implausible += u64::from(!plausible);
        plausible && !p.is_pure()
    }

    /// `track_client`: false if the segment is forged, or has nothing that a server's kernel could
    /// accept.
    fn track_client(&mut self, now: Ns, p: &Packet) -> bool {
        let Some(flow) = self.flows.get_mut(&p.key) else { return true };
        flow.seen = now;
        if p.is(Flags::SYN) {
            return true;
        }
        let beyond = p.seq.after(flow.right_edge) || (p.is(ACK) && p.ack.after(flow.seq_end));
        if beyond && !flow.learnt {
            return false;
        }
        if flow.server_ack.after(p.seq.plus(1)) {
            return true;
        }
        if p.is(Flags::RST) {
            flow.reset |= p.seq == flow.server_ack;
        } else if p.is(ACK) {
            flow.client_fin |= p.is(Flags::FIN);
            flow.established = true;
            flow.client_ack = flow.client_ack.max(p.ack);
        }
        true
    }

    /// `track`: false for a new flow that finds no room.
    pub fn track_server(&mut self, now: Ns, p: &Packet) -> bool {
        if p.is(Flags::SYN | ACK) {
            if self.flows.get(&p.key).is_none_or(|flow| flow.iss != p.seq) {
                return self.start_flow(now, p);
            }
            return true;
        }
        let Some(flow) = self.flows.get_mut(&p.key) else {
            self.learn_flow(now, p);
            return true;
        };
        flow.seen = now;
        flow.server_fin |= p.is(Flags::FIN);
        if p.is(Flags::RST) {
            flow.reset = true;
            return true;
        }
        // An empty segment's sequence number does not show what was sent.
        let len = p.payload.len() as u64 + u64::from(p.is(Flags::FIN));
        if len > 0 {
            flow.seq_end = flow.seq_end.max(p.seq.plus(len));
        }
        if p.tsval.wrapping_sub(flow.tsval) as i32 > 0 {
            flow.tsval = p.tsval;
        }
        if !p.is(ACK) {
            return true;
        }
        let edge = p.ack.plus(u64::from(p.window) << shift(flow.wscale));
        flow.right_edge = flow.right_edge.max(edge);
        flow.server_ack = flow.server_ack.max(p.ack);
        true
    }

    /// Learns a flow that is older than the table.
    fn learn_flow(&mut self, now: Ns, p: &Packet) {
        let speaks = p.is(ACK) && !p.is(Flags::RST) && !p.is(Flags::FIN);
        if !speaks || self.flows.len() >= self.flows_max {
            return;
        }
        let flow = Flow {
            iss: SeqNo(0),
            seq_end: p.seq_end(),
            server_ack: p.ack,
            right_edge: p.ack.plus(u64::from(p.window)),
            tsval: p.tsval,
            client_ack: p.seq,
            wscale: NO_SCALING,
            established: true,
            client_fin: false,
            server_fin: false,
            reset: false,
            learnt: true,
            seen: now,
            asked: None,
        };
        self.flows.insert(p.key, flow);
    }

    fn start_flow(&mut self, now: Ns, p: &Packet) -> bool {
        if self.flows.len() >= self.flows_max && !self.flows.contains_key(&p.key) {
            self.refused += 1;
            return false;
        }
        let flow = Flow {
            iss: p.seq,
            seq_end: p.seq.plus(1),
            server_ack: p.ack,
            right_edge: p.ack.plus(u64::from(p.window)),
            tsval: p.tsval,
            client_ack: p.seq,
            wscale: if p.wscale == NO_SCALING { NO_SCALING } else { p.wscale },
            established: false,
            client_fin: false,
            server_fin: false,
            reset: false,
            learnt: false,
            seen: now,
            asked: None,
        };
        self.flows.insert(p.key, flow);
        true
    }

    fn bounds(&self) -> Vec<FlowBounds> {
        let bounds = |(key, flow): (&ConnKey, &Flow)| FlowBounds {
            key: *key,
            iss: (!flow.learnt).then_some(flow.iss),
            seq_end: flow.seq_end,
            right_edge: flow.right_edge,
            tsval: flow.tsval,
            client_ack: flow.client_ack,
        };
        self.flows.iter().map(bounds).collect()
    }
}

impl World {
    /// `edge_client`.
    pub fn at_edge(&mut self, packet: Packet) {
        if !self.hosts[EDGE].alive {
            return;
        }
        let now = self.now;
        let current = self.edge.current;
        self.check.client_said(&packet);
        self.edge.copies.see(Direction::IntoCluster, &packet);
        self.knocks(&packet);
        let copied = self.edge.copies(now, &packet);
        let tap = self.edge.tap;
        for member in (0..2).filter(|m| copied && Some(*m) != current && tap[*m]) {
            let permille = self.plan.copy_loss_permille;
            let lost = permille > 0 && self.rng.below(1000) < permille;
            if !lost && !self.links.copies_lost {
                self.towards_member(member, packet.clone(), true);
            }
        }
        if let Some(member) = current {
            self.towards_member(member, packet, false);
        }
    }

    /// Notes that a client begins a connection on a four-tuple that had none.
    fn knocks(&mut self, packet: &Packet) {
        let begins = |client: &Client| client.begins(&packet.key);
        if packet.is(Flags::SYN) && self.clients.iter().any(begins) {
            self.check.knocks(self.now, packet.key);
        }
    }

    fn towards_member(&mut self, member: usize, packet: Packet, copy: bool) {
        if self.links.is_cut(EDGE, member) || !self.hosts[member].alive {
            return;
        }
        // Nearly always in order; parallel queues may swap two packets.
        let mut delay = 20_000 + if self.rng.one_in(30) { self.rng.below(300_000) } else { 0 };
        let late = self.plan.uneven.copies_late_permille;
        if copy && late > 0 && self.rng.below(1000) < late {
            delay += self.rng.below(COPY_LATE_MAX);
        }
        self.schedule(delay, Event::AtMember { member, packet, copy });
    }

    /// `edge_member`: fence and bounds, and then to the client.
    pub fn passes_edge(&mut self, member: usize, packet: Packet) {
        if !self.hosts[EDGE].alive {
            return;
        }
        let fenced = self.edge.current != Some(member);
        if fenced && self.edge.mutation != Some(Mutation::NoFence) {
            self.check.fenced();
            return;
        }
        if !self.edge.track_server(self.now, &packet) {
            return;
        }
        self.edge.copies.see(Direction::OutOfCluster, &packet);
        self.check.answered(&packet.key);
        let packet = self.neighbour_pays(packet);
        self.edge.spoken += 1;
        let iss_owner = self.clients.iter().find(|client| client.owns(&packet.key));
        let iss = self.check.iss_of(&packet);
        let ear = iss.and_then(|iss| Some(iss_owner?.ear(&packet.key, iss)));
        let ear = ear.unwrap_or(Ear::Unknown);
        self.check.passed(self.now, &packet, member, self.edge.epoch, ear);
        self.cross(1, packet, Event::AtClient);
    }

    // The daemon.

    pub fn edge_starts(&mut self) {
        let Some(blocks) = self.edge.disk.read() else {
            return self.check.violation(self.now, "edge", "both blocks are torn".to_owned());
        };
        let state = blocks.state().clone();
        let setup =
            Setup { group: GROUP, members: &NAMES[..2], first: NAMES[0], period: Nanos(HEARTBEAT) };
        let mut machine = match EdgeMachine::new(&setup, state, self.edge_time()) {
            Ok(machine) => Box::new(machine),
            Err(error) => return self.check.violation(self.now, "edge", error.to_string()),
        };
        self.pulses_forget(EDGE);
        self.edge.lives += 1;
        let life = self.edge.lives;
        self.edge.daemon = Some(EdgeDaemon {
            life,
            machine: None,
            links: [None; 2],
            inbox: VecDeque::new(),
            blocks,
            writing: VecDeque::new(),
            writes: 0,
            cache: Some(syns::cache()),
            resends_to: None,
            failed: Vec::new(),
            timer_at: 0,
            spoken: self.edge.spoken,
        });
        let _ = self.at_cache(|cache, now, world| cache.handle_start(now, world));
        let fence = (self.edge.epoch, self.edge.current);
        if let Err(error) = machine.handle_start(fence, self) {
            self.check.violation(self.now, "edge", error);
        }
        self.edge_rests(life, machine);
    }

    /// The daemon is killed, perhaps in the middle of a write.
    pub fn edge_daemon_dies(&mut self) {
        let Some(mut daemon) = self.edge.daemon.take() else { return };
        if let Some((_, state)) = daemon.writing.pop_front() {
            let part = self.rng.one_in(2).then(|| self.rng.below(80) as usize);
            self.edge.disk.write(&daemon.blocks.next(state), part);
        }
        self.end_pipes_of(Process { host: EDGE, life: daemon.life });
    }

    /// Closes the edge by hand, if its daemon is there to hear of it.
    pub fn closed_by_hand(&mut self, until_takeover: bool) {
        let Some((life, mut machine)) = self.edge_machine() else { return };
        if let Err(error) = machine.handle_close(until_takeover, self) {
            self.check.violation(self.now, "edge", error);
        }
        self.edge_rests(life, machine);
    }

    /// Opens the edge by hand: first on the disk, if that says that it is closed. Returns
    /// whether it is open.
    pub fn opened_by_hand(&mut self) -> bool {
        let Some((life, mut machine)) = self.edge_machine() else { return false };
        let opens = machine.handle_opening(self).is_none() && self.edge_writes_nothing();
        if opens && let Err(error) = machine.handle_open(self.edge_time(), self) {
            self.check.violation(self.now, "edge", error);
        }
        self.edge_rests(life, machine);
        opens
    }

    fn edge_writes_nothing(&self) -> bool {
        self.edge.daemon.as_ref().is_some_and(|daemon| daemon.writing.is_empty())
    }

    fn edge_time(&self) -> Nanos {
        Nanos(self.time_at(EDGE))
    }

    /// Sets the timer again, because the clock has changed since the machine set its deadline.
    pub fn edge_timer(&mut self) {
        if let Some(life) = self.edge.daemon.as_ref().map(|daemon| daemon.life) {
            self.schedule(1_000, Event::EdgeDaemon(life));
        }
    }

    fn edge_machine(&mut self) -> Option<(u32, Box<EdgeMachine>)> {
        let daemon = self.edge.daemon.as_mut()?;
        Some((daemon.life, daemon.machine.take()?))
    }

    /// Forgets what the kernel held: programs, fence and flows.
    pub fn edge_forgets(&mut self) {
        self.edge.epoch = 0;
        self.edge.current = None;
        self.edge.tap = [false; 2];
        self.edge.flows.clear();
        self.edge.copies.forget();
        self.check.edge_forgot();
        if self.plan.disk.rolls_back && self.rng.one_in(2) {
            let writes = 1 + self.rng.below(4) as usize;
            self.say(|| format!("edge: its disk is that of {writes} writes ago"));
            self.edge.disk.roll_back(writes);
        }
    }

    pub fn edge_input(&mut self, input: Input) {
        let Some(daemon) = &mut self.edge.daemon else { return };
        daemon.inbox.push_back(input);
        let life = daemon.life;
        self.schedule(5_000, Event::EdgeDaemon(life));
    }

    /// Does one turn of the daemon's loop: what has come, and what is due.
    pub fn edge_daemon_wakes(&mut self, life: u32) {
        let Some(daemon) = self.edge.daemon.as_mut().filter(|d| d.life == life) else { return };
        let Some(mut machine) = daemon.machine.take() else { return };
        let inputs = std::mem::take(&mut daemon.inbox);
        self.edge_feels_pulses(&mut machine);
        for input in inputs {
            self.edge_hears(&mut machine, input);
        }
        let now = self.edge_time();
        if machine.next_deadline() <= now {
            let spoken = self.edge.spoken;
            let before = self.edge.daemon.as_mut().map(|daemon| &mut daemon.spoken);
            let passing = before.is_some_and(|before| std::mem::replace(before, spoken) != spoken);
            machine.handle_timeout(passing, now, self);
        }
        self.at_cache(|cache, now, world| cache.handle_timeout(now, world));
        self.edge_rests(life, machine);
    }

    /// Notes that the oldest requested write is done.
    pub fn edge_written(&mut self, life: u32) {
        let Some(daemon) = self.edge.daemon.as_mut().filter(|d| d.life == life) else { return };
        let Some((number, state)) = daemon.writing.pop_front() else { return };
        let Some(mut machine) = daemon.machine.take() else { return };
        let write = daemon.blocks.next(state);
        let permille = self.plan.disk.fails_permille;
        let fails = permille > 0 && self.rng.below(1000) < permille;
        // A failed write may have been done all the same, or in part.
        let part = fails.then(|| self.rng.below(200) as usize);
        self.edge.disk.write(&write, part);
        if !fails {
            daemon.blocks.handle_written(write);
        }
        let outcome = if fails { Err("the disk fails".to_owned()) } else { Ok(()) };
        machine.handle_written(number, outcome, self);
        self.edge_rests(life, machine);
    }

    /// Puts the machine back in its place until something comes or is due.
    fn edge_rests(&mut self, life: u32, mut machine: Box<EdgeMachine>) {
        let now = self.edge_time();
        while let Some(index) = self.edge.daemon.as_mut().and_then(|daemon| daemon.failed.pop()) {
            machine.handle_closed(index, "its pipe broke", now, self);
        }
        let cache = self.edge.daemon.as_ref().and_then(EdgeDaemon::cache_timeout);
        let at = cache.into_iter().fold(machine.next_deadline().0, u64::min);
        let at = self.hosts[EDGE].clock.when(at).max(self.now + 1_000);
        let Some(daemon) = self.edge.daemon.as_mut().filter(|d| d.life == life) else { return };
        daemon.machine = Some(machine);
        if std::mem::replace(&mut daemon.timer_at, at) != at {
            self.queue.push(at, Event::EdgeDaemon(life));
        }
    }

    fn edge_hears(&mut self, machine: &mut EdgeMachine, input: Input) {
        let Some(daemon) = &mut self.edge.daemon else { return };
        match input {
            Input::Accepted(pipe) => {
                let member = self.pipes[pipe].ends[0].host;
                if let Some(old) = daemon.links[member].replace(pipe) {
                    self.close_pipe(old, 1);
                }
                let was_in_step = machine.membership().is_in_step(NAMES[member]);
                machine.handle_opened(member, self);
                if was_in_step && self.edge.mutation == Some(Mutation::NotForgotten) {
                    self.edge_lies(machine, member);
                }
            }
            Input::Lost(pipe) => {
                if let Some(member) = daemon.links.iter().position(|link| *link == Some(pipe)) {
                    daemon.links[member] = None;
                    machine.handle_closed(member, "its pipe broke", self.edge_time(), self);
                }
            }
            Input::Message(pipe, bytes) => {
                let member = self.pipes[pipe].ends[0].host;
                if daemon.links[member] != Some(pipe) {
                    return;
                }
                if let Ok(message) = Message::decode(&bytes) {
                    let mut wish = MemberRequest::of(message, GROUP, NAMES[member]);
                    if self.edge.mutation == Some(Mutation::PromoteAnybody) {
                        wish = self.edge_is_generous(machine, member, wish);
                    }
                    machine.handle_wish(member, wish, self.edge_time(), self);
                }
            }
            Input::Opened(_) | Input::Failed => {}
        }
    }

    /// A mutation: the member counts as in step, as if the machine had not forgotten that, or the
    /// member had said so.
    fn edge_lies(&mut self, machine: &mut EdgeMachine, member: usize) {
        let epoch = machine.membership().handle_ask().epoch;
        let hello = hello(GROUP, NAMES[member], (epoch, false), Vec::new());
        let hello = MemberRequest::of(hello, GROUP, NAMES[member]);
        for wish in [hello, MemberRequest::InStep { epoch, yes: true }] {
            machine.handle_wish(member, wish, self.edge_time(), self);
        }
    }

    /// A mutation: a member that asks for an epoch counts as in step, whatever the epoch.
    fn edge_is_generous(
        &mut self,
        machine: &mut EdgeMachine,
        member: usize,
        wish: MemberRequest,
    ) -> MemberRequest {
        match wish {
            MemberRequest::Promote { epoch, lives } if self.edge.current != Some(member) => {
                self.edge_lies(machine, member);
                let next = machine.membership().handle_ask().epoch + 1;
                MemberRequest::Promote { epoch: epoch.max(next), lives }
            }
            other => other,
        }
    }
}
