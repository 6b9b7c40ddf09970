//! A model of the edge's data path, `bpf/redirect.bpf.c`, whose maps outlive the daemon.
//! `bpf/spread.h` decides which host server gets a packet, and what is remembered about it;
//! this does the same for one address family.

use super::model::PlaceWords;
use super::packet::{Conn, Packet, Said, Tuple, mix};
use super::plan::Limits;
use holdfast_edge::maglev::{ENTRIES, NOBODY};
use holdfast_member::spread::{Placed, Service, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Idle time after which a flow that was reset is forgotten, in s (this and the next ones
/// as in `crates/linux/src/bpf/redirect.rs`).
const RESET_AGE: u32 = 10;
/// Idle time after which a flow that its client has closed is forgotten, in s.
const CLOSED_AGE: u32 = 120;
/// Idle time after which a flow that is not established yet is forgotten, in s.
const YOUNG_AGE: u32 = 600;
/// The same while the table is nearly full, closed or not, in s.
const YOUNG_AGE_CROWDED: u32 = 30;
/// Idle time after which any other flow is forgotten, in s; while the table is nearly full,
/// as long as it has lived, but at least [`YOUNG_AGE`].
const IDLE_AGE: u32 = 3 * 3600;
/// Time in s after which a flow whose client sends no payload is established (as in
/// `bpf/spread.h`).
const ESTABLISHED_AFTER: u16 = 30;

/// An entry for a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    host: u8,
    tick: u32,
    established: bool,
    opened: bool,
    client_fin: bool,
    reset: bool,
    /// Whether it was learnt from a later packet, because its handshake was not seen.
    learnt: bool,
    /// Time in s from its first packet to its last.
    lived: u16,
}

/// Where a packet goes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placing {
    /// The host server's slot; `None` if the packet took the ordinary route.
    pub slot: Option<u8>,
    /// Whether the slot was chosen now, for a new connection.
    pub is_new: bool,
    /// Whether it was refused because the table is full.
    pub refused: bool,
    /// Whether it is the first packet after a handshake.
    pub opened: bool,
    /// The embryo that was evicted to make room for it.
    pub evicted: Option<Tuple>,
}

impl Placing {
    const NOWHERE: Self =
        Self { slot: None, is_new: false, refused: false, opened: false, evicted: None };

    fn at(slot: u8) -> Self {
        Self { slot: (slot != NOBODY).then_some(slot), ..Self::NOWHERE }
    }
}

/// What the cache is shown of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Copied {
    Syn {
        packet: Packet,
        slot: u8,
    },
    /// The client has completed the handshake, so its SYN was answered.
    Opened(Conn),
}

/// A service's table, and the slots in it.
pub struct Row {
    pub service: Service,
    table: Vec<u8>,
    pub members: Vec<u8>,
}

/// The redirector; see the module.
pub struct Redirector {
    limits: Limits,
    seed: u64,
    services: Vec<Row>,
    pub hosts: BTreeMap<u8, Placed>,
    flows: BTreeMap<Tuple, Flow>,
    embryos: BTreeMap<Tuple, Flow>,
    /// Tuples of the embryos, the oldest first; some may have been removed already.
    order: VecDeque<Tuple>,
    tick: u32,
    full: Option<u32>,
    pub copying: bool,
    pub ring: VecDeque<Copied>,
    /// Number of copies dropped because the ring was full.
    pub lost: u64,
    pub refused: u64,
    pub learnt: u64,
    /// Mutation: a flow's host server is chosen again for each packet.
    pub forgets_flows: bool,
    /// Mutation: a full table gives a new connection the place of an old one.
    pub evicts_flows: bool,
    evicted: BTreeSet<Tuple>,
}

impl Redirector {
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            seed,
            services: Vec::new(),
            hosts: BTreeMap::new(),
            flows: BTreeMap::new(),
            embryos: BTreeMap::new(),
            order: VecDeque::new(),
            tick: 0,
            full: None,
            copying: false,
            ring: VecDeque::new(),
            lost: 0,
            refused: 0,
            learnt: 0,
            forgets_flows: false,
            evicts_flows: false,
            evicted: BTreeSet::new(),
        }
    }

    pub fn services(&self) -> impl Iterator<Item = &Row> {
        self.services.iter()
    }

    /// The slots that get new connections to a service.
    pub fn members(&self, service: &Service) -> Option<&[u8]> {
        self.services.iter().find(|it| it.service == *service).map(|it| &it.members[..])
    }

    /// Sets a service's table.
    ///
    /// # Errors
    /// If there is no room for another service.
    pub fn set_service(&mut self, service: &Service, table: &[u8]) -> Result<(), String> {
        assert_eq!(table.len(), ENTRIES);
        let count = self.services.len();
        let mut seen = [false; 256];
        table.iter().for_each(|slot| seen[usize::from(*slot)] = true);
        let members = (0..NOBODY).filter(|slot| seen[usize::from(*slot)]).collect();
        let row = Row { service: *service, table: table.to_vec(), members };
        match self.services.iter_mut().find(|it| it.service == *service) {
            Some(known) => *known = row,
            None if count < self.limits.services_max => self.services.push(row),
            None => return Err(format!("{count} services are all there may be")),
        }
        Ok(())
    }

    pub fn remove_service(&mut self, service: &Service) {
        self.services.retain(|it| it.service != *service);
    }

    pub fn ticks(&mut self) {
        self.tick += 1;
    }

    pub fn age_flows(&mut self) {
        let now = self.tick;
        let is_crowded = self.flows.len() > self.limits.flows_max / 4 * 3;
        self.flows.retain(|_, flow| now - flow.tick <= flow.age_max(is_crowded));
    }

    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    pub fn embryos(&self) -> usize {
        self.embryos.len()
    }

    /// What is remembered about a tuple: its flow, and its embryo.
    pub fn words(&self, tuple: &Tuple) -> [Option<PlaceWords>; 2] {
        [&self.flows, &self.embryos].map(|table| table.get(tuple).map(Flow::words))
    }

    pub fn is_full(&self) -> bool {
        self.flows.len() >= self.limits.flows_max
    }

    /// Handles a packet from a client; `service` is its destination.
    pub fn handle(&mut self, packet: &Packet, service: &Service) -> Placing {
        let Some(at) = self.services.iter().position(|it| it.service == *service) else {
            return Placing::NOWHERE;
        };
        let placing = match packet.said {
            Said::Syn => self.place_syn(packet.conn.tuple, at),
            said => self.place_segment(packet.conn.tuple, said, at),
        };
        let Some(slot) = placing.slot.filter(|slot| self.hosts.contains_key(slot)) else {
            self.refused += u64::from(placing.refused);
            return Placing { slot: None, ..placing };
        };
        match packet.said {
            _ if !self.copying => {}
            Said::Syn => self.copy(Copied::Syn { packet: *packet, slot }),
            _ if placing.opened => self.copy(Copied::Opened(packet.conn)),
            _ => {}
        }
        placing
    }

    fn copy(&mut self, copied: Copied) {
        if self.ring.len() < self.limits.ring_max {
            self.ring.push_back(copied);
        } else {
            self.lost += 1;
        }
    }

    fn choose(&self, tuple: Tuple, at: usize) -> u8 {
        let Tuple { client, port, service } = tuple;
        let name = u64::from(client) << 32 | u64::from(port) << 8 | u64::from(service);
        let hash = mix(name ^ self.seed) >> 32;
        self.services[at].table[((hash * ENTRIES as u64) >> 32) as usize]
    }

    fn state(&self, slot: u8) -> Option<State> {
        self.hosts.get(&slot).map(|host| host.state)
    }

    fn is_dead(&self, slot: u8) -> bool {
        !matches!(self.state(slot), Some(State::Up | State::Draining))
    }

    /// Whether the next connection on this flow's tuple may go to the same host server.
    fn stays(&self, flow: &Flow) -> bool {
        match self.state(flow.host) {
            Some(State::Up) => true,
            Some(State::Draining) => !flow.client_fin && !flow.reset,
            _ => false,
        }
    }

    fn place_syn(&mut self, tuple: Tuple, at: usize) -> Placing {
        let known = self.flows.get(&tuple).copied();
        if let Some(flow) = known.filter(|flow| self.stays(flow)) {
            let fresh = Flow { host: flow.host, tick: self.tick, ..Flow::default() };
            let is_over = flow.client_fin || flow.reset;
            self.flows.insert(tuple, if is_over { fresh } else { Flow { opened: false, ..flow } });
            return Placing::at(flow.host);
        }
        if known.is_none()
            && let Some(embryo) = self.embryos.get(&tuple)
            && !embryo.learnt
            && !self.is_dead(embryo.host)
        {
            return Placing::at(embryo.host);
        }
        let host = self.choose(tuple, at);
        let mut placing = Placing { is_new: true, ..Placing::at(host) };
        if host == NOBODY {
            return placing;
        }
        let fresh = Flow { host, tick: self.tick, ..Flow::default() };
        if known.is_some() {
            self.flows.insert(tuple, fresh);
        } else if self.found_full() {
            return Placing { slot: None, refused: true, ..placing };
        } else {
            placing.evicted = self.add_embryo(tuple, fresh);
        }
        placing
    }

    fn add_embryo(&mut self, tuple: Tuple, flow: Flow) -> Option<Tuple> {
        if self.embryos.insert(tuple, flow).is_none() {
            self.order.push_back(tuple);
        }
        while self.embryos.len() > self.limits.embryos_max {
            let oldest = self.order.pop_front()?;
            if self.embryos.remove(&oldest).is_some() {
                return Some(oldest);
            }
        }
        None
    }

    fn place_segment(&mut self, tuple: Tuple, said: Said, at: usize) -> Placing {
        if self.forgets_flows {
            return Placing::at(self.choose(tuple, at));
        }
        if self.evicted.contains(&tuple) {
            return Placing::NOWHERE;
        }
        let (tick, flows_max) = (self.tick, self.limits.flows_max);
        if let Some(flow) = self.flows.get_mut(&tuple) {
            flow.stamp(tick);
            flow.established |= matches!(said, Said::Data(_)) || flow.lived >= ESTABLISHED_AFTER;
            flow.reset = said == Said::Rst;
            flow.client_fin |= said == Said::Fin;
            let opened = !flow.opened && said != Said::Rst;
            flow.opened |= opened;
            return Placing { opened, ..Placing::at(flow.host) };
        }
        let Some(embryo) = self.embryos.get(&tuple).copied() else {
            return self.place_stray(tuple, said, at);
        };
        if said == Said::Rst {
            return Placing::at(embryo.host);
        }
        if self.evicts_flows && self.flows.len() >= flows_max {
            self.evicted.extend(self.flows.pop_first().map(|(tuple, _)| tuple));
        }
        if self.flows.len() >= flows_max {
            self.full = Some(tick);
            let learnt = Placing::at(embryo.host);
            let refused = Placing { refused: true, ..Placing::NOWHERE };
            return if embryo.learnt { learnt } else { refused };
        }
        let fresh = Flow { host: embryo.host, tick, opened: true, ..Flow::default() };
        let client_fin = embryo.client_fin || said == Said::Fin;
        self.flows.insert(tuple, Flow { client_fin, ..fresh });
        self.embryos.remove(&tuple);
        self.learnt += u64::from(embryo.learnt);
        Placing { opened: !embryo.learnt, ..Placing::at(embryo.host) }
    }

    /// Places a packet of an unknown connection by its hash, and adds an embryo, which its
    /// next packet finds.
    fn place_stray(&mut self, tuple: Tuple, said: Said, at: usize) -> Placing {
        let host = self.choose(tuple, at);
        let mut placing = Placing::at(host);
        if host != NOBODY && said != Said::Rst && !self.found_full() {
            let fresh = Flow { host, tick: self.tick, learnt: true, ..Flow::default() };
            let flow = Flow { client_fin: said == Said::Fin, ..fresh };
            placing.evicted = self.add_embryo(tuple, flow);
        }
        placing
    }

    /// Whether the table was full at this or the previous tick.
    fn found_full(&self) -> bool {
        self.full.is_some_and(|full| self.tick - full <= 1)
    }
}

impl Flow {
    fn words(&self) -> PlaceWords {
        let Self { host, tick, established, opened, client_fin, reset, learnt, lived } = *self;
        PlaceWords { tick, host, client_fin, reset, established, opened, learnt, lived }
    }

    fn stamp(&mut self, tick: u32) {
        let lived = u32::from(self.lived).saturating_add(tick - self.tick);
        self.lived = u16::try_from(lived).unwrap_or(u16::MAX);
        self.tick = tick;
    }

    fn age_max(&self, is_crowded: bool) -> u32 {
        match self {
            Self { reset: true, .. } => RESET_AGE,
            Self { established: false, .. } if is_crowded => YOUNG_AGE_CROWDED,
            Self { client_fin: true, .. } => CLOSED_AGE,
            Self { established: true, lived, .. } if is_crowded => {
                u32::from(*lived).clamp(YOUNG_AGE, IDLE_AGE)
            }
            Self { established: true, .. } => IDLE_AGE,
            _ => YOUNG_AGE,
        }
    }
}
