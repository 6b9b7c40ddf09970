//! The event loop. In the steady state nothing is allocated: packets are in a slab, events in the
//! wheel, and a hop is one event.

mod fetch;
mod outages;

use super::link::Link;
use super::outcome::{
    BINS_MAX, FlowOutcome, OVERFLOWS_MAX, Outcome, QUEUE_BIN_NS, QueueOutcome, Tap,
};
use super::packet::{Packet, Slab};
use super::route::{Goes, Routes, Step};
use super::scenario::{CutAt, Hop, Scenario, ScenarioError};
use super::switch::Switch;
use super::wheel::Wheel;
use crate::tcp::{Receiver, Sender};
use crate::{Ns, Rng};

/// An event.
#[derive(Clone, Copy)]
enum Event {
    /// The first packet of a link comes out.
    Exit(u32),
    SenderTimer(u32),
    ReceiverTimer(u32),
    Start(u32),
    OutageBegins(u32),
    OutageEnds(u32),
    /// An edge suspects an outage because of missing heartbeats; outages of the first switch have
    /// lower numbers than those of the second.
    Suspects(u32),
    /// An edge learns by a heartbeat that there is a path again.
    Restored(u32),
    SwitchTimer(u32),
}

/// The sending end of a flow; the fields that its acknowledgements touch come first.
#[repr(C, align(64))]
struct Source {
    /// Time for which a timer event is scheduled; a later deadline waits for that event.
    armed: Ns,
    profile: u32,
    /// Place in the routes where the data's steps begin.
    route: u32,
    sender: Sender,
    connected_ns: Ns,
    finished_ns: Ns,
}

/// The receiving end of a flow, two cache lines that are fetched together.
#[repr(align(128))]
struct Sink {
    armed: Ns,
    profile: u32,
    /// Place in the routes where the steps of the acknowledgements begin.
    route: u32,
    segments: u32,
    received_ns: Ns,
    receiver: Receiver,
}

const _: () = assert!(size_of::<Sink>() == 128);

/// The part of a flow that its packets do not need.
struct Flow {
    path: u32,
    wish: Option<u32>,
    moved: bool,
    start_ns: Ns,
}

/// Time of something that never happens, in ns.
const NEVER: Ns = Ns::MAX;

/// A running simulation.
pub struct Network<'a> {
    scenario: &'a Scenario,
    now: Ns,
    wheel: Wheel<Event>,
    packets: Slab,
    links: Vec<Link>,
    routes: Routes,
    cut: Vec<CutAt>,
    switches: Vec<Switch>,
    flows: Vec<Flow>,
    sources: Vec<Source>,
    sinks: Vec<Sink>,
    /// The string of each flow.
    strings: Vec<u32>,
    /// The first step of each flow's data, and of its acknowledgements.
    departures: Vec<[Step; 2]>,
    outcome: Outcome,
    tap: Option<&'a mut dyn Tap>,
    /// Whether the simulation does not fit into a processor's cache, so that what comes next is
    /// prefetched.
    is_large: bool,
}

/// Number of flows above which a simulation is large.
const SMALL_FLOWS_MAX: usize = 500;

impl<'a> Network<'a> {
    /// Builds what a scenario describes.
    ///
    /// # Errors
    /// When the scenario names something that it does not define.
    pub fn new(scenario: &'a Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let queue = |link: &u32| QueueOutcome { link: *link, ..QueueOutcome::default() };
        let outcome = Outcome {
            queues: scenario.watch.queues.iter().map(queue).collect(),
            ..Outcome::default()
        };
        let link = |(index, spec)| {
            let rng = Rng::new(scenario.seed, index as u64 + 1);
            Link::new(spec, rng, scenario.watch.queues.contains(&(index as u32)))
        };
        let count = scenario.flows.len();
        let mut network = Self {
            scenario,
            now: 0,
            wheel: Wheel::default(),
            packets: Slab::default(),
            links: scenario.links.iter().enumerate().map(link).collect(),
            routes: Routes::new(scenario),
            cut: vec![CutAt::BothEnds; scenario.links.len()],
            switches: scenario.switches.iter().map(Switch::new).collect(),
            flows: Vec::with_capacity(count),
            sources: Vec::with_capacity(count),
            sinks: Vec::with_capacity(count),
            strings: vec![0; count],
            departures: Vec::with_capacity(count),
            outcome,
            tap: None,
            is_large: count > SMALL_FLOWS_MAX,
        };
        if network.is_large {
            network.wheel.look_ahead(fetch::AHEAD);
        }
        network.schedule();
        Ok(network)
    }

    fn schedule(&mut self) {
        for (index, spec) in self.scenario.flows.iter().enumerate() {
            let profile = &self.scenario.profiles[spec.profile as usize];
            let [data, answers] = self.routes.begins(spec.path);
            self.departures.push([data, answers].map(|place| self.routes.at(place)));
            self.sources.push(Source {
                armed: NEVER,
                profile: spec.profile,
                route: data,
                connected_ns: NEVER,
                finished_ns: NEVER,
                sender: Sender::new(profile, spec.segments),
            });
            self.sinks.push(Sink {
                armed: NEVER,
                profile: spec.profile,
                route: answers,
                segments: spec.segments,
                received_ns: NEVER,
                receiver: Receiver::default(),
            });
            self.flows.push(Flow {
                path: spec.path,
                wish: spec.string,
                moved: false,
                start_ns: spec.start_ns,
            });
            self.wheel.push(spec.start_ns, Event::Start(index as u32));
        }
        for (index, outage) in self.scenario.outages.iter().enumerate() {
            self.wheel.push(outage.from_ns, Event::OutageBegins(index as u32));
            self.wheel.push(outage.until_ns, Event::OutageEnds(index as u32));
        }
        self.schedule_heartbeats();
        if self.scenario.watch.bin_ns.is_some() || !self.scenario.watch.windows.is_empty() {
            self.outcome.flows = vec![FlowOutcome::default(); self.flows.len()];
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
            if self.is_large {
                self.fetch();
            }
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
            Event::Suspects(doubt) => self.suspects(doubt),
            Event::Restored(doubt) => self.restored(doubt),
            Event::SwitchTimer(switch) => self.switch_timer(switch),
        }
    }

    fn start(&mut self, index: u32) {
        let scenario = self.scenario;
        let flow = &self.flows[index as usize];
        let path = &scenario.paths[flow.path as usize];
        let through = path.forward.iter().find_map(|hop| match hop {
            Hop::String { switch, .. } => Some(*switch),
            _ => None,
        });
        if let Some(switch) = through {
            self.strings[index as usize] = self.switches[switch as usize].assign(flow.wish);
        }
        self.sources[index as usize].sender.start();
        self.drain_sender(index);
    }

    // --- packets -----------------------------------------------------------

    /// Sends a packet on from its place in its route.
    fn send(&mut self, packet: &Packet) {
        let number = self.packets.insert(packet);
        self.forward(number, packet.hop, self.routes.at(packet.hop));
    }

    /// Lets a packet take the step of its route at `place`.
    #[inline]
    fn forward(&mut self, number: u32, place: u32, step: Step) {
        let (mut place, mut step) = (place, step);
        let link = loop {
            match step.goes() {
                Goes::Link(link) => break link,
                Goes::String(row) => {
                    let string = self.strings[self.packets.flow(number) as usize];
                    break self.routes.link(row, string);
                }
                Goes::Edge(switch) => {
                    place += 1;
                    step = self.routes.at(place);
                    if !self.pass_edge(switch, number, place) {
                        return;
                    }
                }
                Goes::End => {
                    let packet = self.packets.remove(number);
                    return self.deliver(&packet);
                }
            }
        };
        self.packets.set_place(number, place, self.routes.at(place + 1));
        self.enter(link, number);
    }

    /// Lets a packet pass an edge; returns whether it goes on.
    fn pass_edge(&mut self, index: u32, number: u32, behind: u32) -> bool {
        let mut packet = Packet { hop: behind, ..self.packets.get(number) };
        let flow = &self.scenario.flows[packet.flow as usize];
        let profile = &self.scenario.profiles[flow.profile as usize];
        let bytes = profile.mss_bytes + profile.header_bytes;
        let switch = &mut self.switches[index as usize];
        let goes_on = switch.pass(self.now, &mut packet, profile.sack, bytes);
        if switch.is_resending() {
            self.transmit(index as usize);
            self.arm_switches();
        }
        if goes_on {
            self.packets.set_window(number, packet.window);
        } else {
            self.packets.remove(number);
        }
        goes_on
    }

    #[inline]
    fn enter(&mut self, index: u32, number: u32) {
        let at = index as usize;
        let link = &mut self.links[at];
        let cut = link.down > 0 && self.cut[at] == CutAt::BothEnds;
        let exit = if cut {
            link.count_cut();
            None
        } else {
            link.offer(self.now, self.packets.bytes(number))
        };
        if let Some(tap) = &mut self.tap {
            tap.packet(self.now, index, &self.packets.get(number), exit.is_none());
        }
        let is_watched = link.is_watched;
        match exit {
            Some(exit) if link.carry(exit, number, &mut self.packets) => {
                self.wheel.push(exit, Event::Exit(index));
            }
            Some(_) => {}
            None => drop(self.packets.remove(number)),
        }
        if is_watched {
            self.watch_queue(at, cut || exit.is_some());
        }
    }

    #[inline]
    fn exit(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        let (number, next) = link.release(&self.packets);
        if let Some(next) = next {
            self.wheel.push(next, Event::Exit(index));
            if self.is_large {
                self.fetch_first(index, next - self.now);
            }
        }
        let link = &mut self.links[index as usize];
        if link.down > 0 {
            link.count_cut();
            self.packets.remove(number);
            return;
        }
        link.count_passed();
        self.outcome.hops += 1;
        let (place, then) = self.packets.place(number);
        self.forward(number, place + 1, then);
    }

    fn deliver(&mut self, packet: &Packet) {
        if packet.is_forward() { self.deliver_data(packet) } else { self.deliver_ack(packet) }
    }

    #[inline]
    fn deliver_data(&mut self, packet: &Packet) {
        let scenario = self.scenario;
        let sink = &mut self.sinks[packet.flow as usize];
        let profile = &scenario.profiles[sink.profile as usize];
        let received = sink.receiver.handle_packet(self.now, profile, packet);
        if sink.receiver.rcv_nxt() > sink.segments && sink.received_ns == NEVER {
            sink.received_ns = self.now;
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
        let source = &mut self.sources[packet.flow as usize];
        let profile = &self.scenario.profiles[source.profile as usize];
        source.sender.handle_ack(self.now, profile, packet);
        if source.connected_ns == NEVER && source.sender.is_connected() {
            source.connected_ns = self.now;
        }
        if source.finished_ns == NEVER && source.sender.is_done() {
            source.finished_ns = self.now;
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
            let source = &mut self.sources[index as usize];
            let profile = &scenario.profiles[source.profile as usize];
            let Some(segment) = source.sender.poll_transmit(self.now, profile) else {
                break;
            };
            let hop = source.route;
            self.send(&Packet { hop, ..segment.packet(self.now, profile, index) });
        }
        if scenario.watch.windows.contains(&index) {
            self.watch_window(index);
        }
        let source = &mut self.sources[index as usize];
        let deadline = source.sender.poll_timeout().unwrap_or(NEVER);
        if deadline < source.armed {
            source.armed = deadline;
            self.wheel.push(deadline, Event::SenderTimer(index));
        }
    }

    fn sender_timer(&mut self, index: u32) {
        let source = &mut self.sources[index as usize];
        if source.armed != self.now {
            return;
        }
        source.armed = NEVER;
        let profile = &self.scenario.profiles[source.profile as usize];
        source.sender.handle_timeout(self.now, profile);
        self.drain_sender(index);
    }

    #[inline]
    fn drain_receiver(&mut self, index: u32) {
        let scenario = self.scenario;
        let sink = &mut self.sinks[index as usize];
        let profile = &scenario.profiles[sink.profile as usize];
        let packet = sink.receiver.poll_transmit(self.now, profile);
        let deadline = sink.receiver.poll_timeout().unwrap_or(NEVER);
        let hop = sink.route;
        if deadline < sink.armed {
            sink.armed = deadline;
            self.wheel.push(deadline, Event::ReceiverTimer(index));
        }
        if let Some(packet) = packet {
            self.send(&Packet { flow: index, hop, ..packet });
        }
    }

    fn receiver_timer(&mut self, index: u32) {
        let sink = &mut self.sinks[index as usize];
        if sink.armed != self.now {
            return;
        }
        sink.armed = NEVER;
        sink.receiver.handle_timeout(self.now);
        self.drain_receiver(index);
    }

    // --- measurements ------------------------------------------------------

    fn watch_queue(&mut self, link: usize, taken: bool) {
        let waiting = self.links[link].waiting(self.now) as u32;
        let mut queues = self.outcome.queues.iter_mut().rev();
        let Some(queue) = queues.find(|it| it.link as usize == link) else {
            return;
        };
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
        let sender = &self.sources[index as usize].sender;
        let (cwnd, ssthresh) = sender.window();
        let FlowOutcome { windows, round_trips, .. } = &mut self.outcome.flows[index as usize];
        let is_new = windows.last().is_none_or(|last| (last.1, last.2) != (cwnd, ssthresh));
        if is_new && windows.len() < BINS_MAX {
            windows.push((self.now, cwnd, ssthresh));
        }
        if let Some(srtt) = sender.smoothed_round_trip()
            && round_trips.last().is_none_or(|last| last.1 != srtt)
            && round_trips.len() < BINS_MAX
        {
            round_trips.push((self.now, srtt));
        }
    }

    fn finish(mut self) -> Outcome {
        let some = |at: Ns| (at != NEVER).then_some(at);
        self.outcome.flows.resize_with(self.flows.len(), FlowOutcome::default);
        let ends = self.sources.iter().zip(&self.sinks);
        let flows = self.flows.iter().zip(ends);
        for ((flow, (source, sink)), outcome) in flows.zip(&mut self.outcome.flows) {
            outcome.start_ns = flow.start_ns;
            outcome.connected_ns = some(source.connected_ns);
            outcome.received_ns = some(sink.received_ns);
            outcome.finished_ns = some(source.finished_ns);
            outcome.counts = source.sender.counts();
            outcome.moved = flow.moved;
        }
        self.outcome.links = self.links.iter().map(Link::counts).collect();
        self.outcome.recovery = self.switches.iter().filter_map(Switch::recovered).collect();
        self.outcome.rate_control = self.switches.iter().filter_map(Switch::regulated).collect();
        self.outcome.ended_ns = self.now;
        self.outcome
    }
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
