//! The world of a spread group: virtual time, the edge, its host servers, the paths
//! between them, and the clients.

use super::check::{Cause, Checkers, Truth};
use super::client::{Client, Wants};
use super::edge::Edge;
use super::packet::{Answer, Conn, Packet, Said, way_of};
use super::plan::{MS, Mutation, Plan};
use super::server::{ADDRESS, Channel, Server, service_of, tunnel_of};
use super::wires::Wires;
use super::{Outcome, Reached};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::{Ns, Rng};
use holdfast_member::host_server::Answer as Answered;
use holdfast_member::spread::{Given, Service};
use holdfast_wire::message::Message;
use std::net::IpAddr;

/// Time after the last fault by which all connections must have ended, in ns.
const REST: Ns = 12_000 * MS;
const LOOK_EVERY: Ns = 25 * MS;
/// Most events of a run, more than any run needs.
const EVENTS_MAX: u64 = 2_000_000;

pub enum Event {
    Client(u16),
    AtEdge(Packet),
    AtServer(usize, Packet),
    AtClient(Conn, Answer),
    EdgeTurns(u32),
    ServerTurns(usize, u32),
    /// The process binds, and listens a little later.
    Binds(usize, u32),
    Listens(usize, u32),
    DaemonStarts(usize),
    Answers(usize, u32, Vec<(Service, Answered)>),
    /// The handshake of a channel is complete at the edge, and then at the host server.
    OpensAtEdge(u32),
    OpensAtServer(u32),
    ToEdge(u32, Vec<u8>),
    ToServer(u32, Vec<u8>),
    /// One end notices that a channel was closed.
    GoneAtEdge(u32),
    GoneAtServer(u32),
    /// A channel is given up, if its path has been stuck since this count.
    Stuck(usize, u32),
    Strikes(usize),
    Ends(usize),
    Looks,
}

pub struct World {
    pub plan: Plan,
    pub now: Ns,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub trace: Trace,
    pub check: Checkers,
    pub edge: Edge,
    pub servers: Vec<Server>,
    pub clients: Vec<Client>,
    client_wakes: Vec<Option<Ns>>,
    pub wires: Wires,
    /// Channels of strangers, whose names are not in the file.
    pub strangers: Vec<u32>,
    pub pending: usize,
    pub faults_over: Ns,
    pub reached: Reached,
    events: u64,
}

impl World {
    pub fn new(plan: Plan, traced: bool) -> Self {
        let client = |(number, habits): (usize, &super::plan::ClientPlan)| {
            Client::new(number as u16, habits.clone(), plan.load_until, plan.seed)
        };
        let clients: Vec<Client> = plan.clients.iter().enumerate().map(client).collect();
        let hostile = clients.iter().any(Client::is_hostile);
        let mut world = Self {
            now: 0,
            rng: Rng::new(plan.seed, 52),
            queue: Queue::default(),
            trace: Trace::new(traced),
            check: Checkers::new(Truth::new(&plan), hostile),
            edge: Edge::new(&plan),
            servers: (0..plan.servers.len()).map(|number| Server::new(number, &plan)).collect(),
            client_wakes: vec![None; clients.len()],
            clients,
            wires: Wires::new(plan.servers.len()),
            strangers: Vec::new(),
            pending: plan.faults.len(),
            faults_over: 0,
            reached: Reached::default(),
            events: 0,
            plan,
        };
        world.edge_starts();
        for number in 0..world.servers.len() {
            let (starts, binds) =
                (world.plan.servers[number].starts, world.plan.servers[number].binds);
            world.schedule(starts, Event::DaemonStarts(number));
            world.schedule(binds, Event::Binds(number, 0));
        }
        for (number, (at, _)) in world.plan.faults.clone().iter().enumerate() {
            world.schedule(*at, Event::Strikes(number));
        }
        for client in 0..world.clients.len() {
            world.schedule(world.clients[client].plan.start, Event::Client(client as u16));
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
        if self.events > EVENTS_MAX {
            self.check.violation(self.now, "storm", "more events than any run needs".to_owned());
        }
        self.reached.repeats_spared = self.check.knocks_kept;
        self.reached.connections = self.clients.iter().map(|client| client.done).sum();
        self.reached.replies = self.clients.iter().map(|client| client.replies).sum();
        self.reached.refused_full = self.edge.wire.redirector.refused;
        self.reached.learnt = self.edge.wire.redirector.learnt;
        Outcome {
            seed: self.plan.seed,
            events: self.events,
            virtual_ns: self.now,
            reached: self.reached,
            violations: self.check.violations,
            trace: self.trace.into_lines(),
        }
    }

    fn is_over(&self) -> bool {
        let end = self.plan.load_until.max(self.faults_over) + REST;
        let all_done = || self.clients.iter().all(|client| client.is_done(self.now));
        self.now > end
            || (self.pending == 0 && self.now > self.faults_over + REST / 2 && all_done())
    }

    pub fn schedule(&mut self, delay: Ns, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.add(self.now, line);
    }

    fn handle(&mut self, event: Event) {
        let Some(event) = self.defer(event) else { return };
        match event {
            Event::Client(number) => self.client_wakes(number),
            Event::AtEdge(packet) => self.at_edge(packet),
            Event::AtServer(number, packet) => self.at_server(number, &packet),
            Event::AtClient(conn, answer) => self.at_client(conn, answer),
            Event::EdgeTurns(life) => {
                if self.edge.life == life && self.edge.wakes.is_some_and(|at| at <= self.now) {
                    self.edge_turns();
                }
            }
            Event::ServerTurns(number, life) => {
                let server = &self.servers[number];
                if server.life == life && server.wakes.is_some_and(|at| at <= self.now) {
                    self.server_turns(number);
                }
            }
            Event::Binds(number, boots) => self.process_binds(number, boots),
            Event::Listens(number, boots) => self.process_listens(number, boots),
            Event::DaemonStarts(number) => self.daemon_starts(number),
            Event::Answers(number, life, answers) => {
                if self.servers[number].life == life {
                    self.servers[number].answered(answers);
                }
            }
            Event::OpensAtEdge(channel) => self.opens_at_edge(channel),
            Event::OpensAtServer(channel) => self.opens_at_server(channel),
            Event::ToEdge(channel, bytes) => {
                self.edge_takes(channel, bytes);
                self.edge_turns();
            }
            Event::ToServer(channel, bytes) => self.comes_to_server(channel, &bytes),
            Event::GoneAtEdge(channel) => self.gone_at_edge(channel),
            Event::GoneAtServer(channel) => self.gone_at_server(channel),
            Event::Stuck(server, number) => self.stuck(server, number),
            Event::Strikes(number) => self.strikes(number),
            Event::Ends(number) => self.ends(number),
            Event::Looks => self.looks(),
        }
    }

    pub fn edge_takes(&mut self, channel: u32, bytes: Vec<u8>) {
        let is_word = !matches!(Message::decode(&bytes), Ok(Message::Beat { .. }));
        if let Some(number) = self.wires.server_of(channel).filter(|_| is_word) {
            self.check.truth.says(self.now, number);
        }
        self.edge.take(channel, bytes);
    }

    /// Keeps an event for a suspended machine until it resumes; packets are lost. Returns
    /// the event if no machine of it is suspended.
    fn defer(&mut self, event: Event) -> Option<Event> {
        let edge = self.edge.frozen.is_some();
        let is_frozen = |number: usize| self.servers[number].frozen.is_some();
        match event {
            Event::AtEdge(_) if edge => None,
            Event::AtServer(number, _) if is_frozen(number) => None,
            Event::ToEdge(..) | Event::GoneAtEdge(_) | Event::OpensAtEdge(_) if edge => {
                self.wires.edge_waits.push(event);
                None
            }
            Event::ToServer(channel, _)
            | Event::GoneAtServer(channel)
            | Event::OpensAtServer(channel)
                if self.wires.server_of(channel).is_some_and(is_frozen) =>
            {
                let server = self.wires.server_of(channel)?;
                self.wires.server_waits[server].push(event);
                None
            }
            Event::EdgeTurns(_) if edge => None,
            Event::ServerTurns(number, _) if is_frozen(number) => None,
            Event::Binds(number, _) | Event::Listens(number, _) | Event::Answers(number, ..)
                if is_frozen(number) =>
            {
                self.wires.server_waits[number].push(event);
                None
            }
            event => Some(event),
        }
    }

    // The edge.

    /// What the edge's file allows each host server.
    fn given(&self) -> Vec<Given> {
        let lax = self.plan.mutation == Some(Mutation::FileIgnored);
        let all: Vec<IpAddr> = (0..self.servers.len()).map(tunnel_of).collect();
        let given = |server: &Server| {
            let named = server.plan.named.as_ref();
            let named = named.map(|named| named.iter().map(|it| service_of(*it)).collect());
            Given {
                name: server.name.clone(),
                tunnels: if lax { all.clone() } else { vec![tunnel_of(server.number)] },
                layer2: false,
                weight: if lax { u32::MAX } else { server.plan.weight_max },
                services: named.filter(|_| !lax),
            }
        };
        self.servers.iter().map(given).collect()
    }

    pub fn edge_starts(&mut self) {
        let given = self.given();
        let mut addresses = vec![ADDRESS.into()];
        if self.plan.mutation == Some(Mutation::FileIgnored) {
            addresses.extend((0..self.servers.len()).map(tunnel_of));
        }
        self.edge.starts(self.now, &self.plan, given, addresses);
        self.check.truth.edge_daemon(self.now, true);
        self.edge_turns();
    }

    pub fn edge_turns(&mut self) {
        if self.edge.daemon.is_none() || self.edge.frozen.is_some() {
            return;
        }
        self.edge.turn(self.now);
        self.carry_from_edge();
        for packet in self.edge.take_inlet() {
            self.say(|| format!("comes in anew   {packet:?}"));
            self.reached.resent += 1;
            self.redirect(packet);
        }
        self.check_edge();
        let due = self.edge.deadline().unwrap_or(Ns::MAX).max(self.now + 1000);
        if self.edge.wakes.is_none_or(|at| at > due || at <= self.now) {
            self.edge.wakes = Some(due);
            self.queue.push(due, Event::EdgeTurns(self.edge.life));
        }
    }

    fn at_edge(&mut self, packet: Packet) {
        if packet.said == Said::Syn {
            // A packet that is not redirected takes the ordinary route.
            let service = service_of(packet.conn.tuple.service);
            let redirector = &self.edge.wire.redirector;
            let excused = redirector.is_full()
                || !redirector.copying
                || redirector.members(&service).is_none()
                || self.edge.daemon.is_none();
            self.check.knocks(self.now, packet.conn, excused || self.plan.loss_permille > 0);
        }
        self.redirect(packet);
    }

    fn redirect(&mut self, packet: Packet) {
        let Packet { conn, said } = packet;
        let service = service_of(conn.tuple.service);
        let lost = self.edge.wire.redirector.lost;
        let placing = self.edge.wire.redirector.handle(&packet, &service);
        if self.edge.wire.redirector.lost > lost {
            self.check.excuse(conn);
        }
        let known = self.edge.wire.redirector.members(&service).is_some();
        let server = placing.slot.and_then(|slot| self.server_at(slot));
        self.say(|| format!("client > edge   {packet:?} > {server:?}"));
        if let Some(evicted) = placing.evicted {
            self.reached.evicted += 1;
            self.forget_embryo(evicted);
        }
        if placing.refused {
            self.check.excuse(conn);
            if !self.check.is_known(conn) {
                self.check.unknown(conn);
            }
        }
        if placing.is_new && said == Said::Syn && known && !placing.refused {
            self.check.chosen(self.now, conn, server);
        }
        let Some(number) = server else { return };
        if self.wires.is_cut_to_server(number) {
            return;
        }
        let delay = self.plan.server_way;
        self.schedule(delay, Event::AtServer(number, packet));
    }

    fn forget_embryo(&mut self, tuple: super::packet::Tuple) {
        let open = self.clients[usize::from(tuple.client)].open;
        if let Some(open) = open.filter(|open| open.conn.tuple == tuple) {
            self.check.unknown(open.conn);
            self.check.excuse(open.conn);
        }
    }

    pub fn server_at(&self, slot: u8) -> Option<usize> {
        let placed = self.edge.wire.redirector.hosts.get(&slot)?;
        (0..self.servers.len()).find(|number| placed.tunnels.contains(&tunnel_of(*number)))
    }

    // Host servers.

    fn at_server(&mut self, number: usize, packet: &Packet) {
        let server = &mut self.servers[number];
        if !server.alive {
            return;
        }
        let conn = packet.conn;
        let (has, boots) = (server.has(conn), self.check.truth.boots(number));
        if packet.said != Said::Syn {
            self.check.arrives(self.now, conn, number, boots, has);
        }
        if let Some(answer) = server.receive(packet) {
            self.say(|| format!("h{number} > client   {conn:?} {answer:?}"));
            if !self.is_lost() {
                self.schedule(self.client_way(conn), Event::AtClient(conn, answer));
            }
        }
        if matches!(packet.said, Said::Fin | Said::Rst) {
            self.check.over(conn);
        }
    }

    fn client_way(&self, conn: Conn) -> Ns {
        way_of(conn.tuple.client, self.plan.client_way)
    }

    fn is_lost(&mut self) -> bool {
        self.rng.below(1000) < self.plan.loss_permille
    }

    fn daemon_starts(&mut self, number: usize) {
        if !self.servers[number].alive || self.servers[number].machine.is_some() {
            return;
        }
        self.say(|| format!("h{number}: its daemon starts"));
        self.servers[number].daemon_starts(self.now);
        self.check.truth.cause(self.now, number, Cause::NoDaemon, false);
        self.server_turns(number);
    }

    fn process_binds(&mut self, number: usize, boots: u32) {
        let server = &mut self.servers[number];
        if !server.alive || server.boots != boots || server.serves {
            return;
        }
        server.serves = true;
        server.note_bind(self.now);
        // Some servers initialise between bind() and listen().
        let later = self.rng.spread(1000, 40 * MS);
        self.schedule(later, Event::Listens(number, boots));
        self.server_turns(number);
    }

    fn process_listens(&mut self, number: usize, boots: u32) {
        let server = &mut self.servers[number];
        if server.alive && server.boots == boots && server.serves {
            server.process_listens();
            self.check.truth.listens(self.now, number, true);
        }
    }

    pub fn server_turns(&mut self, number: usize) {
        let server = &mut self.servers[number];
        if server.machine.is_none() || !server.is_up() {
            return;
        }
        if server.retry.is_some_and(|at| at <= self.now) {
            self.connect(number);
        }
        let server = &mut self.servers[number];
        server.turn(self.now);
        if let Some((answers, takes)) = server.asks() {
            let life = server.life;
            self.schedule(takes, Event::Answers(number, life, answers));
        }
        self.carry_from_server(number);
        let server = &mut self.servers[number];
        let due = server.deadline().unwrap_or(Ns::MAX).max(self.now + 1000);
        if server.wakes.is_none_or(|at| at > due || at <= self.now) {
            server.wakes = Some(due);
            let life = server.life;
            self.queue.push(due, Event::ServerTurns(number, life));
        }
    }

    pub fn is_open(&self, number: usize, channel: u32) -> bool {
        matches!(self.servers[number].channel, Channel::Open(it) | Channel::Opens(it) if it == channel)
    }

    // Clients.

    fn client_wakes(&mut self, number: u16) {
        let index = usize::from(number);
        if self.client_wakes[index].is_some_and(|at| at > self.now) {
            return;
        }
        self.client_wakes[index] = None;
        let wants = self.clients[index].wake(self.now);
        self.follow(number, wants);
    }

    fn at_client(&mut self, conn: Conn, answer: Answer) {
        let number = conn.tuple.client;
        if answer == Answer::SynAck {
            let late = self.clients[usize::from(number)].open;
            let late = late.is_some_and(|open| self.now - open.began > 3 * self.plan.period);
            self.check.answered(conn, late);
        }
        let wants = self.clients[usize::from(number)].hear(self.now, conn, answer);
        self.follow(number, wants);
    }

    fn follow(&mut self, number: u16, wants: Wants) {
        if let Some(conn) = wants.repeats_syn {
            let full = self.edge.wire.redirector.is_full() || self.cache_refuses();
            self.reached.syns_repeated += 1;
            self.check.repeats(self.now, conn, full);
        }
        if let Some((open, end)) = wants.ended {
            self.say(|| format!("client {number}: {:?} {end:?}", open.conn));
            self.check.ended(self.now, open.conn, end, open.began);
        }
        for packet in wants.says {
            if !self.is_lost() {
                self.schedule(self.client_way(packet.conn), Event::AtEdge(packet));
            }
        }
        let index = usize::from(number);
        if let Some(at) = wants.wake {
            let is_sooner =
                self.client_wakes[index].is_none_or(|known| known > at || known <= self.now);
            if is_sooner {
                self.client_wakes[index] = Some(at);
                self.queue.push(at, Event::Client(number));
            }
        }
    }

    /// Whether the cache has refused a SYN for lack of room.
    fn cache_refuses(&self) -> bool {
        let cache = self.edge.wire.cache.as_ref();
        cache.is_none_or(|cache| cache.cache().counts().refused > 0)
            || self.edge.wire.redirector.lost > 0
    }

    fn looks(&mut self) {
        self.check_shown();
        self.schedule(LOOK_EVERY, Event::Looks);
    }
}
