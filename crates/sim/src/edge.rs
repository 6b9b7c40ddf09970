//! The edge: its data path, which is `bpf/edge.bpf.c` and lives on without its
//! daemon, and the daemon (`daemon/edge.rs`) around the real `EdgeMembership`,
//! on a disk of two blocks (`daemon/edge_state.rs`).

use crate::member::HEARTBEAT;
use crate::packet::{ACK, NO_SCALING, Packet, shift};
use crate::pipe::{Input, PipeId, Process};
use crate::plan::Mutation;
use crate::world::{EDGE, Event, NAMES, World};
use crate::{Ns, ns};
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{DECLARE_AFTER, FIRST_PATIENCE};
use holdfast_cluster::hearing::Hearing;
use holdfast_cluster::membership::{Decision, EdgeMembership, Refusal};
use holdfast_cluster::state::{EdgeState, StateBlock};
use holdfast_member::timing::edge as timing;
use holdfast_wire::message::{ConnKey, FlowBounds, Message};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

const FLOW_AGE: Ns = 1_000_000_000;
/// Three heartbeats, as the detector of each link has it.
const SILENCE: Ns = DECLARE_AFTER * HEARTBEAT;
/// As the detector of each link has it.
const JOIN_PATIENCE: Ns = FIRST_PATIENCE.0;
/// Flows that the edge follows; more are refused.
pub const FLOWS_MAX: usize = 64;

/// What the edge knows of one connection.
#[derive(Clone, Debug)]
struct Flow {
    iss: SeqNo,
    seq_end: SeqNo,
    server_ack: SeqNo,
    right_edge: SeqNo,
    tsval: u32,
    client_ack: SeqNo,
    wscale: u8,
    established: bool,
    client_fin: bool,
    server_fin: bool,
    reset: bool,
    /// Its SYN-ACK was not seen.
    learnt: bool,
    seen: Ns,
}

impl Flow {
    fn is_over(&self) -> bool {
        (self.client_fin && self.server_fin) || self.reset || !self.established
    }
}

/// The two blocks of the state file; the one with the higher number counts.
#[derive(Debug)]
struct Disk {
    blocks: [Vec<u8>; 2],
}

impl Disk {
    fn new() -> Self {
        let empty = StateBlock::default().to_string().into_bytes();
        Self { blocks: [empty.clone(), empty] }
    }

    fn newest(&self) -> Option<(usize, StateBlock)> {
        let whole = self.blocks.iter().enumerate();
        let whole = whole.filter_map(|(i, block)| Some((i, StateBlock::parse(block).ok()?)));
        whole.max_by_key(|(_, block)| block.age())
    }

    /// Writes `part` of the state's bytes; all of them unless the power fails.
    fn write(&mut self, state: &EdgeState, part: Option<usize>) {
        let newest = self.newest();
        let spare = newest.as_ref().map_or(0, |(block, _)| 1 - block);
        let number = newest.map_or(0, |(_, block)| block.number) + 1;
        let bytes = StateBlock { number, state: state.clone() }.to_string().into_bytes();
        let until = part.map_or(bytes.len(), |part| part.min(bytes.len()));
        self.blocks[spare] = bytes[..until].to_vec();
    }
}

/// The edge's process.
pub struct EdgeDaemon {
    pub life: u32,
    machine: EdgeMembership,
    links: [Option<PipeId>; 2],
    tap_off: [Option<Ns>; 2],
    beats: u64,
    /// When each member was last heard.
    heard_at: [Ns; 2],
    hearing: Hearing,
    inbox: VecDeque<Input>,
    /// A grant that the disk does not have yet: for whom, in which epoch.
    writing: Option<(usize, EdgeState)>,
    age_at: Ns,
    beat_at: Ns,
    /// The last answers, so that the trace says each once.
    answered: [(u64, String); 2],
}

/// See the module.
pub struct Edge {
    /// The fence: an epoch and who may speak in it.
    pub epoch: u64,
    pub current: Option<usize>,
    tap: [bool; 2],
    flows: BTreeMap<ConnKey, Flow>,
    disk: Disk,
    pub daemon: Option<EdgeDaemon>,
    lives: u32,
    mutation: Option<Mutation>,
}

impl Edge {
    pub fn new(mutation: Option<Mutation>) -> Self {
        Self {
            epoch: 0,
            current: None,
            tap: [false; 2],
            flows: BTreeMap::new(),
            disk: Disk::new(),
            daemon: None,
            lives: 0,
            mutation,
        }
    }

    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// `track_client`: false if the segment is forged or says nothing new to
    /// anybody who could take it.
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
    fn track_server(&mut self, now: Ns, p: &Packet) -> bool {
        if p.is(Flags::SYN) {
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
        if p.len() > 0 {
            flow.seq_end = flow.seq_end.max(p.seq_end());
        }
        if p.tsval.wrapping_sub(flow.tsval) as i32 > 0 {
            flow.tsval = p.tsval;
        }
        let edge = p.ack.plus(u64::from(p.window) << shift(flow.wscale));
        flow.right_edge = flow.right_edge.max(edge);
        flow.server_ack = flow.server_ack.max(p.ack);
        true
    }

    /// A flow that is older than the table.
    fn learn_flow(&mut self, now: Ns, p: &Packet) {
        let speaks = p.is(ACK) && !p.is(Flags::RST) && !p.is(Flags::FIN);
        if !speaks || self.flows.len() >= FLOWS_MAX {
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
        };
        self.flows.insert(p.key, flow);
    }

    fn start_flow(&mut self, now: Ns, p: &Packet) -> bool {
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&p.key) {
            return false;
        }
        let flow = Flow {
            iss: p.seq,
            seq_end: p.seq_end(),
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
        let plausible = self.edge.track_client(now, &packet);
        let copied = plausible && !packet.is_pure();
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

    fn towards_member(&mut self, member: usize, packet: Packet, copy: bool) {
        if self.links.is_cut(EDGE, member) || !self.hosts[member].alive {
            return;
        }
        // Nearly always in order; a queue of several lanes may swap two.
        let delay = 20_000 + if self.rng.one_in(30) { self.rng.below(300_000) } else { 0 };
        self.schedule(delay, Event::AtMember { member, packet, copy });
    }

    /// `edge_member`: the fence, the bounds, and on to the client.
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
        let iss_owner = self.clients.iter().find(|client| client.owns(&packet.key));
        let iss = self.check.iss_of(&packet);
        let expected = iss.and_then(|iss| iss_owner?.rcv_nxt(&packet.key, iss));
        self.check.passed(self.now, &packet, member, self.edge.epoch, expected);
        self.cross(1, packet, Event::AtClient);
    }

    // The daemon.

    /// `EdgeDaemon::start`: only where fence and disk say the same may the fence
    /// stay open (`agree`).
    pub fn edge_starts(&mut self) {
        let state = self.edge.disk.newest().map(|(_, block)| block.state).unwrap_or_default();
        let named = state.current.as_deref().and_then(|name| NAMES.iter().position(|n| *n == name));
        let fence = (self.edge.epoch, self.edge.current);
        if fence.0 != state.epoch || (fence.1.is_some() && fence.1 != named) {
            self.edge.epoch = state.epoch;
            self.edge.current = None;
        }
        let Ok(mut machine) = EdgeMembership::new(&NAMES[..2], state) else {
            return self.check.violation(self.now, "edge", "its own state is refused".to_owned());
        };
        for name in &NAMES[..2] {
            machine.handle_answers(name, true);
        }
        self.edge.lives += 1;
        let life = self.edge.lives;
        self.edge.daemon = Some(EdgeDaemon {
            life,
            machine,
            links: [None; 2],
            tap_off: [None; 2],
            beats: 0,
            heard_at: [self.now + JOIN_PATIENCE; 2],
            hearing: Hearing::new(Nanos(self.now), Nanos(HEARTBEAT)),
            inbox: VecDeque::new(),
            writing: None,
            age_at: self.now + ns(timing::FLOW_AGE_PERIOD),
            beat_at: self.now + HEARTBEAT,
            answered: Default::default(),
        });
        self.say(|| "edge: daemon starts".to_owned());
        self.schedule(HEARTBEAT, Event::EdgeDaemon(life));
    }

    /// The daemon is killed, perhaps in the middle of a write.
    pub fn edge_daemon_dies(&mut self) {
        let Some(daemon) = self.edge.daemon.take() else { return };
        if let Some((_, state)) = &daemon.writing {
            let part = self.rng.one_in(2).then(|| self.rng.below(80) as usize);
            self.edge.disk.write(state, part);
        }
        self.end_pipes_of(Process { host: EDGE, life: daemon.life });
    }

    /// What the kernel held is gone: programs, fence and flows.
    pub fn edge_forgets(&mut self) {
        self.edge.epoch = 0;
        self.edge.current = None;
        self.edge.tap = [false; 2];
        self.edge.flows.clear();
        self.check.edge_forgot();
    }

    pub fn edge_input(&mut self, input: Input) {
        let Some(daemon) = &mut self.edge.daemon else { return };
        daemon.inbox.push_back(input);
        let life = daemon.life;
        self.schedule(5_000, Event::EdgeDaemon(life));
    }

    pub fn edge_daemon_wakes(&mut self, life: u32) {
        loop {
            let Some(daemon) = self.edge.daemon.as_mut().filter(|d| d.life == life) else { return };
            if daemon.writing.is_some() {
                return;
            }
            let Some(input) = daemon.inbox.pop_front() else { break };
            self.edge_hears(input);
        }
        self.edge_timers(life);
    }

    fn edge_hears(&mut self, input: Input) {
        let pipes = &self.pipes;
        let Some(daemon) = &mut self.edge.daemon else { return };
        match input {
            Input::Accepted(pipe) => {
                let member = pipes[pipe].ends[0].host;
                let old = daemon.links[member].replace(pipe);
                daemon.tap_off[member] = None;
                // It may be another life of the member, or have changed its mind.
                if self.edge.mutation != Some(Mutation::NotForgotten) {
                    let epoch = daemon.machine.handle_ask().epoch;
                    daemon.machine.handle_in_step(NAMES[member], epoch, false);
                }
                if let Some(old) = old {
                    self.close_pipe(old, 1);
                }
                self.update_taps();
                self.reach(member, true);
                self.tell_epoch(member);
            }
            Input::Lost(pipe) => {
                if let Some(member) = daemon.links.iter().position(|link| *link == Some(pipe)) {
                    self.edge_loses(member);
                }
            }
            Input::Message(pipe, bytes) => {
                let member = pipes[pipe].ends[0].host;
                if daemon.links[member] != Some(pipe) {
                    return;
                }
                if let Ok(message) = Message::decode(&bytes) {
                    self.reach(member, true);
                    self.edge_message(member, &message);
                }
            }
            Input::Opened(_) | Input::Failed => {}
        }
    }

    fn edge_loses(&mut self, member: usize) {
        let linger = self.now + ns(timing::TAP_LINGER);
        let Some(daemon) = &mut self.edge.daemon else { return };
        daemon.links[member] = None;
        daemon.tap_off[member] = Some(linger);
        let epoch = daemon.machine.handle_ask().epoch;
        daemon.machine.handle_in_step(NAMES[member], epoch, false);
        self.say(|| format!("edge: {} left", NAMES[member]));
    }

    fn edge_message(&mut self, member: usize, message: &Message<'_>) {
        let Some(daemon) = &mut self.edge.daemon else { return };
        match message {
            Message::Ask => self.tell_epoch(member),
            Message::InStep { epoch, yes } => {
                daemon.machine.handle_in_step(NAMES[member], *epoch, *yes);
                let (epoch, yes) = (*epoch, *yes);
                self.say(|| format!("edge: {} in step in {epoch}: {yes}", NAMES[member]));
            }
            Message::Promote { epoch } => {
                let mut epoch = *epoch;
                let is_current = self.edge.current == Some(member);
                if self.edge.mutation == Some(Mutation::PromoteAnybody) && !is_current {
                    let now = daemon.machine.handle_ask().epoch;
                    daemon.machine.handle_in_step(NAMES[member], now, true);
                    epoch = epoch.max(now + 1);
                }
                let answer = self.edge_promotes(member, epoch);
                let asked = (epoch, answer);
                let daemon = self.edge.daemon.as_mut();
                if let Some(daemon) = daemon.filter(|d| d.answered[member] != asked) {
                    daemon.answered[member] = asked.clone();
                    let (epoch, answer) = asked;
                    self.say(|| format!("edge: {} asks for {epoch}: {answer}", NAMES[member]));
                }
            }
            _ => {}
        }
    }

    /// `EdgeDaemon::promote`: write, flip, answer.
    fn edge_promotes(&mut self, member: usize, epoch: u64) -> String {
        let Some(daemon) = &mut self.edge.daemon else { return String::new() };
        match daemon.machine.handle_promote(NAMES[member], epoch) {
            Decision::Refuse(refusal) => {
                let reason = refusal.to_string();
                if refusal == Refusal::BackupInStep {
                    self.edge_sends(1 - member, &Message::Alone { member: NAMES[member] });
                }
                let again = !refusal.is_final();
                self.edge_sends(member, &Message::Refused { reason: &reason, again });
                reason
            }
            Decision::Reopen { epoch } => {
                self.edge_grants(member, epoch);
                "reopened".to_owned()
            }
            Decision::Grant { persist } => {
                daemon.writing = Some((member, persist));
                let life = daemon.life;
                let sync = self.rng.range(50_000, 3_000_000);
                self.schedule(sync, Event::EdgeWritten(life));
                "writes".to_owned()
            }
        }
    }

    /// The disk has it: the epoch begins.
    pub fn edge_written(&mut self, life: u32) {
        let Some(daemon) = self.edge.daemon.as_mut().filter(|d| d.life == life) else { return };
        let Some((member, state)) = daemon.writing.take() else { return };
        self.edge.disk.write(&state, None);
        daemon.machine.handle_persisted();
        self.edge_grants(member, state.epoch);
        self.edge_daemon_wakes(life);
    }

    fn edge_grants(&mut self, member: usize, epoch: u64) {
        if (self.edge.epoch, self.edge.current) != (epoch, Some(member)) {
            self.say(|| format!("edge: {} is current in epoch {epoch}", NAMES[member]));
        }
        self.edge.epoch = epoch;
        self.edge.current = Some(member);
        self.check.granted(member, epoch);
        self.edge_sends(member, &Message::Granted { epoch });
        let flows = self.edge.bounds();
        self.edge_sends(member, &Message::Bounds { flows, last: true });
        self.update_taps();
        self.tell_epoch(1 - member);
    }

    fn tell_epoch(&mut self, member: usize) {
        let Some(daemon) = &self.edge.daemon else { return };
        let state = daemon.machine.handle_ask().clone();
        let current = state.current.as_deref().unwrap_or("");
        self.edge_sends(member, &Message::Epoch { epoch: state.epoch, current });
    }

    fn edge_sends(&mut self, member: usize, message: &Message<'_>) {
        let link = self.edge.daemon.as_ref().and_then(|daemon| daemon.links[member]);
        if let Some(pipe) = link {
            self.send(pipe, 1, message);
        }
    }

    /// `EdgeDaemon::reach`: who is heard decides who may run on alone.
    fn reach(&mut self, member: usize, yes: bool) {
        let now = self.now;
        let Some(daemon) = &mut self.edge.daemon else { return };
        if yes {
            daemon.heard_at[member] = now;
            daemon.hearing.handle_received(Nanos(now));
        }
        if daemon.machine.handle_answers(NAMES[member], yes) {
            self.say(|| format!("edge: {} is heard: {yes}", NAMES[member]));
            self.edge_sends(1 - member, &Message::Reach { member: NAMES[member], yes });
        }
    }

    fn edge_beats(&mut self, member: usize) {
        let Some(daemon) = &mut self.edge.daemon else { return };
        daemon.beats += 1;
        let number = daemon.beats;
        let excused = daemon.hearing.excused_until(Nanos(self.now)) > Nanos(self.now);
        let silent = self.now.saturating_sub(daemon.heard_at[member]) > SILENCE && !excused;
        self.edge_sends(member, &Message::Beat { number, echo: 0, executed: 0 });
        if silent {
            self.reach(member, false);
        }
    }

    fn update_taps(&mut self) {
        let Some(daemon) = &self.edge.daemon else { return };
        let current = daemon.machine.handle_ask().current.clone();
        for (member, tap) in self.edge.tap.iter_mut().enumerate() {
            let is_current = current.as_deref() == Some(NAMES[member]);
            *tap = daemon.links[member].is_some() && !is_current;
        }
    }

    fn edge_timers(&mut self, life: u32) {
        let now = self.now;
        let Some(daemon) = &mut self.edge.daemon else { return };
        if now < daemon.beat_at {
            return;
        }
        daemon.beat_at = now + HEARTBEAT;
        (0..2).for_each(|member| self.edge_beats(member));
        self.schedule(HEARTBEAT, Event::EdgeDaemon(life));
        let Some(daemon) = self.edge.daemon.as_mut().filter(|daemon| now >= daemon.age_at) else {
            return;
        };
        daemon.age_at = now + ns(timing::FLOW_AGE_PERIOD);
        let off = daemon.tap_off.iter_mut().any(|at| at.take_if(|at| *at <= now).is_some());
        self.edge.flows.retain(|_, flow| !flow.is_over() || now - flow.seen <= FLOW_AGE);
        self.check.table(now, "edge flows", self.edge.flows(), FLOWS_MAX);
        if off {
            self.update_taps();
        }
    }
}
