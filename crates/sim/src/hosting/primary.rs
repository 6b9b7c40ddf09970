//! The host of a primary's machine: gate, log, and the channel to the backup.

use super::AtHost;
use crate::check::Said;
use crate::gate::{Gate, Held as HeldPacket};
use crate::image::Image as Bytes;
use crate::kernel::{Socket, cookie};
use crate::packet::Packet;
use crate::pipe::Input;
use crate::plan::{Mutation, Step, When};
use crate::server::{Mode, Server};
use holdfast_cluster::Nanos;
use holdfast_member::host::Context as _;
use holdfast_member::primary::{Book, Earlier, Held, Image, PrimaryHost, Report, Unacked};
use holdfast_replica::primary::{Peeked, Wanted};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::direct::KEY_BYTES;
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, DirectKey, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest time until an image is taken.
const TAKING_MAX: Nanos = Nanos::from_ms(50);
/// Longest time until the daemon's loop then sees it.
const SEEN_MAX: Nanos = Nanos::from_ms(5);
/// Reason that a broken shim gives.
pub const BROKEN: &str = "the shim cannot go on";

impl AtHost<'_> {
    fn gate(&self) -> Option<&Gate> {
        self.host().gate.as_ref()
    }

    fn gate_mut(&mut self) -> Option<&mut Gate> {
        self.host_mut().gate.as_mut()
    }

    /// Takes the image now.
    fn take_it(&mut self) -> Result<Image, String> {
        let plan = self.world.plan.joins;
        if self.world.rng.below(1000) < plan.untaken_permille {
            return Err("the server does not stand still".to_owned());
        }
        let is_attached = self.is_attached();
        let fit = |server: &&mut Server| {
            is_attached && server.alive && server.mode != Mode::Replay && !server.broken
        };
        let host = &mut self.world.hosts[self.d.at];
        let Some(server) = host.server.as_mut().filter(fit) else {
            return Err("the server cannot be copied".to_owned());
        };
        let (books, renews) = (server.books(&host.sockets), server.mode == Mode::Record);
        if !renews {
            server.begins_log();
        }
        self.d.accepts = server.accepts;
        // Only sockets of which the server has a descriptor can be read, and only until it has
        // ended its sending side.
        let open = books.iter().filter(|(_, book)| !book.closed && !book.shut);
        let open = open.filter_map(|(key, _)| host.sockets.get(key));
        let is_slow = |socket: &&Socket| self.d.slow.contains(&cookie(socket.iss, socket.irs));
        self.d.earlier = open.filter(is_slow).map(Socket::earlier).collect();
        let unacked = books.iter().filter(|(key, book)| {
            let lacks = |socket: &&Socket| socket.snd_una < book.out_bytes;
            let goes_over = self.d.earlier.iter().any(|earlier| earlier.socket == book.socket);
            !goes_over && host.sockets.get(key).filter(lacks).is_some()
        });
        self.d.unacked = unacked.map(|(key, book)| (*key, book.out_bytes)).collect();
        // The table entries of released connections may belong to others by now.
        let (books, let_go): (Vec<_>, Vec<_>) = books.into_iter().partition(|(_, book)| {
            server.conns.contains_key(&book.accept) || self.world.rng.below(2) == 0
        });
        self.d.let_go = let_go.into_iter().map(|(key, _)| key).collect();
        let (log_from, copy) = (server.tail(), server.copied(&books));
        let said =
            |book: Book| Book { out_bytes: plan.out_bytes_said.unwrap_or(book.out_bytes), ..book };
        self.d.books = books.into_iter().map(|(_, book)| said(book)).collect();
        self.world.reached.images += 1;
        let image = Bytes { id: self.world.reached.images, bytes: plan.image_bytes };
        (self.d.image, self.d.image_at) = (Some(image), 0);
        if !renews {
            // The previous image is not needed any more.
            self.world.images.clear();
        }
        self.world.images.insert(image.id, copy);
        let step = if renews { Step::RenewedImage } else { Step::Image };
        self.world.crosses(When::Join(step));
        Ok(Image { log_from, bytes: image.bytes })
    }
}

impl PrimaryHost for AtHost<'_> {
    type Bytes = Vec<u8>;

    fn held(&mut self) -> Vec<Held> {
        let Some(gate) = self.gate_mut() else { return Vec::new() };
        let events = std::mem::take(&mut gate.events);
        let take = |HeldPacket { id, record, packet, passed }| {
            if !passed {
                self.d.held.insert(id, packet);
            }
            Held { conn: id, socket: cookie(record.iss, record.irs), record }
        };
        events.into_iter().map(take).collect()
    }

    fn conn_of(&self, key: &ConnKey) -> Option<ConnId> {
        self.gate()?.conn_of(key)
    }

    fn slot(&self, conn: ConnId) -> Option<SlotView> {
        self.gate()?.view(conn)
    }

    fn open(&mut self, conn: ConnId) {
        if let Some(slot) = self.gate_mut().and_then(|gate| gate.slot_mut(conn)) {
            slot.open = true;
        }
        if let Some(packet) = self.d.held.remove(&conn) {
            self.world.host_sends(self.d.at, vec![packet]);
        }
    }

    fn free(&mut self, conn: ConnId) {
        self.d.held.remove(&conn);
        if self.is(Mutation::KeepSlots) {
            return;
        }
        if let Some(gate) = self.gate_mut() {
            gate.free(conn);
        }
    }

    fn set_stable(&mut self, conn: ConnId, stable: SeqNo) {
        if let Some(slot) = self.gate_mut().and_then(|gate| gate.slot_mut(conn)) {
            slot.stable = stable;
        }
    }

    fn allow_fin(&mut self, conn: ConnId) {
        if let Some(slot) = self.gate_mut().and_then(|gate| gate.slot_mut(conn)) {
            slot.fin_allowed = true;
        }
    }

    fn mind_slots(&mut self, _lasts: Duration) {
        if let Some(gate) = self.gate_mut() {
            gate.minded = true;
        }
    }

    fn set_server_dead(&mut self) {
        if let Some(gate) = self.gate_mut() {
            gate.server_dead = true;
        }
    }

    fn is_attached(&self) -> bool {
        !self.world.plan.unattached
    }

    fn tail(&self) -> u64 {
        self.server().map_or(0, |server| server.tail())
    }

    fn take_tail(&mut self, from: u64) -> Option<u64> {
        Some(self.tail().max(from))
    }

    fn bytes(&self, pos: u64, len: usize) -> Vec<u8> {
        let log = self.server().map_or(&[][..], |server| &server.log);
        log.get(pos as usize..pos as usize + len).unwrap_or_default().to_vec()
    }

    fn may_sleep(&mut self, read_to: u64) -> bool {
        self.tail() <= read_to
    }

    fn announced(&self) -> u64 {
        self.server().map_or(u64::MAX, |server| server.announced)
    }

    fn may_sleep_until_announced(&mut self, read_to: u64) -> bool {
        self.announced() <= read_to
    }

    fn set_log_stable(&mut self, pos: u64) {
        if let Some(server) = self.server_mut() {
            // The server may know of more by itself.
            server.stable = server.stable.max(pos);
        }
        self.world.wake_server(self.d.at);
    }

    fn log_fault(&self) -> Option<String> {
        self.server().filter(|server| server.broken).map(|_| BROKEN.to_owned())
    }

    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        let is_it = |socket: &&Socket| {
            socket.accept == Some(wanted.accept) && cookie(socket.iss, socket.irs) == wanted.socket
        };
        let Some(socket) = self.host().sockets.values().find(is_it) else { return Peeked::Nothing };
        let peeked = socket.peek(wanted.from, wanted.until, into);
        if self.is(Mutation::PeekAside) {
            let aside = into.len().min(1);
            into.rotate_left(aside);
        }
        peeked
    }

    fn pause_server(&mut self) {
        // No operator stops a simulated member.
    }

    fn resume_server(&mut self) {
        // Nor is it resumed.
    }

    fn strike_server(&mut self) {
        self.world.kill_server(self.d.at);
    }

    fn go_alone(&mut self) -> Result<(), String> {
        let mut owed = self.gate().map(Gate::withheld).unwrap_or_default();
        let sockets = &self.host().sockets;
        // For an unfinished handshake there is nothing to send but its SYN-ACK.
        let lives = |socket: &Socket| socket.established && !socket.is_over();
        owed.retain(|(key, _)| sockets.get(key).is_some_and(lives));
        self.d.owed = owed;
        if let Some(gate) = self.gate_mut() {
            gate.solo = true;
        }
        if let Some(server) = self.server_mut() {
            (server.mode, server.hung) = (Mode::Live, false);
        }
        let packets: Vec<Packet> = std::mem::take(&mut self.d.held).into_values().collect();
        self.world.host_sends(self.d.at, packets);
        self.world.wake_server(self.d.at);
        Ok(())
    }

    fn backlog(&mut self) -> Option<usize> {
        self.host().listening.then_some(self.world.plan.limits.backlog)
    }

    fn destroy(&mut self, keys: &[ConnKey]) -> bool {
        for key in keys {
            self.host_mut().sockets.remove(key);
            self.world.check.handshake_ended(*key);
            self.world.reached.handshakes_ended += 1;
        }
        true
    }

    fn stop_watching(&mut self) {}

    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        let mut lost = false;
        for input in std::mem::take(&mut self.d.pair.inbox) {
            match input {
                Input::Lost(pipe) => lost |= self.d.pair.pipe == Some(pipe),
                Input::Message(pipe, bytes) if self.d.pair.pipe == Some(pipe) => {
                    match Message::decode(&bytes) {
                        Ok(message) => each(self, &message),
                        Err(bad) => self.violation("message", bad.to_string()),
                    }
                }
                // Any other connection is refused.
                Input::Accepted(pipe) => self.world.close_pipe(pipe, 1),
                _ => {}
            }
        }
        lost
    }

    fn send(&mut self, message: &Message<'_>) {
        if let Some(pipe) = self.d.pair.pipe.filter(|_| !self.is_beat_unsent(message)) {
            self.world.send(pipe, 1, message);
        }
        if matches!(message, Message::Closing { .. }) {
            self.world.check.closes(1 - self.d.at);
            self.world.crosses(When::Join(Step::Closes));
        }
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn drop_peer(&mut self) {
        if let Some(pipe) = self.d.pair.pipe.take() {
            self.world.close_pipe(pipe, 1);
        }
    }

    fn turn_away(&mut self, reason: &str) {
        let (knock, other): (Vec<_>, Vec<_>) = std::mem::take(&mut self.d.pair.inbox)
            .into_iter()
            .partition(|input| matches!(input, Input::Accepted(_)));
        self.d.pair.inbox = other.into();
        for input in knock {
            if let Input::Accepted(pipe) = input {
                self.refuse(pipe, reason);
            }
        }
    }

    fn offer_direct(&mut self) -> Option<(u64, DirectKey, u16)> {
        let plan = &self.world.plan;
        let is_plain = plan.cold.is_none() && plan.buffering == Buffering::Commit;
        plan.direct.filter(|_| is_plain)?;
        self.d.offered = self.world.direct.number();
        Some((self.d.offered, DirectKey([0; KEY_BYTES]), 0))
    }

    fn begin_direct(&mut self, _: u16) {
        let tail = self.tail();
        let id = self.d.offered;
        if let Some(server) = self.server_mut() {
            server.announced = tail;
        }
        self.world.opens_direct(self.d.at, id);
    }

    fn end_direct(&mut self) {
        self.world.ends_direct(self.d.at);
    }

    fn stand_beside(&mut self) {}

    fn admit(&mut self) {
        // The channel on which they met is the pair's.
    }

    fn strangers(&mut self) -> usize {
        let host = self.host();
        let Some(gate) = &host.gate else { return host.sockets.len() };
        let is_known = |socket: &Socket| {
            let slot = gate.conn_of(&socket.key).and_then(|conn| gate.view(conn));
            slot.is_some_and(|slot| slot.iss == socket.iss)
        };
        let living = host.sockets.values().filter(|socket| !socket.is_over());
        living.filter(|socket| !is_known(socket)).count()
    }

    fn take_image(&mut self, slow: &[u64], _: bool) -> Result<(), String> {
        self.d.slow = slow.to_vec();
        let takes = Nanos(self.world.rng.below(TAKING_MAX.0));
        self.d.image_due = Some(self.now().plus(takes));
        Ok(())
    }

    fn image_taken(&mut self) -> Option<Result<Image, String>> {
        let now = self.now();
        if self.d.image_due.take_if(|due| *due <= now).is_some() {
            // The server runs on until the loop sees the image.
            let seen_at = now.plus(Nanos(self.world.rng.below(SEEN_MAX.0)));
            self.d.image_seen = Some((seen_at, self.take_it()));
        }
        let seen = self.d.image_seen.take_if(|(at, _)| *at <= now);
        seen.map(|(_, taken)| taken)
    }

    fn books(&mut self) -> Vec<Book> {
        std::mem::take(&mut self.d.books)
    }

    fn earlier(&mut self) -> Vec<Earlier> {
        std::mem::take(&mut self.d.earlier)
    }

    fn sockets(&mut self) -> BTreeSet<u64> {
        let accepts = self.d.accepts;
        let Some(server) = self.server() else { return BTreeSet::new() };
        let has_place = |accept: u32| accept > accepts || server.conns.contains_key(&accept);
        let sockets = self.host().sockets.values();
        let placed = sockets.filter(|socket| socket.accept.is_some_and(has_place));
        placed.map(|socket| cookie(socket.iss, socket.irs)).collect()
    }

    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String> {
        let at = self.d.image_at;
        let bytes = self.d.image.map(|image| image.part(at, most)).ok_or("there is no image")?;
        self.d.image_at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    fn drop_image(&mut self) {
        (self.d.image, self.d.image_due, self.d.image_seen) = (None, None, None);
    }

    fn free_log(&mut self, pos: u64) {
        self.set_log_stable(pos);
    }

    fn has_log_room(&self) -> bool {
        self.server().is_none_or(|s| (s.tail() - s.stable) * 2 <= s.ring_bytes)
    }

    fn end_log(&mut self) {
        if let Some(server) = self.server_mut() {
            // Alone it needs no log, so a broken shim does not matter any more.
            (server.mode, server.hung) = (Mode::Live, false);
        }
        self.world.wake_server(self.d.at);
    }

    fn commit(&mut self, pos: u64) {
        if let Some(server) = self.server_mut() {
            (server.commits, server.stable) = (true, pos);
        }
        let holder = self.holder();
        let host = &self.world.hosts[self.d.at];
        let unknown = |socket: &&Socket| {
            socket.established && socket.accept.is_none() || self.d.let_go.contains(&socket.key)
        };
        for socket in host.sockets.values().filter(unknown) {
            self.world.check.told(holder, socket.key, socket.irs, socket.received());
        }
        for (key, out_bytes) in std::mem::take(&mut self.d.unacked) {
            if host.sockets.get(&key).is_some_and(|socket| socket.snd_una < out_bytes) {
                self.world.check.not_kept(key);
            }
        }
    }

    fn clamp(&mut self) -> Result<(), String> {
        if let Some(gate) = self.gate_mut() {
            gate.solo = false;
        }
        self.world.crosses(When::Join(Step::Commits));
        Ok(())
    }

    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>> {
        let sockets = &self.host().sockets;
        let unacked = |key| sockets.get(key).map(Socket::unacked).unwrap_or_default();
        Some(keys.iter().map(unacked).collect())
    }

    fn report(&mut self, report: &Report<'_>) {
        let refused = report.counters.refused_full;
        self.world.reached.refused_full += refused - self.d.refused_full;
        self.d.refused_full = refused;
        let now = self.world.now;
        let used = self.gate().map_or(0, Gate::slots_used);
        let limit = self.world.plan.limits.gate_slots;
        self.world.check.table(now, "gate slots", used, limit);
        self.world.reached.repairs = report.counters.repairs;
        let serves = report.is_attached && !report.is_in_doubt;
        let said = match serves {
            true if report.joins.is_some() || report.keeps => Said::Alone,
            true => Said::Protected { speaks: true },
            false => Said::Waits,
        };
        self.world.check.says(self.d.at, said);
        self.d.connections = report.connections;
        self.d.unconfirmed = report.frames_unconfirmed;
        let frames = report.frames_unconfirmed;
        let limits = self.world.plan.limits.primary;
        self.world.check.table(now, "frames unconfirmed", frames, limits.frames_unconfirmed_max);
    }
}
