//! What the primary's machine asks of this host.

use super::image::{Outgoing, Request, Stop};
use super::{CONTROL, PEER, PIDFD, PrimaryDaemon, unread};
use crate::config::{Mode, Run};
use crate::daemon::direct::{self, Offered};
use crate::daemon::heed;
use crate::daemon::member::MemberContext;
use crate::daemon::pairing::turn_away;
use crate::daemon::said::Said;
use crate::daemon::survivor::Alone;
use crate::poll::Interest;
use holdfast_linux::diag::{self, DiagSocket, TcpState};
use holdfast_linux::process;
use holdfast_linux::spawn::{self, Server};
use holdfast_linux::timers;
use holdfast_member::host::{ConnState, Hosted, MemberEvent, MemberHost};
use holdfast_member::primary::{Book, Earlier, Held, Image, PrimaryHost, Report, Unacked};
use holdfast_member::timing::primary::REPEATS_MAX;
use holdfast_replica::primary::{Peeked, Wanted};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, DirectKey, Message, VERSION_DIRECT};
use holdfast_wire::packet::{TcpSegment, mapped};
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::mode;
use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NO_CONTROL: &str = "the server has closed the socket to its daemon, or speaks there what nobody \
    understands: nothing could be handed to its copy";
const NO_IMAGE: &str = "no image is taken";
/// Time after which no run of the gate's program that began before is still under way.
const GATE_RUNS: Duration = Duration::from_micros(200);

/// The kernel's states of these connections, in the machines' terms; `None` if it does not
/// answer.
pub fn states(diag: &mut DiagSocket, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
    let state = |state| match state {
        None | Some(TcpState::TimeWait) => ConnState::Over,
        Some(TcpState::SynReceived) => ConnState::SynReceived,
        Some(_) => ConnState::Living,
    };
    Some(diag.states(keys).ok()?.into_iter().map(state).collect())
}

impl<'a> Hosted for PrimaryDaemon<'_, 'a> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl MemberHost for PrimaryDaemon<'_, '_> {
    fn has_server_ended(&mut self) -> bool {
        let is_over = self.node.tokens.has(PIDFD);
        let says = self.node.tokens.has(CONTROL) && self.hears_control;
        let hangs_up = says && self.server.has_hung_up();
        self.ended |= is_over || hangs_up;
        if self.ended || says && self.apart {
            // Nothing that comes by the control socket matters now.
            self.ignore_control();
        }
        if is_over {
            heed("poll", self.node.poll.remove(&self.server.pidfd()));
        }
        self.ended
    }

    fn kill_server(&mut self) {
        // Killed at once: `with_server` first waits for the thread that takes an image.
        self.strike_server();
        if self.with_server(Server::kill) == Some(false) {
            self.node.note_lingering(self.server.pid());
        }
    }

    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        states(&mut self.diag, keys)
    }

    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        if let Ok(packet) = segment.build() {
            heed("a packet to a client", self.raw.send(&packet));
        }
    }

    fn stand_by(&mut self) {
        // Nobody reads what a member says that wanted to join the server.
        self.door.hang_up();
        self.server.note_deaths();
        let Some(mut alone) = self.alone.take() else {
            // Everybody who connects is told; the listener limits how long a handshake takes.
            return self.turn_away_for_good();
        };
        alone.turn(self.node, Some(&mut self.listener), Some(&self.server.memory));
        self.alone = Some(alone);
    }

    fn show(&mut self, news: MemberEvent<'_>) {
        self.tell(&news);
    }
}

impl PrimaryDaemon<'_, '_> {
    /// Time after which what the server has sent the backup itself counts as lost.
    pub(super) fn direct_wait(&self) -> Duration {
        direct::wait(self.peer.as_ref().and_then(|peer| timers::round_trip(peer.as_fd())))
    }

    /// Whether the server's threads may be made to run one at a time: it has several, and the
    /// configuration leaves that to us. Not if a spool keeps the log: nothing follows it, and so
    /// nothing differs before it is needed.
    fn may_take_turns(&self) -> bool {
        let (server, group) = (&self.node.config.server, &self.node.config.group);
        let is_hot = group.mode == Mode::Hot && !group.rebuild;
        let threads = process::threads(self.server.pid()).map_or(0, |threads| threads.len());
        server.run == Run::Auto && is_hot && threads > 1
    }
}

impl PrimaryHost for PrimaryDaemon<'_, '_> {
    type Bytes = Vec<u8>;

    fn held(&mut self) -> Vec<Held> {
        let Self { gate, held, .. } = self;
        let mut fresh = Vec::new();
        gate.drain_events(|event| {
            if !event.passed {
                held.insert(event.conn, event.packet.to_vec());
            }
            let (conn, socket, record) = (event.conn, event.socket, event.record);
            fresh.push(Held { conn, socket, record });
        });
        fresh
    }

    fn conn_of(&self, key: &ConnKey) -> Option<ConnId> {
        self.gate.conn(key)
    }

    fn slot(&self, conn: ConnId) -> Option<SlotView> {
        self.gate.slot(conn)
    }

    fn open(&mut self, conn: ConnId) {
        tracing::debug!("connection {conn:?} opened");
        self.gate.open(conn);
        if let Some(packet) = self.held.remove(&conn) {
            heed("a packet to a client", self.raw.send(&packet));
        }
    }

    fn free(&mut self, conn: ConnId) {
        self.held.remove(&conn);
        tracing::debug!("connection {conn:?} let go");
        heed("the gate's slot", self.gate.free(conn));
    }

    fn set_stable(&mut self, conn: ConnId, stable: SeqNo) {
        self.gate.set_stable(conn, stable);
    }

    fn allow_fin(&mut self, conn: ConnId) {
        self.gate.allow_fin(conn);
    }

    fn mind_slots(&mut self, lasts: Duration) {
        heed("the gate's limit", self.gate.mind_slots(lasts));
    }

    fn set_server_dead(&mut self) {
        heed("telling the gate", self.gate.set_server_dead(true));
    }

    fn is_attached(&self) -> bool {
        self.server.memory.is_attached()
    }

    fn tail(&self) -> u64 {
        self.server.memory.tail()
    }

    fn take_tail(&mut self, from: u64) -> Option<u64> {
        self.server.note_deaths();
        self.server.take_tail(from)
    }

    fn is_log_over(&self) -> bool {
        self.server.is_log_over()
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.server.memory.copy(at, len)
    }

    fn may_sleep(&mut self, read_to: u64) -> bool {
        self.server.may_sleep(read_to)
    }

    fn announced(&self) -> u64 {
        self.server.memory.announced()
    }

    fn may_sleep_until_announced(&mut self, read_to: u64) -> bool {
        self.server.memory.may_sleep_until_announced(read_to)
    }

    fn set_log_stable(&mut self, pos: u64) {
        self.server.memory.set_stable(pos);
    }

    fn log_fault(&self) -> Option<String> {
        let memory = &self.server.memory;
        match memory.mode() {
            mode::BROKEN | mode::OFF => Some(memory.reason()),
            // The shim does not wait for a member that only joins.
            mode::SOLO => Some("the server wrote its log faster than it was taken".to_owned()),
            _ => None,
        }
    }

    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        unread::peek(&self.gate, &self.server, wanted, into)
    }

    fn pause_server(&mut self) {
        // A server that has ended already is handed over all the same.
        let _ended = process::signal(self.server.pidfd(), libc::SIGSTOP);
    }

    fn resume_server(&mut self) {
        heed("telling the gate", self.gate.set_server_dead(false));
        let _ended = process::signal(self.server.pidfd(), libc::SIGCONT);
    }

    fn strike_server(&mut self) {
        let _ended = process::signal(self.server.pidfd(), libc::SIGKILL);
    }

    fn go_alone(&mut self) -> Result<(), String> {
        self.gate.set_solo(true).map_err(|error| error.to_string())?;
        self.place.release(&self.server);
        // A server that runs alone needs no control socket, and may close it.
        self.ignore_control();
        self.server.memory.go_solo();
        for conn in self.held.keys().copied().collect::<Vec<_>>() {
            self.open(conn);
        }
        self.alone = Some(if self.has_served { Alone::new() } else { Alone::of_start() });
        self.watch().map_err(|error| format!("{error:#}"))
    }

    fn backlog(&mut self) -> Option<usize> {
        let Self { service_keys, diag, .. } = self;
        let backlogs = service_keys.iter().filter_map(|key| diag.backlog(key).ok().flatten());
        backlogs.min().map(|backlog| backlog as usize)
    }

    fn destroy(&mut self, keys: &[ConnKey]) -> bool {
        self.diag.destroy(keys).is_ok()
    }

    fn stop_watching(&mut self) {
        // What nobody reads any more must not wake a real-time loop for ever.
        self.apart = true;
        let poll = &self.node.poll;
        heed("poll", poll.remove(&self.server.wake()));
        heed("poll", poll.remove(&self.gate.events_fd()));
        heed("poll", poll.remove(&self.listener));
    }

    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        if !self.is_peer_ready || self.is_peer_gone {
            return false;
        }
        let Some(mut peer) = self.peer.take() else { return false };
        let received = peer.recv(|message| {
            self.says = Said::of(&message).or(self.says.take());
            self.node.hear_other();
            each(self, &message);
        });
        self.peer = Some(peer);
        let Err(error) = received else { return false };
        self.node.events.add("channel", format!("to the backup: {error}"));
        true
    }

    fn send(&mut self, message: &Message<'_>) {
        // A channel that cannot take it has failed; its next turn says so.
        if let Some(peer) = self.peer.as_mut().filter(|_| !self.is_peer_gone) {
            heed("a message to the backup", peer.send(message));
        }
    }

    fn flush(&mut self) -> bool {
        let Some(peer) = self.peer.as_mut().filter(|_| !self.is_peer_gone) else { return true };
        let flushed = peer.flush().is_ok();
        let wants_write = peer.wants_write();
        if wants_write != self.watching_write {
            self.watching_write = wants_write;
            let interest = if wants_write { Interest::Both } else { Interest::Read };
            heed("poll", self.node.poll.modify(peer, PEER, interest));
        }
        flushed
    }

    fn drop_peer(&mut self) {
        // The channel stays open: closing it could reset the connection, and lose what is queued.
        self.is_peer_gone = true;
        self.node.other_says = None;
        if let Some(peer) = &self.peer {
            heed("poll", self.node.poll.remove(peer));
        }
    }

    fn offer_direct(&mut self) -> Option<(u64, DirectKey, u16)> {
        let group = &self.node.config.group;
        let is_plain = group.mode == Mode::Hot && group.buffering == Buffering::Commit;
        let is_wanted = group.direct && is_plain;
        let peer = self.peer.as_ref().filter(|_| !self.is_peer_gone && !self.was_direct_offered)?;
        if !is_wanted || peer.version() < VERSION_DIRECT || self.server.memory.is_family() {
            return None;
        }
        self.was_direct_offered = true;
        // Of a server that was found nobody has the socket by which it would be handed over.
        self.server.control()?;
        let offered = Offered::new(self.node.me.address).and_then(|it| Ok((it.port()?, it)));
        match offered {
            Ok((port, offered)) => {
                let said = (offered.id, offered.key, port);
                self.direct = Some(offered);
                Some(said)
            }
            Err(error) => {
                self.node.events.add("channel", format!("no datagrams to the backup: {error}"));
                None
            }
        }
    }

    fn begin_direct(&mut self, port: u16) {
        let Some(offered) = self.direct.take() else { return };
        let given = offered
            .towards(self.node.other.address, port)
            .and_then(|socket| self.server.give_direct(socket));
        if let Err(error) = given {
            return self.node.events.add("channel", format!("no datagrams to the backup: {error}"));
        }
        self.server.memory.begin_direct(offered.id, &offered.key.0, self.direct_wait());
        self.is_direct = true;
    }

    fn end_direct(&mut self) {
        (self.direct, self.is_direct) = (None, false);
        self.server.memory.end_direct();
    }

    fn stand_beside(&mut self) {
        let Some(mut alone) = self.alone.take() else { return };
        // Not while a thread takes an image and holds the server.
        if let Some(server) = Arc::get_mut(&mut self.server) {
            Alone::let_loose(self.node, server);
            self.barred.revive(self.node, server, Instant::now());
        }
        alone.turn(self.node, None, Some(&self.server.memory));
        self.has_served |= alone.has_served;
        self.alone = Some(alone);
    }

    fn turn_away(&mut self, reason: &str) {
        turn_away(self.node, &mut self.listener, reason);
    }

    fn admit(&mut self) {
        self.peer = self.door.take();
        (self.is_peer_gone, self.is_peer_ready) = (self.peer.is_none(), true);
        (self.says, self.watching_write, self.was_direct_offered) = (None, false, false);
        self.heed_release();
    }

    fn strangers(&mut self) -> usize {
        let ips: Vec<_> = self.node.config.service_ips().into_iter().map(mapped).collect();
        let ports = self.node.config.service_ports();
        match self.diag.living(&ips, &ports, REPEATS_MAX) {
            Ok(living) => living.iter().filter(|key| self.gate.conn(key).is_none()).count(),
            Err(error) => {
                self.node.events.add("connections", error.to_string());
                usize::MAX
            }
        }
    }

    fn take_image(&mut self, slow: &[u64], has_differed: bool) -> Result<(), String> {
        if !self.server.has_control() {
            return Err(NO_CONTROL.to_owned());
        }
        self.place.release(&self.server);
        let state_dirs = self.node.config.server.state_dirs.clone();
        let (key, slow) = (self.node.hash_key, slow.to_vec());
        let takes_turns = has_differed && self.may_take_turns();
        let request = Request { key, state_dirs, slow, takes_turns };
        let begun = Outgoing::begin(Arc::clone(&self.server), request);
        self.image = Some(begun.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn image_taken(&mut self) -> Option<Result<Image, String>> {
        let Some(image) = &mut self.image else { return Some(Err(NO_IMAGE.to_owned())) };
        let taken = image.taken();
        if let Some(stop) = image.stop.take() {
            let Stop { pause, until_quiet, pages, state_bytes } = stop;
            self.kept.iter_mut().for_each(|kept| kept.state_bytes = state_bytes);
            let (pause, until_quiet) = (pause.as_micros(), until_quiet.as_micros());
            let what = format!(
                "the server stood still for {pause} µs, of which {until_quiet} until its threads \
                 were quiet, and {pages} pages were copied"
            );
            self.node.events.add("image", what);
        }
        taken
    }

    fn books(&mut self) -> Vec<Book> {
        self.image.as_ref().map_or_else(Vec::new, |image| image.books(&self.server.memory))
    }

    fn earlier(&mut self) -> Vec<Earlier> {
        let Some(image) = &mut self.image else { return Vec::new() };
        let unacked = std::mem::take(&mut image.unacked).into_iter();
        unacked
            .map(|spawn::Unacked { socket, from, bytes }| Earlier { socket, from, bytes })
            .collect()
    }

    fn sockets(&mut self) -> BTreeSet<u64> {
        self.server.memory.sockets()
    }

    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String> {
        let piece = self.image.as_ref().ok_or(NO_IMAGE)?.piece()?;
        assert!(piece.as_ref().is_none_or(|piece| piece.len() <= most), "pieces are messages");
        Ok(piece)
    }

    fn drop_image(&mut self) {
        self.image = None;
    }

    fn free_log(&mut self, pos: u64) {
        self.server.memory.free_to(pos);
    }

    fn has_log_room(&self) -> bool {
        let memory = &self.server.memory;
        memory.unconsumed() < memory.ring_bytes() / 4 * 3
    }

    fn end_log(&mut self) {
        self.server.memory.go_solo();
    }

    fn commit(&mut self, pos: u64) {
        self.server.memory.set_stable(pos);
    }

    fn clamp(&mut self) -> Result<(), String> {
        self.gate.set_solo(false).map_err(|error| error.to_string())?;
        // A server that can be rebuilt here still runs alone, and its parent, this daemon, learns
        // how it ends.
        if self.kept.is_none() {
            self.alone = None;
            self.hear_control().map_err(|error| error.to_string())?;
        }
        // After this pause every packet that found the gate open has left, and what it has
        // acknowledged is known.
        std::thread::sleep(GATE_RUNS);
        Ok(())
    }

    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>> {
        let of = |diag::Unacked { bytes, repeats, window_closed }| Unacked {
            bytes,
            repeats,
            window_closed,
        };
        Some(self.diag.unacked(keys).ok()?.into_iter().map(of).collect())
    }

    fn report(&mut self, report: &Report<'_>) {
        if let Some(asked) = self.node.edge.granted() {
            heed("telling the gate", self.gate.note_grant(asked));
        }
        self.tell_status(report);
    }
}
