//! One turn of a backup that follows, or that brings its log to the end: tap,
//! messages, timers, confirmations.

use super::join::Said;
use super::{BackupMachine, Cause, FollowHost, LogOutput, Report};
use crate::nanos;
use crate::timing::backup::{
    COPY_LOOK, HELD_AFTER, HELD_BYTES, LOOK_AFTER, REPORT_EVERY, TAP_AFTER, TAP_BATCH, WAKE_AFTER,
    WAKE_BYTES,
};
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Ground;
use holdfast_replica::backup::BackupOutput as _;
use holdfast_wire::message::Message;

impl BackupMachine {
    /// Does one turn; `is_peer_ready`: the channel is read. Returns the reason to
    /// take over, if there is one.
    pub(super) fn work(
        &mut self,
        is_peer_ready: bool,
        host: &mut impl FollowHost,
    ) -> Option<Cause> {
        let now = host.now();
        self.take_tap(now, host);
        self.take_direct(now, host);
        let lost = is_peer_ready && self.take_messages(now, host);
        self.feed(now, host);
        self.confirm(is_peer_ready, now, host);
        let silent = self.beat(now, host);
        for bytes in std::mem::take(&mut self.effects.outbox) {
            if let Ok(message) = Message::decode(&bytes) {
                host.send(&message);
            }
        }
        host.flush();
        self.wake_replica(now, host);
        if now >= self.report_at {
            self.report_at = now.plus(nanos(REPORT_EVERY));
            self.report(host);
        }
        self.peer_gone |= lost || silent;
        if self.effects.server_died {
            Some(Cause::ServerDied)
        } else if lost {
            Some(Cause::ChannelLost)
        } else {
            silent.then_some(Cause::Silent)
        }
    }

    fn take_tap(&mut self, now: Nanos, host: &mut impl FollowHost) {
        let Self { log, effects, held_bytes, .. } = self;
        let busy = host.drain_tap(TAP_BATCH, &mut |host, segment| {
            *held_bytes += segment.payload.len();
            log.handle_segment(now, segment, &mut LogOutput { effects, host });
        });
        if busy {
            self.held_at.get_or_insert(now.plus(nanos(HELD_AFTER)));
            if self.tap_at.is_none() {
                host.watch_tap(false);
            }
            self.tap_at = Some(now.plus(nanos(TAP_AFTER)));
        } else if self.tap_at.is_some_and(|at| at <= now) {
            self.watch_tap(host);
        }
    }

    /// What the primary's server has sent itself: its daemon hears later that it is held.
    fn take_direct(&mut self, now: Nanos, host: &mut impl FollowHost) {
        let Self { log, effects, held_at, .. } = self;
        host.recv_direct(&mut |host, position, records| {
            log.handle_direct(position, records, &mut LogOutput { effects, host });
            held_at.get_or_insert(now.plus(nanos(HELD_AFTER)));
        });
        if self.log.has_rest() {
            // The server waits for the copy that is missing.
            self.watch_tap(host);
        }
    }

    /// From now on every packet of the tap wakes the member.
    pub(super) fn watch_tap(&mut self, host: &mut impl FollowHost) {
        if self.tap_at.take().is_some() {
            host.watch_tap(true);
        }
    }

    /// Returns true when the channel is lost.
    fn take_messages(&mut self, now: Nanos, host: &mut impl FollowHost) -> bool {
        let Self {
            log,
            effects,
            armed,
            heard_at,
            stopped,
            refused,
            promoting,
            said,
            joins,
            renewals,
            ..
        } = self;
        host.recv(&mut |host, message| {
            *heard_at = now;
            if let Message::Beat { number, echo, .. } = *message {
                let watch = &mut host.member().watch;
                if armed.is_none() {
                    *armed = Some(now);
                    watch.renew(now);
                }
                watch.handle_beat(now, number, echo);
                return;
            }
            host.member().watch.handle_received(now);
            if let Message::Refused { reason, .. } = message {
                if promoting.is_none() {
                    // For a joiner the primary has never been anything but alone.
                    let whose = if joins.is_some() { "" } else { "the primary goes on alone: " };
                    *refused = Some(format!("{whose}{reason}"));
                }
                return;
            }
            *stopped |= *message == Message::Stopping;
            if let Message::Adopt { conns } = message {
                let mut acting = LogOutput { effects, host };
                conns.iter().for_each(|adopted| log.adopt(now, adopted, &mut acting));
                return;
            }
            if let Some(told) = Said::of(message) {
                // A member that has joined, or never did, is told nothing of
                // this.
                said.extend((joins.is_some() || renewals.is_on()).then_some(told));
                return;
            }
            if let Message::Direct { id, key, port } = message {
                let opened = promoting.is_none().then(|| host.open_direct(*id, key, *port));
                if let Some(port) = opened.flatten() {
                    LogOutput { effects, host }.send(&Message::DirectOk { id: *id, port });
                }
                return;
            }
            log.handle_message(now, message, &mut LogOutput { effects, host });
        })
    }

    /// The replica takes what it has room for.
    fn feed(&mut self, now: Nanos, host: &mut impl FollowHost) {
        // Of a joiner that is in step by now something may be kept still.
        self.room_wanted |= !host.feed_copy();
        let room = self.room_wanted && host.has_room();
        self.room_wanted &= !room;
        let mut acting = LogOutput { effects: &mut self.effects, host };
        if room {
            self.log.handle_room(now, &mut acting);
        }
        if self.log.next_deadline().is_some_and(|at| at <= now) {
            self.log.handle_timeout(now, &mut acting);
        }
        let (appended, executed) = host.progress();
        self.log.handle_executed(now, appended, executed);
    }

    fn confirm(&mut self, is_peer_ready: bool, now: Nanos, host: &mut impl FollowHost) {
        if let Some(position) = self.log.take_held(now) {
            host.send_held(position);
        }
        let held_due = self.held_bytes >= HELD_BYTES || self.held_at.is_some_and(|at| at <= now);
        let owed_due = self.log.owes_confirmation() && !self.log.is_behind(now);
        if is_peer_ready || held_due || owed_due {
            self.log.flush(now, &mut LogOutput { effects: &mut self.effects, host });
            (self.held_bytes, self.held_at) = (0, None);
        }
        self.room_wanted |= std::mem::take(&mut self.effects.full);
    }

    /// Sends the heartbeat that is due. Returns whether the primary is silent.
    fn beat(&mut self, now: Nanos, host: &mut impl FollowHost) -> bool {
        if self.armed.is_none() {
            return false;
        }
        if let Some((number, echo)) = host.member().watch.handle_timeout(now) {
            let (_, executed) = host.progress();
            host.send(&Message::Beat { number, echo, executed });
        }
        host.member().watch.verdict(now) == Some(Ground::Silent)
    }

    /// Tells the replica of new records, now or a little later with others.
    fn wake_replica(&mut self, now: Nanos, host: &mut impl FollowHost) {
        if std::mem::take(&mut self.effects.fresh) {
            self.wake_at.get_or_insert(now.plus(nanos(WAKE_AFTER)));
        }
        let Some(at) = self.wake_at else { return };
        let (appended, executed) = host.progress();
        if now >= at || appended.saturating_sub(executed) > WAKE_BYTES {
            host.wake_replica();
            self.wake_at = None;
        }
    }

    fn report(&self, host: &mut impl FollowHost) {
        host.report(&Report {
            promoting: self.promoting,
            builds: self.builds,
            counters: self.log.counters(),
            connections: self.log.connections(),
            unresolved: self.log.unresolved(),
            joins: self.joins,
        });
    }

    pub(super) fn deadline(&self, host: &mut impl FollowHost) -> Nanos {
        let beat = host.member().watch.next_deadline().filter(|_| self.armed.is_some());
        let owes = self.log.owes_confirmation() || self.log.owes_server();
        let waits = self.room_wanted || owes;
        let room = waits.then(|| host.now().plus(nanos(LOOK_AFTER)));
        let log = self.log.next_deadline();
        let image = self.renewals.is_on().then(|| host.now().plus(nanos(COPY_LOOK)));
        let all = [log, beat, self.wake_at, self.tap_at, self.held_at, room, image];
        all.into_iter().flatten().fold(self.report_at, Nanos::min)
    }
}
