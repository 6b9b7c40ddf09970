//! The world: virtual time, three hosts, the links between them, and the clients.

use crate::Rng;
use crate::check::Checkers;
use crate::client::Client;
use crate::clock::{Clock, ClockPlan, Pause};
use crate::direct::{DirectEvent, Ways};
use crate::edge::Edge;
use crate::gate::Gate;
use crate::kernel::Socket;
use crate::member::Daemon;
use crate::packet::Packet;
use crate::pipe::{Input, Kind, Pipe, PipeEvent, Process};
use crate::plan::{Fault, Plan};
use crate::pulse::Pulses;
use crate::queue::Queue;
use crate::server::{Mode, Server};
use crate::trace::Trace;
use crate::{Ns, Outcome, Reached};
use holdfast_replica::promotion::TSVAL_MARGIN_MS;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// Number of the edge's host; the members are 0 and 1.
pub const EDGE: usize = 2;
pub const NAMES: [&str; 3] = ["a", "b", "edge"];
/// Time after the last fault by which every client that can be served must be done, in ns.
pub const LIVENESS: Ns = 15_000_000_000;
/// Idle time after which all resources must be released, in ns: slots are kept for a minute.
const REST_ALL: Ns = 65_000_000_000;
/// Lead of a rebuilt connection's timestamp clock, in ns.
const CLOCK_MARGIN: Ns = 1_000_000 * TSVAL_MARGIN_MS as Ns;
/// Most events of a run, more than any run needs: a run that reaches it has a loop, which is
/// reported.
const EVENTS_MAX: u64 = 3_000_000;

pub enum Event {
    Client(usize),
    /// A client's packet reaches the edge.
    AtEdge(Packet),
    AtMember {
        member: usize,
        packet: Packet,
        copy: bool,
    },
    FromMember {
        member: usize,
        packet: Packet,
    },
    AtClient(Packet),
    KernelTimer(usize),
    Pipe(PipeEvent),
    Daemon(Process),
    Server(usize, u32),
    EdgeDaemon(u32),
    EdgeWritten(u32),
    Strikes(usize),
    Ends(usize),
    /// The checkers look at the status that is shown.
    Looks,
    /// A daemon sends its heartbeat datagrams.
    Pulse(usize),
    Direct(DirectEvent),
}

/// A machine: its kernel's state, which outlives processes, and its processes.
pub struct Host {
    pub alive: bool,
    /// When it died: nothing that it sent arrives later.
    pub heard_until: Ns,
    /// Since when it is suspended, if it is.
    pub frozen: Option<Ns>,
    pub clock: Clock,
    /// Events that wait until it resumes.
    deferred: Vec<Event>,
    /// Factor by which everything on it takes longer.
    pub slow: u64,
    /// Whether it owns the service address.
    pub address: bool,
    /// Set if the tap's drop filter is attached; true: it passes packets to the stack.
    pub tap_drop: Option<bool>,
    pub gate: Option<Gate>,
    pub listening: bool,
    pub sockets: BTreeMap<ConnKey, Socket>,
    /// Established connections that the server has not accepted yet.
    pub backlog: VecDeque<ConnKey>,
    pub kernel_timer: Option<Ns>,
    /// Copies in the daemon's packet socket, if it has one.
    pub tap: Option<VecDeque<Packet>>,
    pub server: Option<Server>,
    pub server_wakes: bool,
    pub daemon: Option<Daemon>,
    pub daemon_wakes: Option<Ns>,
    pub lives: u32,
}

/// The links between the hosts. `cuts` counts the faults that cut the direction from the
/// first index to the second.
#[derive(Default)]
pub struct Links {
    cuts: [[u32; 3]; 3],
    pub pair_slow: bool,
    pub copies_lost: bool,
}

impl Links {
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from][to] > 0
    }
}

pub struct World {
    pub plan: Plan,
    pub now: Ns,
    pub rng: Rng,
    pauses: Rng,
    pub queue: Queue<Event>,
    pub trace: Trace,
    pub check: Checkers,
    pub clients: Vec<Client>,
    client_wakes: Vec<Option<Ns>>,
    pub hosts: [Host; 3],
    pub edge: Edge,
    pub links: Links,
    /// Whether no server accepts connections from its backlog.
    pub accepts_nobody: bool,
    pub pulses: Pulses,
    pub direct: Ways,
    pub pipes: Vec<Pipe>,
    /// Every client packet, so that a machine can ask for its raw bytes.
    pub packets: Vec<Packet>,
    pub servers: u32,
    pub reached: Reached,
    pub events: u64,
    pub faults_over: Ns,
    /// Since when all clients are done.
    rests: Option<Ns>,
    pub pending: usize,
    client_link_free: [Ns; 2],
    /// Servers' last initial sequence numbers, which increase with each connection on a
    /// four-tuple.
    pub last_iss: BTreeMap<ConnKey, SeqNo>,
    /// Since when a server waits for room in the log during a join, when it should not.
    pub full_since: [Option<Ns>; 2],
    /// Copied servers in images, until they are started.
    pub images: BTreeMap<u64, Server>,
}

impl World {
    pub fn new(plan: Plan, traced: bool) -> Self {
        let rng = Rng::new(plan.seed, 2);
        let clients: Vec<Client> = plan
            .clients
            .iter()
            .enumerate()
            .map(|(n, habits)| {
                let chance = Rng::new(plan.seed, 100 + n as u64);
                Client::new(n as u8, habits.clone(), plan.load_until, chance)
            })
            .collect();
        let pending = plan.faults.len();
        let mut world = Self {
            now: 0,
            rng,
            pauses: Rng::new(plan.seed, 8),
            queue: Queue::default(),
            trace: Trace::new(traced),
            check: Checkers::new(&plan),
            client_wakes: vec![None; clients.len()],
            clients,
            hosts: plan.clocks.map(Host::new),
            edge: Edge::new(plan.limits.edge_flows, plan.mutation),
            links: Links::default(),
            accepts_nobody: false,
            pulses: Pulses::default(),
            direct: Ways::new(plan.seed),
            pipes: Vec::new(),
            packets: Vec::new(),
            servers: 0,
            reached: Reached::default(),
            events: 0,
            faults_over: 0,
            rests: None,
            pending,
            client_link_free: [0; 2],
            last_iss: BTreeMap::new(),
            full_since: [None; 2],
            images: BTreeMap::new(),
            plan,
        };
        world.edge_starts();
        for member in 0..2 {
            world.daemon_starts(member);
        }
        for client in 0..world.clients.len() {
            world.wake_client(client);
        }
        world.schedule_faults();
        world.schedule(0, Event::Looks);
        world.pulses_start();
        world
    }

    /// Runs until all clients are done, or time is up.
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
        self.finish_checks();
        Outcome {
            seed: self.plan.seed,
            case: self.plan.case,
            events: self.events,
            virtual_ns: self.now,
            replies: self.check.replies(),
            takeovers: self.check.takeovers(),
            unread: self.check.unread(),
            reached: Reached {
                edge_refused: self.edge.refused,
                implausible: self.edge.implausible,
                lies_at_probe: self.clients.iter().map(|client| client.lies).sum(),
                ..self.reached
            },
            service_ended: self.check.is_service_gone(),
            violations: self.check.into_violations(),
            trace: self.trace.into_lines(),
        }
    }

    fn is_over(&mut self) -> bool {
        let done = self.pending == 0
            && self.now > self.faults_over
            && self.clients.iter().all(|c| c.finished || c.vanished || c.is_hostile())
            && self.replaced().is_none();
        self.rests = done.then(|| self.rests.unwrap_or(self.now));
        let rested = self.rests.is_some_and(|since| self.now - since >= self.plan.rest);
        rested || (self.pending == 0 && self.now > self.deadline() + self.plan.rest)
    }

    fn deadline(&self) -> Ns {
        let away = self.clients.iter().filter_map(|c| c.plan.looks_away).map(|(_, until)| until);
        away.fold(self.faults_over.max(self.plan.load_until), Ns::max) + LIVENESS
    }

    /// A member whose server runs although the other member is current.
    fn replaced(&self) -> Option<usize> {
        let speaks = |host: &Host| {
            let server = host.server.as_ref();
            host.daemon.is_some() && server.is_some_and(|s| s.alive && s.mode != Mode::Replay)
        };
        (0..2).find(|m| self.edge.current == Some(1 - m) && speaks(&self.hosts[*m]))
    }

    fn finish_checks(&mut self) {
        if let Some(member) = self.replaced() {
            self.check.still_runs(self.now, member);
        }
        if self.rests.is_some_and(|_| self.plan.rest >= REST_ALL) {
            self.left_over();
        }
        if self.clients.iter().all(|client| client.finished) {
            self.check.all_done(self.now);
        }
        for client in self.clients.iter().filter(|client| !client.is_hostile()) {
            let refused = self.is_refused(client);
            self.reached.shut_out += u64::from(refused && !client.finished && !client.vanished);
            // With an outdated disk, the edge lets nobody send if the member that may is gone.
            if !client.finished && !client.vanished && !refused && !self.edge.is_behind() {
                let replies = client.conn.as_ref().map_or(0, |conn| conn.replies);
                self.check.hangs(self.now, client.number, client.session, replies);
            }
        }
    }

    /// Whether a limit may be why this client has no connection. At their limits, gate and
    /// edge refuse new connections (law L6), and so does a kernel whose listener's queue is
    /// full. A handshake whose SYN-ACK was refused keeps its tuple, and its place in that
    /// queue, until the kernel gives it up.
    fn is_refused(&self, client: &Client) -> bool {
        let Some(conn) = client.conn.as_ref().filter(|conn| conn.iss.is_none()) else {
            return false;
        };
        let waits = |host: &Host| host.sockets.get(&conn.key).is_some_and(|s| !s.established);
        let elsewhere = self.reached.refused_full + self.edge.refused > 0;
        let refused = |gate: &Gate| gate.refused > 0 || elsewhere;
        let by_gate = |host: &Host| {
            let gate = host.gate.as_ref();
            gate.is_some_and(|gate| gate.is_full() || (waits(host) && refused(gate)))
        };
        let by_kernel = (0..2).any(|member| self.is_queue_full(member));
        self.edge.is_full() || by_kernel || self.hosts.iter().any(by_gate)
    }

    pub fn schedule(&mut self, delay: Ns, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.add(self.now, line);
    }

    /// The time shown by this host's clock.
    pub fn time_at(&self, host: usize) -> Ns {
        self.hosts[host].clock.shows(self.now)
    }

    /// Draws a one-way delay between two hosts, in ns.
    pub fn link_delay(&mut self) -> Ns {
        20_000 + self.rng.below(60_000)
    }

    fn handle(&mut self, event: Event) {
        let host = match &event {
            Event::AtMember { member, .. } => Some(*member),
            Event::KernelTimer(host) | Event::Server(host, _) => Some(*host),
            Event::Daemon(process) => Some(process.host),
            Event::Pipe(event) => Some(event.host(&self.pipes)),
            Event::EdgeDaemon(_)
            | Event::EdgeWritten(_)
            | Event::AtEdge(_)
            | Event::FromMember { .. } => Some(EDGE),
            _ => None,
        };
        if let Some(host) = host.filter(|host| self.hosts[*host].frozen.is_some()) {
            // A suspended machine keeps all events except for two thirds of the packets.
            let packet = matches!(
                event,
                Event::AtMember { .. } | Event::AtEdge(_) | Event::FromMember { .. }
            );
            if !packet || self.rng.one_in(3) {
                self.hosts[host].deferred.push(event);
            }
            return;
        }
        self.trace_event(&event);
        match event {
            Event::Client(n) => self.client_acts(n),
            Event::AtEdge(packet) => self.at_edge(packet),
            Event::AtMember { member, packet, copy } => self.at_member(member, packet, copy),
            Event::FromMember { member, packet } => self.passes_edge(member, packet),
            Event::AtClient(packet) => self.at_client(&packet),
            Event::KernelTimer(host) => self.kernel_timer(host),
            Event::Pipe(event) => self.pipe_event(event),
            Event::Daemon(process) => self.daemon_wakes(process),
            Event::Server(host, number) => self.server_wakes(host, number),
            Event::EdgeDaemon(life) => self.edge_daemon_wakes(life),
            Event::EdgeWritten(life) => self.edge_written(life),
            Event::Strikes(index) => self.strikes(index),
            Event::Ends(index) => self.ends(index),
            Event::Looks => self.looks(),
            Event::Pulse(host) => self.pulse(host),
            Event::Direct(event) => self.direct_event(event),
        }
    }

    fn trace_event(&mut self, event: &Event) {
        let now = self.now;
        let trace = &mut self.trace;
        match event {
            Event::AtEdge(p) => trace.add(now, || format!("client > edge     {p}")),
            Event::AtMember { member, packet, copy } => trace.add(now, || {
                let what = if *copy { "copy" } else { "    " };
                format!("edge > {} {what}     {packet}", NAMES[*member])
            }),
            Event::FromMember { member, packet } => {
                trace.add(now, || format!("{} > edge          {packet}", NAMES[*member]));
            }
            Event::AtClient(p) => trace.add(now, || format!("edge > client     {p}")),
            _ => {}
        }
    }

    pub fn freeze(&mut self, host: usize) {
        self.hosts[host].frozen.get_or_insert(self.now);
    }

    pub fn thaw(&mut self, host: usize) {
        let Some(since) = self.hosts[host].frozen.take() else { return };
        let pause = Pause::draw(&mut self.pauses);
        self.say(|| format!("{}: its clock: {pause:?}", NAMES[host]));
        self.hosts[host].clock.paused(since, self.now, pause);
        if matches!(pause, Pause::Leaps(_)) || self.now - since > CLOCK_MARGIN {
            self.check.falls_behind();
        }
        // Its timers depend on its clock, which has changed.
        match host {
            EDGE => self.edge_timer(),
            member => {
                self.wake_daemon_soon(member);
                self.hosts[member].kernel_timer = None;
                self.arm_kernel(member);
            }
        }
        for event in std::mem::take(&mut self.hosts[host].deferred) {
            self.schedule(1000, event);
        }
    }

    pub fn cut(&mut self, from: usize, to: usize) {
        self.links.cuts[from][to] += 1;
    }

    pub fn mend(&mut self, from: usize, to: usize) {
        self.links.cuts[from][to] -= 1;
        if self.links.cuts[from][to] == 0 {
            self.link_is_back(from, to);
        }
    }

    pub fn is_alive(&self, process: Process) -> bool {
        let host = &self.hosts[process.host];
        let life = match process.host {
            EDGE => self.edge.daemon.as_ref().map(|daemon| daemon.life),
            _ => host.daemon.as_ref().map(|daemon| daemon.life),
        };
        host.alive && life == Some(process.life)
    }

    /// The process that would accept a connection.
    pub fn listener(&self, host: usize, kind: Kind) -> Option<Process> {
        match kind {
            Kind::Edge => self.edge.daemon.as_ref().map(|d| Process { host, life: d.life }),
            Kind::Pair => {
                let daemon = self.hosts[host].daemon.as_ref().filter(|d| d.listens())?;
                Some(Process { host, life: daemon.life })
            }
        }
    }

    /// Puts an input into a process's inbox, and wakes it.
    pub fn put_link(&mut self, process: Process, kind: Kind, input: Input) {
        if !self.is_alive(process) {
            return;
        }
        if process.host == EDGE {
            return self.edge_input(input);
        }
        if let Some(daemon) = &mut self.hosts[process.host].daemon {
            match kind {
                Kind::Edge => daemon.edge.inbox.push_back(input),
                Kind::Pair => daemon.pair.inbox.push_back(input),
            }
        }
        self.wake_daemon_soon(process.host);
    }

    // Clients and the way to them.

    fn wake_client(&mut self, n: usize) {
        let Some(at) = self.clients[n].timer() else { return };
        if self.client_wakes[n].is_none_or(|known| at < known) {
            self.client_wakes[n] = Some(at);
            self.queue.push(at.max(self.now), Event::Client(n));
        }
    }

    fn client_acts(&mut self, n: usize) {
        if self.client_wakes[n].is_some_and(|at| at <= self.now) {
            self.client_wakes[n] = None;
        }
        let mut out = Vec::new();
        self.clients[n].act(self.now, &mut out);
        self.after_client(n, out);
    }

    fn at_client(&mut self, packet: &Packet) {
        let Some(n) = self.clients.iter().position(|client| client.owns(&packet.key)) else {
            return;
        };
        let mut out = Vec::new();
        self.clients[n].receive(self.now, packet, &mut out);
        self.after_client(n, out);
    }

    fn after_client(&mut self, n: usize, out: Vec<Packet>) {
        for notice in std::mem::take(&mut self.clients[n].notices) {
            self.trace.add(self.now, || format!("client {n}: {notice:?}"));
            let manners = self.clients[n].plan.manners();
            self.check.noticed(self.now, n, manners, &notice);
        }
        let (ecn, permille) = (self.clients[n].plan.ecn, self.plan.path.congestion_permille);
        for mut packet in out {
            // Only data may be ECN-capable, pure ACKs are not (RFC 3168 §6.1.4).
            packet.ce = ecn && !packet.payload.is_empty() && self.rng.below(1000) < permille;
            self.reached.hostile += u64::from(self.clients[n].is_hostile());
            packet.id = self.packets.len() as u64;
            self.packets.push(packet.clone());
            self.cross(0, packet, Event::AtEdge);
        }
        self.wake_client(n);
    }

    /// Sends a packet along the path between clients and edge, which loses, duplicates and
    /// reorders packets.
    pub fn cross(&mut self, lane: usize, packet: Packet, event: fn(Packet) -> Event) {
        let path = self.plan.path;
        // A duplicate SYN that arrives after its connection has ended is not modelled: the
        // accept queue cannot tell connections on the same tuple apart (see `Primary::bind`).
        let syn = packet.is(Flags::SYN);
        let copies = 1 + u64::from(self.rng.below(1000) < path.duplicate_permille && !syn);
        for _ in 0..copies {
            if self.rng.below(1000) < path.loss_permille {
                continue;
            }
            let late = self.rng.below(1000) < path.reorder_permille && !syn;
            let at = self.now + path.delay + self.rng.below(path.delay / 8 + 10_000);
            let at = if late {
                at + self.rng.below(3_000_000)
            } else {
                self.client_link_free[lane] = self.client_link_free[lane].max(at);
                self.client_link_free[lane]
            };
            self.queue.push(at, event(packet.clone()));
        }
    }

    pub fn fault(&self, index: usize) -> Fault {
        self.plan.faults[index].1
    }
}

impl Host {
    fn new(clock: ClockPlan) -> Self {
        Self {
            alive: true,
            heard_until: Ns::MAX,
            frozen: None,
            clock: Clock::new(clock),
            deferred: Vec::new(),
            slow: 1,
            address: false,
            tap_drop: None,
            gate: None,
            listening: false,
            sockets: BTreeMap::new(),
            backlog: VecDeque::new(),
            kernel_timer: None,
            tap: None,
            server: None,
            server_wakes: false,
            daemon: None,
            daemon_wakes: None,
            lives: 0,
        }
    }
}
