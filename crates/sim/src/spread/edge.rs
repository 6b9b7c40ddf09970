//! The edge: the host of the machine that hears host servers, with the state that outlives
//! the daemon in the kernel. It makes no decisions.

use super::cache::{self, Copies};
use super::packet::Packet;
use super::plan::{Mutation, Plan};
use super::redirector::Redirector;
use crate::Ns;
use crate::clock::Clock;
use holdfast_cluster::Nanos;
use holdfast_edge::Halr;
use holdfast_edge::maglev::{self, Share};
use holdfast_member::spread::{
    Given, Placed, Service, Setup, SpreadHost, SpreadMachine, State, Word,
};
use holdfast_wire::message::Message;
use std::collections::VecDeque;
use std::convert::Infallible;

pub const GROUP: &str = "web";

/// What a table was built from, for the check of shares.
pub struct Made {
    pub service: Service,
    pub shares: Vec<(u8, usize)>,
}

/// The machine's host interface: the data path, the cache and the channels.
pub struct Wire {
    /// Time by the edge's clock.
    pub now: Nanos,
    pub redirector: Redirector,
    pub cache: Option<Halr<Copies>>,
    pub copies: Copies,
    /// Messages to host servers, by their link.
    pub out: Vec<(usize, Vec<u8>)>,
    pub closed: Vec<usize>,
    pub notes: Vec<(&'static str, String)>,
    pub made: Vec<Made>,
    mutation: Option<Mutation>,
}

impl Wire {
    fn new(plan: &Plan) -> Self {
        let mut limits = plan.limits;
        if plan.mutation == Some(Mutation::NoLimit) {
            limits.flows_max = usize::MAX;
        }
        let mut redirector = Redirector::new(limits, plan.seed);
        redirector.forgets_flows = plan.mutation == Some(Mutation::ForgetsFlows);
        redirector.evicts_flows = plan.mutation == Some(Mutation::EvictsFlows);
        Self {
            now: Nanos(0),
            redirector,
            cache: None,
            copies: Copies::default(),
            out: Vec::new(),
            closed: Vec::new(),
            notes: Vec::new(),
            made: Vec::new(),
            mutation: plan.mutation,
        }
    }

    /// Hands the redirector's copies to the cache, and the cache's requests to the
    /// redirector.
    fn share(&mut self) {
        self.copies.ring.append(&mut self.redirector.ring);
        self.copies.lost = self.redirector.lost;
        self.redirector.copying = self.copies.copying;
    }

    /// Handles copies early, because many may have accumulated.
    fn handle_copies(&mut self) {
        self.share();
        let Self { cache, copies, now, .. } = self;
        if let Some(cache) = cache.as_mut().filter(|_| !copies.ring.is_empty()) {
            cache.handle_copies(now.0, copies);
        }
    }
}

impl SpreadHost for Wire {
    type Error = Infallible;

    fn send(&mut self, link: usize, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.out.push((link, bytes));
    }

    fn close(&mut self, link: usize) {
        self.closed.push(link);
    }

    fn find_ways(&mut self, _placed: &[Placed]) {}

    fn set_hosts(&mut self, placed: &[Placed]) {
        for placed in placed {
            let mut placed = placed.clone();
            if self.mutation == Some(Mutation::TablesStay) {
                placed.state = State::Up;
            }
            self.redirector.hosts.insert(placed.slot, placed);
        }
    }

    fn set_service(&mut self, service: &Service, table: &[u8]) -> Result<(), String> {
        let mut counts = [0usize; 256];
        table.iter().for_each(|slot| counts[usize::from(*slot)] += 1);
        let slots: Vec<u8> =
            (0..maglev::NOBODY).filter(|slot| counts[usize::from(*slot)] > 0).collect();
        let known = self.redirector.members(service).is_some();
        match self.mutation {
            Some(Mutation::TablesStay) if known => return Ok(()),
            Some(Mutation::SharesEqual) => {
                let table = equal(&slots);
                counts = [0; 256];
                table.iter().for_each(|slot| counts[usize::from(*slot)] += 1);
                self.redirector.set_service(service, &table)?;
            }
            _ => self.redirector.set_service(service, table)?,
        }
        let shares = slots.iter().map(|slot| (*slot, counts[usize::from(*slot)])).collect();
        self.made.push(Made { service: *service, shares });
        Ok(())
    }

    fn remove_service(&mut self, service: &Service) -> Result<(), Infallible> {
        self.redirector.remove_service(service);
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Infallible> {
        self.redirector.ticks();
        Ok(())
    }

    fn age_flows(&mut self) -> Result<bool, Infallible> {
        self.redirector.age_flows();
        Ok(false)
    }

    fn has_flows(&mut self) -> bool {
        self.redirector.flows() > 0
    }

    fn resend(&mut self, slots: &[u8]) -> usize {
        self.share();
        let Self { cache: Some(cache), copies, now, mutation, .. } = self else { return 0 };
        if *mutation == Some(Mutation::NothingResent) {
            return 0;
        }
        let since = |slot: &holdfast_edge::Slot| slots.contains(&(slot.tag as u8)).then_some(now.0);
        cache.handle_restored(now.0, since, copies)
    }

    fn set_cache(&mut self, on: bool) -> Result<(), Infallible> {
        self.share();
        let Self { cache: Some(cache), copies, now, .. } = self else { return Ok(()) };
        cache.handle_timeout(now.0, copies);
        if on {
            cache.handle_suspected(now.0, copies)?;
        } else {
            cache.handle_trusted(copies)?;
        }
        self.share();
        Ok(())
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.notes.push((what, words));
    }
}

/// A table in which every server has the same share.
fn equal(slots: &[u8]) -> Vec<u8> {
    let mut shares = Vec::new();
    for slot in slots {
        shares.push(Share { number: *slot, name: std::slice::from_ref(slot), weight: 1 });
    }
    maglev::table(&shares)
}

/// The daemon, while it runs.
pub struct Daemon {
    pub machine: SpreadMachine,
    /// One for each host server's channel.
    pub links: Vec<Link>,
    /// Channels whose handshake is complete: the host server's name, and the channel.
    pub comes: Vec<(String, u32)>,
    /// Channels for which there was no link.
    pub turned_away: Vec<u32>,
}

/// One host server's channel.
pub struct Link {
    pub name: String,
    pub channel: Option<u32>,
    /// Whether it has sent a message since the channel opened.
    spoke: bool,
    inbox: VecDeque<Vec<u8>>,
}

/// The edge; see the module.
pub struct Edge {
    pub wire: Wire,
    pub daemon: Option<Daemon>,
    pub clock: Clock,
    pub frozen: Option<Ns>,
    pub life: u32,
    pub wakes: Option<Ns>,
}

impl Edge {
    pub fn new(plan: &Plan) -> Self {
        Self {
            wire: Wire::new(plan),
            daemon: None,
            clock: Clock::new(plan.edge_clock),
            frozen: None,
            life: 0,
            wakes: None,
        }
    }

    /// Starts the daemon with this file; programs and maps are loaded already.
    pub fn starts(
        &mut self,
        now: Ns,
        plan: &Plan,
        given: Vec<Given>,
        addresses: Vec<std::net::IpAddr>,
    ) {
        let setup = Setup {
            group: GROUP.to_owned(),
            me: "edge".to_owned(),
            addresses,
            hosts: given,
            hosts_max: plan.limits.hosts_max,
            period: Nanos(plan.period),
        };
        let wire = &mut self.wire;
        wire.now = Nanos(self.clock.shows(now));
        wire.copies = Copies::default();
        wire.redirector.ring.clear();
        let mut cache = cache::shipped(&plan.limits.cache, plan.always);
        let Ok(()) = cache.handle_start(wire.now.0, &mut wire.copies);
        wire.cache = Some(cache);
        wire.share();
        let mut machine = SpreadMachine::new(setup, wire.now);
        let services: Vec<Service> = wire.redirector.services().map(|it| it.service).collect();
        // The machine knows their names.
        let unnamed = |placed: &Placed| Placed { name: String::new(), ..placed.clone() };
        let placed = wire.redirector.hosts.values().map(unnamed).collect();
        machine.handle_start(&services, placed, wire);
        self.daemon =
            Some(Daemon { machine, links: Vec::new(), comes: Vec::new(), turned_away: Vec::new() });
        self.life += 1;
        self.wakes = None;
    }

    /// Ends the daemon; its queues are lost.
    pub fn dies(&mut self) {
        self.daemon = None;
        self.wire.cache = None;
        self.wire.out.clear();
        self.wire.closed.clear();
    }

    /// Restarts the host: only its files are left.
    pub fn boots(&mut self, plan: &Plan) {
        self.wire = Wire::new(plan);
    }

    /// Handles a message that has arrived at its host.
    pub fn take(&mut self, channel: u32, bytes: Vec<u8>) {
        let Some(daemon) = &mut self.daemon else { return };
        if let Some(link) = daemon.links.iter_mut().find(|link| link.channel == Some(channel)) {
            link.inbox.push_back(bytes);
        }
    }

    /// Does a turn, in the order of the real daemon: input, new channels, what is due, and
    /// what the machine then sends.
    pub fn turn(&mut self, now: Ns) {
        let Self { wire, daemon: Some(daemon), clock, .. } = self else { return };
        wire.now = Nanos(clock.shows(now));
        for index in 0..daemon.links.len() {
            daemon.hear(index, wire);
        }
        daemon.accept(wire);
        if wire.mutation == Some(Mutation::HearsTheDead) {
            for index in (0..daemon.links.len()).filter(|it| daemon.links[*it].spoke) {
                daemon.machine.handle_word(index, Word::Beat, wire.now, wire);
            }
        }
        let Ok(()) = daemon.machine.handle_timeout(wire.now, wire);
        wire.handle_copies();
        let Ok(()) = daemon.machine.handle_turned(wire);
    }

    /// When the next turn is due.
    pub fn deadline(&self) -> Option<Ns> {
        let daemon = self.daemon.as_ref()?;
        let cache = self.wire.cache.as_ref().and_then(Halr::poll_timeout).map(Nanos);
        let due = cache.into_iter().fold(daemon.machine.next_deadline(), Nanos::min);
        Some(self.clock.when(due.0))
    }

    /// Takes the packets to be re-injected.
    pub fn take_inlet(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.wire.copies.inlet)
    }
}

impl Daemon {
    fn hear(&mut self, index: usize, wire: &mut Wire) {
        while let Some(bytes) = self.links[index].inbox.pop_front() {
            self.links[index].spoke = true;
            let link = &self.links[index];
            let word = match Message::decode(&bytes) {
                Ok(message) => Word::of(message, GROUP, &link.name),
                Err(_) => Word::Nonsense,
            };
            if !self.machine.handle_word(index, word, wire.now, wire) {
                self.links[index].inbox.clear();
                return;
            }
        }
    }

    fn accept(&mut self, wire: &mut Wire) {
        for (name, channel) in std::mem::take(&mut self.comes) {
            let Some(index) = self.machine.link_of(&name, wire.now) else {
                wire.notes.push(("refused", name));
                self.turned_away.push(channel);
                continue;
            };
            if index == self.links.len() {
                self.links.push(Link { name, channel: None, spoke: false, inbox: VecDeque::new() });
            }
            let link = &mut self.links[index];
            (link.channel, link.spoke) = (Some(channel), false);
            link.inbox.clear();
            self.machine.handle_opened(index, wire);
        }
    }

    /// A channel was closed.
    pub fn lose(&mut self, channel: u32, why: &str, wire: &mut Wire) {
        let Some(index) = self.links.iter().position(|it| it.channel == Some(channel)) else {
            return;
        };
        self.links[index].channel = None;
        self.links[index].inbox.clear();
        self.machine.handle_closed(index, why, wire);
    }
}
