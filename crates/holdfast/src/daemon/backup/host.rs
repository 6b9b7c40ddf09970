//! What the backup's machine asks of this host.

use super::sockets::Rebuilt;
use super::{BackupDaemon, Barred, Cold, DIRECT, PIDFD, TAP, segment, sockets};
use crate::channel::Listener;
use crate::daemon::dialer::LinkEvent;
use crate::daemon::direct::Listening;
use crate::daemon::heed;
use crate::daemon::member::MemberContext;
use crate::daemon::primary::states;
use crate::daemon::said::Said;
use crate::daemon::survivor::{Alone, end_handshakes};
use crate::leavings;
use crate::poll::Interest;
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::spawn::Server;
use holdfast_linux::{process, way};
use holdfast_member::backup::{BackupHost, FollowHost, Kept, Replica, Report};
use holdfast_member::host::{ConnState, Hosted, MemberEvent, MemberHost};
use holdfast_member::primary::Held;
use holdfast_member::timing::primary::MINDED;
use holdfast_replica::promotion::{Discarded, ManifestConn, Restore};
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnKey, ConnRecord, DirectKey, Message};
use holdfast_wire::packet::{TcpPacket, TcpSegment, complete_checksum, mapped};
use holdfast_wire::segment;
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::mode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Error when a hot backup is asked for a new image.
const NO_SPOOL: &str = "there is no spool";

/// Time that a server which has just taken over gets before this daemon goes on with what is left
/// to do: enough for its first answers.
const BEGINS: Duration = Duration::from_millis(1);

/// Real-time priority of the replica during a takeover, below the daemon's own.
pub(super) const REPLICA_PRIORITY: i32 = 5;

/// The server's processes whose calls are in its log: all of a family, else the main one.
fn processes(replica: &Server) -> Vec<u32> {
    match replica.memory.is_family() {
        true => process::family(replica.pid()),
        false => vec![replica.pid()],
    }
}

fn set_priority(replica: &Server, priority: Option<i32>) {
    for pid in processes(replica) {
        heed("the replica's priority", process::set_process_realtime(pid, priority));
    }
}

impl<'a> Hosted for BackupDaemon<'_, 'a> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl BackupDaemon<'_, '_> {
    /// Raises the replica's priority: clients wait for what it has still to run. Without the
    /// privilege it just takes its turn.
    pub(super) fn hurry(&self) {
        if let Some(replica) = &self.replica {
            set_priority(replica, Some(REPLICA_PRIORITY));
        }
    }

    /// The memory that the replica shares with this daemon.
    fn memory(&self) -> Option<&SharedMemory> {
        self.replica.as_ref().map(|replica| &replica.memory)
    }
}

impl MemberHost for BackupDaemon<'_, '_> {
    fn has_server_ended(&mut self) -> bool {
        if self.node.tokens.has(PIDFD) {
            self.ended = true;
            if let Some(replica) = &self.replica {
                heed("poll", self.node.poll.remove(&replica.pidfd()));
            }
        }
        self.ended
    }

    fn kill_server(&mut self) {
        // Nothing is built from it any more, and nobody else has its files.
        self.cold = None;
        let Some(replica) = &mut self.replica else { return };
        let by_itself = self.ended || self.node.tokens.has(PIDFD);
        let ending = if by_itself { replica.last_words() } else { replica.ending() };
        self.own_end = self.own_end.or(ending);
        if !replica.kill() {
            self.node.note_lingering(replica.pid());
        }
        // What nobody reads any more must not wake a real-time loop forever.
        if std::mem::take(&mut self.watches_replica) {
            if !self.ended {
                heed("poll", self.node.poll.remove(&replica.pidfd()));
            }
            heed("poll", self.node.poll.remove(&replica.wake()));
        }
    }

    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        match &mut self.alone {
            Some((alone, _)) => alone.states(keys),
            None => states(&mut DiagSocket::open().ok()?, keys),
        }
    }

    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        if let Ok(packet) = segment.build() {
            heed("a packet to a client", self.sockets.raw.send(&packet));
        }
    }

    fn stand_by(&mut self) {
        let (mut alone, mut listener) = self.alone.take().unwrap_or_else(|| {
            // Only to tell a returning member why it cannot join.
            let listener = Listener::bind(self.node.me.address, self.node.pair_identity()).ok();
            (Alone::of_takeover(), listener)
        });
        if let Some(replica) = &mut self.replica {
            Alone::let_loose(self.node, replica);
            self.barred.revive(self.node, replica, Instant::now());
            replica.note_deaths();
        }
        let memory = self.replica.as_ref().map(|replica| &replica.memory);
        alone.turn(self.node, listener.as_mut(), memory);
        self.alone = Some((alone, listener));
        // Slots of ended connections are freed when the takeover is over, which is soon.
        heed("the gate's limit", self.gate.mind_slots(MINDED));
    }

    fn show(&mut self, news: MemberEvent<'_>) {
        self.tell(&news);
    }
}

impl FollowHost for BackupDaemon<'_, '_> {
    fn drain_tap(&mut self, most: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool {
        let Some(mut tap) = self.tap.take() else { return false };
        let mut sign = None;
        let taken = tap.drain(most, |l3, checksum| match segment(l3, checksum) {
            Some(segment) => each(self, &segment),
            None => match way::number_of(l3) {
                Some(seen) => sign = Some(seen),
                // The other member's come by a socket of their own.
                None => self.malformed += u64::from(!segment::is_one(l3)),
            },
        });
        self.tap = Some(tap);
        if let Some(sign) = sign.filter(|_| self.node.signs_by_tap) {
            self.node.tell_sign(sign);
        }
        taken.is_ok_and(|count| count > 0)
    }

    fn watch_tap(&mut self, yes: bool) {
        let interest = if yes { Interest::Read } else { Interest::Nothing };
        if let Some(tap) = &self.tap {
            heed("poll", self.node.poll.modify(&tap.fd(), TAP, interest));
        }
    }

    fn close_tap(&mut self) {
        self.node.signs_by_tap = false;
        if let Some(tap) = &self.tap {
            heed("poll", self.node.poll.remove(&tap.fd()));
        }
        self.restorer.forget();
    }

    fn replica(&self) -> Replica {
        if let Some(reason) = self.cold.as_ref().and_then(Cold::trouble) {
            return Replica::Unkept(reason.to_owned());
        }
        let Some(memory) = self.memory() else {
            let outgrown = self.cold.as_ref().and_then(Cold::outgrown);
            return outgrown.map_or(Replica::Replays, Replica::Outgrown);
        };
        match memory.mode() {
            mode::DIVERGED => Replica::Diverged(memory.reason()),
            _ if self.ended || self.node.tokens.has(PIDFD) => Replica::Ended,
            mode::PARKED => Replica::Parked,
            _ => Replica::Replays,
        }
    }

    fn is_replica_busy(&self) -> bool {
        let is_busy = |replica: &Server| processes(replica).into_iter().any(process::is_busy);
        self.replica.as_ref().is_some_and(is_busy)
    }

    fn stopped_by_hand(&self) -> Option<u32> {
        let stopped =
            |replica: &Server| processes(replica).into_iter().find(|pid| process::is_stopped(*pid));
        self.replica.as_ref().and_then(stopped)
    }

    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        self.append(header, payload)
    }

    fn acked(&mut self, accept: u32, bytes: u64) {
        // `u64::MAX` would say that the connection is over; that is noted elsewhere.
        self.note(accept, bytes.min(u64::MAX - 1));
    }

    fn gone(&mut self, accept: u32) {
        self.note(accept, u64::MAX);
    }

    fn progress(&self) -> (u64, u64) {
        self.log_progress()
    }

    fn has_room(&self) -> bool {
        if let Some(cold) = &self.cold {
            return cold.has_room();
        }
        self.memory().is_some_and(|memory| memory.unconsumed() < memory.ring_bytes() / 2)
    }

    fn wake_replica(&mut self) {
        self.memory().into_iter().for_each(SharedMemory::wake_shim);
    }

    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.expect_image(log_from, image_bytes)
    }

    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.take_piece(bytes)
    }

    fn image_kept(&self) -> u64 {
        self.pieces_kept()
    }

    fn end_image(&mut self) {
        self.end_pieces();
    }

    fn copy_made(&mut self) -> Option<Result<(), String>> {
        self.server_made()
    }

    fn feed_copy(&mut self) -> bool {
        self.feed()
    }

    fn is_peer_ready(&self) -> bool {
        self.is_peer_ready
    }

    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        let Some(mut link) = self.link.take() else { return false };
        let early = std::mem::take(&mut self.early);
        let mut take = |message: Message<'_>| {
            self.says = Said::of(&message).or(self.says.take());
            self.has_served |= self.says.as_ref().is_some_and(Said::is_fine);
            self.node.hear_other();
            each(self, &message);
        };
        for bytes in early {
            Message::decode(&bytes).into_iter().for_each(&mut take);
        }
        let event = link.recv(Instant::now(), take);
        self.link = Some(link);
        let LinkEvent::Lost(error) = event else { return false };
        // What the primary said before its channel broke may not be true any more.
        self.says = None;
        self.node.events.add("channel", format!("to the primary: {error}"));
        true
    }

    fn send(&mut self, message: &Message<'_>) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }

    fn flush(&mut self) {
        if let Some(link) = &mut self.link {
            link.flush(Instant::now(), &self.node.poll);
        }
    }

    fn close_peer(&mut self) {
        (self.says, self.direct) = (None, None);
        if let Some(link) = &mut self.link {
            link.close(Instant::now());
        }
    }

    fn open_direct(&mut self, id: u64, key: &DirectKey, port: u16) -> Option<u16> {
        // What a spool has written is confirmed by its own rules.
        if self.cold.is_some() {
            return None;
        }
        let (own, primary) = (self.node.me.address, self.node.other.address);
        let opened = Listening::new(own, primary, (id, key, port));
        let opened = opened.and_then(|it| {
            self.node.poll.add(&it, DIRECT, Interest::Read)?;
            Ok((it.port()?, it))
        });
        match opened {
            Ok((port, listening)) => {
                self.direct = Some(listening);
                Some(port)
            }
            Err(error) => {
                self.node.events.add("channel", format!("no datagrams from the primary: {error}"));
                None
            }
        }
    }

    fn recv_direct(&mut self, each: &mut dyn FnMut(&mut Self, u64, &[u8])) {
        if !self.node.tokens.has(DIRECT) {
            return;
        }
        if let Some(mut direct) = self.direct.take() {
            direct.recv(|position, records| each(self, position, records));
            self.direct = Some(direct);
        }
    }

    fn send_held(&mut self, position: u64) {
        if let Some(direct) = &mut self.direct {
            direct.send_held(position);
        }
    }

    fn report(&mut self, report: &Report<'_>) {
        self.tell_status(report);
    }
}

impl BackupHost for BackupDaemon<'_, '_> {
    fn begin_renewal(&mut self) -> Result<(), String> {
        self.begin_second()
    }

    fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.cold.as_mut().ok_or(NO_SPOOL)?.begin_new_image(log_from, image_bytes)
    }

    fn is_renewal_kept(&mut self) -> Result<bool, String> {
        self.cold.as_mut().ok_or(NO_SPOOL)?.is_renewal_kept(Instant::now())
    }

    fn end_renewal(&mut self, replaces: bool) {
        self.end_second(replaces);
    }

    fn end_log(&mut self) {
        self.memory().into_iter().for_each(SharedMemory::end_log);
    }

    fn kept(&self) -> Option<Kept> {
        self.cold.as_ref().map(Cold::kept)
    }

    fn begin_takeover(&mut self) {
        // What nobody reads any more must not wake a real-time loop for ever.
        self.direct = None;
        self.place.release();
        if self.cold.is_some() {
            self.build();
        }
        self.hurry();
    }

    fn find_interface(&mut self) -> Result<(), String> {
        let link = self.node.find_interface().map_err(|error| error.to_string())?;
        self.sockets.interface = link;
        self.follow_interface();
        Ok(())
    }

    fn manifest(&mut self, accepts: &[u32]) -> Vec<ManifestConn> {
        self.restorer.reserve(accepts.len());
        self.memory().map_or_else(Vec::new, |memory| sockets::manifest(memory, accepts))
    }

    fn restore(&mut self, restore: &Restore<'_>) {
        tracing::debug!("connection {:?} restored", restore.conn);
        self.restorer.take(restore);
    }

    fn rebuild(&mut self) {
        let Self { restorer, replica, gate, conns, node, .. } = self;
        let Some(replica) = replica else { return };
        for it in restorer.rebuild(replica, |it| gate.adopt(&it.adopted)) {
            let Rebuilt { adoption, socket, slot } = it;
            let key = adoption.adopted.record.key;
            match slot {
                Ok(conn) if socket != 0 => {
                    let record = ConnRecord { tsval: adoption.tsval, ..adoption.adopted.record };
                    conns.push(Held { conn, socket, record });
                }
                Ok(conn) => heed("a slot of the gate", gate.free(conn)),
                Err(error) => {
                    node.events.add("gate", format!("{key}: {error}; no later takeover keeps it"));
                }
            }
            if let Some(accept) = adoption.accept {
                replica.memory.entry(accept).socket.store(socket, Relaxed);
            }
        }
    }

    fn lost(&mut self, lost: &Discarded) {
        self.restorer.errors.push(lost.to_string());
    }

    fn revive_listeners(&mut self) {
        if let Some(replica) = &self.replica {
            self.barred = Barred::revive_all(self.node, replica, Instant::now());
        }
    }

    fn take_address(&mut self) -> Result<(), String> {
        self.find_interface()?;
        let index = self.sockets.interface.index;
        for ip in self.node.config.service_ips() {
            let taken = self.sockets.addresses.add(index, &mapped(ip));
            taken.map_err(|error| format!("the service address {ip}: {error}"))?;
        }
        for ip in self.node.config.service_ips() {
            // Even without that route the server gets what clients send.
            if let Err(error) = self.sockets.addresses.wait_local(&mapped(ip)) {
                self.node.events.add("address", format!("{ip}: {error}"));
            }
        }
        Ok(())
    }

    fn show_clocks(&mut self) {
        self.restorer.show_clocks(&self.sockets.raw);
    }

    fn hear_clients(&mut self) -> Result<(), String> {
        let live = self.drop.set_live(true);
        live.map_err(|error| format!("letting clients' packets in: {error}"))
    }

    fn send_retained(&mut self) {
        if let Some(replica) = &self.replica {
            self.restorer.send_retained(replica);
        }
    }

    fn set_live(&mut self) {
        self.forget_old();
        if let Some(memory) = self.memory() {
            memory.set_mode(mode::LIVE);
        }
    }

    fn kick(&mut self) {
        for ip in self.node.config.service_ips() {
            let said = self.sockets.announcer.announce(&self.sockets.interface, &mapped(ip));
            heed("announcing the service address", said);
        }
        self.restorer.kick(&self.sockets.raw);
    }

    fn inject(&mut self, mut raw: Vec<u8>) {
        if complete_checksum(&mut raw).is_ok() {
            heed("a packet to a client", self.sockets.raw.send(&raw));
        }
    }

    fn end_takeover(&mut self) {
        // Its clients wait for the server, before which this thread would go.
        std::thread::sleep(BEGINS);
        let unanswered = self.restorer.unanswered();
        if !unanswered.is_empty() {
            let (folder, name) = (&self.node.config.group.run_dir, &self.node.me.name);
            heed("a note", leavings::note_unanswered(folder, name, &unanswered));
        }
        if let Some(replica) = &self.replica {
            set_priority(replica, None);
            if replica.memory.is_family() {
                replica.memory.free_pool();
            }
            heed("poll", self.node.poll.remove(&replica.wake()));
        }
        self.node.signs_by_tap = false;
    }

    fn has_nudges(&self) -> bool {
        self.restorer.has_nudges()
    }

    fn nudge(&mut self, key: &ConnKey, ack: SeqNo) {
        self.restorer.nudge(&self.sockets.raw, key, ack);
    }

    fn repeat_syn_ack(&mut self, key: &ConnKey) {
        self.restorer.repeat_syn_ack(&self.sockets.raw, key);
    }

    fn nudge_again(&mut self) {
        self.restorer.nudge_again(&self.sockets.raw, Instant::now());
    }

    fn end_unanswered(&mut self) {
        end_handshakes(self.node, &self.restorer.unanswered());
    }
}
