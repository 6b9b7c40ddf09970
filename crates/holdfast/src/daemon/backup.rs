//! The backup's loop: confirms what the tap and the log bring, feeds the
//! replica, and promotes itself when the primary is gone.

use super::beats::Beats;
use super::edge_link::{EdgeLink, LinkEvent};
use super::member::{End, Node, ROLE, count};
use super::pairing::reach_primary;
use super::placement::Follow;
use super::takeover::{self, Cause};
use crate::poll::Interest;
use crate::status::{Lag, Role, State};
use holdfast_cluster::detector::Detector;
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::TapDrop;
use holdfast_linux::link::Link;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_linux::tap::{BUFFER_DEFAULT_BYTES, TapSocket};
use holdfast_replica::backup::{Backup, BackupOutput};
use holdfast_replica::{Broken, Nanos, TapSegment};
use holdfast_wire::log::Header;
use holdfast_wire::message::Message;
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};
use holdfast_wire::shm::{conn_state, mode};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

pub const PEER: u64 = ROLE;
pub const TAP: u64 = ROLE + 1;
pub const WAKE: u64 = ROLE + 2;
pub const PIDFD: u64 = ROLE + 3;

/// Packets taken from the tap in one turn.
const TAP_BATCH: usize = 256;
/// The replica is woken for this much log, or after this long: one wake-up for
/// many records costs the pair far less than one each.
const WAKE_BYTES: u64 = 64 << 10;
const WAKE_AFTER: Duration = Duration::from_micros(400);
/// After a look at the tap the next one follows this much later, unless the
/// primary's log wakes us first: the log needs the copies, and a client's ACK
/// can wait that long.
const TAP_AFTER: Duration = Duration::from_micros(800);
/// What is held is told with the next confirmation of the log, or after this
/// many bytes or this long.
const HELD_BYTES: usize = 512 << 10;
const HELD_AFTER: Duration = Duration::from_millis(1);
/// How often a replica that is waited for is looked at.
const LOOK_AFTER: Duration = Duration::from_micros(200);
/// A primary that was busy with its start answers the edge this long after its
/// first beat.
const START_PATIENCE: Duration = Duration::from_millis(100);
/// How often the status is brought up to date.
const REPORT_EVERY: Duration = Duration::from_millis(20);

/// Everything a backup holds.
pub struct Follower {
    pub machine: Backup,
    pub replica: Server,
    pub tap: TapSocket,
    pub drop: TapDrop,
    pub link: EdgeLink,
    /// Messages that came together with the primary's hello.
    early: Vec<Vec<u8>>,
    pub detector: Detector,
    pub hands: Hands,
    pub malformed: u64,
    pub voice: Voice,
    wake_at: Option<Instant>,
    report_at: Instant,
    room_wanted: bool,
    /// Since when the primary serves: from then on its silence means something.
    armed: Option<Instant>,
    /// The edge was asked to make this member current: it decides, whatever the
    /// primary says from then on.
    promoting: bool,
    /// Whether the channel is to be read in this turn.
    pub peer_ready: bool,
    /// When to look at the tap again; `None`: its readiness wakes us.
    tap_at: Option<Instant>,
    /// Bytes tapped since the last confirmation, and when to confirm them.
    held_bytes: usize,
    held_at: Option<Instant>,
    pub place: Follow,
    /// When the primary was last heard.
    pub heard_at: Instant,
}

/// What a takeover speaks with. Opened beforehand and never closed on the way:
/// closing a packet socket waits for the kernel for milliseconds.
pub struct Voice {
    pub raw: RawSender,
    pub addresses: AddressSocket,
    pub announcer: Announcer,
    pub interface: Link,
}

impl Voice {
    fn open(node: &Node<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            raw: RawSender::open(None)?,
            addresses: AddressSocket::open()?,
            announcer: Announcer::open()?,
            interface: Link::by_name(&node.me.interface)?,
        })
    }
}

/// What the machine's effects leave for the loop.
#[derive(Default)]
pub struct Hands {
    /// Messages to the primary, encoded.
    outbox: Vec<Vec<u8>>,
    /// Tail of the replica's ring before the first record it was not told of.
    fresh: bool,
    full: bool,
    pub server_died: bool,
    pub log_ended: bool,
    pub broken: Option<String>,
    /// The primary has given this backup up.
    pub refused: Option<String>,
}

/// The machine's effects on the replica's memory and on [`Hands`].
pub struct Acting<'a> {
    pub hands: &'a mut Hands,
    pub replica: &'a Server,
}

impl BackupOutput for Acting<'_> {
    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.hands.outbox.push(bytes);
    }

    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let taken = self.replica.memory.append(header, payload);
        self.hands.full |= !taken;
        self.hands.fresh |= taken;
        taken
    }

    fn acked(&mut self, accept: u32, bytes: u64) {
        let entry = self.replica.memory.entry(accept);
        if entry.conn.load(Relaxed) == accept {
            entry.acked_bytes.fetch_max(bytes, Release);
        }
    }

    fn gone(&mut self, accept: u32) {
        let entry = self.replica.memory.entry(accept);
        if entry.conn.load(Relaxed) == accept {
            entry.acked_bytes.store(u64::MAX, Release);
            let _ = entry.state.compare_exchange(
                conn_state::CLOSED,
                conn_state::DONE,
                Release,
                Relaxed,
            );
        }
    }

    fn server_died(&mut self) {
        self.hands.server_died = true;
    }

    fn log_ended(&mut self) {
        self.hands.log_ended = true;
    }

    fn broken(&mut self, reason: &Broken) {
        self.hands.broken = Some(reason.to_string());
    }
}

/// Follows the primary until it dies, diverges, or the daemon is stopped.
///
/// # Errors
/// What keeps the role from starting: interfaces, programs.
pub fn run(node: &mut Node<'_>) -> anyhow::Result<End> {
    node.set_state(
        Role::Backup,
        State::Waiting,
        "the primary has not answered yet",
        "start the other member's daemon",
    );
    let drop = TapDrop::attach(&node.me.interface, &node.services(), &node.pin_dir())?;
    let tap = TapSocket::open(&node.me.interface, &node.tap_services(), BUFFER_DEFAULT_BYTES)?;
    let mut link = EdgeLink::new(node.other.address, node.pair_identity(), PEER, Instant::now());
    let Some(early) = reach_primary(node, &mut link)? else { return Ok(End::Stopped) };
    // What the edge said of an earlier pairing.
    node.other_alone = false;
    let replica = node.start_server(mode::REPLAY)?;
    node.poll.add(&tap.fd(), TAP, Interest::Read)?;
    node.poll.add(&replica.wake(), WAKE, Interest::Rung)?;
    node.poll.add(&replica.pidfd(), PIDFD, Interest::Read)?;
    // The shim signals only when it parks or diverges; that must wake us.
    replica.memory.header().daemon_waiting.0.store(1, Release);
    let mut this = Follower {
        machine: Backup::new(node.key.hash_key()),
        replica,
        tap,
        drop,
        link,
        early,
        detector: node.detector(),
        hands: Hands::default(),
        malformed: 0,
        voice: Voice::open(node)?,
        wake_at: None,
        report_at: Instant::now(),
        room_wanted: false,
        armed: None,
        promoting: false,
        peer_ready: true,
        tap_at: None,
        held_bytes: 0,
        held_at: None,
        place: Follow::new(node.config.group.share_cpu),
        heard_at: Instant::now(),
    };
    in_step(node, true);
    node.set_state(Role::Backup, State::Protected, "", "");
    this.follow(node)
}

/// Tells the edge whether this backup could take over, in the epoch of the
/// primary that it follows.
pub fn in_step(node: &mut Node<'_>, yes: bool) {
    node.edge.send(&Message::InStep { epoch: node.status.epoch, yes });
    node.edge.flush(Instant::now(), &node.poll);
}

/// A client's packet as the machines take it.
pub fn segment<'a>(l3: &'a [u8], checksum: Checksum) -> Option<TapSegment<'a>> {
    let p = TcpPacket::parse(l3, checksum).ok()?;
    Some(TapSegment {
        key: p.client_to_server_key(),
        seq: p.seq,
        ack: p.ack,
        syn: p.flags.has(Flags::SYN),
        ack_flag: p.flags.has(Flags::ACK),
        fin: p.flags.has(Flags::FIN),
        rst: p.flags.has(Flags::RST),
        window: p.window,
        tsval: p.options.timestamps.map(|t| t.0),
        mss: p.options.mss,
        wscale: p.options.wscale,
        sack_permitted: p.options.sack_permitted,
        payload: p.payload,
        raw: l3,
    })
}

impl Follower {
    fn follow(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        loop {
            let now = Instant::now();
            let cause = self.turn(node, now);
            if let Some(reason) = self.hands.broken.take() {
                return self.give_up(node, State::Diverged, &reason);
            }
            if let Some(reason) = self.hands.refused.take() {
                return self.give_up(node, State::Fenced, &reason);
            }
            if cause.is_none() && self.machine.is_hung() {
                return self.give_up(node, State::Hung, "the replica has not moved for a second");
            }
            if cause == Some(Cause::ChannelLost) && self.armed.is_none() {
                self.replica.kill();
                return Ok(End::Again);
            }
            if let Some(newer) = node.replaced_by() {
                let reason = format!("{} went on alone in epoch {}", newer.current, newer.epoch);
                return self.give_up(node, State::Fenced, &reason);
            }
            if let Some(cause) = cause.or_else(|| self.told_by_edge(node, now)) {
                return takeover::run(self, node, cause);
            }
            let deadline = self.deadline(node);
            let (stop, tokens) = node.wait(Some(deadline))?;
            self.peer_ready = tokens.has(PEER) || self.link.deadline().is_some_and(|at| at <= now);
            if stop {
                self.replica.kill();
                return Ok(End::Stopped);
            }
            if node.edge_due(tokens) && node.turn_edge(|_| {}) {
                in_step(node, true);
            }
            if tokens.has(WAKE) {
                self.replica.memory.header().daemon_waiting.0.store(1, Release);
            }
            if self.replica.memory.mode() == mode::DIVERGED {
                let reason = self.replica.memory.reason();
                return self.give_up(node, State::Diverged, &reason);
            }
            if tokens.has(PIDFD) {
                return self.give_up(node, State::Ended, "the replica's process has ended");
            }
        }
    }

    /// Confirms nothing any more; what is still under way is drained.
    pub fn begin_promotion(&mut self, nanos: Nanos, peer_lost: bool) {
        self.promoting = true;
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        if peer_lost {
            self.machine.handle_peer_lost(nanos, &mut acting);
        }
        self.machine.begin_promotion(nanos, &mut acting);
    }

    /// Nothing more can come from the primary.
    pub fn peer_lost(&mut self, nanos: Nanos) {
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        self.machine.handle_peer_lost(nanos, &mut acting);
    }

    /// One turn: tap, messages, timers, confirmations. Says why to promote.
    pub fn turn(&mut self, node: &mut Node<'_>, now: Instant) -> Option<Cause> {
        let nanos = Nanos(node.nanos());
        self.take_tap(node, nanos, now);
        let lost = self.peer_ready && self.take_messages(node, nanos, now);
        let room = self.room_wanted && self.ring_has_room();
        self.room_wanted &= !room;
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        if room {
            self.machine.handle_room(nanos, &mut acting);
        }
        if self.machine.next_deadline().is_some_and(|at| at <= nanos) {
            self.machine.handle_timeout(nanos, &mut acting);
        }
        let memory = &self.replica.memory;
        self.machine.handle_executed(nanos, memory.tail(), memory.head());
        let held_due = self.held_bytes >= HELD_BYTES || self.held_at.is_some_and(|at| at <= now);
        let owed_due = self.machine.owes_confirmation() && !self.machine.is_behind(nanos);
        if self.peer_ready || held_due || owed_due {
            self.machine.flush(nanos, &mut acting);
            self.held_bytes = 0;
            self.held_at = None;
        }
        self.room_wanted |= std::mem::take(&mut self.hands.full);
        let declared = self.beat(node);
        self.send_outbox(node, now);
        self.wake_replica(now);
        if now >= self.report_at {
            self.report_at = now + REPORT_EVERY;
            self.report(node);
            if let Some(socket) = self.link.socket() {
                self.place.turn(socket);
            }
        }
        if self.hands.server_died {
            Some(Cause::ServerDied)
        } else if lost {
            Some(Cause::ChannelLost)
        } else {
            (declared && self.armed.is_some()).then_some(Cause::Silent)
        }
    }

    /// The edge has lost the primary, and with it the clients have; or the primary
    /// has lost this member, which the edge did not let it bar.
    fn told_by_edge(&self, node: &Node<'_>, now: Instant) -> Option<Cause> {
        let may = self.armed.is_some_and(|since| now - since > START_PATIENCE);
        let cause = if node.other_alone { Cause::Alone } else { Cause::Unheard };
        (may && (node.other_alone || !node.other_reached)).then_some(cause)
    }

    fn ring_has_room(&self) -> bool {
        let memory = &self.replica.memory;
        memory.tail() - memory.head() < memory.header().ring_bytes / 2
    }

    fn take_tap(&mut self, node: &Node<'_>, nanos: Nanos, now: Instant) {
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        let (machine, malformed) = (&mut self.machine, &mut self.malformed);
        let held_bytes = &mut self.held_bytes;
        let taken = self.tap.drain(TAP_BATCH, |l3, checksum| match segment(l3, checksum) {
            Some(segment) => {
                *held_bytes += segment.payload.len();
                machine.handle_segment(nanos, &segment, &mut acting);
            }
            None => *malformed += 1,
        });
        let busy = taken.is_ok_and(|n| n > 0);
        if busy {
            self.held_at.get_or_insert(now + HELD_AFTER);
        }
        if busy && self.tap_at.is_none() {
            let _ = node.poll.modify(&self.tap.fd(), TAP, Interest::Nothing);
        }
        if busy {
            self.tap_at = Some(now + TAP_AFTER);
        } else if self.tap_at.is_some_and(|at| at <= now) {
            self.tap_at = None;
            let _ = node.poll.modify(&self.tap.fd(), TAP, Interest::Read);
        }
    }

    /// From now on every packet of the tap wakes the loop.
    pub fn watch_tap(&mut self, node: &Node<'_>) {
        if self.tap_at.take().is_none() {
            return;
        }
        let _ = node.poll.modify(&self.tap.fd(), TAP, Interest::Read);
    }

    /// Returns true when the channel is lost.
    fn take_messages(&mut self, node: &Node<'_>, nanos: Nanos, now: Instant) -> bool {
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        let (machine, detector, armed) = (&mut self.machine, &mut self.detector, &mut self.armed);
        let mut refused = None;
        let heard_at = &mut self.heard_at;
        let mut declared = false;
        let mut take = |message: Message<'_>| {
            *heard_at = now;
            let mut beats = Beats { peer: &mut |_| {}, executed: 0, declared: &mut declared };
            if let Message::Beat { number, echo, .. } = message {
                if armed.is_none() {
                    *armed = Some(now);
                    *detector = node.detector();
                }
                detector.handle_beat(nanos, number, echo, &mut beats);
                return;
            }
            detector.handle_received(nanos, &mut beats);
            if let Message::Refused { reason } = message {
                refused = Some(format!("the primary goes on alone: {reason}"));
                return;
            }
            machine.handle_message(nanos, &message, &mut acting);
        };
        for bytes in std::mem::take(&mut self.early) {
            Message::decode(&bytes).into_iter().for_each(&mut take);
        }
        let event = self.link.turn(now, &node.poll, take);
        if !self.promoting {
            self.hands.refused = refused.or(self.hands.refused.take());
        }
        matches!(event, LinkEvent::Lost(_))
    }

    fn beat(&mut self, node: &Node<'_>) -> bool {
        if self.armed.is_none() {
            return false;
        }
        let mut declared = false;
        let (link, executed) = (&mut self.link, self.replica.memory.head());
        let mut send = |m: &Message<'_>| {
            link.send(m);
        };
        let mut beats = Beats { peer: &mut send, executed, declared: &mut declared };
        self.detector.handle_timeout(Nanos(node.nanos()), &mut beats);
        declared
    }

    fn send_outbox(&mut self, node: &Node<'_>, now: Instant) {
        for bytes in std::mem::take(&mut self.hands.outbox) {
            if let Ok(message) = Message::decode(&bytes) {
                self.link.send(&message);
            }
        }
        self.link.flush(now, &node.poll);
    }

    /// Tells the replica of new records, now or a little later with others.
    fn wake_replica(&mut self, now: Instant) {
        if std::mem::take(&mut self.hands.fresh) {
            self.wake_at.get_or_insert(now + WAKE_AFTER);
        }
        let memory = &self.replica.memory;
        let Some(at) = self.wake_at else { return };
        if now >= at || memory.tail() - memory.head() > WAKE_BYTES {
            memory.wake_shim();
            self.wake_at = None;
        }
    }

    fn deadline(&self, node: &Node<'_>) -> Instant {
        let machine = self.machine.next_deadline().map(|d| node.instant(d.0));
        let beat = self
            .detector
            .next_deadline()
            .filter(|_| self.armed.is_some())
            .map(|d| node.instant(d.0));
        let owed = self.machine.owes_confirmation();
        let room = (self.room_wanted || owed).then(|| Instant::now() + LOOK_AFTER);
        let all = [
            machine,
            beat,
            self.wake_at,
            self.tap_at,
            self.held_at,
            self.link.deadline(),
            node.edge.deadline(),
            room,
        ];
        all.into_iter().flatten().fold(self.report_at, Instant::min)
    }

    pub fn report(&mut self, node: &mut Node<'_>) {
        node.judge_pair();
        let c = *self.machine.counters();
        let (frames, bytes) = self.machine.unresolved();
        node.status.lag = Lag {
            frames: frames as u64,
            bytes: bytes as u64,
            executed: self.replica.memory.tail() - self.replica.memory.head(),
        };
        let of = [
            ("segments", c.segments),
            ("unknown", c.segments_unknown),
            ("refused", c.segments_refused),
            ("refused_full", c.refused_full),
            ("needs", c.needs),
            ("conflicts", c.conflicts),
            ("unread_asked", c.unread_asked),
            ("unread_filled", c.unread_filled),
            ("malformed", self.malformed),
        ];
        count(&mut node.status.counters, "tap", &of);
        count(&mut node.status.counters, "tapdrop", &self.drop.counters());
    }

    /// This member will not be promoted: it says so, and stays silent.
    pub fn give_up(
        &mut self,
        node: &mut Node<'_>,
        state: State,
        reason: &str,
    ) -> anyhow::Result<End> {
        in_step(node, false);
        self.replica.kill();
        self.link.close(Instant::now());
        node.set_state(Role::Backup, state, reason, "restart both members to be protected again");
        let _ = node.poll.remove(&self.tap.fd());
        let _ = node.poll.remove(&self.replica.wake());
        let _ = node.poll.remove(&self.replica.pidfd());
        loop {
            let (stop, tokens) = node.wait(Some(Instant::now() + Duration::from_millis(500)))?;
            if stop {
                return Ok(End::Stopped);
            }
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
            }
        }
    }
}
