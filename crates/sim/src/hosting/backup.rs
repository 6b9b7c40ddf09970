//! The host of a backup's machine: tap, replica, and what a takeover does to the host.

use super::AtHost;
use crate::check::{Holder, Said};
use crate::gate::Gate;
use crate::image::{Cold, Copy};
use crate::kernel::{Socket, cookie};
use crate::packet::{Packet, Truth};
use crate::pipe::{Input, Kind};
use crate::plan::{Manners, Mutation, Rebuild, Step, When};
use holdfast_cluster::Nanos;
use holdfast_member::backup::{BackupHost, FollowHost, Kept, Replica, Report};
use holdfast_member::host::Context as _;
use holdfast_member::primary::Held;
use holdfast_replica::promotion::{Discarded, ManifestConn, Restore, Tell, Why};
use holdfast_wire::gate::Adopted;
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnKey, ConnRecord, DirectKey, Message};
use holdfast_wire::packet::TcpPacket;
use holdfast_wire::seq::SeqNo;

/// Longest time until a server that is made from a complete image runs.
const MAKING_MAX: Nanos = Nanos::from_ms(100);

/// A socket that was rebuilt, and the packets that must be injected into it.
pub struct RestoredSocket {
    socket: Socket,
    reinject: Vec<Vec<u8>>,
    queued: bool,
    tell: Tell,
}

/// What is inconsistent in the description of a socket to rebuild; `None`: nothing.
fn misfit(r: &Restore<'_>) -> Option<&'static str> {
    let unread = r.unread.iter().map(|piece| piece.len() as u64).sum();
    match () {
        () if r.snd_una_offset > r.in_flight_end => Some("beyond what was sent"),
        () if r.in_flight_end > r.out_end => Some("beyond what was written"),
        () if r.rcv_nxt != r.recv_start.plus(unread) => Some("with a hole in what is unread"),
        // On Linux the lowest bit means a clock in µs instead of ms.
        () if r.tsval.is_some_and(|tsval| tsval & 1 != 0) => Some("with another clock"),
        () => None,
    }
}

impl AtHost<'_> {
    /// Passes a message from the primary to the checkers.
    pub(super) fn judge(&mut self, message: &Message<'_>) {
        let (holder, check) = (self.holder(), &mut self.world.check);
        match message {
            Message::Conn { conn, record } => check.conn_taken(holder, *conn, record),
            Message::Adopt { conns } => {
                conns.iter().for_each(|adopted| check.adopted(holder, adopted));
            }
            Message::Unread { conn, offset, bytes, last } => {
                let len = bytes.len() as u64 + u64::from(*last);
                check.unread_taken(holder, *conn, *offset, len);
            }
            // Its state was complete, but it obeys its primary.
            Message::Refused { .. } if !self.d.takes_over => check.state_lost(self.d.at),
            Message::Refused { .. } => {
                self.d.sent_away = self.world.plan.mutation == Some(Mutation::SentAway);
            }
            _ => {}
        }
    }
}

impl AtHost<'_> {
    /// Makes the survivor's gate know a connection from before the takeover.
    fn adopt(&mut self, r: &Restore<'_>) {
        let origin = r.record.iss.plus(1);
        let acked = u64::from(r.closing.server_fin_acked);
        let adopted = Adopted {
            record: *r.record,
            snd_una: origin.plus(r.snd_una_offset + acked),
            snd_nxt: origin.plus(r.in_flight_end + acked),
            rcv_nxt: r.rcv_nxt,
            right_edge: r.right_edge,
            tsval: r.tsval.unwrap_or(0),
            tsecr: r.client_tsval.unwrap_or(0),
            fin_allowed: r.closing.server_fin || r.closing.orphan,
        };
        let conn = self.host_mut().gate.as_mut().and_then(|gate| gate.adopt(&adopted));
        let socket = cookie(r.record.iss, r.record.irs);
        let record = ConnRecord { tsval: r.tsval, ..*r.record };
        self.d.survivors.extend(conn.map(|conn| Held { conn, socket, record }));
    }

    fn make_copy(&mut self) -> Result<(), String> {
        let is_new = self.d.copy.as_ref().is_none_or(|copy| copy.cold.is_none());
        if is_new {
            self.can_be_made()?;
        }
        let bytes = self.d.copy.as_mut().map(|copy| std::mem::take(&mut copy.bytes));
        let Some(server) = self.world.image_of(&bytes.unwrap_or_default()) else {
            return Err("the image is not whole, or of an earlier server".to_owned());
        };
        self.world.copy_starts(self.d.at, server, is_new);
        let again = self.d.rebuilds && self.world.plan.rebuild == Some(Rebuild::FallsAgain);
        self.server_mut().into_iter().for_each(|server| server.falls_at_end = again);
        if let Some(copy) = &mut self.d.copy {
            copy.runs = true;
        }
        if is_new {
            self.world.crosses(When::Join(Step::Runs));
        }
        Ok(())
    }

    fn can_be_made(&mut self) -> Result<(), String> {
        match self.world.rng.below(1000) < self.world.plan.joins.unmade_permille {
            true => Err("the copy cannot be made".to_owned()),
            false => Ok(()),
        }
    }

    /// Notes that everything has arrived from which the server could be built.
    fn keep_image(&mut self) -> Result<(), String> {
        self.can_be_made()?;
        let bytes = self.d.copy.as_ref().map(|copy| copy.bytes.clone()).unwrap_or_default();
        let Some(records) = self.world.records_of(&bytes) else {
            return Err("the image is not whole, or of an earlier server".to_owned());
        };
        self.world.check.copy_made(Holder::Backup, records);
        self.world.crosses(When::Join(Step::Runs));
        Ok(())
    }

    /// Bytes of the log in the spool; 0 without one.
    fn log_kept(&self) -> u64 {
        let copy = self.d.copy.as_ref().filter(|copy| copy.is_kept());
        copy.map_or(0, |copy| copy.spool_bytes)
    }

    /// Why the spool cannot go on; `None`: it can.
    pub(super) fn spool(&self) -> Option<Replica> {
        if self.is_full() {
            return Some(Replica::Unkept("the spool is full".to_owned()));
        }
        self.is_outgrown().then(|| Replica::Outgrown("a new image is due".to_owned()))
    }

    /// Whether the spool has no room for more.
    fn is_full(&self) -> bool {
        self.world.plan.cold.is_some_and(|cold| self.log_kept() > cold.log_max)
    }

    /// Whether more than half of the spool is used.
    fn is_outgrown(&self) -> bool {
        self.world.plan.cold.is_some_and(|cold| self.log_kept() > cold.log_max / 2)
    }
}

impl FollowHost for AtHost<'_> {
    fn drain_tap(&mut self, most: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool {
        let Some(tap) = &mut self.host_mut().tap else { return false };
        let count = tap.len().min(most);
        let packets: Vec<Packet> = tap.drain(..count).collect();
        for packet in &packets {
            self.world.check.copy_taken(self.holder(), packet);
            packet.with_view(|view| each(self, view));
        }
        !packets.is_empty()
    }

    fn watch_tap(&mut self, _: bool) {
        // `World::tap_rings` asks the machine.
    }

    fn close_tap(&mut self) {
        self.host_mut().tap = None;
    }

    fn replica(&self) -> Replica {
        if let Some(spool) = self.spool() {
            return spool;
        }
        match self.server() {
            None if self.d.copy.is_some() => Replica::Replays,
            None => Replica::Ended,
            Some(server) => match &server.diverged {
                Some(reason) => Replica::Diverged(reason.clone()),
                None if !server.alive => Replica::Ended,
                None if server.parked => Replica::Parked,
                None => Replica::Replays,
            },
        }
    }

    fn is_replica_busy(&self) -> bool {
        self.server().is_some_and(|server| server.alive && !server.hung)
    }

    fn stopped_by_hand(&self) -> Option<u32> {
        None
    }

    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let full = self.world.plan.uneven.ring_full_permille;
        if full > 0 && self.world.rng.below(1000) < full {
            return false;
        }
        let taken = match &mut self.d.copy {
            Some(copy) => copy.keep(header, payload.concat()),
            None => self.server_mut().is_some_and(|server| server.replay(header, payload)),
        };
        if taken {
            self.world.check.record_taken(self.holder(), header, &payload.concat());
        }
        taken
    }

    fn acked(&mut self, accept: u32, bytes: u64) {
        if let Some(copy) = &mut self.d.copy {
            return copy.acked(accept, bytes);
        }
        if let Some(server) = self.server_mut() {
            server.acked(accept, bytes);
        }
    }

    fn gone(&mut self, accept: u32) {
        if let Some(copy) = &mut self.d.copy {
            return copy.gone(accept);
        }
        if let Some(server) = self.server_mut() {
            server.gone(accept);
        }
    }

    fn progress(&self) -> (u64, u64) {
        let kept = self.d.copy.as_ref().map_or(0, |copy| copy.spool_bytes);
        if self.d.copy.as_ref().is_some_and(Copy::is_kept) {
            return (kept, kept);
        }
        let server = self.server().filter(|_| self.d.copy.as_ref().is_none_or(|copy| copy.runs));
        let (appended, executed) = server.map_or((0, 0), |s| (s.appended, s.executed));
        (appended + kept, executed)
    }

    fn has_room(&self) -> bool {
        if let Some(copy) = &self.d.copy {
            return copy.has_room();
        }
        self.server().is_some_and(|s| s.appended - s.executed < s.ring_bytes / 2)
    }

    fn wake_replica(&mut self) {
        self.world.wake_server(self.d.at);
    }

    fn open_direct(&mut self, id: u64, _: &DirectKey, _: u16) -> Option<u16> {
        self.d.direct = Some(id);
        self.d.directs.clear();
        Some(0)
    }

    fn recv_direct(&mut self, each: &mut dyn FnMut(&mut Self, u64, &[u8])) {
        for (position, records) in std::mem::take(&mut self.d.directs) {
            each(self, position, &records);
        }
    }

    fn send_held(&mut self, position: u64) {
        if let Some(id) = self.d.direct {
            self.world.sends_held(self.d.at, id, position);
        }
    }

    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.d.copy = Some(Copy::new(log_from, image_bytes, self.world.plan.cold.is_some()));
        Ok(())
    }

    fn image_kept(&self) -> u64 {
        self.d.copy.as_ref().map_or(0, Copy::image_bytes)
    }

    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(copy) = &mut self.d.copy else { return Err("nothing was begun".to_owned()) };
        let is_second = copy.next.is_some();
        if copy.take(bytes) {
            let step = if is_second { Step::HalfRenewed } else { Step::Half };
            self.world.crosses(When::Join(step));
        }
        Ok(())
    }

    fn feed_copy(&mut self) -> bool {
        let Some(mut copy) = self.d.copy.take_if(|copy| !copy.is_kept()) else { return true };
        let server = self.server_mut().filter(|_| copy.runs);
        let done = server.is_some_and(|server| copy.feed(server));
        let keeps = copy.spool_bytes > 0 || !copy.runs;
        if !done {
            self.d.copy = Some(copy);
        }
        self.world.wake_server(self.d.at);
        !keeps
    }

    fn end_image(&mut self) {
        if self.d.copy.as_mut().is_some_and(Copy::end_second) {
            return;
        }
        let takes = Nanos(self.world.rng.below(MAKING_MAX.0));
        let due = self.now().plus(takes);
        if let Some(copy) = &mut self.d.copy {
            copy.due = Some(due);
        }
    }

    fn copy_made(&mut self) -> Option<Result<(), String>> {
        let now = self.now();
        let copy = self.d.copy.as_mut()?;
        copy.due.take_if(|due| *due <= now)?;
        if copy.cold == Some(Cold::Arrives) {
            copy.cold = Some(Cold::Keeps);
            return Some(self.keep_image());
        }
        let damaged_permille = self.world.plan.cold.map_or(0, |cold| cold.damaged_permille);
        if damaged_permille > 0 && self.world.rng.below(1000) < damaged_permille {
            return Some(Err("what is kept is damaged".to_owned()));
        }
        Some(self.make_copy())
    }

    fn is_peer_ready(&self) -> bool {
        !self.d.pair.inbox.is_empty() || self.d.pair.pipe.is_none()
    }

    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        if self.d.lost {
            // The result of an attempt to connect is of no use any more.
            self.d.pair.inbox.clear();
            return false;
        }
        for input in self.world.turn_link(self.d, Kind::Pair) {
            match input {
                Input::Lost(_) => self.d.lost = true,
                Input::Message(_, bytes) => match Message::decode(&bytes) {
                    Ok(message) => {
                        self.judge(&message);
                        each(self, &message);
                    }
                    Err(bad) => self.violation("message", bad.to_string()),
                },
                _ => {}
            }
        }
        self.d.lost
    }

    fn send(&mut self, message: &Message<'_>) {
        if let Some(pipe) = self.d.pair.pipe.filter(|_| !self.is_beat_unsent(message)) {
            self.world.send(pipe, 0, message);
        }
    }

    fn flush(&mut self) {}

    fn close_peer(&mut self) {
        self.d.lost = true;
        if let Some(pipe) = self.d.pair.pipe.take() {
            self.world.close_pipe(pipe, 0);
        }
    }

    fn report(&mut self, report: &Report<'_>) {
        let refused = report.counters.refused_full;
        self.world.reached.refused_full += refused - self.d.refused_full;
        self.d.refused_full = refused;
        let (now, (_, bytes)) = (self.world.now, report.unresolved);
        if report.promoting.is_none() && report.joins.is_none() {
            self.world.check.says(self.d.at, Said::Protected { speaks: false });
        }
        (self.d.connections, self.d.unconfirmed) = (report.connections, bytes);
        let max = self.world.plan.limits.backup.frames_queued_max;
        self.world.check.table(now, "frames queued, bytes", bytes, max);
    }
}

impl BackupHost for AtHost<'_> {
    fn begin_renewal(&mut self) -> Result<(), String> {
        self.d.copy.as_mut().ok_or("there is no spool")?.begin_renewal();
        self.world.crosses(When::Join(Step::Renews));
        Ok(())
    }

    fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        let copy = self.d.copy.as_mut().ok_or("there is no spool")?;
        match copy.begin_new_image(log_from, image_bytes) {
            true => Ok(()),
            false => Err("the log was not kept for it".to_owned()),
        }
    }

    fn is_renewal_kept(&mut self) -> Result<bool, String> {
        if self.world.rng.below(1000) < self.world.plan.joins.unmade_permille {
            return Err("the disk has no room".to_owned());
        }
        Ok(self.d.copy.as_ref().is_some_and(Copy::has_second))
    }

    fn end_renewal(&mut self, replaces: bool) {
        let Some(copy) = &mut self.d.copy else { return };
        if !replaces {
            copy.next = None;
            return;
        }
        copy.replace();
        self.world.reached.renewals += 1;
        self.world.crosses(When::Join(Step::Renewed));
    }

    fn end_log(&mut self) {
        if let Some(server) = self.server_mut() {
            server.log_ended = true;
        }
        self.world.wake_server(self.d.at);
    }

    fn kept(&self) -> Option<Kept> {
        let copy = self.d.copy.as_ref().filter(|copy| copy.is_kept())?;
        Some(Kept { image: copy.bytes.len() as u64, log: copy.spool_bytes })
    }

    fn begin_takeover(&mut self) {
        self.d.takes_over = true;
        let mut gate = Gate::new(&self.world.plan.limits, self.world.plan.mutation);
        gate.solo = true;
        self.host_mut().gate = Some(gate);
        let least = self.world.plan.cold.map_or(0, |cold| cold.build_min);
        let takes = Nanos(least + self.world.rng.below(MAKING_MAX.0));
        let due = self.now().plus(takes);
        if let Some(copy) = self.d.copy.as_mut().filter(|copy| copy.is_kept()) {
            (copy.cold, copy.due) = (Some(Cold::Builds), Some(due));
        }
    }

    fn find_interface(&mut self) -> Result<(), String> {
        // A simulated host's interface is never removed.
        Ok(())
    }

    fn manifest(&mut self, accepts: &[u32]) -> Vec<ManifestConn> {
        self.d.settles = true;
        let mut manifest = self.server().map(|server| server.manifest()).unwrap_or_default();
        manifest.retain(|conn| accepts.contains(&conn.accept));
        manifest
    }

    fn restore(&mut self, r: &Restore<'_>) {
        let mut kept = r.earlier.to_vec();
        let from = r.snd_una_offset + r.earlier.len() as u64;
        if let (Some(accept), Some(server)) = (r.accept, self.server()) {
            kept.extend(server.retained(accept, from, r.out_end));
        }
        if let Some(what) = misfit(r) {
            self.violation("L5", format!("a connection is rebuilt {what}: {r:?}"));
        }
        self.adopt(r);
        let (buffer, now) = (self.world.plan.receive_buffer, self.world.time_at(self.d.at));
        self.d.carried.push(RestoredSocket {
            socket: Socket::restore(r, &kept, Truth::default(), buffer, now),
            reinject: r.reinject.iter().map(|raw| raw.to_vec()).collect(),
            queued: r.accept.is_none(),
            tell: r.tell,
        });
    }

    fn rebuild(&mut self) {
        // `restore` has.
    }

    fn lost(&mut self, lost: &Discarded) {
        let Discarded { conn, accept, why, .. } = *lost;
        // A client that claims what nobody wrote loses its own connection
        // (decision 16).
        let lies = self.world.clients.iter().any(|client| client.plan.manners() != Manners::Good);
        if why == Why::NeverWritten && lies {
            return;
        }
        // What `buffering` does not wait for, a client may know and the backup not (decision 32).
        let buffering = self.world.plan.buffering;
        let given_up = match why {
            Why::BeyondLog => buffering.may_lose(),
            Why::InputNotHeld => !buffering.holds_acks(),
            _ => false,
        };
        if given_up {
            return;
        }
        // Its client had not acknowledged all that it was sent before the join, or the server had
        // not accepted it, or the client is gone.
        let joined = matches!(why, Why::OutputNotRetained | Why::InputNotHeld);
        let holder = self.holder();
        if joined && self.world.check.may_be_lost(holder, conn, &self.world.clients) {
            return;
        }
        let what = format!("a connection was lost: {conn:?}, accept {accept:?}: {why:?}");
        self.violation("L5", what);
    }

    fn revive_listeners(&mut self) {
        self.host_mut().listening = true;
    }

    fn take_address(&mut self) -> Result<(), String> {
        self.host_mut().address = true;
        Ok(())
    }

    fn show_clocks(&mut self) {
        // `Socket::restore` gives the client's timestamp to the modelled kernel.
    }

    fn hear_clients(&mut self) -> Result<(), String> {
        self.host_mut().tap_drop = Some(true);
        Ok(())
    }

    fn send_retained(&mut self) {
        let queued = self.d.carried.iter().filter(|carried| carried.queued);
        let keys: Vec<ConnKey> = queued.map(|carried| carried.socket.key).collect();
        self.host_mut().backlog.extend(keys);
    }

    fn set_live(&mut self) {
        let own = self.host().clock.both(self.world.now);
        let anew = self.is(Mutation::ClocksAnew);
        if let Some(server) = self.server_mut() {
            server.goes_live((!anew).then_some(own));
        }
        self.world.wake_server(self.d.at);
    }

    fn kick(&mut self) {
        let now = self.world.time_at(self.d.at);
        let (mut out, mut inject) = (Vec::new(), Vec::new());
        for RestoredSocket { mut socket, reinject, tell, .. } in std::mem::take(&mut self.d.carried)
        {
            let mut own = Vec::new();
            socket.push(now, &mut own);
            // Later ones are no more than an insurance, which is not to be relied upon.
            if own.is_empty() && tell == Tell::Now {
                own.push(socket.ack(now));
            }
            out.extend(own);
            inject.extend(reinject);
            if !(socket.is_over() && socket.orphan) {
                self.host_mut().sockets.insert(socket.key, socket);
            }
        }
        self.world.host_sends(self.d.at, out);
        for raw in inject {
            self.inject(raw);
        }
    }

    fn inject(&mut self, raw: Vec<u8>) {
        let id = raw.as_slice().try_into().map_or(u64::MAX, u64::from_le_bytes);
        if let Some(packet) = self.world.packets.get(id as usize).cloned() {
            self.world.kernel_receives(self.d.at, &packet);
        }
    }

    fn end_takeover(&mut self) {}

    fn has_nudges(&self) -> bool {
        // The modelled kernel resends by itself.
        false
    }

    fn nudge(&mut self, _: &ConnKey, _: SeqNo) {}

    fn repeat_syn_ack(&mut self, _: &ConnKey) {}

    fn nudge_again(&mut self) {}

    fn end_unanswered(&mut self) {}
}
