//! The event loop. In the steady state nothing is allocated: packets live in a
//! slab, events in the wheel, and a hop is one event.

use super::link::Link;
use super::outcome::{
    BINS_MAX, FlowOutcome, OVERFLOWS_MAX, Outcome, QUEUE_BIN_NS, QueueOutcome, Tap,
};
use super::packet::{Packet, Slab};
use super::scenario::{CutAt, Hop, Scenario, ScenarioError};
use super::switch::Switch;
use super::wheel::Wheel;
use crate::tcp::{Receiver, Sender};
use crate::{Ns, Rng};

/// What happens.
#[derive(Clone, Copy)]
enum Event {
    /// The first packet of a link comes out.
    Exit(u32),
    SenderTimer(u32),
    ReceiverTimer(u32),
    Start(u32),
    OutageBegins(u32),
    OutageEnds(u32),
    SwitchTimer(u32),
}

/// A flow's endpoints and what is known of it.
struct Flow {
    sender: Sender,
    receiver: Receiver,
    profile: u32,
    path: u32,
    /// Where its data's hops begin, and those of the answers.
    route: [u32; 2],
    string: u32,
    wish: Option<u32>,
    segments: u32,
    moved: bool,
    /// When timers are scheduled; a later deadline waits for the earlier event.
    sender_armed: Ns,
    receiver_armed: Ns,
    start_ns: Ns,
    connected_ns: Ns,
    received_ns: Ns,
    finished_ns: Ns,
}

/// No time.
const NEVER: Ns = Ns::MAX;

/// A simulation that runs.
pub struct Network<'a> {
    scenario: &'a Scenario,
    now: Ns,
    wheel: Wheel<Event>,
    packets: Slab,
    links: Vec<Link>,
    /// All paths, one behind the other, each direction with `None` at its end.
    hops: Vec<Option<Hop>>,
    cut: Vec<CutAt>,
    switches: Vec<Switch>,
    flows: Vec<Flow>,
    watched: Vec<Option<u32>>,
    outcome: Outcome,
    tap: Option<&'a mut dyn Tap>,
}

impl<'a> Network<'a> {
    /// Builds what a scenario describes.
    ///
    /// # Errors
    /// When the scenario names what is not there.
    pub fn new(scenario: &'a Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let link = |(index, spec)| Link::new(spec, Rng::new(scenario.seed, index as u64 + 1));
        let mut network = Self {
            scenario,
            now: 0,
            wheel: Wheel::default(),
            packets: Slab::default(),
            links: scenario.links.iter().enumerate().map(link).collect(),
            hops: Vec::new(),
            cut: vec![CutAt::BothEnds; scenario.links.len()],
            switches: scenario.switches.iter().map(Switch::new).collect(),
            flows: Vec::with_capacity(scenario.flows.len()),
            watched: vec![None; scenario.links.len()],
            outcome: Outcome::default(),
            tap: None,
        };
        network.outcome.flows = vec![FlowOutcome::default(); scenario.flows.len()];
        network.schedule();
        Ok(network)
    }

    fn schedule(&mut self) {
        for (number, link) in self.scenario.watch.queues.iter().enumerate() {
            self.watched[*link as usize] = Some(number as u32);
            self.links[*link as usize].count_waiting();
            self.outcome.queues.push(QueueOutcome { link: *link, ..QueueOutcome::default() });
        }
        let mut routes = Vec::with_capacity(self.scenario.paths.len());
        for path in &self.scenario.paths {
            let begins = [&path.forward, &path.back].map(|hops| {
                let begin = self.hops.len() as u32;
                self.hops.extend(hops.iter().copied().map(Some).chain([None]));
                begin
            });
            routes.push(begins);
        }
        for (index, spec) in self.scenario.flows.iter().enumerate() {
            let profile = &self.scenario.profiles[spec.profile as usize];
            self.flows.push(Flow {
                sender: Sender::new(profile, spec.segments),
                receiver: Receiver::default(),
                profile: spec.profile,
                path: spec.path,
                route: routes[spec.path as usize],
                string: 0,
                wish: spec.string,
                segments: spec.segments,
                moved: false,
                sender_armed: NEVER,
                receiver_armed: NEVER,
                start_ns: spec.start_ns,
                connected_ns: NEVER,
                received_ns: NEVER,
                finished_ns: NEVER,
            });
            self.wheel.push(spec.start_ns, Event::Start(index as u32));
        }
        for (index, outage) in self.scenario.outages.iter().enumerate() {
            self.wheel.push(outage.from_ns, Event::OutageBegins(index as u32));
            self.wheel.push(outage.until_ns, Event::OutageEnds(index as u32));
        }
    }

    /// Shows every packet to `tap`.
    #[must_use]
    pub fn with_tap(mut self, tap: &'a mut dyn Tap) -> Self {
        self.tap = Some(tap);
        self
    }

    /// Runs until nothing is left to happen, or the scenario's end.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while let Some((at, event)) = self.wheel.pop() {
            if at > self.scenario.end_ns {
                break;
            }
            self.now = at;
            self.outcome.events += 1;
            self.handle(event);
        }
        self.finish()
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Exit(link) => self.exit(link),
            Event::SenderTimer(flow) => self.sender_timer(flow),
            Event::ReceiverTimer(flow) => self.receiver_timer(flow),
            Event::Start(flow) => self.start(flow),
            Event::OutageBegins(outage) => self.outage_begins(outage),
            Event::OutageEnds(outage) => self.outage_ends(outage),
            Event::SwitchTimer(switch) => self.switch_timer(switch),
        }
    }

    fn start(&mut self, index: u32) {
        let scenario = self.scenario;
        let flow = &mut self.flows[index as usize];
        let path = &scenario.paths[flow.path as usize];
        let through = path.forward.iter().find_map(|hop| match hop {
            Hop::String { switch, .. } => Some(*switch),
            _ => None,
        });
        if let Some(switch) = through {
            flow.string = self.switches[switch as usize].assign(flow.wish);
        }
        flow.sender.start();
        self.drain_sender(index);
    }

    // --- packets -----------------------------------------------------------

    /// Sends a packet of an endpoint.
    fn send(&mut self, packet: Packet) {
        let [data, answers] = self.flows[packet.flow as usize].route;
        let hop = if packet.is_forward() { data } else { answers };
        let number = self.packets.insert(Packet { hop, ..packet });
        self.forward(number);
    }

    /// Sends a packet on from its hop.
    #[inline]
    fn forward(&mut self, number: u32) {
        loop {
            let packet = self.packets.get_mut(number);
            let Some(hop) = self.hops[packet.hop as usize] else {
                let packet = self.packets.remove(number);
                return self.deliver(&packet);
            };
            let link = match hop {
                Hop::Link(link) => link,
                Hop::String { switch, stage, forward } => {
                    let string = self.flows[packet.flow as usize].string;
                    self.switches[switch as usize].link(string, stage, forward)
                }
                Hop::Edge(switch) => {
                    packet.hop += 1;
                    let flow = &self.flows[packet.flow as usize];
                    let profile = &self.scenario.profiles[flow.profile as usize];
                    let bytes = profile.mss_bytes + profile.header_bytes;
                    self.switches[switch as usize].pass(self.now, packet, profile.sack, bytes);
                    continue;
                }
            };
            return self.enter(link, number);
        }
    }

    #[inline]
    fn enter(&mut self, index: u32, number: u32) {
        let at = index as usize;
        let link = &mut self.links[at];
        let packet = self.packets.get_mut(number);
        let cut = link.down > 0 && self.cut[at] == CutAt::BothEnds;
        let exit = if cut {
            link.count_cut();
            None
        } else {
            link.offer(self.now, u32::from(packet.bytes))
        };
        if let Some(tap) = &mut self.tap {
            tap.packet(self.now, index, packet, exit.is_none());
        }
        match exit {
            Some(exit) if link.carry(exit, number, &mut self.packets) => {
                self.wheel.push(exit, Event::Exit(index));
            }
            Some(_) => {}
            None => drop(self.packets.remove(number)),
        }
        if let Some(queue) = self.watched[at] {
            self.watch_queue(queue, at, cut || exit.is_some());
        }
    }

    #[inline]
    fn exit(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        let (number, next) = link.release(&mut self.packets);
        if let Some(next) = next {
            self.wheel.push(next, Event::Exit(index));
        }
        if link.down > 0 {
            link.count_cut();
            self.packets.remove(number);
            return;
        }
        link.count_passed();
        self.outcome.hops += 1;
        self.packets.get_mut(number).hop += 1;
        self.forward(number);
    }

    fn deliver(&mut self, packet: &Packet) {
        if packet.is_forward() { self.deliver_data(packet) } else { self.deliver_ack(packet) }
    }

    #[inline]
    fn deliver_data(&mut self, packet: &Packet) {
        let scenario = self.scenario;
        let flow = &mut self.flows[packet.flow as usize];
        let profile = &scenario.profiles[flow.profile as usize];
        let received = flow.receiver.handle_packet(self.now, profile, packet);
        if flow.receiver.rcv_nxt() > flow.segments && flow.received_ns == NEVER {
            flow.received_ns = self.now;
        }
        if let Some(bin_ns) = scenario.watch.bin_ns {
            let segments = if scenario.watch.in_order { received.in_order } else { received.fresh };
            let bins = &mut self.outcome.flows[packet.flow as usize].bins;
            add(bins, self.now / bin_ns.max(1), segments * profile.mss_bytes);
        }
        self.drain_receiver(packet.flow);
    }

    #[inline]
    fn deliver_ack(&mut self, packet: &Packet) {
        let flow = &mut self.flows[packet.flow as usize];
        let profile = &self.scenario.profiles[flow.profile as usize];
        flow.sender.handle_ack(self.now, profile, packet);
        if flow.connected_ns == NEVER && flow.sender.is_connected() {
            flow.connected_ns = self.now;
        }
        if flow.finished_ns == NEVER && flow.sender.is_done() {
            flow.finished_ns = self.now;
            for switch in &mut self.switches {
                switch.forget(packet.flow);
            }
        }
        self.drain_sender(packet.flow);
    }

    // --- endpoints ---------------------------------------------------------

    #[inline]
    fn drain_sender(&mut self, index: u32) {
        let scenario = self.scenario;
        loop {
            let flow = &mut self.flows[index as usize];
            let profile = &scenario.profiles[flow.profile as usize];
            let Some(segment) = flow.sender.poll_transmit(self.now, profile) else {
                break;
            };
            let packet = segment.packet(self.now, profile, index);
            self.send(packet);
        }
        if scenario.watch.windows {
            self.watch_window(index);
        }
        let flow = &mut self.flows[index as usize];
        let deadline = flow.sender.poll_timeout().unwrap_or(NEVER);
        if deadline < flow.sender_armed {
            flow.sender_armed = deadline;
            self.wheel.push(deadline, Event::SenderTimer(index));
        }
    }

    fn sender_timer(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if flow.sender_armed != self.now {
            return;
        }
        flow.sender_armed = NEVER;
        let profile = &self.scenario.profiles[flow.profile as usize];
        flow.sender.handle_timeout(self.now, profile);
        self.drain_sender(index);
    }

    #[inline]
    fn drain_receiver(&mut self, index: u32) {
        let scenario = self.scenario;
        let flow = &mut self.flows[index as usize];
        let profile = &scenario.profiles[flow.profile as usize];
        let packet = flow.receiver.poll_transmit(self.now, profile);
        let deadline = flow.receiver.poll_timeout().unwrap_or(NEVER);
        if deadline < flow.receiver_armed {
            flow.receiver_armed = deadline;
            self.wheel.push(deadline, Event::ReceiverTimer(index));
        }
        if let Some(packet) = packet {
            self.send(Packet { flow: index, ..packet });
        }
    }

    fn receiver_timer(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if flow.receiver_armed != self.now {
            return;
        }
        flow.receiver_armed = NEVER;
        flow.receiver.handle_timeout(self.now);
        self.drain_receiver(index);
    }

    // --- outages and the edge ----------------------------------------------

    fn outage_links(&self, index: u32) -> Vec<u32> {
        let outage = &self.scenario.outages[index as usize];
        let mut links = outage.links.clone();
        if let Some((switch, string)) = outage.string {
            let string = &self.scenario.switches[switch as usize].strings[string as usize];
            links.extend(string.forward.iter().chain(&string.back));
        }
        links
    }

    fn outage_begins(&mut self, index: u32) {
        let outage = &self.scenario.outages[index as usize];
        for link in self.outage_links(index) {
            self.links[link as usize].down += 1;
            self.cut[link as usize] = outage.cut;
        }
        for (number, switch) in self.switches.iter_mut().enumerate() {
            if let Some((_, string)) = outage.string.filter(|it| it.0 as usize == number) {
                switch.set_up(string, false);
            }
            // The alert reaches the rate control at once (thesis §6.2).
            if let Some(control) = &mut switch.rate_control {
                control.handle_failure(self.now);
            }
        }
        if let Some((switch, string)) = outage.string {
            for flow in &mut self.flows {
                let active = flow.start_ns <= self.now && flow.finished_ns == NEVER;
                flow.moved |=
                    active && flow.string == string && crosses(self.scenario, flow.path, switch);
            }
        }
        self.arm_switches();
    }

    fn outage_ends(&mut self, index: u32) {
        let outage = &self.scenario.outages[index as usize];
        match outage.string {
            Some((switch, string)) if outage.moves_flows => self.move_flows(switch, string),
            _ => self.restore(index),
        }
        for number in 0..self.switches.len() {
            if let Some(recovery) = &mut self.switches[number].recovery {
                recovery.handle_restored(self.now);
            }
            self.resend(number);
        }
        self.arm_switches();
    }

    fn restore(&mut self, index: u32) {
        for link in self.outage_links(index) {
            self.links[link as usize].down -= 1;
        }
        if let Some((switch, string)) = self.scenario.outages[index as usize].string {
            self.switches[switch as usize].set_up(string, true);
        }
        for switch in &mut self.switches {
            if let Some(control) = &mut switch.rate_control {
                control.handle_repair();
            }
        }
    }

    fn move_flows(&mut self, switch: u32, string: u32) {
        for flow in &mut self.flows {
            let affected = flow.start_ns <= self.now
                && flow.string == string
                && flow.finished_ns == NEVER
                && crosses(self.scenario, flow.path, switch);
            if affected {
                flow.string = self.switches[switch as usize].assign(None);
            }
        }
    }

    fn switch_timer(&mut self, index: u32) {
        let switch = &mut self.switches[index as usize];
        if switch.armed != Some(self.now) {
            return;
        }
        switch.armed = None;
        if let Some(control) = &mut switch.rate_control {
            control.handle_timeout(self.now);
        }
        self.resend(index as usize);
        self.arm_switches();
    }

    fn resend(&mut self, number: usize) {
        while let Some(recovery) = &mut self.switches[number].recovery {
            let Some(resend) = recovery.poll_resend(self.now) else {
                return;
            };
            // It was kept behind the edge's place on its path.
            let number = self.packets.insert(resend.packet);
            self.forward(number);
        }
    }

    fn arm_switches(&mut self) {
        for (number, switch) in self.switches.iter_mut().enumerate() {
            let Some(at) = switch.poll_timeout() else {
                continue;
            };
            // A controller that nobody needs any more must not keep the run alive.
            if at <= self.scenario.end_ns && switch.armed.is_none_or(|armed| at < armed) {
                switch.armed = Some(at.max(self.now));
                self.wheel.push(at, Event::SwitchTimer(number as u32));
            }
        }
    }

    // --- measurements ------------------------------------------------------

    fn watch_queue(&mut self, number: u32, link: usize, taken: bool) {
        let waiting = self.links[link].waiting(self.now) as u32;
        let queue = &mut self.outcome.queues[number as usize];
        let bin = (self.now / QUEUE_BIN_NS) as usize;
        if bin < BINS_MAX {
            if bin >= queue.bins.len() {
                queue.bins.resize(bin + 1, 0);
            }
            queue.bins[bin] = queue.bins[bin].max(waiting);
        }
        if !taken && queue.overflows.len() < OVERFLOWS_MAX {
            queue.overflows.push(self.now);
        }
    }

    fn watch_window(&mut self, index: u32) {
        let (cwnd, ssthresh) = self.flows[index as usize].sender.window();
        let windows = &mut self.outcome.flows[index as usize].windows;
        let is_new = windows.last().is_none_or(|last| (last.1, last.2) != (cwnd, ssthresh));
        if is_new && windows.len() < BINS_MAX {
            windows.push((self.now, cwnd, ssthresh));
        }
    }

    fn finish(mut self) -> Outcome {
        let some = |at: Ns| (at != NEVER).then_some(at);
        for (flow, outcome) in self.flows.iter().zip(&mut self.outcome.flows) {
            outcome.start_ns = flow.start_ns;
            outcome.connected_ns = some(flow.connected_ns);
            outcome.received_ns = some(flow.received_ns);
            outcome.finished_ns = some(flow.finished_ns);
            outcome.counts = flow.sender.counts();
            outcome.moved = flow.moved;
        }
        self.outcome.links = self.links.iter().map(Link::counts).collect();
        let machines = &self.switches;
        self.outcome.recovery =
            machines.iter().filter_map(|it| it.recovery.as_ref()).map(|it| it.counts()).collect();
        self.outcome.rate_control = machines
            .iter()
            .filter_map(|it| it.rate_control.as_ref())
            .map(|it| it.counts())
            .collect();
        self.outcome.ended_ns = self.now;
        self.outcome
    }
}

fn crosses(scenario: &Scenario, path: u32, switch: u32) -> bool {
    let through = |hop: &Hop| matches!(hop, Hop::String { switch: it, .. } if *it == switch);
    scenario.paths[path as usize].forward.iter().any(through)
}

/// Adds to a bin of a series that grows as time passes.
fn add(bins: &mut Vec<u32>, bin: u64, bytes: u32) {
    if bytes == 0 || bin >= BINS_MAX as u64 {
        return;
    }
    if bin as usize >= bins.len() {
        bins.resize(bin as usize + 1, 0);
    }
    bins[bin as usize] = bins[bin as usize].saturating_add(bytes);
}
