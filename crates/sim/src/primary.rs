//! The primary's loop (`daemon/primary.rs`) and its life without a backup
//! (`daemon/primary/alone.rs`), around the real `Primary` machine.

use crate::gate::Held;
use crate::kernel::{Socket, cookie};
use crate::member::{Daemon, Phase};
use crate::packet::Packet;
use crate::pipe::{Input, PipeId};
use crate::plan::Mutation;
use crate::server::Mode;
use crate::world::{NAMES, World};
use crate::{Ns, ns};
use holdfast_cluster::watch::Ground;
use holdfast_member::request::EpochRequest;
use holdfast_member::timing::primary::{self as timing, OWED_BYTES};
use holdfast_replica::primary::{
    FRAMES_UNCONFIRMED_MAX, Peeked, Primary as Machine, PrimaryOutput, Wanted,
};
use holdfast_replica::{Broken, Nanos};
use holdfast_wire::message::{ConnId, ConnKey, ConnProgress, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far the loop has come.
#[derive(Debug)]
enum Stage {
    Serving,
    /// `server_died`.
    ServerDied,
    /// `go_alone`: the edge is asked to bar the backup.
    Asking(Box<EpochRequest>),
    /// `serve_alone`.
    Alone,
}

struct Conn {
    key: ConnKey,
    synack: Option<Packet>,
    opened: Ns,
    ending: bool,
    over: Option<Ns>,
    told: Option<ConnProgress>,
}

/// See the module.
pub struct Primary {
    stage: Stage,
    machine: Machine,
    peer: PipeId,
    conns: BTreeMap<ConnId, Conn>,
    owed: BTreeMap<ConnId, Ns>,
    ending: BTreeSet<ConnId>,
    linger: VecDeque<(Ns, ConnId)>,
    log_at: u64,
    broken: Option<String>,
    progress_at: Ns,
    closing_at: Ns,
    stray_at: Ns,
    report_at: Ns,
}

enum Effect {
    Send(Vec<u8>),
    Open(ConnId),
    Refuse(ConnId),
    Advance(ConnId, SeqNo),
    Stable(u64),
    AllowFin(ConnId),
    Broken(String),
}

struct Collector<'a> {
    log: &'a [u8],
    sockets: &'a BTreeMap<ConnKey, Socket>,
    mutation: Option<Mutation>,
    effects: Vec<Effect>,
}

impl PrimaryOutput for Collector<'_> {
    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.effects.push(Effect::Send(bytes));
    }
    fn open(&mut self, conn: ConnId) {
        self.effects.push(Effect::Open(conn));
    }
    fn refuse(&mut self, conn: ConnId) {
        self.effects.push(Effect::Refuse(conn));
    }
    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.effects.push(Effect::Advance(conn, stable));
    }
    fn stable(&mut self, pos: u64) {
        self.effects.push(Effect::Stable(pos));
    }
    fn allow_fin(&mut self, conn: ConnId) {
        self.effects.push(Effect::AllowFin(conn));
    }
    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        into.clear();
        let bytes = self.log.get(pos as usize..pos as usize + len);
        into.extend_from_slice(bytes.unwrap_or_default());
        bytes.is_some()
    }
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        let is_it = |socket: &&Socket| {
            socket.accept == Some(wanted.accept) && cookie(socket.iss, socket.irs) == wanted.socket
        };
        let Some(socket) = self.sockets.values().find(is_it) else { return Peeked::Nothing };
        let peeked = socket.peek(wanted.from, wanted.until, into);
        if self.mutation == Some(Mutation::PeekAside) {
            let aside = into.len().min(1);
            into.rotate_left(aside);
        }
        peeked
    }
    fn broken(&mut self, reason: &Broken) {
        self.effects.push(Effect::Broken(reason.to_string()));
    }
}

impl World {
    /// The backup has come: address, server, loop.
    pub fn primary_starts(&mut self, d: &mut Daemon, peer: PipeId) -> Phase {
        let (now, member) = (self.now, d.member);
        self.hosts[member].address = true;
        self.start_server(member, Mode::Record);
        self.check.pair_begins(member, d.epoch, self.servers);
        self.say(|| format!("{}: serves, protected", NAMES[member]));
        d.watch.renew(Nanos(now));
        let primary = Primary {
            stage: Stage::Serving,
            machine: Machine::new(0),
            peer,
            conns: BTreeMap::new(),
            owed: BTreeMap::new(),
            ending: BTreeSet::new(),
            linger: VecDeque::new(),
            log_at: 0,
            broken: None,
            progress_at: now,
            closing_at: now,
            stray_at: now + ns(timing::STRAY_EVERY),
            report_at: now,
        };
        self.turn_primary(d, Box::new(primary))
    }

    pub fn turn_primary(&mut self, d: &mut Daemon, mut p: Box<Primary>) -> Phase {
        match std::mem::replace(&mut p.stage, Stage::Serving) {
            Stage::Serving => self.turn_serving(d, p),
            Stage::ServerDied => {
                self.turn_edge(d);
                self.take_messages(d, &mut p);
                p.stage = Stage::ServerDied;
                Phase::Primary(p)
            }
            Stage::Asking(request) => self.turn_asking(d, p, request),
            Stage::Alone => {
                d.pair.inbox.clear();
                self.turn_edge(d);
                p.stage = Stage::Alone;
                Phase::Primary(p)
            }
        }
    }

    fn turn_serving(&mut self, d: &mut Daemon, mut p: Box<Primary>) -> Phase {
        self.turn_edge(d);
        if self.is_replaced(d) {
            return self.stand_down(d, p);
        }
        if self.server_is_dead(d.member) {
            return self.server_died(d, p);
        }
        self.gate_events(d, &mut p);
        self.take_log(d, &mut p);
        let lost = self.take_messages(d, &mut p);
        self.settle(d, &mut p);
        if let Some(reason) = p.broken.take() {
            return self.go_alone(d, p, &reason);
        }
        if lost {
            return self.go_alone(d, p, "the channel to the backup was lost");
        }
        self.sleep_serving(d, &p);
        Phase::Primary(p)
    }

    fn is_replaced(&self, d: &Daemon) -> bool {
        d.standing.replaced_by(d.epoch).is_some()
            && self.plan.mutation != Some(Mutation::NeverStandDown)
    }

    fn server_is_dead(&self, member: usize) -> bool {
        self.hosts[member].server.as_ref().is_none_or(|server| !server.alive)
    }

    fn sleep_serving(&mut self, d: &Daemon, p: &Primary) {
        let beat = d.watch.next_deadline().map(|at| at.0);
        let owed = p.owed.values().min().map(|at| at + ns(timing::OWED_WAIT));
        let log = (!p.conns.is_empty()).then_some(self.now + ns(timing::TICK));
        let all = [beat, owed, log];
        let at = all.into_iter().flatten().fold(p.report_at, Ns::min);
        self.sleep(d, at);
    }

    /// The log has grown, and nobody rang: the next tick finds it.
    pub fn log_grew(&mut self, member: usize) {
        self.wake_daemon(member, self.now + ns(timing::TICK));
    }

    fn act(
        &mut self,
        d: &Daemon,
        p: &mut Primary,
        f: impl FnOnce(&mut Machine, &mut Collector<'_>),
    ) {
        let host = &self.hosts[d.member];
        let log = host.server.as_ref().map_or(&[][..], |server| &server.log);
        let mut out = Collector {
            log,
            sockets: &host.sockets,
            mutation: self.plan.mutation,
            effects: Vec::new(),
        };
        f(&mut p.machine, &mut out);
        for effect in out.effects {
            self.apply(d.member, p, effect);
        }
        let used = p.machine.frames_unconfirmed();
        self.check.table(self.now, "frames unconfirmed", used, FRAMES_UNCONFIRMED_MAX);
    }

    fn apply(&mut self, member: usize, p: &mut Primary, effect: Effect) {
        let now = self.now;
        let gate = self.hosts[member].gate.as_mut();
        match effect {
            Effect::Send(bytes) => {
                if let Ok(message) = Message::decode(&bytes) {
                    self.send(p.peer, 1, &message);
                }
            }
            Effect::Open(id) => {
                if let Some(slot) = gate.and_then(|gate| gate.slot_mut(id)) {
                    slot.open = true;
                }
                if let Some(packet) = p.conns.get_mut(&id).and_then(|conn| conn.synack.take()) {
                    self.host_sends(member, vec![packet]);
                }
            }
            Effect::Refuse(id) => {
                p.conns.remove(&id);
                if let Some(gate) = gate {
                    gate.free(id);
                }
            }
            Effect::Advance(id, stable) => {
                if let Some(slot) = gate.and_then(|gate| gate.slot_mut(id)) {
                    slot.stable = stable;
                }
                p.owed.entry(id).or_insert(now);
            }
            Effect::Stable(pos) => {
                if let Some(server) = &mut self.hosts[member].server {
                    server.stable = pos;
                }
                self.wake_server(member);
            }
            Effect::AllowFin(id) => {
                if let Some(slot) = gate.and_then(|gate| gate.slot_mut(id)) {
                    slot.fin_allowed = true;
                }
                if let Some(conn) = p.conns.get_mut(&id) {
                    conn.ending = true;
                    p.ending.insert(id);
                }
            }
            Effect::Broken(reason) => {
                self.check.broke(now, format!("primary: {reason}"));
                p.broken = Some(reason);
            }
        }
    }

    fn gate_events(&mut self, d: &Daemon, p: &mut Primary) {
        let now = self.now;
        let Some(gate) = &mut self.hosts[d.member].gate else { return };
        for Held { id, record, packet } in std::mem::take(&mut gate.events) {
            let conn = Conn {
                key: record.key,
                synack: Some(packet),
                opened: now,
                ending: false,
                over: None,
                told: None,
            };
            p.conns.insert(id, conn);
            let (now, socket) = (Nanos(now), cookie(record.iss, record.irs));
            self.act(d, p, |machine, out| machine.handle_synack(now, id, socket, record, out));
        }
    }

    fn take_log(&mut self, d: &Daemon, p: &mut Primary) {
        let now = self.now;
        let tail = self.hosts[d.member].server.as_ref().map_or(0, |server| server.tail());
        let from = std::mem::replace(&mut p.log_at, tail);
        if tail > from {
            self.act(d, p, |machine, out| {
                let bytes = out.log[from as usize..].to_vec();
                machine.handle_log(Nanos(now), from, &bytes, out);
            });
        }
    }

    /// True when the backup is lost.
    fn take_messages(&mut self, d: &mut Daemon, p: &mut Primary) -> bool {
        let now = self.now;
        let mut lost = false;
        for input in std::mem::take(&mut d.pair.inbox) {
            match input {
                Input::Lost(pipe) => lost |= pipe == p.peer,
                Input::Message(pipe, bytes) if pipe == p.peer => match Message::decode(&bytes) {
                    Ok(Message::Beat { number, echo, .. }) => {
                        d.watch.handle_beat(Nanos(now), number, echo);
                    }
                    Ok(message) => {
                        d.watch.handle_received(Nanos(now));
                        self.act(d, p, |m, out| m.handle_message(Nanos(now), &message, out));
                    }
                    Err(bad) => self.check.violation(now, "message", bad.to_string()),
                },
                // Whoever else connects is turned away.
                Input::Accepted(pipe) => self.close_pipe(pipe, 1),
                _ => {}
            }
        }
        lost
    }

    fn settle(&mut self, d: &mut Daemon, p: &mut Primary) {
        let now = self.now;
        self.pay_owed(d.member, p);
        if now >= p.progress_at {
            self.progress(d, p);
            p.progress_at = now
                + ns(timing::PROGRESS_EVERY)
                + ns(timing::PROGRESS_PER_CONN) * p.conns.len() as u64;
        }
        if now >= p.report_at {
            p.report_at = now + ns(timing::REPORT_EVERY);
            if let Some(gate) = &self.hosts[d.member].gate {
                let used = gate.slots_used();
                self.check.table(now, "gate slots", used, self.plan.gate_slots);
            }
        }
        if now >= p.closing_at {
            p.closing_at = now + ns(timing::CLOSING_EVERY);
            self.reap(d, p);
        }
        if let Some((number, echo)) = d.watch.handle_timeout(Nanos(now)) {
            self.send(p.peer, 1, &Message::Beat { number, echo, executed: p.log_at });
        }
        if d.watch.verdict(Nanos(now)) == Some(Ground::Silent) {
            p.broken.get_or_insert_with(|| "the backup does not answer".into());
        }
    }

    fn pay_owed(&mut self, member: usize, p: &mut Primary) {
        let now = self.now;
        let Some(gate) = &self.hosts[member].gate else { return };
        let mut out = Vec::new();
        p.owed.retain(|id, since| {
            let Some(slot) = gate.slot(*id) else { return false };
            let Some(ack) = slot.owed_ack() else { return false };
            if ack.since(slot.last_ack) < OWED_BYTES && now - *since < ns(timing::OWED_WAIT) {
                return true;
            }
            out.push(slot.owed_packet(ack));
            false
        });
        if !out.is_empty() {
            self.host_sends(member, out);
        }
    }

    fn progress(&mut self, d: &Daemon, p: &mut Primary) {
        let now = self.now;
        let Some(gate) = &self.hosts[d.member].gate else { return };
        let mut news = Vec::new();
        for (id, conn) in &mut p.conns {
            let Some(slot) = gate.slot(*id) else { continue };
            let progress = ConnProgress {
                conn: *id,
                snd_una: slot.snd_una,
                snd_nxt: slot.snd_nxt,
                right_edge: slot.last_edge,
                tsval: slot.tsval,
                rcv_nxt: slot.rcv_nxt,
            };
            if slot.open && conn.told != Some(progress) {
                conn.told = Some(progress);
                news.push(progress);
            }
        }
        if !news.is_empty() {
            self.act(d, p, |machine, out| machine.handle_progress(Nanos(now), &news, out));
        }
    }

    fn reap(&mut self, d: &Daemon, p: &mut Primary) {
        let now = self.now;
        let mut ids: Vec<ConnId> = p.ending.iter().copied().collect();
        if now >= p.stray_at {
            p.stray_at = now + ns(timing::STRAY_EVERY);
            let stray = |conn: &Conn| !conn.ending && now - conn.opened > ns(timing::STRAY_EVERY);
            ids.extend(p.conns.iter().filter(|(_, conn)| stray(conn)).map(|(id, _)| *id));
        }
        for id in ids {
            let Some(conn) = p.conns.get(&id) else { continue };
            let host = &self.hosts[d.member];
            let socket = host.sockets.get(&conn.key);
            let ended = socket.is_none_or(|socket| socket.time_wait && socket.is_over());
            if ended && self.is_over_in_gate(d.member, p, id) {
                self.let_go(d, p, id);
            }
        }
        // As `linger_max`: half of the slots may linger.
        while p.linger.front().is_some_and(|(at, _)| now - at > ns(timing::LINGER))
            || p.linger.len() > self.plan.gate_slots / 2
        {
            let id = p.linger.pop_front().map(|(_, id)| id);
            if let (Some(id), Some(gate)) = (id, &mut self.hosts[d.member].gate) {
                gate.free(id);
            }
        }
    }

    fn is_over_in_gate(&self, member: usize, p: &mut Primary, id: ConnId) -> bool {
        let now = self.now;
        let Some(conn) = p.conns.get_mut(&id) else { return false };
        let since = *conn.over.get_or_insert(now);
        let slot = self.hosts[member].gate.as_ref().and_then(|gate| gate.slot(id));
        let paid = slot.is_none_or(|slot| slot.owed_ack().is_none());
        paid && now - since >= ns(timing::CLOSING_EVERY)
    }

    fn let_go(&mut self, d: &Daemon, p: &mut Primary, id: ConnId) {
        let now = self.now;
        let gate = self.hosts[d.member].gate.as_mut();
        if let Some(slot) = gate.and_then(|gate| gate.slot_mut(id)) {
            slot.stable = slot.stable.plus(1);
        }
        p.ending.remove(&id);
        p.conns.remove(&id);
        p.linger.push_back((now, id));
        self.act(d, p, |machine, out| machine.handle_gone(Nanos(now), id, out));
    }

    // Without the backup.

    fn server_died(&mut self, d: &mut Daemon, mut p: Box<Primary>) -> Phase {
        let now = self.now;
        d.speaks = false;
        if let Some(gate) = &mut self.hosts[d.member].gate {
            gate.server_dead = true;
        }
        self.take_log(d, &mut p);
        self.act(d, &mut p, |machine, out| machine.handle_server_died(Nanos(now), out));
        p.stage = Stage::ServerDied;
        Phase::Primary(p)
    }

    fn stand_down(&mut self, d: &mut Daemon, mut p: Box<Primary>) -> Phase {
        let member = d.member;
        self.say(|| format!("{}: stands down, heard {:?}", NAMES[member], d.standing.heard()));
        self.kill_server(member);
        d.speaks = false;
        p.machine.handle_backup_lost();
        Phase::Idle
    }

    fn go_alone(&mut self, d: &mut Daemon, mut p: Box<Primary>, reason: &str) -> Phase {
        let member = d.member;
        self.say(|| format!("{}: {reason}; asks to run alone", NAMES[member]));
        p.machine.handle_backup_lost();
        self.send(p.peer, 1, &Message::Refused { reason, again: false });
        let request = EpochRequest::new(d.epoch, timing::ASK_EVERY, false);
        self.turn_asking(d, p, Box::new(request))
    }

    fn turn_asking(
        &mut self,
        d: &mut Daemon,
        mut p: Box<Primary>,
        mut request: Box<EpochRequest>,
    ) -> Phase {
        d.pair.inbox.clear();
        let opened = self.turn_edge_with(d, |message| request.handle_message(message));
        self.ask_for(d, &mut request, opened);
        if let Some(epoch) = request.granted() {
            d.epoch = epoch;
            return self.serve_alone(d, p);
        }
        if self.is_replaced(d) {
            return self.stand_down(d, p);
        }
        if self.server_is_dead(d.member) {
            return self.server_died(d, p);
        }
        self.sleep(d, self.now + ns(timing::ASK_EVERY));
        p.stage = Stage::Asking(request);
        Phase::Primary(p)
    }

    /// The gate goes, and the shim passes every call through.
    fn serve_alone(&mut self, d: &mut Daemon, mut p: Box<Primary>) -> Phase {
        let member = d.member;
        self.say(|| format!("{}: runs alone in epoch {}", NAMES[member], d.epoch));
        let host = &mut self.hosts[member];
        host.gate = None;
        if let Some(server) = &mut host.server {
            server.mode = Mode::Live;
        }
        let held = p.conns.values_mut().filter_map(|conn| conn.synack.take());
        let packets: Vec<Packet> = held.collect();
        self.host_sends(member, packets);
        self.wake_server(member);
        p.stage = Stage::Alone;
        Phase::Primary(p)
    }
}
