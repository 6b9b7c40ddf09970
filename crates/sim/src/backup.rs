//! The backup's loop (`daemon/backup.rs`) around the real `Backup` machine.

use crate::check::Checkers;
use crate::member::{Daemon, Phase};
use crate::packet::Packet;
use crate::pipe::{Input, Kind};
use crate::plan::Mutation;
use crate::server::{KEY, Mode, Server};
use crate::takeover::Cause;
use crate::world::{NAMES, World};
use crate::{Ns, ns};
use holdfast_cluster::watch::Ground;
use holdfast_member::timing::backup::{self as timing, HELD_BYTES, TAP_BATCH, WAKE_BYTES};
use holdfast_replica::backup::{Backup, BackupOutput, FRAMES_QUEUED_MAX};
use holdfast_replica::{Broken, Nanos};
use holdfast_wire::log::Header;
use holdfast_wire::message::Message;

/// What the machine's effects leave for the loop.
#[derive(Default)]
pub struct Hands {
    outbox: Vec<Vec<u8>>,
    fresh: bool,
    full: bool,
    server_died: bool,
    pub log_ended: bool,
    pub broken: Option<String>,
}

/// See the module.
pub struct Follower {
    pub machine: Backup,
    pub hands: Hands,
    wake_at: Option<Ns>,
    room_wanted: bool,
    armed: Option<Ns>,
    pub peer_ready: bool,
    /// When to look at the tap again; `None`: its readiness wakes the loop.
    pub tap_at: Option<Ns>,
    held_bytes: usize,
    held_at: Option<Ns>,
    report_at: Ns,
    lost: bool,
    /// The edge has been asked: it decides, whatever the primary says.
    promoting: bool,
    follows: bool,
}

struct Acting<'a> {
    hands: &'a mut Hands,
    replica: &'a mut Server,
    check: &'a mut Checkers,
}

impl BackupOutput for Acting<'_> {
    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.hands.outbox.push(bytes);
    }
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let taken = self.replica.replay(header, payload);
        if taken {
            self.check.record_taken(header, &payload.concat());
        }
        self.hands.full |= !taken;
        self.hands.fresh |= taken;
        taken
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        self.replica.acked(accept, bytes);
    }
    fn gone(&mut self, accept: u32) {
        self.replica.gone(accept);
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

impl World {
    pub fn follower_starts(&mut self, d: &mut Daemon) -> Phase {
        let member = d.member;
        d.standing.forget_alone();
        d.watch.renew(Nanos(self.now));
        self.start_server(member, Mode::Replay);
        let follower = Follower {
            machine: Backup::new(KEY),
            hands: Hands::default(),
            wake_at: None,
            room_wanted: false,
            armed: None,
            peer_ready: true,
            tap_at: None,
            held_bytes: 0,
            held_at: None,
            report_at: self.now,
            lost: false,
            promoting: false,
            follows: true,
        };
        self.check.replica_begins(member);
        self.say_in_step(d, true);
        self.say(|| format!("{}: follows in epoch {}", NAMES[member], d.epoch));
        self.turn_follow(d, Box::new(follower))
    }

    /// A copy has come: does anybody watch?
    pub fn tap_rings(&mut self, member: usize) {
        let Some(daemon) = &self.hosts[member].daemon else { return };
        let watched = match &daemon.phase {
            Phase::Follow(follower) => follower.tap_at.is_none(),
            Phase::Takeover(_) => true,
            _ => false,
        };
        if watched {
            self.wake_daemon_soon(member);
        }
    }

    pub fn turn_follow(&mut self, d: &mut Daemon, mut f: Box<Follower>) -> Phase {
        let now = self.now;
        let opened = self.turn_edge_with(d, |_| {});
        if opened {
            self.say_in_step(d, true);
        }
        let cause = self.follower_turn(d, &mut f);
        if let Some(reason) = f.hands.broken.take() {
            return self.give_up(d, &reason);
        }
        if cause.is_none() && f.machine.is_hung() {
            return self.give_up(d, "the replica has not moved for a second");
        }
        if cause == Some(Cause::ChannelLost) && f.armed.is_none() {
            self.kill_server(d.member);
            self.hosts[d.member].tap = None;
            return Phase::asks(d.member, now);
        }
        if d.standing.replaced_by(d.epoch).is_some() {
            return self.give_up(d, "the primary went on alone");
        }
        let is_long = |since: Ns| now - since > ns(timing::START_PATIENCE);
        let told = if d.standing.other_alone() { Cause::Alone } else { Cause::Unheard };
        let unheard = d.watch.verdict(Nanos(now)) == Some(Ground::Unheard);
        let may = (d.standing.other_alone() || unheard) && f.armed.is_some_and(is_long);
        let cause = cause.or(may.then_some(told));
        if let Some(cause) = cause.filter(|_| self.plan.mutation != Some(Mutation::NeverPromote)) {
            return self.takeover_begins(d, f, cause);
        }
        let server = self.hosts[d.member].server.as_ref();
        if let Some(reason) = server.and_then(|server| server.diverged.clone()) {
            self.check.violation(now, "L5", format!("the replica diverged: {reason}"));
            return self.give_up(d, &reason);
        }
        if server.is_none_or(|server| !server.alive) {
            return self.give_up(d, "the replica's process has ended");
        }
        self.sleep_following(d, &f);
        Phase::Follow(f)
    }

    fn acting<R>(
        &mut self,
        member: usize,
        f: &mut Follower,
        act: impl FnOnce(&mut Backup, &mut Acting<'_>) -> R,
    ) -> Option<R> {
        let replica = self.hosts[member].server.as_mut()?;
        let mut acting = Acting { hands: &mut f.hands, replica, check: &mut self.check };
        Some(act(&mut f.machine, &mut acting))
    }

    /// Confirms nothing any more; what is under way is drained.
    pub fn begin_promotion(&mut self, member: usize, f: &mut Follower, peer_lost: bool) {
        let at = Nanos(self.now);
        f.follows = false;
        f.promoting = self.plan.mutation != Some(Mutation::SentAway);
        self.acting(member, f, |machine, out| {
            if peer_lost {
                machine.handle_peer_lost(at, out);
            }
            machine.begin_promotion(at, out);
        });
    }

    pub fn peer_lost(&mut self, member: usize, f: &mut Follower) {
        let at = Nanos(self.now);
        self.acting(member, f, |machine, out| machine.handle_peer_lost(at, out));
    }

    /// `Follower::turn`: says why to promote.
    pub fn follower_turn(&mut self, d: &mut Daemon, f: &mut Follower) -> Option<Cause> {
        let (now, member) = (self.now, d.member);
        let at = Nanos(now);
        self.take_tap(d, f);
        let lost = self.take_peer(d, f);
        let room = f.room_wanted && self.ring_has_room(member);
        f.room_wanted &= !room;
        let held_due = f.held_bytes >= HELD_BYTES || f.held_at.is_some_and(|due| due <= now);
        let peer_ready = std::mem::take(&mut f.peer_ready);
        let flushed = self.acting(member, f, |machine, out| {
            if room {
                machine.handle_room(at, out);
            }
            if machine.next_deadline().is_some_and(|due| due <= at) {
                machine.handle_timeout(at, out);
            }
            machine.handle_executed(at, out.replica.appended, out.replica.executed);
            let owed_due = machine.owes_confirmation() && !machine.is_behind(at);
            let flush = peer_ready || held_due || owed_due;
            if flush {
                machine.flush(at, out);
            }
            flush
        });
        if flushed == Some(true) {
            f.held_bytes = 0;
            f.held_at = None;
        }
        f.room_wanted |= std::mem::take(&mut f.hands.full);
        let silent = self.beat(d, f);
        self.send_outbox(d, f);
        self.wake_replica(member, f);
        if now >= f.report_at {
            f.report_at = now + ns(timing::REPORT_EVERY);
            let (_, bytes) = f.machine.unresolved();
            self.check.table(now, "frames queued, bytes", bytes, FRAMES_QUEUED_MAX);
        }
        if f.hands.server_died {
            Some(Cause::ServerDied)
        } else if lost {
            Some(Cause::ChannelLost)
        } else {
            silent.then_some(Cause::Silent)
        }
    }

    fn ring_has_room(&self, member: usize) -> bool {
        let server = self.hosts[member].server.as_ref();
        server.is_some_and(|s| s.appended - s.executed < s.ring_bytes / 2)
    }

    fn take_tap(&mut self, d: &Daemon, f: &mut Follower) {
        let (now, member) = (self.now, d.member);
        let Some(tap) = &mut self.hosts[member].tap else { return };
        let count = tap.len().min(TAP_BATCH);
        let packets: Vec<Packet> = tap.drain(..count).collect();
        for packet in &packets {
            f.held_bytes += packet.payload.len();
            self.check.copy_taken(packet);
            self.acting(member, f, |machine, out| {
                packet.with_view(|view| machine.handle_segment(Nanos(now), view, out));
            });
        }
        if !packets.is_empty() {
            f.held_at.get_or_insert(now + ns(timing::HELD_AFTER));
            f.tap_at = Some(now + ns(timing::TAP_AFTER));
        } else if f.tap_at.is_some_and(|at| at <= now) {
            f.tap_at = None;
        }
    }

    /// True when the channel is lost.
    fn take_peer(&mut self, d: &mut Daemon, f: &mut Follower) -> bool {
        let now = self.now;
        if f.lost {
            // Once a promotion has begun the link's attempts lead nowhere.
            d.pair.inbox.clear();
            return false;
        }
        for input in self.turn_link(d, Kind::Pair) {
            f.peer_ready = true;
            match input {
                Input::Lost(_) => f.lost = true,
                Input::Message(_, bytes) => match Message::decode(&bytes) {
                    Ok(Message::Beat { number, echo, .. }) => {
                        if f.armed.replace(f.armed.unwrap_or(now)).is_none() {
                            d.watch.renew(Nanos(now));
                        }
                        d.watch.handle_beat(Nanos(now), number, echo);
                    }
                    Ok(Message::Refused { reason, .. }) if !f.promoting => {
                        // Its state was complete, but it believes its primary.
                        if f.follows {
                            self.check.state_lost(d.member);
                        }
                        f.hands.broken = Some(reason.to_owned());
                    }
                    Ok(Message::Refused { .. }) => {}
                    Ok(message) => {
                        d.watch.handle_received(Nanos(now));
                        match &message {
                            Message::Conn { conn, record } => self.check.conn_taken(*conn, record),
                            Message::Unread { conn, offset, bytes, last } => {
                                let len = bytes.len() as u64 + u64::from(*last);
                                self.check.unread_taken(*conn, *offset, len);
                            }
                            _ => {}
                        }
                        self.acting(d.member, f, |machine, out| {
                            machine.handle_message(Nanos(now), &message, out);
                        });
                    }
                    Err(bad) => self.check.violation(now, "message", bad.to_string()),
                },
                _ => {}
            }
        }
        f.lost
    }

    fn beat(&mut self, d: &mut Daemon, f: &Follower) -> bool {
        if f.armed.is_none() {
            return false;
        }
        let now = Nanos(self.now);
        let executed = self.hosts[d.member].server.as_ref().map_or(0, |s| s.executed);
        if let Some((number, echo)) = d.watch.handle_timeout(now) {
            self.tell_peer(d, &Message::Beat { number, echo, executed });
        }
        d.watch.verdict(now) == Some(Ground::Silent)
    }

    fn tell_peer(&mut self, d: &Daemon, message: &Message<'_>) {
        if let Some(pipe) = d.pair.pipe {
            self.send(pipe, 0, message);
        }
    }

    fn send_outbox(&mut self, d: &Daemon, f: &mut Follower) {
        for bytes in std::mem::take(&mut f.hands.outbox) {
            if let Ok(message) = Message::decode(&bytes) {
                self.tell_peer(d, &message);
            }
        }
    }

    fn wake_replica(&mut self, member: usize, f: &mut Follower) {
        let now = self.now;
        if std::mem::take(&mut f.hands.fresh) {
            f.wake_at.get_or_insert(now + ns(timing::WAKE_AFTER));
        }
        let Some(at) = f.wake_at else { return };
        let server = self.hosts[member].server.as_ref();
        let waiting = server.map_or(0, |server| server.appended - server.executed);
        if now >= at || waiting > WAKE_BYTES {
            f.wake_at = None;
            self.wake_server(member);
        }
    }

    pub fn sleep_following(&mut self, d: &Daemon, f: &Follower) {
        let machine = f.machine.next_deadline().map(|at| at.0);
        let beat = d.watch.next_deadline().filter(|_| f.armed.is_some()).map(|at| at.0);
        let waits = f.room_wanted || f.machine.owes_confirmation();
        let room = waits.then_some(self.now + ns(timing::LOOK_AFTER));
        let all = [machine, beat, f.wake_at, f.tap_at, f.held_at, room];
        let at = all.into_iter().flatten().fold(f.report_at, Ns::min);
        self.sleep(d, at);
    }

    /// `Follower::give_up`.
    pub fn give_up(&mut self, d: &mut Daemon, reason: &str) -> Phase {
        let member = d.member;
        self.say(|| format!("{}: gives up: {reason}", NAMES[member]));
        self.say_in_step(d, false);
        self.kill_server(member);
        if let Some(pipe) = d.pair.pipe.take() {
            self.close_pipe(pipe, 0);
        }
        self.hosts[member].tap = None;
        Phase::Idle
    }
}
