//! The primary's loop: the shim's log and the gate's connections go to the
//! backup; what it confirms lets the server write and the gate acknowledge.

mod alone;
mod closing;
mod half_open;
mod services;
mod unread;

use super::member::{End, Node, ROLE, count};
use super::pairing::{turn_away, wait_for_backup};
use super::placement::Beside;
use super::said::{Repetition, Said};
use crate::channel::{Channel, Listener};
use crate::leavings::Own;
use crate::poll::Interest;
use crate::status::{Lag, Role, State};
use half_open::HalfOpen;
use holdfast_cluster::watch::Ground;
use holdfast_linux::bpf::{Gate, GateConfig};
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_member::timing::primary::{
    ASK_EVERY, CLOSING_EVERY, LINGER, OWED_BYTES, OWED_WAIT, PROGRESS_EVERY, PROGRESS_PER_CONN,
    REPORT_EVERY, STRAY_EVERY, TICK,
};
use holdfast_replica::primary::{Peeked, Primary, PrimaryOutput, Wanted};
use holdfast_replica::{Broken, Nanos};
use holdfast_wire::message::{ConnId, ConnKey, ConnProgress, Message};
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::mode;
use services::Services;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

const LISTENER: u64 = ROLE;
const PEER: u64 = ROLE + 1;
const GATE: u64 = ROLE + 2;
const WAKE: u64 = ROLE + 3;
const CONTROL: u64 = ROLE + 4;
const PIDFD: u64 = ROLE + 5;

/// Turns in a row that serve nothing but the log, which grows as fast as the server
/// writes it.
const BUSY_TURNS: u32 = 64;

/// How long a server may take until the shim runs in it.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);
const UNATTACHED: &str = "the server runs without the shim, so that nothing of it can be replicated: \
    it is a static or setuid program, or starts another one without LD_PRELOAD; \
    name the server itself in `command`, linked dynamically";

/// The log lies in memory that the server can write to.
const OVERWRITTEN: &str = "the server has written over the log that it shares with its daemon; \
    look for a server that writes where it should not";

/// What a third member is told.
const PAIR_STANDS: &str = "the pair stands already";

/// A connection as the gate and the kernel have it.
struct Conn {
    key: ConnKey,
    synack: Vec<u8>,
    opened: Instant,
    /// The server asked for its end.
    ending: bool,
    /// Since when the kernel has been done with it.
    over: Option<Instant>,
    told: Option<ConnProgress>,
}

/// What the machine's effects work on.
struct Hands<'a> {
    gate: &'a mut Gate,
    raw: &'a RawSender,
    server: &'a Server,
    send: &'a mut dyn FnMut(&Message<'_>),
    conns: &'a mut BTreeMap<ConnId, Conn>,
    owed: &'a mut BTreeMap<ConnId, Instant>,
    ending: &'a mut BTreeSet<ConnId>,
    broken: &'a mut Option<String>,
    now: Instant,
}

impl PrimaryOutput for Hands<'_> {
    fn send(&mut self, message: &Message<'_>) {
        (self.send)(message);
    }

    fn open(&mut self, conn: ConnId) {
        self.gate.open(conn);
        if let Some(known) = self.conns.get_mut(&conn) {
            let packet = std::mem::take(&mut known.synack);
            let _ = self.raw.send(&packet);
        }
    }

    fn refuse(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        let _ = self.gate.free(conn);
    }

    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.gate.set_stable(conn, stable);
        self.owed.entry(conn).or_insert(self.now);
    }

    fn stable(&mut self, pos: u64) {
        self.server.memory.set_stable(pos);
    }

    fn allow_fin(&mut self, conn: ConnId) {
        self.gate.allow_fin(conn);
        if let Some(known) = self.conns.get_mut(&conn) {
            known.ending = true;
            self.ending.insert(conn);
        }
    }

    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        into.clear();
        let bytes = self.server.memory.bytes(pos, len);
        into.extend_from_slice(bytes);
        bytes.len() == len
    }

    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        unread::peek(self.gate, self.server, wanted, into)
    }

    fn broken(&mut self, reason: &Broken) {
        *self.broken = Some(reason.to_string());
    }
}

struct Loop {
    listener: Listener,
    gate: Gate,
    raw: RawSender,
    diag: DiagSocket,
    server: Server,
    peer: Channel,
    machine: Primary,
    conns: BTreeMap<ConnId, Conn>,
    owed: BTreeMap<ConnId, Instant>,
    ending: BTreeSet<ConnId>,
    half_open: HalfOpen,
    linger: VecDeque<(Instant, ConnId)>,
    linger_max: usize,
    log_at: u64,
    /// Of the log, not executed by the replica at its last heartbeat.
    unexecuted: u64,
    broken: Option<String>,
    /// What the backup says of itself.
    says: Option<Said>,
    repetition: Repetition,
    services: Services,
    /// Since when no shim runs in the server; `None`: one does.
    unattached: Option<Instant>,
    progress_at: Instant,
    closing_at: Instant,
    stray_at: Instant,
    report_at: Instant,
    watching_write: bool,
    beside: Beside,
}

/// Waits for the backup, then serves until server, backup or daemon end.
///
/// # Errors
/// What keeps the role from starting: interfaces, addresses, programs.
pub fn run(node: &mut Node<'_>) -> anyhow::Result<End> {
    let mut listener = Listener::bind(node.me.address, node.pair_identity())?;
    listener.prefer([node.other.address.ip()]);
    node.poll.add(&listener, LISTENER, Interest::Read)?;
    node.other_says = None;
    node.set_state(
        Role::Primary,
        State::Waiting,
        "the backup has not connected yet",
        "start the other member's daemon",
    );
    node.excuse_start();
    let gate = Gate::attach(&GateConfig {
        interface: node.me.interface.clone(),
        services: node.services(),
        slots: node.config.group.connections_max,
        pin_dir: node.pin_dir(),
    })?;
    node.clear_earlier_life(Own::Gate)?;
    // Programs first, they take a while: the backup counts heartbeats from now on.
    let Some(peer) = wait_for_backup(node, &mut listener, PEER)? else { return Ok(End::Stopped) };
    node.excuse_start();
    node.take_addresses()?;
    let server = node.start_server(mode::RECORD)?;
    node.poll.add(&gate.events_fd(), GATE, Interest::Read)?;
    node.poll.add(&server.wake(), WAKE, Interest::Rung)?;
    node.poll.add(&server.control(), CONTROL, Interest::Read)?;
    node.poll.add(&server.pidfd(), PIDFD, Interest::Read)?;
    let now = Instant::now();
    let mut this = Loop {
        listener,
        gate,
        raw: RawSender::open(None)?,
        diag: DiagSocket::open()?,
        server,
        peer,
        machine: Primary::new(0),
        conns: BTreeMap::new(),
        owed: BTreeMap::new(),
        ending: BTreeSet::new(),
        half_open: HalfOpen::new(&node.services(), now),
        linger: VecDeque::new(),
        linger_max: node.config.group.connections_max as usize / 2,
        log_at: 0,
        unexecuted: 0,
        broken: None,
        says: None,
        repetition: Repetition::new(now),
        services: Services::open(now)?,
        unattached: Some(now),
        progress_at: now,
        closing_at: now,
        stray_at: now + STRAY_EVERY,
        report_at: now,
        watching_write: false,
        beside: Beside::new(node.config.group.share_cpu, now),
    };
    node.renew_watch();
    let remedy = "look at the server's log";
    node.set_state(Role::Primary, State::Waiting, "the server has not started yet", remedy);
    this.serve(node)
}

impl Loop {
    fn serve(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        // What came with the handshake is buffered: no readiness will tell.
        let (mut peer_ready, mut turns) = (true, 0);
        loop {
            if self.is_attached() {
                self.gate_events(node.nanos());
            }
            self.log(node.nanos());
            let lost = peer_ready && self.messages(node);
            self.settle(node);
            if self.server.memory.mode() == mode::BROKEN {
                self.broken.get_or_insert_with(|| self.server.memory.reason());
            }
            if self.broken.is_some() || lost {
                let reason = self
                    .broken
                    .take()
                    .unwrap_or_else(|| "the channel to the backup was lost".into());
                return self.go_alone(node, &reason);
            }
            let deadline = self.deadline(node);
            let tail = self.server.memory.tail();
            let is_more = tail != self.log_at || !self.server.memory.may_sleep(tail);
            if is_more && turns < BUSY_TURNS {
                (turns, peer_ready) = (turns + 1, false);
                continue;
            }
            turns = 0;
            let (stop, tokens) =
                node.wait(Some(if is_more { Instant::now() } else { deadline }))?;
            self.server.memory.awake();
            peer_ready = tokens.has(PEER);
            if tokens.has(LISTENER) {
                turn_away(node, &mut self.listener, PAIR_STANDS);
            }
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
                let (gate, conns) = (&self.gate, &self.conns);
                node.tell_vanished(|key| gate.conn(key).is_some_and(|id| conns.contains_key(&id)));
            }
            if stop {
                return self.hand_over(node);
            }
            if let Some(newer) = node.replaced_by() {
                return self.stand_down(node, &newer);
            }
            if tokens.has(PIDFD) || tokens.has(CONTROL) && self.server.has_hung_up() {
                return self.server_died(node);
            }
        }
    }

    /// Whether a shim runs in the server. Until then, and while the server becomes
    /// another program, no connection is let in: nothing would be in the log.
    fn is_attached(&mut self) -> bool {
        if self.server.memory.is_attached() {
            if self.unattached.take().is_some() {
                // Its listeners are looked at first.
                self.report_at = Instant::now();
            }
            return true;
        }
        let since = *self.unattached.get_or_insert_with(Instant::now);
        if since.elapsed() > ATTACH_LIMIT {
            self.broken.get_or_insert_with(|| UNATTACHED.into());
        }
        false
    }

    /// Lets the machine act, its messages going straight to the channel.
    fn act(&mut self, f: impl FnOnce(&mut Primary, &mut Hands<'_>)) {
        let peer = &mut self.peer;
        // A channel that cannot take it has failed; its next turn says so.
        let mut send = |m: &Message<'_>| drop(peer.send(m));
        let mut hands = Hands {
            gate: &mut self.gate,
            raw: &self.raw,
            server: &self.server,
            send: &mut send,
            conns: &mut self.conns,
            owed: &mut self.owed,
            ending: &mut self.ending,
            broken: &mut self.broken,
            now: Instant::now(),
        };
        f(&mut self.machine, &mut hands);
    }

    fn gate_events(&mut self, nanos: u64) {
        let mut fresh = Vec::new();
        self.gate.drain_events(|e| fresh.push((e.conn, e.socket, e.record, e.packet.to_vec())));
        for (id, socket, record, synack) in fresh {
            let now = Instant::now();
            self.half_open.begun(id, now);
            self.conns.insert(
                id,
                Conn {
                    key: record.key,
                    synack,
                    opened: now,
                    ending: false,
                    over: None,
                    told: None,
                },
            );
            let nanos = Nanos(nanos);
            self.act(|machine, hands| machine.handle_synack(nanos, id, socket, record, hands));
        }
    }

    fn log(&mut self, nanos: u64) {
        let Some(tail) = self.server.memory.take_tail(self.log_at) else {
            self.broken.get_or_insert_with(|| OVERWRITTEN.into());
            return;
        };
        if tail == self.log_at {
            return;
        }
        let (at, len) = (self.log_at, (tail - self.log_at) as usize);
        self.log_at = tail;
        self.act(|machine, hands| {
            let server = hands.server;
            machine.handle_log(Nanos(nanos), at, server.memory.bytes(at, len), hands);
        });
    }

    /// Returns true when the backup is lost.
    fn messages(&mut self, node: &mut Node<'_>) -> bool {
        let (mut outbox, at) = (Vec::new(), Nanos(node.nanos()));
        let watch = &mut node.watch;
        let Self {
            gate,
            raw,
            server,
            peer,
            machine,
            conns,
            owed,
            ending,
            broken,
            unexecuted,
            log_at,
            says,
            ..
        } = self;
        let received = peer.recv(|message| {
            if let Message::Beat { number, echo, executed: theirs } = message {
                watch.handle_beat(at, number, echo);
                *unexecuted = log_at.saturating_sub(theirs);
                return;
            }
            watch.handle_received(at);
            *says = Said::of(&message).or(says.take());
            if let Message::GaveUp { state, reason } = message {
                broken.get_or_insert_with(|| format!("the backup gave up: {state}: {reason}"));
            }
            // The channel is being read: what is to be sent waits until after.
            let mut send = |m: &Message<'_>| {
                let mut bytes = Vec::new();
                m.encode(&mut bytes);
                outbox.push(bytes);
            };
            let now = Instant::now();
            let mut hands =
                Hands { gate, raw, server, send: &mut send, conns, owed, ending, broken, now };
            machine.handle_message(at, &message, &mut hands);
        });
        for bytes in outbox {
            if let Ok(message) = Message::decode(&bytes) {
                let _ = self.peer.send(&message);
            }
        }
        let Err(error) = received else { return false };
        node.events.add("channel", format!("to the backup: {error}"));
        true
    }

    /// What is due between events: owed ACKs, progress, ended connections, beats.
    fn settle(&mut self, node: &mut Node<'_>) {
        let now = Instant::now();
        self.pay_owed(now);
        if now >= self.progress_at {
            self.progress(node.nanos());
            let pause = PROGRESS_EVERY + PROGRESS_PER_CONN * self.conns.len() as u32;
            self.progress_at = now + pause;
        }
        if now >= self.report_at {
            self.report_at = now + REPORT_EVERY;
            self.report(node);
            self.beside.turn(&self.server, now);
            // Strangers that say nothing have their time, and no more.
            turn_away(node, &mut self.listener, PAIR_STANDS);
        }
        if now >= self.closing_at {
            self.closing_at = now + CLOSING_EVERY;
            self.reap(node.nanos(), now);
            if let Err(error) = self.make_room(node.nanos(), now) {
                tracing::debug!("unfinished handshakes: {error}");
            }
        }
        let nanos = Nanos(node.nanos());
        if let Some((number, echo)) = node.watch.handle_timeout(nanos) {
            let _ = self.peer.send(&Message::Beat { number, echo, executed: self.log_at });
        }
        let _ = self.peer.flush();
        let wants_write = self.peer.wants_write();
        if wants_write != self.watching_write {
            self.watching_write = wants_write;
            let interest = if wants_write { Interest::Both } else { Interest::Read };
            let _ = node.poll.modify(&self.peer, PEER, interest);
        }
        if node.watch.verdict(nanos) == Some(Ground::Silent) {
            self.broken.get_or_insert_with(|| "the backup does not answer".into());
        }
    }

    fn deadline(&self, node: &Node<'_>) -> Instant {
        let now = Instant::now();
        let beat = node.watch.next_deadline().map(|d| node.instant(d.0));
        let owed = self.owed.values().min().map(|at| *at + OWED_WAIT);
        let edge = node.edge.deadline();
        let log = (!self.conns.is_empty() || self.unattached.is_some()).then_some(now + TICK);
        let all = [beat, owed, edge, log];
        all.into_iter().flatten().fold(self.report_at, Instant::min).max(now)
    }

    /// The kernel thinks it has acknowledged long ago; nobody else will.
    fn pay_owed(&mut self, now: Instant) {
        let (gate, raw) = (&self.gate, &self.raw);
        self.owed.retain(|conn, since| {
            let Some(slot) = gate.slot(*conn) else { return false };
            let Some(ack) = slot.owed_ack() else { return false };
            if ack.since(slot.last_ack) < OWED_BYTES && now.duration_since(*since) < OWED_WAIT {
                return true;
            }
            let shift = if slot.rcv_wscale > 14 { 0 } else { slot.rcv_wscale };
            let window = slot.right_edge.since(ack).max(0) as u32 >> shift;
            let segment = TcpSegment {
                key: slot.key,
                to_client: true,
                seq: slot.snd_nxt,
                ack,
                flags: Flags::ACK,
                window: window.min(65535) as u16,
                options: TcpOptions {
                    timestamps: slot.has_ts.then_some((slot.tsval, slot.tsecr)),
                    ..TcpOptions::default()
                },
                payload: &[],
            };
            if let Ok(packet) = segment.build() {
                let _ = raw.send(&packet);
            }
            false
        });
    }

    /// Tells the backup what the kernel has accepted (decision 9).
    fn progress(&mut self, nanos: u64) {
        let mut news = Vec::new();
        for (id, conn) in &mut self.conns {
            let Some(slot) = self.gate.slot(*id) else { continue };
            let progress = ConnProgress {
                conn: *id,
                snd_una: slot.snd_una,
                snd_nxt: slot.snd_nxt,
                right_edge: slot.last_edge,
                tsval: slot.tsval,
                rcv_nxt: slot.rcv_nxt,
            };
            if !slot.held_synack && conn.told != Some(progress) {
                conn.told = Some(progress);
                news.push(progress);
            }
        }
        if !news.is_empty() {
            self.act(|machine, hands| machine.handle_progress(Nanos(nanos), &news, hands));
        }
    }

    /// What this member is by itself.
    fn judge(&mut self, node: &mut Node<'_>) {
        if !node.is_whole(Role::Primary, Own::Gate) {
            return;
        }
        let (services, pid) = (&node.config.group.services, self.server.pid());
        let missing = if self.unattached.is_some() {
            Some("the server has not started yet")
        } else {
            self.services.missing(services, pid, Instant::now())
        };
        match missing {
            None => node.judge_pair(),
            Some(reason) => {
                let remedy = "look at the server's log, and whether its addresses and ports are \
                              those of `services`";
                node.set_state(Role::Primary, State::Waiting, reason, remedy);
            }
        }
    }

    /// Tells the backup what this member is by itself.
    fn say(&mut self, node: &Node<'_>) {
        if self.repetition.is_due(node.own(), Instant::now()) {
            let peer = &mut self.peer;
            node.own().tell(|message| drop(peer.send(message)));
        }
    }

    fn report(&mut self, node: &mut Node<'_>) {
        node.other_says.clone_from(&self.says);
        self.judge(node);
        node.report_lateness();
        self.say(node);
        node.status.connections = self.conns.len() as u64;
        node.status.lag = Lag {
            frames: self.machine.frames_unconfirmed() as u64,
            bytes: self.log_at.saturating_sub(self.server.memory.head()),
            executed: self.unexecuted,
        };
        count(&mut node.status.counters, "gate", &self.gate.counters());
        let c = *self.machine.counters();
        let of = [
            ("repairs", c.repairs),
            ("peeked_bytes", c.peeked),
            ("refused_full", c.refused_full),
            ("accepts_unknown", c.accepts_unknown),
            ("handshakes_ended", self.half_open.ended),
        ];
        count(&mut node.status.counters, "log", &of);
    }
}
