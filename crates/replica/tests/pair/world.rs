//! The world: virtual time, the network, the primary's host, and the crash.

use crate::check::{self, Checker};
use crate::client::{Client, Packet, RTO, Segment};
use crate::kernel::Socket;
use crate::outputs::{BackupCollector, KEY, PrimaryCollector, PrimaryEffect, Replica};
use crate::profile::{At, Profile, Victim};
use crate::rng::Rng;
use crate::server::App;
use crate::serving::Doing;
use holdfast_replica::Nanos;
use holdfast_replica::backup::Backup;
use holdfast_replica::primary::Primary;
use holdfast_replica::promotion::Promotion;
use holdfast_wire::message::{ConnId, ConnKey, ConnProgress, ConnRecord, FlowBounds, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const WINDOW: u64 = 60000;
const END: Nanos = Nanos::from_ms(5000);
const DETECTION: Nanos = Nanos::from_ms(60);

pub enum Event {
    ClientTimer(usize),
    KernelTimer,
    AtEdge(Segment),
    AtPrimary(Segment),
    AtBackup(Segment),
    FromPrimary(Packet),
    ToClient(Packet),
    ChannelToBackup(Vec<u8>),
    ChannelToPrimary(Vec<u8>),
    Daemon,
    Server,
    BackupTimer,
    Room,
    Promote,
    Bounds,
    BackupLost,
}

pub struct PrimaryHost {
    pub server_alive: bool,
    pub daemon_alive: bool,
    pub machine: Primary,
    pub log: Vec<u8>,
    pub sent: u64,
    pub records: u64,
    pub stable: u64,
    pub sockets: BTreeMap<ConnId, Socket>,
    pub by_key: BTreeMap<ConnKey, ConnId>,
    pub queue: VecDeque<ConnId>,
    pub accepts: BTreeMap<u32, ConnId>,
    pub opened: BTreeSet<ConnId>,
    pub fin_allowed: BTreeSet<ConnId>,
    pub app: App,
    pub doing: Doing,
    /// The server does nothing until then.
    pub busy_until: Nanos,
}

pub struct BackupHost {
    pub alive: bool,
    pub machine: Backup,
    pub replica: Replica,
    pub promotion: Option<Promotion>,
    pub live: bool,
    pub sockets: BTreeMap<ConnKey, Socket>,
    pub accepts: u32,
}

pub struct World {
    pub profile: Profile,
    pub now: Nanos,
    pub rng: Rng,
    events: BTreeMap<(Nanos, u64), Event>,
    event_number: u64,
    pub segments: Vec<Segment>,
    pub clients: Vec<Client>,
    pub primary: PrimaryHost,
    pub backup: BackupHost,
    pub fenced: bool,
    pub bounds: BTreeMap<ConnKey, FlowBounds>,
    pub checker: Checker,
    messages: u64,
    channel_free: [Nanos; 2],
    client_free: Nanos,
    crashed: bool,
    pub failures: Vec<String>,
}

impl World {
    pub fn new(profile: Profile) -> Self {
        let mut rng = Rng(profile.seed);
        let clients =
            (0..3).map(|n| Client::new(n, 2 + rng.below(3) as u32, n == 1, &mut rng)).collect();
        let mut world = Self {
            profile,
            now: Nanos(0),
            rng,
            events: BTreeMap::new(),
            event_number: 0,
            segments: Vec::new(),
            clients,
            primary: PrimaryHost::new(),
            backup: BackupHost::new(),
            fenced: false,
            bounds: BTreeMap::new(),
            checker: Checker::default(),
            messages: 0,
            channel_free: [Nanos(0); 2],
            client_free: Nanos(0),
            crashed: false,
            failures: Vec::new(),
        };
        for n in 0..world.clients.len() {
            world.checker.announce(world.clients[n].key, world.clients[n].irs);
            let start = world.rng.below(3_000_000);
            world.schedule(start, Event::ClientTimer(n));
        }
        world
    }

    pub fn records_logged(&self) -> u64 {
        self.primary.records
    }

    pub fn messages_delivered(&self) -> u64 {
        self.messages
    }

    pub fn repairs(&self) -> u64 {
        self.primary.machine.counters().repairs
    }

    /// Streams that grew by what the primary's server had not read.
    pub fn unread_filled(&self) -> u64 {
        self.backup.machine.counters().unread_filled
    }

    pub fn run(&mut self) {
        self.schedule(RTO.0, Event::KernelTimer);
        self.crash_if(At::Record(0));
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > END || self.clients.iter().all(Client::is_done) {
                break;
            }
            self.now = at;
            self.handle(event);
        }
    }

    pub fn client_verdict(&self) -> Result<(), String> {
        let backup_died =
            self.profile.crash.is_some_and(|crash| crash.victim == Victim::Backup) && self.crashed;
        check::clients(&self.clients, !backup_died)
    }

    pub fn verdict(&self) -> Result<(), String> {
        let failures = [&self.failures, &self.checker.failures, &self.backup.replica.failures];
        match failures.into_iter().flatten().next() {
            Some(why) => Err(why.clone()),
            None => self.client_verdict(),
        }
    }

    pub fn schedule(&mut self, delay_ns: u64, event: Event) {
        self.event_number += 1;
        self.events.insert((self.now.plus(Nanos(delay_ns)), self.event_number), event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ClientTimer(n) => self.client_timer(n),
            Event::KernelTimer => self.kernel_timer(),
            Event::AtEdge(segment) => self.at_edge(segment),
            Event::AtPrimary(segment) => self.at_primary(&segment),
            Event::AtBackup(segment) => self.at_backup(&segment),
            Event::FromPrimary(packet) if !self.fenced => {
                self.checker.released(&packet);
                self.pass_edge(packet);
            }
            Event::FromPrimary(_) => {}
            Event::ToClient(packet) => self.at_client(&packet),
            Event::ChannelToBackup(bytes) => self.message_at_backup(&bytes),
            Event::ChannelToPrimary(bytes) => self.message_at_primary(&bytes),
            Event::Daemon => self.daemon_poll(),
            Event::Server => self.server_step(),
            Event::BackupTimer => {
                self.with_backup(|machine, now, out| machine.handle_timeout(now, out))
            }
            Event::Room => self.with_backup(|machine, now, out| machine.handle_room(now, out)),
            Event::Promote => self.promote(),
            Event::Bounds => self.bounds_arrive(),
            Event::BackupLost => self.primary.machine.handle_backup_lost(),
        }
    }

    // The network.

    fn client_timer(&mut self, n: usize) {
        let mut out = Vec::new();
        self.clients[n].timer(self.now, &mut self.rng, &mut out);
        self.send_from_client(out);
        if !self.clients[n].is_done() {
            self.schedule(RTO.0, Event::ClientTimer(n));
        }
    }

    /// Both members' kernels repeat what is not acknowledged.
    fn kernel_timer(&mut self) {
        let mut packets = Vec::new();
        if self.primary.server_alive {
            self.primary.sockets.values().for_each(|socket| socket.repeat(&mut packets));
        }
        self.send_from_primary(packets);
        self.live_timer();
        self.schedule(RTO.0, Event::KernelTimer);
    }

    fn at_client(&mut self, packet: &Packet) {
        let mut out = Vec::new();
        if let Some(client) = self.clients.iter_mut().find(|client| client.key == packet.key) {
            client.receive(self.now, packet, &mut self.rng, &mut out);
        }
        self.send_from_client(out);
    }

    fn send_from_client(&mut self, out: Vec<Segment>) {
        for mut segment in out {
            segment.id = self.segments.len() as u64;
            self.segments.push(segment.clone());
            let delay = 50_000 + self.rng.below(200_000);
            self.schedule(delay, Event::AtEdge(segment));
        }
    }

    fn at_edge(&mut self, segment: Segment) {
        if let (Some(bounds), Some(ack)) = (self.bounds.get_mut(&segment.key), segment.ack) {
            bounds.client_ack = bounds.client_ack.max(ack);
        }
        let copied = !segment.payload.is_empty() || segment.syn || segment.fin;
        if self.fenced {
            let delay = 20_000 + self.rng.below(50_000);
            return self.schedule(delay, Event::AtBackup(segment));
        }
        if copied && !self.rng.one_in(10) {
            // Most copies come at once; some come late, behind others.
            let late = if self.rng.one_in(6) { 1_500_000 } else { 60_000 };
            let delay = 20_000 + self.rng.below(late);
            self.schedule(delay, Event::AtBackup(segment.clone()));
        }
        if !self.rng.one_in(25) {
            let delay = 20_000 + self.rng.below(80_000);
            self.schedule(delay, Event::AtPrimary(segment));
        }
    }

    /// A packet of the current member passes the edge.
    pub fn pass_edge(&mut self, packet: Packet) {
        let end = packet
            .seq
            .plus(packet.payload.len() as u64 + u64::from(packet.syn) + u64::from(packet.fin));
        let edge = packet.ack.plus(WINDOW);
        let new = FlowBounds {
            key: packet.key,
            iss: packet.syn.then_some(packet.seq),
            seq_end: end,
            right_edge: edge,
            tsval: 1000,
            client_ack: SeqNo(0),
        };
        let bounds =
            self.bounds.entry(packet.key).or_insert(FlowBounds { client_ack: packet.seq, ..new });
        bounds.seq_end = bounds.seq_end.max(end);
        bounds.right_edge = bounds.right_edge.max(edge);
        if self.rng.one_in(12) {
            return;
        }
        let delay = 50_000 + self.rng.below(150_000);
        self.client_free = self.client_free.max(self.now.plus(Nanos(delay)));
        let delay = self.client_free.since(self.now).0;
        self.schedule(delay, Event::ToClient(packet));
    }

    pub fn send_from_primary(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            self.schedule(30_000, Event::FromPrimary(packet));
        }
    }

    fn channel(&mut self, direction: usize, bytes: Vec<u8>) {
        let delay =
            30_000 + self.rng.below(if self.rng.clone().one_in(8) { 4_000_000 } else { 200_000 });
        self.channel_free[direction] =
            self.channel_free[direction].max(self.now.plus(Nanos(delay)));
        let delay = self.channel_free[direction].since(self.now).0;
        let event = if direction == 0 {
            Event::ChannelToBackup(bytes)
        } else {
            Event::ChannelToPrimary(bytes)
        };
        self.schedule(delay, event);
    }

    // The primary's host.

    fn at_primary(&mut self, segment: &Segment) {
        if !self.primary.server_alive {
            return;
        }
        let Some(id) = self.primary.by_key.get(&segment.key).copied() else {
            if segment.syn {
                self.new_socket(segment);
            }
            return;
        };
        let Some(socket) = self.primary.sockets.get_mut(&id) else { return };
        if segment.syn {
            // The gate holds the SYN-ACK until the backup has the record.
            let packet = socket.syn_ack();
            if self.primary.opened.contains(&id) {
                self.send_from_primary(vec![packet]);
            }
            return;
        }
        let was_established = socket.established;
        let due = socket.receive(segment);
        let ack = socket.ack();
        let progress = ConnProgress {
            conn: id,
            snd_una: socket.iss.plus(1 + socket.snd_una),
            snd_nxt: socket.iss.plus(1 + socket.snd_nxt + u64::from(socket.fin_sent)),
            right_edge: ack.ack.plus(WINDOW),
            tsval: 1000,
            rcv_nxt: socket.irs.plus(1 + socket.received()),
        };
        if socket.is_over() {
            self.with_primary(|machine, now, out| machine.handle_gone(now, id, out));
        } else if !was_established {
            self.primary.queue.push_back(id);
        } else if self.rng.one_in(2) {
            self.with_primary(|machine, now, out| machine.handle_progress(now, &[progress], out));
        }
        if due {
            self.send_from_primary(vec![ack]);
        }
        self.schedule(5_000, Event::Server);
    }

    fn new_socket(&mut self, syn: &Segment) {
        let id = ConnId(1 << 32 | self.primary.sockets.len() as u64);
        let socket = Socket::new(syn, SeqNo(self.rng.next() as u32));
        let record = ConnRecord {
            key: syn.key,
            iss: socket.iss,
            irs: socket.irs,
            mss: 1460,
            peer_mss: 0,
            rcv_wscale: 255,
            snd_wscale: 255,
            sack: true,
            tsval: Some(1000),
            window: WINDOW as u16,
        };
        self.primary.sockets.insert(id, socket);
        self.primary.by_key.insert(syn.key, id);
        self.with_primary(|machine, now, out| machine.handle_synack(now, id, id.0, record, out));
    }

    fn with_primary(&mut self, f: impl FnOnce(&mut Primary, Nanos, &mut PrimaryCollector<'_>)) {
        if !self.primary.daemon_alive {
            return;
        }
        let mut out = PrimaryCollector {
            log: &self.primary.log,
            sockets: &self.primary.sockets,
            effects: Vec::new(),
        };
        f(&mut self.primary.machine, self.now, &mut out);
        for effect in out.effects {
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: PrimaryEffect) {
        match effect {
            PrimaryEffect::Send(bytes) => self.channel(0, bytes),
            PrimaryEffect::Open(id) => {
                self.primary.opened.insert(id);
                let packet = self.primary.sockets[&id].syn_ack();
                self.send_from_primary(vec![packet]);
            }
            PrimaryEffect::Advance(id, stable) => {
                let Some(socket) = self.primary.sockets.get_mut(&id) else { return };
                let clamp = stable.offset_near(socket.irs.plus(1), socket.clamp.unwrap_or(0));
                socket.clamp = Some(clamp);
                let packet = socket.ack();
                self.send_from_primary(vec![packet]);
            }
            PrimaryEffect::Stable(pos) => {
                self.primary.stable = pos;
                self.schedule(1_000, Event::Server);
            }
            PrimaryEffect::AllowFin(id) => {
                self.primary.fin_allowed.insert(id);
            }
            PrimaryEffect::Failed(why) => self.failures.push(format!("primary: {why}")),
        }
    }

    fn message_at_primary(&mut self, bytes: &[u8]) {
        if self.primary.daemon_alive {
            match Message::decode(bytes) {
                Ok(message) => self
                    .with_primary(|machine, now, out| machine.handle_message(now, &message, out)),
                Err(why) => self.failures.push(why.to_string()),
            }
            self.messages += 1;
            self.crash_if(At::Message(self.messages));
        }
    }

    fn daemon_poll(&mut self) {
        let from = self.primary.sent;
        let until = self.primary.log.len() as u64;
        if self.primary.daemon_alive && from < until {
            self.primary.sent = until;
            let bytes = self.primary.log[from as usize..].to_vec();
            self.with_primary(|machine, now, out| machine.handle_log(now, from, &bytes, out));
        }
    }

    // The backup's host, until its promotion.

    pub fn with_backup(&mut self, f: impl FnOnce(&mut Backup, Nanos, &mut BackupCollector<'_>)) {
        if !self.backup.alive || self.backup.promotion.is_some() {
            return;
        }
        let mut out = BackupCollector {
            replica: &mut self.backup.replica,
            checker: &mut self.checker,
            full: self.rng.one_in(40),
            refused: false,
            sent: Vec::new(),
            server_died: false,
            log_ended: false,
            failed: None,
        };
        f(&mut self.backup.machine, self.now, &mut out);
        self.backup.machine.flush(self.now, &mut out);
        let BackupCollector { refused, sent, server_died, log_ended, failed, .. } = out;
        if let Some(why) = failed {
            self.failures.push(format!("backup: {why}"));
        }
        for bytes in sent {
            self.channel(1, bytes);
        }
        if refused {
            self.schedule(10_000, Event::Room);
        }
        if server_died {
            self.schedule(100_000, Event::Promote);
        }
        if let Some(deadline) = self.backup.machine.next_deadline() {
            let delay = deadline.since(self.now).0;
            self.schedule(delay, Event::BackupTimer);
        }
        if log_ended {
            self.log_ended();
        }
    }

    fn message_at_backup(&mut self, bytes: &[u8]) {
        if !self.backup.alive {
            return;
        }
        match Message::decode(bytes) {
            Ok(message) => {
                if let Message::Unread { conn, offset, bytes, last } = &message
                    && let Some(socket) = self.primary.sockets.get(conn)
                {
                    let len = bytes.len() as u64 + u64::from(*last);
                    self.checker.arrives_at(&socket.key, *offset, len);
                }
                self.with_backup(|machine, now, out| machine.handle_message(now, &message, out))
            }
            Err(why) => self.failures.push(why.to_string()),
        }
        self.messages += 1;
        self.crash_if(At::Message(self.messages));
    }

    // The crash.

    pub fn crash_if(&mut self, at: At) {
        let Some(crash) = self.profile.crash.filter(|crash| crash.at == at && !self.crashed) else {
            return;
        };
        self.crashed = true;
        match crash.victim {
            Victim::PrimaryHost => {
                self.primary.server_alive = false;
                self.primary.daemon_alive = false;
                let cut = self.now.plus(Nanos(self.rng.below(1_000_000)));
                self.events.retain(|(at, _), event| {
                    !matches!(event, Event::ChannelToBackup(_)) || *at <= cut
                });
                self.schedule(DETECTION.0, Event::Promote);
            }
            Victim::Server => {
                self.primary.server_alive = false;
                self.daemon_poll();
                self.with_primary(|machine, now, out| machine.handle_server_died(now, out));
            }
            Victim::Nobody => self.schedule(0, Event::Promote),
            Victim::Backup => {
                self.backup.alive = false;
                self.schedule(DETECTION.0, Event::BackupLost);
            }
        }
    }
}

impl PrimaryHost {
    fn new() -> Self {
        Self {
            server_alive: true,
            daemon_alive: true,
            machine: Primary::new(0),
            log: Vec::new(),
            sent: 0,
            records: 0,
            stable: 0,
            sockets: BTreeMap::new(),
            by_key: BTreeMap::new(),
            queue: VecDeque::new(),
            accepts: BTreeMap::new(),
            opened: BTreeSet::new(),
            fin_allowed: BTreeSet::new(),
            app: App::default(),
            doing: Doing::Idle,
            busy_until: Nanos(0),
        }
    }
}

impl BackupHost {
    fn new() -> Self {
        Self {
            alive: true,
            machine: Backup::new(KEY),
            replica: Replica::default(),
            promotion: None,
            live: false,
            sockets: BTreeMap::new(),
            accepts: 0,
        }
    }
}
