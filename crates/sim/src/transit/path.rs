//! A model of an edge's data path, `bpf/transit.bpf.c`, `bpf/recover.h` and
//! `bpf/regulate.h`: which string a packet goes into, what is copied of it, and which window
//! it may advertise. Its maps outlive the daemon.

use super::model::StringWords;
use super::packet::{Packet, Tuple};
use super::plan::{Limits, Mutation, Plan};
use crate::Ns;
use crate::spread::mix;
use holdfast_edge::strings::{SLOTS, Table};
use holdfast_edge::{
    Flows, HalrHost, Intake, Measurement, PfrcConfig, PfrcHost, PfrcSettings, Resend, Slabs, Slot,
};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// Number that stands for no string.
pub const NO_STRING: u16 = 255;
/// Most copies that are handled in one call.
const SHARE: usize = 64;

/// The strings of a flow: the one that it uses, and its first one.
#[derive(Clone, Copy, Debug)]
struct Flow {
    string: usize,
    home: usize,
}

/// What the cache is shown of a packet.
pub struct Copied {
    packet: Packet,
    into: bool,
    way: u16,
    held: bool,
}

/// A packet that the edge's daemon sends itself.
#[derive(Clone, Copy, Debug)]
pub enum Sent {
    /// Resent into a string.
    Into(usize, Packet),
    /// Resent to outside.
    Out(Packet),
    /// A held acknowledgement, sent on to outside.
    Released(Packet),
}

/// The ring of copies, and the packets that the cache sends.
pub struct Copies {
    pub copying: bool,
    ring: VecDeque<Copied>,
    ring_max: usize,
    pub lost: u64,
    /// Until when bare acknowledgements are held; `None`: they are not.
    hold: Option<Ns>,
    pub holds: u64,
    now: Ns,
    /// For each string that cached packets went into, the string into which they are resent.
    pub exits: BTreeMap<u16, usize>,
    pub sent: Vec<Sent>,
    /// Number of packets that could not be resent.
    pub failed: u64,
    sack: BTreeMap<Tuple, bool>,
    /// Mutation: packets that are resent in reverse order.
    behind: Vec<Packet>,
    mutation: Option<Mutation>,
}

/// Flows that are counted and capped.
pub struct Regulated {
    pub flows: Flows<u64>,
    pub queue_bytes: Option<f64>,
    pub cap: Option<u32>,
    mutation: Option<Mutation>,
}

/// The data path; see the module.
pub struct DataPath {
    limits: Limits,
    seed: u64,
    leads: bool,
    return_all: bool,
    strings: usize,
    pub table: Option<Table>,
    flows: BTreeMap<Tuple, Flow>,
    /// Number of packets that came through each string.
    pub traffic: Vec<u64>,
    pub copies: Copies,
    pub regulated: Regulated,
    pub moved: u64,
    turn: usize,
    mutation: Option<Mutation>,
}

impl DataPath {
    pub fn new(plan: &Plan, leads: bool) -> Self {
        let settings = plan.regulate.unwrap_or(PfrcSettings::STANDARD);
        let config = PfrcConfig::shipped(&settings, plan.limits.regulated_max);
        let mutation = plan.mutation;
        let copies = Copies {
            copying: false,
            ring: VecDeque::new(),
            ring_max: plan.limits.ring_max,
            lost: 0,
            hold: None,
            holds: 0,
            now: 0,
            exits: BTreeMap::new(),
            sent: Vec::new(),
            failed: 0,
            sack: BTreeMap::new(),
            behind: Vec::new(),
            mutation,
        };
        let regulated =
            Regulated { flows: Flows::new(&config), queue_bytes: None, cap: None, mutation };
        Self {
            limits: plan.limits,
            seed: plan.seed,
            leads,
            return_all: plan.return_all,
            strings: plan.strings.len(),
            table: None,
            flows: BTreeMap::new(),
            traffic: vec![0; plan.strings.len()],
            copies,
            regulated,
            moved: 0,
            turn: 0,
            mutation,
        }
    }

    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// What is remembered about a flow.
    pub fn words(&self, tuple: &Tuple) -> Option<StringWords> {
        self.flows.get(tuple).map(|&Flow { string, home }| StringWords { string, home })
    }

    fn is_usable(&self, string: usize) -> bool {
        string < self.strings
            && self.table.as_ref().is_some_and(|table| table.usable >> string & 1 == 1)
    }

    fn choose(&self, tuple: Tuple) -> Option<usize> {
        let table = self.table.as_ref()?;
        let name = u64::from(tuple.sender) << 16 | u64::from(tuple.port);
        let string = usize::from(table.slots[(mix(name ^ self.seed) % SLOTS as u64) as usize]);
        if self.is_usable(string) {
            return Some(string);
        }
        (0..self.strings).find(|string| self.is_usable(*string))
    }

    fn start_flow(&mut self, tuple: Tuple, string: usize) {
        if self.flows.len() < self.limits.flows_max {
            self.flows.insert(tuple, Flow { string, home: string });
        }
    }

    fn string_of(&mut self, tuple: Tuple) -> Option<usize> {
        let chosen = self.choose(tuple);
        let goes_home = |flow: &Flow| {
            self.leads && self.return_all && flow.string != flow.home && self.is_usable(flow.home)
        };
        let Some(flow) = self.flows.get(&tuple).copied() else {
            chosen.iter().for_each(|string| self.start_flow(tuple, *string));
            return chosen;
        };
        let string = if goes_home(&flow) {
            flow.home
        } else if self.is_usable(flow.string) {
            return Some(flow.string);
        } else {
            chosen?
        };
        self.moved += 1;
        self.flows.insert(tuple, Flow { string, ..flow });
        Some(string)
    }

    /// Learns from a packet out of a string which string the other edge uses for its flow.
    fn learn(&mut self, tuple: Tuple, string: usize) {
        if !self.is_usable(string) {
            return;
        }
        match self.flows.get(&tuple).copied() {
            None => self.start_flow(tuple, string),
            Some(flow) if flow.string == string => {}
            Some(flow) if self.leads && self.is_usable(flow.string) => {}
            Some(flow) => drop(self.flows.insert(tuple, Flow { string, ..flow })),
        }
    }

    /// Handles a packet from outside; returns the string that it goes into.
    pub fn goes_in(&mut self, now: Ns, packet: &Packet) -> Option<usize> {
        let string = match self.mutation {
            Some(Mutation::Sprays) => {
                self.turn += 1;
                Some(self.turn % self.strings)
            }
            _ => self.string_of(packet.tuple),
        };
        if packet.is_data && string.is_some() {
            if packet.syn {
                self.regulated.flows.forget(packet.key(true));
            }
            if packet.len > 0 || packet.syn {
                self.regulated.flows.handle_data(packet.key(true), packet.bytes() as u32);
            }
        }
        self.copies.see(now, packet, true, string.map_or(NO_STRING, |string| string as u16));
        string
    }

    /// Handles a packet out of a string; returns the packet to be sent on, unless it is held.
    pub fn comes_out(&mut self, now: Ns, packet: &Packet, string: usize) -> Option<Packet> {
        let mut packet = *packet;
        self.learn(packet.tuple, string);
        self.traffic[string] += 1;
        if !packet.is_data && !packet.syn {
            packet.window = self.regulated.window(&packet);
        }
        let held = self.copies.see(now, &packet, false, string as u16);
        (!held).then_some(packet)
    }

    /// Whether a mutation keeps the tables unchanged.
    pub fn is_stubborn(&self) -> bool {
        self.mutation == Some(Mutation::TablesStay)
    }

    /// Whether a mutation makes the table forget that the edge was closed by hand.
    pub fn is_forgetful(&self) -> bool {
        self.mutation == Some(Mutation::ForgetsClosed)
    }
}

impl Regulated {
    fn window(&mut self, packet: &Packet) -> u32 {
        let Packet { ack, window, .. } = *packet;
        match (self.mutation, self.cap) {
            (Some(Mutation::ShrinkWindow), Some(cap)) => window.min(cap),
            (Some(Mutation::NeverCapped), _) => window,
            (Some(Mutation::CapsUnfairly), Some(cap)) if packet.tuple.sender % 2 == 1 => {
                window.min(cap / 3)
            }
            _ => self.flows.handle_ack(packet.key(false), ack, window),
        }
    }
}

impl PfrcHost for Regulated {
    type Error = Infallible;

    fn measured(&mut self) -> Measurement {
        let queue_bytes = self.queue_bytes.take();
        Measurement { queue_bytes, ..self.flows.measured() }
    }

    fn set_window(&mut self, window_bytes: u32) -> Result<(), Infallible> {
        self.cap = Some(window_bytes);
        self.flows.set_window(window_bytes)
    }

    fn uncap(&mut self) -> Result<(), Infallible> {
        self.cap = None;
        self.flows.uncap()
    }
}

impl Copies {
    /// Shows the cache a packet as it leaves the edge; true if it is held.
    fn see(&mut self, now: Ns, packet: &Packet, into: bool, way: u16) -> bool {
        let wants = packet.syn || if into { packet.len > 0 || packet.fin } else { true };
        if !self.copying || !wants {
            return false;
        }
        let held = !into && packet.is_bare_ack() && self.hold.is_some_and(|until| now < until);
        if self.ring.len() >= self.ring_max {
            self.lost += 1;
            return false;
        }
        self.holds += u64::from(held);
        self.ring.push_back(Copied { packet: *packet, into, way, held });
        held
    }

    /// Removes the oldest copy; returns whether it went into a string, and which one.
    pub fn take_shown(&mut self) -> Option<(bool, u16)> {
        self.ring.pop_front().map(|copied| (copied.into, copied.way))
    }

    pub fn is_waiting(&self) -> bool {
        !self.ring.is_empty()
    }

    pub fn set_now(&mut self, now: Ns) {
        self.now = now;
    }

    /// The window of the newest copy, which may be less than its receiver has `offered`.
    pub fn last_window(&self, offered: u32) -> u32 {
        self.ring.back().map_or(offered, |it| it.packet.window)
    }

    pub fn waiting(&self) -> usize {
        self.ring.len()
    }

    /// The daemon dies: held acknowledgements in the ring are lost. Returns their number.
    pub fn daemon_dies(&mut self) -> u64 {
        self.sent.clear();
        let held = self.ring.iter().filter(|it| it.held).count() as u64;
        self.ring.clear();
        held
    }

    pub fn uses_sack(&mut self, tuple: Tuple, yes: bool) {
        self.sack.insert(tuple, yes);
    }
}

impl HalrHost for Copies {
    type Key = u64;
    type PacketStore = Slabs;
    type Held = Packet;
    type Error = Infallible;
    const DRAINS_MAX: usize = 128;

    fn set_copying(&mut self, on: bool) -> Result<(), Infallible> {
        self.copying = on;
        if !on {
            // This also loses held acknowledgements that were not drained, as in reality.
            self.ring.clear();
        }
        Ok(())
    }

    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool {
        for _ in 0..SHARE {
            let Some(Copied { packet, into, way, held }) = self.ring.pop_front() else {
                return true;
            };
            if held {
                intake.hold(packet);
            }
            let sack = self.sack.get(&packet.tuple).copied().unwrap_or(true);
            let passing = packet.passing(into, sack);
            intake.cache.handle_packet(now, packet.key(into), &passing, |slabs| {
                slabs.put(&packet.encode(), way)
            });
            if intake.is_full() {
                return false;
            }
        }
        self.ring.is_empty()
    }

    fn hold(&mut self, at_most_ns: Ns) -> bool {
        self.hold = Some(self.now + at_most_ns);
        true
    }

    fn release(&mut self) {
        self.hold = None;
    }

    fn forward(&mut self, held: Packet) {
        if self.mutation != Some(Mutation::KeepsHeld) {
            self.sent.push(Sent::Released(held));
        }
    }

    fn lost(&mut self) -> u64 {
        self.lost
    }

    fn resend(&mut self, shelf: &Slabs, resend: &Resend<Slot>) {
        let mut packet = Packet::decode(shelf.get(resend.packet));
        if self.mutation == Some(Mutation::ResendsOther) {
            packet.sum ^= 1;
        }
        if self.mutation == Some(Mutation::ResendsLast) {
            // Everything so far is sent again, the last packet first.
            self.behind.push(packet);
            let Some(string) = self.exits.get(&resend.packet.tag) else { return };
            self.sent.clear();
            let all = self.behind.iter().rev();
            self.sent.extend(all.map(|packet| Sent::Into(*string, *packet)));
            return;
        }
        if resend.direction == holdfast_edge::Direction::OutOfCluster {
            return self.sent.push(Sent::Out(packet));
        }
        match self.exits.get(&resend.packet.tag) {
            Some(string) => self.sent.push(Sent::Into(*string, packet)),
            None => self.failed += 1,
        }
    }
}
