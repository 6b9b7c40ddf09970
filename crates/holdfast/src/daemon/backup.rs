//! The backup's loop: confirms what the tap and the log bring, feeds the
//! replica, and promotes itself when the primary is gone.

mod report;

use super::advice;
use super::edge_link::{EdgeLink, LinkEvent};
use super::member::{End, Node, ROLE};
use super::pairing::reach_primary;
use super::placement::Follow;
use super::said::{Repetition, Said, clip};
use super::takeover::{self, Cause};
use crate::leavings::Own;
use crate::poll::Interest;
use crate::status::{Role, State};
use holdfast_cluster::watch::Ground;
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::TapDrop;
use holdfast_linux::link::Link;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_linux::tap::{BUFFER_DEFAULT_BYTES, TapSocket};
use holdfast_linux::way;
use holdfast_member::timing::backup::{
    HELD_AFTER, HELD_BYTES, LOOK_AFTER, REPORT_EVERY, START_PATIENCE, TAP_AFTER, TAP_BATCH,
    WAKE_AFTER, WAKE_BYTES,
};
use holdfast_replica::backup::{Backup, BackupOutput};
use holdfast_replica::{Broken, Nanos, TapSegment};
use holdfast_wire::log::Header;
use holdfast_wire::message::Message;
use holdfast_wire::packet::{Checksum, Flags, TcpOptions, TcpPacket};
use holdfast_wire::shm::{conn_state, mode};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

pub const PEER: u64 = ROLE;
pub const TAP: u64 = ROLE + 1;
pub const WAKE: u64 = ROLE + 2;
pub const PIDFD: u64 = ROLE + 3;

/// Everything a backup holds.
pub struct Follower {
    pub machine: Backup,
    pub replica: Server,
    pub tap: TapSocket,
    pub drop: TapDrop,
    pub link: EdgeLink,
    /// Messages that came together with the primary's hello.
    early: Vec<Vec<u8>>,
    pub hands: Hands,
    pub malformed: u64,
    /// What the tap has brought to prove itself.
    sign: Option<u64>,
    pub voice: Voice,
    wake_at: Option<Instant>,
    report_at: Instant,
    room_wanted: bool,
    /// Since when the primary serves: from then on its silence means something.
    armed: Option<Instant>,
    /// The edge was asked to make this member current: it decides, whatever the
    /// primary says from then on.
    promoting: Option<Cause>,
    /// What the primary says of itself.
    says: Option<Said>,
    repetition: Repetition,
    /// The primary has said that it is being stopped.
    stopped: bool,
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
    node.other_says = None;
    node.set_state(
        Role::Backup,
        State::Waiting,
        "the primary has not answered yet",
        "start the other member's daemon",
    );
    node.excuse_start();
    let drop = TapDrop::attach(&node.me.interface, &node.services(), &node.pin_dir())?;
    node.clear_earlier_life(Own::TapDrop)?;
    let tap = TapSocket::open(&node.me.interface, &node.tap_services(), BUFFER_DEFAULT_BYTES)?;
    let mut link = EdgeLink::new(node.other.address, node.pair_identity(), PEER, Instant::now());
    let Some(early) = reach_primary(node, &mut link)? else { return Ok(End::Stopped) };
    // What the edge said of an earlier pairing.
    node.standing.forget_alone();
    node.renew_watch();
    node.excuse_start();
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
        hands: Hands::default(),
        malformed: 0,
        sign: None,
        voice: Voice::open(node)?,
        wake_at: None,
        report_at: Instant::now(),
        room_wanted: false,
        armed: None,
        promoting: None,
        says: None,
        repetition: Repetition::new(Instant::now()),
        stopped: false,
        peer_ready: true,
        tap_at: None,
        held_bytes: 0,
        held_at: None,
        place: Follow::new(node.config.group.share_cpu),
        heard_at: Instant::now(),
    };
    in_step(node, true);
    node.signs_by_tap = true;
    this.report(node);
    this.follow(node)
}

/// Tells the edge whether this backup could take over, in the epoch of the
/// primary that it follows.
pub fn in_step(node: &mut Node<'_>, yes: bool) {
    node.edge.send(&Message::InStep { epoch: node.status.epoch, yes });
    node.edge.flush(Instant::now(), &node.poll);
}

/// A client's packet as the machines take it. What a server's kernel without keys
/// refuses (signed segments, malformed options) must not get past a dead one's.
pub fn segment<'a>(l3: &'a [u8], checksum: Checksum) -> Option<TapSegment<'a>> {
    let refused = |o: &TcpOptions| o.md5 || o.ao || o.malformed;
    let p = TcpPacket::parse(l3, checksum).ok().filter(|p| !refused(&p.options))?;
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
                node.signs_by_tap = false;
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
                self.part(node, State::Ended, "it was stopped");
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

    /// Leaves the pair. Edge and primary hear it before the replica is gone, which
    /// may take seconds to die: the service waits for them, not for that.
    fn part(&mut self, node: &mut Node<'_>, state: State, reason: &str) {
        in_step(node, false);
        self.link.send(&Message::GaveUp { state: &state.to_string(), reason: clip(reason) });
        self.link.flush(Instant::now(), &node.poll);
        self.link.close(Instant::now());
        self.replica.kill();
    }

    /// Confirms nothing any more; what is still under way is drained.
    pub fn begin_promotion(&mut self, nanos: Nanos, cause: Cause, peer_lost: bool) {
        self.promoting = Some(cause);
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        if peer_lost {
            self.machine.handle_peer_lost(nanos, &mut acting);
        }
        self.machine.begin_promotion(nanos, &mut acting);
    }

    /// Whether the primary was to end by its operator's will.
    pub fn was_stopped(&self) -> bool {
        self.stopped
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
        if let Some(sign) = self.sign.take() {
            node.tell_sign(sign);
        }
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
        let silent = self.beat(node);
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
            silent.then_some(Cause::Silent)
        }
    }

    /// The edge has lost the primary, and with it the clients have; or the primary
    /// has lost this member, which the edge did not let it bar.
    fn told_by_edge(&self, node: &Node<'_>, now: Instant) -> Option<Cause> {
        let may = self.armed.is_some_and(|since| now - since > START_PATIENCE);
        let unheard = node.watch.verdict(Nanos(node.nanos())) == Some(Ground::Unheard);
        let alone = node.standing.other_alone();
        let cause = if alone { Cause::Alone } else { Cause::Unheard };
        (may && (alone || unheard)).then_some(cause)
    }

    fn ring_has_room(&self) -> bool {
        let memory = &self.replica.memory;
        memory.unconsumed() < memory.ring_bytes() / 2
    }

    fn take_tap(&mut self, node: &Node<'_>, nanos: Nanos, now: Instant) {
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        let (machine, malformed) = (&mut self.machine, &mut self.malformed);
        let sign = &mut self.sign;
        let held_bytes = &mut self.held_bytes;
        let taken = self.tap.drain(TAP_BATCH, |l3, checksum| match segment(l3, checksum) {
            Some(segment) => {
                *held_bytes += segment.payload.len();
                machine.handle_segment(nanos, &segment, &mut acting);
            }
            None => match way::number_of(l3) {
                Some(seen) => *sign = Some(seen),
                None => *malformed += 1,
            },
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
    fn take_messages(&mut self, node: &mut Node<'_>, nanos: Nanos, now: Instant) -> bool {
        let mut acting = Acting { hands: &mut self.hands, replica: &self.replica };
        let (machine, watch, armed) = (&mut self.machine, &mut node.watch, &mut self.armed);
        let says = &mut self.says;
        let mut refused = None;
        let (heard_at, stopped) = (&mut self.heard_at, &mut self.stopped);
        let mut take = |message: Message<'_>| {
            *heard_at = now;
            if let Message::Beat { number, echo, .. } = message {
                if armed.is_none() {
                    *armed = Some(now);
                    watch.renew(nanos);
                }
                watch.handle_beat(nanos, number, echo);
                return;
            }
            watch.handle_received(nanos);
            *says = Said::of(&message).or(says.take());
            if let Message::Refused { reason, .. } = message {
                refused = Some(format!("the primary goes on alone: {reason}"));
                return;
            }
            *stopped |= message == Message::Stopping;
            machine.handle_message(nanos, &message, &mut acting);
        };
        for bytes in std::mem::take(&mut self.early) {
            Message::decode(&bytes).into_iter().for_each(&mut take);
        }
        let event = self.link.turn(now, &node.poll, take);
        if self.promoting.is_none() {
            self.hands.refused = refused.or(self.hands.refused.take());
        }
        let LinkEvent::Lost(error) = event else { return false };
        node.events.add("channel", format!("to the primary: {error}"));
        true
    }

    /// Sends the heartbeat that is due. Returns whether the primary is silent.
    fn beat(&mut self, node: &mut Node<'_>) -> bool {
        if self.armed.is_none() {
            return false;
        }
        let nanos = Nanos(node.nanos());
        if let Some((number, echo)) = node.watch.handle_timeout(nanos) {
            let executed = self.replica.memory.head();
            self.link.send(&Message::Beat { number, echo, executed });
        }
        node.watch.verdict(nanos) == Some(Ground::Silent)
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
        if now >= at || memory.unconsumed() > WAKE_BYTES {
            memory.wake_shim();
            self.wake_at = None;
        }
    }

    fn deadline(&self, node: &Node<'_>) -> Instant {
        let machine = self.machine.next_deadline().map(|d| node.instant(d.0));
        let beat =
            node.watch.next_deadline().filter(|_| self.armed.is_some()).map(|d| node.instant(d.0));
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

    /// This member will not be promoted: it says so, and stays silent.
    pub fn give_up(
        &mut self,
        node: &mut Node<'_>,
        state: State,
        reason: &str,
    ) -> anyhow::Result<End> {
        (node.other_says, node.signs_by_tap) = (None, false);
        self.part(node, state, reason);
        node.set_state(Role::Backup, state, reason, &advice::after_giving_up(state, reason));
        let _ = node.poll.remove(&self.tap.fd());
        let _ = node.poll.remove(&self.replica.wake());
        let _ = node.poll.remove(&self.replica.pidfd());
        // It may have been asked for in the midst of a takeover.
        while !node.stopping {
            let (_, tokens) = node.wait(Some(Instant::now() + Duration::from_millis(500)))?;
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
            }
        }
        Ok(End::Stopped)
    }
}
