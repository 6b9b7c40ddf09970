//! A host server: its kernel, the server's process, and the host of its daemon's machine,
//! which announces its services.

use super::edge::GROUP;
use super::packet::{Answer, Conn, Packet, Said, Tuple};
use super::plan::{Lie, Plan, ServerPlan};
use crate::Ns;
use crate::clock::Clock;
use holdfast_cluster::Nanos;
use holdfast_member::host_server::{
    Answer as Answered, EdgeWords, HostServer, ListenerHost, Setup, Waiting,
};
use holdfast_member::spread::Service;
use holdfast_member::timing::host_server::ANSWER_MAX;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, VERSION};
use holdfast_wire::packet::mapped;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The group's service address.
pub const ADDRESS: [u8; 4] = [10, 9, 0, 100];

/// The service with this number.
pub fn service_of(number: u8) -> Service {
    Service { address: SocketAddr::new(ADDRESS.into(), 80 + u16::from(number)), udp: false }
}

/// The address of a host server's end of the tunnel.
pub fn tunnel_of(server: usize) -> IpAddr {
    IpAddr::from([10, 9, 0, 10 + server as u8])
}

/// A connection in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub isn: u32,
    pub established: bool,
}

/// The host interface of a host server's machine.
pub struct Desk {
    /// Time by its clock.
    now: Nanos,
    /// Time that a check of its listeners takes.
    look: Ns,
    address: IpAddr,
    /// Services that the process listens for.
    pub listens: Vec<u8>,
    /// Whether the process has stopped calling accept().
    pub hangs: bool,
    bound: bool,
    /// Services whose listeners are being checked.
    asked: Option<Vec<Service>>,
    answers: Option<Vec<(Service, Answered)>>,
    is_open: bool,
    pub lie: Option<Lie>,
    /// Messages to the edge.
    pub out: Vec<Vec<u8>>,
    pub notes: Vec<(&'static str, String)>,
}

/// State of its daemon's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Closed,
    /// The handshake is under way.
    Opens(u32),
    Open(u32),
}

/// The host server; see the module.
pub struct Server {
    pub plan: ServerPlan,
    pub number: usize,
    pub name: String,
    pub alive: bool,
    pub frozen: Option<Ns>,
    pub clock: Clock,
    pub sockets: BTreeMap<Tuple, Socket>,
    pub desk: Desk,
    pub machine: Option<HostServer>,
    pub channel: Channel,
    pub retry: Option<Ns>,
    /// How often its daemon has been started.
    pub life: u32,
    /// How often the machine has been started.
    pub boots: u32,
    pub wakes: Option<Ns>,
    /// Whether the process runs, and is to listen.
    pub serves: bool,
}

impl Server {
    pub fn new(number: usize, plan: &Plan) -> Self {
        let own = plan.servers[number].clone();
        let desk = Desk {
            now: Nanos(0),
            look: own.look,
            address: tunnel_of(number),
            listens: Vec::new(),
            hangs: false,
            bound: false,
            asked: None,
            answers: None,
            is_open: false,
            lie: None,
            out: Vec::new(),
            notes: Vec::new(),
        };
        Self {
            number,
            name: format!("h{number}"),
            alive: true,
            frozen: None,
            clock: Clock::new(own.clock),
            sockets: BTreeMap::new(),
            desk,
            machine: None,
            channel: Channel::Closed,
            retry: None,
            life: 0,
            boots: 0,
            wakes: None,
            serves: false,
            plan: own,
        }
    }

    pub fn is_up(&self) -> bool {
        self.alive && self.frozen.is_none()
    }

    pub fn daemon_starts(&mut self, now: Ns) {
        self.life += 1;
        self.desk.now = Nanos(self.clock.shows(now));
        self.desk.out.clear();
        (self.desk.asked, self.desk.answers, self.desk.is_open) = (None, None, false);
        let services = |numbers: &Vec<u8>| numbers.iter().map(|it| service_of(*it)).collect();
        let setup = Setup {
            group: GROUP.to_owned(),
            name: self.name.clone(),
            edges: vec!["edge".to_owned()],
            weight: self.plan.weight,
            layer2: false,
            tunnels: vec![tunnel_of(self.number)],
            addresses: vec![ADDRESS.into()],
            services: self.plan.named.as_ref().map(services),
        };
        self.machine = Some(HostServer::new(setup, self.desk.now));
        self.channel = Channel::Closed;
        self.retry = Some(now);
    }

    pub fn daemon_dies(&mut self) {
        self.machine = None;
        self.channel = Channel::Closed;
        (self.retry, self.wakes) = (None, None);
        self.desk.out.clear();
    }

    /// The machine dies, with all its state.
    pub fn dies(&mut self) {
        self.daemon_dies();
        self.alive = false;
        self.frozen = None;
        self.sockets.clear();
        self.process_ends();
    }

    /// The process ends, and so do its connections.
    pub fn process_ends(&mut self) {
        self.serves = false;
        self.desk.listens.clear();
        self.desk.hangs = false;
        self.sockets.clear();
    }

    pub fn process_listens(&mut self) {
        self.desk.listens.clone_from(&self.plan.serves);
    }

    /// The process binds; its daemon, if it runs, is told.
    pub fn note_bind(&mut self, now: Ns) {
        let Self { machine: Some(machine), desk, clock, .. } = self else { return };
        desk.bound = true;
        desk.now = Nanos(clock.shows(now));
        machine.handle_bind(desk.now, desk);
    }

    /// Its channel to the edge is open.
    pub fn opened(&mut self, channel: u32) {
        let Self { machine: Some(machine), desk, .. } = self else { return };
        self.channel = Channel::Open(channel);
        desk.is_open = true;
        machine.handle_opened(0, desk);
    }

    /// Its channel was closed; it connects again after `retry`.
    pub fn closed(&mut self, now: Ns, why: &str, retry: Ns) {
        let Self { machine: Some(machine), desk, channel, .. } = self else { return };
        let was = std::mem::replace(channel, Channel::Closed);
        desk.is_open = false;
        if matches!(was, Channel::Open(_)) {
            machine.handle_closed(0, why, desk);
        }
        self.retry = Some(now + retry);
    }

    /// Handles a message from the edge.
    pub fn hears(&mut self, bytes: &[u8]) {
        let Self { machine: Some(machine), desk, .. } = self else { return };
        let Ok(message) = Message::decode(bytes) else { return };
        let mut heard = EdgeWords::default();
        heard.take(&message);
        machine.handle_heard(0, heard, desk);
    }

    /// Does a turn of its daemon.
    pub fn turn(&mut self, now: Ns) {
        let Self { machine: Some(machine), desk, clock, .. } = self else { return };
        desk.now = Nanos(clock.shows(now));
        machine.handle_timeout(desk.now, desk);
    }

    /// When the next turn is due.
    pub fn deadline(&self) -> Option<Ns> {
        let due = self.machine.as_ref()?.next_deadline();
        let due = self.clock.when(due.0);
        Some(self.retry.map_or(due, |retry| retry.min(due)))
    }

    /// Begins a check of listeners that was asked for: its results, and how long it takes.
    /// `None` if none was asked for, or one is under way.
    pub fn asks(&mut self) -> Option<(Vec<(Service, Answered)>, Ns)> {
        let asked = self.desk.asked.as_ref()?;
        if self.desk.answers.is_some() {
            return None;
        }
        let listens =
            |service: &Service| self.desk.listens.iter().any(|it| service_of(*it) == *service);
        let answer = |service: &Service| match listens(service) {
            false => (*service, Answered::Refused),
            true if self.desk.hangs => (*service, Answered::Queued { moved: false }),
            true => (*service, Answered::Served),
        };
        let answers: Vec<(Service, Answered)> = asked.iter().map(answer).collect();
        let failed = answers.iter().filter(|it| it.1 == Answered::Refused).count() as u64;
        let takes = if self.desk.hangs { failed * ANSWER_MAX.as_nanos() as u64 } else { 100_000 };
        Some((answers, takes))
    }

    pub fn answered(&mut self, answers: Vec<(Service, Answered)>) {
        if self.desk.asked.is_some() {
            self.desk.answers = Some(answers);
        }
    }

    /// Handles a client's packet from the tunnel; returns the answer of the kernel or of the
    /// process.
    pub fn receive(&mut self, packet: &Packet) -> Option<Answer> {
        let Conn { tuple, isn } = packet.conn;
        let known = self.sockets.get(&tuple).copied().filter(|socket| socket.isn == isn);
        match (packet.said, known) {
            (Said::Syn, Some(_)) => Some(Answer::SynAck),
            (Said::Syn, None) => {
                if !self.desk.listens.contains(&tuple.service) {
                    return Some(Answer::Rst);
                }
                self.sockets.insert(tuple, Socket { isn, established: false });
                Some(Answer::SynAck)
            }
            (Said::Rst, known) => {
                if known.is_some() {
                    self.sockets.remove(&tuple);
                }
                None
            }
            (_, None) => Some(Answer::Rst),
            (said, Some(_)) => {
                if let Some(socket) = self.sockets.get_mut(&tuple) {
                    socket.established = true;
                }
                self.process_says(tuple, said)
            }
        }
    }

    fn process_says(&mut self, tuple: Tuple, said: Said) -> Option<Answer> {
        match said {
            Said::Data(number) if !self.desk.hangs => Some(Answer::Reply(number)),
            Said::Fin => {
                self.sockets.remove(&tuple);
                Some(Answer::FinAck)
            }
            _ => None,
        }
    }

    /// Whether its kernel has this connection.
    pub fn has(&self, conn: Conn) -> bool {
        self.sockets.get(&conn.tuple).is_some_and(|it| it.isn == conn.isn)
    }
}

impl ListenerHost for Desk {
    fn now(&self) -> Nanos {
        self.now.plus(Nanos(self.look))
    }

    fn send(&mut self, _edge: usize, message: &Message<'_>) {
        if !self.is_open {
            return;
        }
        let mut bytes = Vec::new();
        match (message, self.lie) {
            (Message::Announce { weight, layer2, tunnels, services }, Some(lie)) => {
                let (mut weight, mut layer2) = (*weight, *layer2);
                let (mut tunnels, mut services) = (tunnels.clone(), services.clone());
                match lie {
                    Lie::OthersTunnel => tunnels.push(mapped(other_of(self.address))),
                    Lie::StrangeTunnel => tunnels = vec![mapped(IpAddr::from([10, 9, 7, 7]))],
                    Lie::Weight(said) => weight = said,
                    Lie::Method => layer2 = !layer2,
                    Lie::Service => {
                        services.push(Offer {
                            address: mapped(self.address),
                            port: 22,
                            udp: false,
                        });
                    }
                    Lie::Nonsense | Lie::Strangers => {}
                }
                Message::Announce { weight, layer2, tunnels, services }.encode(&mut bytes);
            }
            (Message::Beat { .. }, Some(Lie::Nonsense)) => Message::Ask.encode(&mut bytes),
            _ => message.encode(&mut bytes),
        }
        self.out.push(bytes);
    }

    fn listening(&mut self) -> Option<Vec<Waiting>> {
        let waiting = |number: &u8| {
            let Service { address, udp } = service_of(*number);
            Waiting { address: address.ip(), port: address.port(), udp }
        };
        Some(self.listens.iter().map(waiting).collect())
    }

    fn take_bind(&mut self) -> bool {
        std::mem::take(&mut self.bound)
    }

    fn ask(&mut self, services: &[Service]) {
        self.asked.get_or_insert_with(|| services.to_vec());
    }

    fn answers(&mut self) -> Option<Vec<(Service, Answered)>> {
        let answers = self.answers.take()?;
        self.asked = None;
        Some(answers)
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.notes.push((what, words));
    }
}

/// The address of another host server's end of the tunnel.
fn other_of(address: IpAddr) -> IpAddr {
    tunnel_of(usize::from(address == tunnel_of(0)))
}

/// Messages of a stranger whose name is in no file: a hello and an announcement.
pub fn strangers_words(name: &str) -> [Vec<u8>; 2] {
    let hello = Message::Hello {
        version: VERSION,
        log_version: LOG_VERSION,
        group: GROUP,
        member: name,
        epoch: 0,
        speaks: false,
        fingerprint: Vec::new(),
        hash_key: None,
    };
    let announce = Message::Announce {
        weight: 1,
        layer2: false,
        tunnels: vec![mapped(tunnel_of(0))],
        services: vec![Offer::from(&service_of(0))],
    };
    [hello, announce].map(|message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    })
}
