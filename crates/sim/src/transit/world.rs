//! The world of a transit group: virtual time, two edges, the strings between them,
//! senders and receivers.

use super::check::{Checkers, Truth};
use super::edge::{Edge, NAMES};
use super::ends::{Receivers, Sender};
use super::packet::Packet;
use super::path::Sent;
use super::plan::{MS, Mutation, Plan};
use super::{Outcome, Reached};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::{Ns, Rng};
use holdfast_edge::Halr;
use holdfast_member::shown::Protection;
use holdfast_member::transit::beat::Beat;

/// Time after the last fault by which all connections must have ended, in ns.
const REST: Ns = 25_000 * MS;
const LOOK_EVERY: Ns = 25 * MS;
/// Most events of a run, more than any run needs.
const EVENTS_MAX: u64 = 3_000_000;
const BEAT_BYTES: u64 = 88;
/// Number of copies in the ring at which the daemon is woken.
const WAKE_AT: usize = 512;
/// Memory that a cache may take beyond its limit, in bytes: chunks of the packet store
/// (`Slabs`), and of the lists.
const SLACK_BYTES: u64 = 512 << 10;

/// What goes through a string.
#[derive(Clone, Copy)]
pub enum Thing {
    Packet(Packet),
    Beat(Beat),
}

pub enum Event {
    Sender(u16),
    /// A packet from outside arrives at this edge.
    AtEdge(usize, Packet),
    /// Something arrives at this edge, out of this string.
    Out(usize, usize, Thing),
    AtSender(Packet),
    AtReceiver(Packet),
    Turns(usize, u32),
    Strikes(usize),
    Ends(usize),
    Looks,
}

/// One direction of a string.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    pub cuts: u32,
    pub loss: u64,
    free_at: Ns,
    /// The last heartbeat that passed, which a middlebox may resend.
    recorded: Option<Beat>,
}

pub struct World {
    pub plan: Plan,
    pub now: Ns,
    pub rng: Rng,
    queue: Queue<Event>,
    trace: Trace,
    pub check: Checkers,
    pub edges: [Edge; 2],
    /// For each string, the direction to the far edge, and the one back.
    pub ways: Vec<[Way; 2]>,
    /// For each string, the number of faults that make a middlebox resend its heartbeats.
    pub replays: Vec<u32>,
    senders: Vec<Sender>,
    wakes: Vec<Option<Ns>>,
    receivers: Receivers,
    pub pending: usize,
    pub faults_over: Ns,
    pub reached: Reached,
    events: u64,
}

impl World {
    pub fn new(plan: Plan, traced: bool) -> Self {
        let sender = |(number, habits): (usize, &super::plan::SenderPlan)| {
            Sender::new(number as u16, *habits, plan.load_until, plan.seed)
        };
        let mut world = Self {
            now: 0,
            rng: Rng::new(plan.seed, 62),
            queue: Queue::default(),
            trace: Trace::new(traced),
            check: Checkers::new(Truth::new(&plan)),
            edges: [Edge::new(0, &plan), Edge::new(1, &plan)],
            ways: vec![[Way::default(); 2]; plan.strings.len()],
            replays: vec![0; plan.strings.len()],
            senders: plan.senders.iter().enumerate().map(sender).collect(),
            wakes: vec![None; plan.senders.len()],
            receivers: Receivers::default(),
            pending: plan.faults.len(),
            faults_over: 0,
            reached: Reached::default(),
            events: 0,
            plan,
        };
        for edge in 0..2 {
            world.edges[edge].starts(0);
            world.turn(edge);
        }
        for (number, (at, _)) in world.plan.faults.clone().iter().enumerate() {
            world.queue.push(*at, Event::Strikes(number));
        }
        for number in 0..world.senders.len() {
            world.wake(number as u16);
        }
        world.schedule(LOOK_EVERY, Event::Looks);
        world
    }

    pub fn run(mut self) -> Outcome {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            self.events += 1;
            if self.is_over() || self.events > EVENTS_MAX {
                break;
            }
            self.handle(event);
        }
        self.finish();
        Outcome {
            seed: self.plan.seed,
            events: self.events,
            virtual_ns: self.now,
            reached: self.reached,
            acked: self.senders.iter().map(|sender| sender.acked).collect(),
            violations: self.check.violations,
            trace: self.trace.into_lines(),
        }
    }

    fn is_over(&self) -> bool {
        let end = self.plan.load_until.max(self.faults_over) + REST;
        let all_done = || self.senders.iter().all(|sender| sender.is_done(self.now));
        self.plan.stops_at.is_some_and(|at| self.now >= at)
            || self.now > end
            || (self.pending == 0 && self.now > self.faults_over + MS && all_done())
    }

    fn finish(&mut self) {
        let now = self.now;
        if self.events > EVENTS_MAX {
            self.check.violation(now, "storm", "more events than any run needs".to_owned());
        }
        self.check.ends(now);
        let carries = self.check.truth.carries_since().is_some_and(|since| now > since + REST / 2);
        for sender in &self.senders {
            if carries && !sender.is_done(now) && self.plan.stops_at.is_none() {
                let what = format!("sender {} hangs", sender.number);
                self.check.violation(now, "liveness", what);
            }
        }
        let sum = |of: fn(&Sender) -> u64| self.senders.iter().map(of).sum::<u64>();
        self.reached.connections = sum(|sender| sender.done);
        self.reached.timeouts = sum(|sender| sender.timeouts);
        self.reached.bytes = self.receivers.received;
        self.reached.moved = self.edges.iter().map(|edge| edge.wire.path.moved).sum();
        self.reached.rejected = self.edges.iter().map(|edge| edge.wire.rejected).sum();
        self.reached.released = self.check.released;
        self.reached.dropped = self.check.dropped;
        self.reached.capped = self.check.capped;
    }

    pub fn schedule(&mut self, delay: Ns, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.add(self.now, line);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sender(number) => self.sender_wakes(number),
            Event::AtEdge(edge, packet) => self.at_edge(edge, &packet),
            Event::Out(edge, string, thing) => self.out_of_string(edge, string, thing),
            Event::AtSender(packet) => {
                let sent = self.senders[usize::from(packet.tuple.sender)].hear(self.now, &packet);
                self.send(packet.tuple.sender, sent);
            }
            Event::AtReceiver(packet) => self.at_receiver(&packet),
            Event::Turns(edge, life) => {
                let it = &self.edges[edge];
                if it.life == life && it.wakes.is_some_and(|at| at <= self.now) {
                    self.turn(edge);
                }
            }
            Event::Strikes(number) => self.strikes(number),
            Event::Ends(number) => self.ends(number),
            Event::Looks => self.looks(),
        }
    }

    // Senders and receivers.

    fn sender_wakes(&mut self, number: u16) {
        let index = usize::from(number);
        if self.wakes[index].is_none_or(|at| at > self.now) {
            return;
        }
        self.wakes[index] = None;
        let sent = self.senders[index].wake(self.now);
        self.send(number, sent);
    }

    fn send(&mut self, number: u16, packets: Vec<Packet>) {
        for packet in packets {
            if packet.syn {
                let sack = self.senders[usize::from(number)].plan.sack;
                self.check.begins(packet.tuple);
                self.edges
                    .iter_mut()
                    .for_each(|it| it.wire.path.copies.uses_sack(packet.tuple, sack));
            }
            self.schedule(self.plan.access, Event::AtEdge(0, packet));
        }
        self.wake(number);
    }

    fn wake(&mut self, number: u16) {
        let index = usize::from(number);
        let Some(due) = self.senders[index].due() else { return };
        let due = due.max(self.now + 1);
        if self.wakes[index].is_none_or(|at| at > due || at <= self.now) {
            self.wakes[index] = Some(due);
            self.queue.push(due, Event::Sender(number));
        }
    }

    fn at_receiver(&mut self, packet: &Packet) {
        let window = self.plan.senders[usize::from(packet.tuple.sender)].window;
        match self.receivers.hear(packet, window) {
            Ok(Some(ack)) => self.schedule(self.plan.access, Event::AtEdge(1, ack)),
            Ok(None) => {}
            Err(what) => self.check.violation(self.now, "bytes", what),
        }
    }

    // Edges.

    /// Handles a packet that arrives at an edge from outside.
    fn at_edge(&mut self, edge: usize, packet: &Packet) {
        if self.edges[edge].frozen.is_some() {
            return;
        }
        let now = self.edges[edge].clock.shows(self.now);
        let path = &mut self.edges[edge].wire.path;
        let string = path.goes_in(now, packet);
        if edge == 0 {
            self.check.comes(self.now, packet, string.is_some());
        }
        if let Some(string) = string {
            if edge == 0 && self.plan.limits.flows_max > 64 {
                let usable = path.table.as_ref().map_or(0, |table| table.usable);
                let is_usable = |string: usize| usable >> string & 1 == 1;
                self.check.goes_into(self.now, packet, string, is_usable, self.plan.return_all);
            }
            self.transmit(edge, string, Thing::Packet(*packet));
        }
        self.look_at_ring(edge);
    }

    fn look_at_ring(&mut self, edge: usize) {
        if self.edges[edge].wire.path.copies.waiting() >= WAKE_AT {
            self.turn(edge);
        }
    }

    /// Handles a packet or a heartbeat that arrives at an edge out of a string.
    fn out_of_string(&mut self, edge: usize, string: usize, thing: Thing) {
        if self.edges[edge].frozen.is_some() {
            return;
        }
        let packet = match thing {
            Thing::Beat(beat) => {
                self.edges[edge].take(string, beat);
                return self.turn(edge);
            }
            Thing::Packet(packet) => packet,
        };
        let now = self.edges[edge].clock.shows(self.now);
        let path = &mut self.edges[edge].wire.path;
        let usable = path.table.as_ref().map_or(0, |table| table.usable);
        if edge == 0 {
            let is_usable = |string: usize| usable >> string & 1 == 1;
            self.check.comes_back(packet.tuple, string, is_usable);
        }
        let before = path.copies.holds;
        let passed = path.comes_out(now, &packet, string);
        let is_held = path.copies.holds > before;
        match passed {
            Some(passed) => self.leaves(edge, &passed, packet.window),
            None if is_held => {
                let mut held = packet;
                held.window = self.edges[edge].wire.path.copies.last_window(packet.window);
                self.check.holds(self.now, edge, &held);
                // Held packets wake the daemon.
                self.turn(edge);
            }
            None => {}
        }
        self.look_at_ring(edge);
    }

    /// Sends a packet from an edge to outside.
    fn leaves(&mut self, edge: usize, packet: &Packet, offered: u32) {
        if edge == 1 {
            return self.schedule(self.plan.access, Event::AtReceiver(*packet));
        }
        let regulated = &self.edges[0].wire.path.regulated;
        let known = regulated.flows.len() < self.plan.limits.regulated_max;
        let cap = regulated.cap.filter(|_| known && regulated.flows.counts().refused == 0);
        self.check.acknowledges(self.now, packet, offered, cap);
        self.schedule(self.plan.access, Event::AtSender(*packet));
    }

    pub fn transmit(&mut self, edge: usize, string: usize, thing: Thing) {
        let plan = self.plan.strings[string];
        let way = &mut self.ways[string][edge];
        if let Thing::Beat(beat) = thing {
            way.recorded = Some(beat);
        }
        let loss = plan.loss_permille + way.loss;
        if way.cuts > 0 || self.rng.below(1000) < loss {
            return;
        }
        let bytes = match thing {
            Thing::Packet(packet) => packet.bytes(),
            Thing::Beat(_) => BEAT_BYTES,
        };
        let begins = way.free_at.max(self.now);
        let waits = (begins - self.now) as u128 * u128::from(plan.bytes_per_s) / 1_000_000_000;
        if waits as u64 + bytes > plan.queue_bytes {
            self.reached.queue_drops += 1;
            return;
        }
        way.free_at = begins + bytes * 1_000_000_000 / plan.bytes_per_s;
        self.queue.push(way.free_at + plan.delay, Event::Out(1 - edge, string, thing));
        if self.replays[string] > 0
            && let (Thing::Beat(_), Some(old)) = (thing, way.recorded)
        {
            self.queue.push(
                way.free_at + plan.delay + MS,
                Event::Out(1 - edge, string, Thing::Beat(old)),
            );
        }
    }

    pub fn turn(&mut self, edge: usize) {
        if self.edges[edge].machine.is_none() || self.edges[edge].frozen.is_some() {
            return;
        }
        self.edges[edge].turn(self.now);
        self.carry(edge);
        self.check_limits(edge);
        let it = &mut self.edges[edge];
        let due = it.deadline().unwrap_or(Ns::MAX).max(self.now + 1000);
        if it.wakes.is_none_or(|at| at > due || at <= self.now) {
            it.wakes = Some(due);
            let life = it.life;
            self.queue.push(due, Event::Turns(edge, life));
        }
    }

    /// Carries out the requests of an edge's machines.
    fn carry(&mut self, edge: usize) {
        for (what, words) in std::mem::take(&mut self.edges[edge].wire.notes) {
            self.say(|| format!("{}: {what}: {words}", NAMES[edge]));
            self.reached.resends += u64::from(what == "resend");
            if what == "declare" && words.ends_with("three heartbeats are missing") {
                let string = words[1..].split(':').next().and_then(|it| it.parse().ok());
                self.check.declared(self.now, edge, string.unwrap_or(0));
                self.reached.declared += 1;
            }
        }
        for (string, beat) in std::mem::take(&mut self.edges[edge].wire.beating) {
            self.transmit(edge, string, Thing::Beat(beat));
        }
        if !std::mem::take(&mut self.edges[edge].wire.resends).is_empty() && edge == 0 {
            self.check.restores(self.now);
        }
        let copies = &mut self.edges[edge].wire.path.copies;
        let (sent, knows) = (std::mem::take(&mut copies.sent), copies.lost == 0);
        for sent in sent {
            self.carry_one(edge, sent, knows);
        }
    }

    fn carry_one(&mut self, edge: usize, sent: Sent, knows: bool) {
        match sent {
            Sent::Into(string, packet) => {
                self.say(|| format!("{}: again into s{string}: {packet:?}", NAMES[edge]));
                self.reached.resent += 1;
                if edge == 0 {
                    self.check.resends(self.now, &packet, knows);
                }
                self.transmit(edge, string, Thing::Packet(packet));
            }
            Sent::Out(packet) if edge == 0 => {
                self.schedule(self.plan.access, Event::AtSender(packet));
            }
            Sent::Out(packet) => self.schedule(self.plan.access, Event::AtReceiver(packet)),
            Sent::Released(packet) => {
                let late = self.edges[edge].was_frozen;
                self.check.releases(self.now, edge, &packet, late);
                self.leaves(edge, &packet, packet.window);
            }
        }
    }

    fn check_limits(&mut self, edge: usize) {
        let (limits, wire) = (self.plan.limits, &self.edges[edge].wire);
        let flows = (wire.path.flows(), limits.flows_max);
        let capped = (wire.path.regulated.flows.len(), limits.regulated_max);
        let ring = (wire.path.copies.waiting(), limits.ring_max);
        let kept = wire.halr.as_ref().map(Halr::cache).map_or((0, 0), |cache| {
            (cache.flows(), cache.memory_bytes() + cache.shelf().memory_bytes())
        });
        let memory = limits.cache.memory_bytes + SLACK_BYTES;
        for (name, (used, most)) in [
            ("flows", flows),
            ("flows that are capped", capped),
            ("copies", ring),
            ("flows in the cache", (kept.0, limits.cache.flows_max)),
            ("bytes of the cache", (kept.1, memory as usize)),
        ] {
            self.check.limit(self.now, name, used, most);
        }
    }

    fn looks(&mut self) {
        self.schedule(LOOK_EVERY, Event::Looks);
        for number in 0..2 {
            let edge = &self.edges[number];
            let Some(machine) = edge.machine.as_ref().filter(|_| edge.frozen.is_none()) else {
                continue;
            };
            self.check.by_hand(self.now, number, edge.is_ordered_closed, machine.is_closed());
            if machine.is_closed() {
                continue;
            }
            let usable = edge.wire.path.table.as_ref().map_or(0, |table| table.usable);
            let shown = match self.plan.mutation {
                Some(Mutation::ShowsProtected) => Protection::Protected,
                _ => machine.shown().protection,
            };
            self.check.look(self.now, number, usable, shown);
        }
    }
}
