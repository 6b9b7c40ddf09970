//! The sockets of a takeover: reads the replica's table of connections for the state machine,
//! and rebuilds each connection, as the machine decides, in the socket that the replica holds
//! for it (TCP_REPAIR).

mod rebuild;
mod take;

pub use rebuild::{Adoption, Rebuilt};

use crate::daemon::heed;
use holdfast_linux::listeners::Place;
use holdfast_linux::raw::RawSender;
use holdfast_linux::repair::{
    self, ClientClock, ClosingState, Nudge, NudgeHeader, RepairError, RestoreSpec,
};
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::spawn::Server;
use holdfast_linux::{timers, unread};
use holdfast_member::backup::probe_segment;
use holdfast_replica::promotion::{Closing, ManifestConn, Probe, Restore, Tell};
use holdfast_wire::message::{ConnKey, ConnRecord};
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, complete_checksum, mapped_ipv4};
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::{ConnEntry, Listener, conn_state};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use take::{Room, Source};

/// Size of each buffer of a rebuilt socket, in bytes, to begin with; the kernel tunes it later.
const BUFFER_BYTES: usize = 1 << 20;

/// Lowest port on which an unprivileged process may listen.
const PRIVILEGED_PORTS: u16 = 1024;

/// Time without a new acknowledgement after which the rest is sent again to a client.
const NUDGE_AGAIN: Duration = Duration::from_millis(150);

/// Time without progress after which a client is left to the kernel's own retransmission timer:
/// it is gone or does not read, and no member may join while clients are still being nudged.
const NUDGE_IDLE: Duration = Duration::from_secs(1);

/// Most ACKs sent in one look to clients that hardly lack them: the server has just begun to work
/// off what others have asked, and this goes first.
const ACKS_PER_LOOK: usize = 64;

/// Longest time for which a clock that was shown may be on its way to its socket.
const CLOCKS_MAX: Duration = Duration::from_millis(1);

/// Time until a SYN-ACK is repeated for the first time: TCP's initial timeout (RFC 6298 §2).
const SYN_ACK_AFTER: Duration = Duration::from_secs(1);

/// One connection that a takeover has carried over.
pub struct RestoredSocket {
    /// The socket; `None` once the takeover is done with it: from then on the server must be its
    /// only holder, so that the server's close ends the connection.
    fd: Option<OwnedFd>,
    source: Source,
    key: ConnKey,
    record: ConnRecord,
    rcv_nxt: SeqNo,
    unread: Vec<u8>,
    snd_una: SeqNo,
    in_flight: Vec<u8>,
    retained: Vec<u8>,
    peer_window_bytes: u32,
    right_edge: SeqNo,
    receive_window_bytes: u32,
    tsval: Option<u32>,
    client_clock: Option<ClientClock>,
    closing: ClosingState,
    /// Whether the replica's next `accept` returns it.
    queued: bool,
    reinject: Vec<Vec<u8>>,
    tell: Tell,
    /// SYN-ACK to resend with every SYN of the client, until the client sends anything else.
    syn_ack: Option<Vec<u8>>,
    /// When to resend it without a SYN.
    syn_ack_at: Instant,
    /// The kernel's cookie of the socket; 0: without one no later takeover keeps it.
    cookie: u64,
    /// Resends what may be lost, until the client has acknowledged all of it.
    nudge: Option<Nudge>,
    /// Most payload of a segment that leaves on this host's link.
    segment_bytes: usize,
    acked: SeqNo,
    nudged_at: Instant,
    /// When the client last made progress.
    moved_at: Instant,
    /// When its clock began with `tsval`.
    born: Instant,
    /// What was not done for it last.
    error: Option<String>,
}

/// Carries out the verdicts of a promotion.
#[derive(Default)]
pub struct SocketRestorer {
    pub sockets: Vec<RestoredSocket>,
    /// How many of them are rebuilt; the others are taken from the replica.
    rebuilt: usize,
    /// What the gate is to learn of the others.
    adoptions: Vec<Adoption>,
    /// Their places, once they live.
    by_key: HashMap<ConnKey, usize>,
    pub errors: Vec<String>,
    room: Room,
}

/// Checks that a listener at `address`, a raw `sockaddr`, may be bound with the daemon's rights:
/// at one of the group's services, or where the server could bind by itself. This is checked
/// because the table is in memory that the server can write.
///
/// # Errors
/// `PermissionDenied`: `address` is no TCP address, or its port is privileged, the server does not
/// run as root, and no service of the group is there.
pub fn may_listen(address: &[u8], services: &[SocketAddr], as_root: bool) -> io::Result<()> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let Some((ip, port)) = endpoint(address) else {
        return refused("it has no address of TCP");
    };
    let own = |s: &SocketAddr| s.port() == port && (ip.is_unspecified() || s.ip() == ip);
    if as_root || port >= PRIVILEGED_PORTS || services.iter().any(own) {
        return Ok(());
    }
    refused("it is no service of the group, and its port is a privileged one")
}

/// Addresses and ports at which the replica's server listens, according to its table.
pub fn listeners(replica: &Server) -> Vec<Place> {
    let place = |l: &Listener| {
        let (address, port) = endpoint(&l.addr[..(l.addr_len as usize).min(l.addr.len())])?;
        let takes_v4 = |fd: OwnedFd| socket2::SockRef::from(&fd).only_v6().is_ok_and(|only| !only);
        let v6_only = !(is_ipv6(l) && replica.take_listener(l).is_ok_and(takes_v4));
        Some(Place { address, port, v6_only })
    };
    replica.memory.listeners().iter().filter_map(place).collect()
}

/// Address and port of a raw `sockaddr`.
fn endpoint(address: &[u8]) -> Option<(IpAddr, u16)> {
    let family = i32::from(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    let ip = match family {
        libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(address.get(4..8)?).ok()?),
        libc::AF_INET6 => {
            IpAddr::from(<[u8; 16]>::try_from(address.get(8..24)?).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some((ip, port))
}

/// Those of the connections `accepts` that the parked replica has. Only their entries are read:
/// reading all of the table, 2 MB, would delay clients by up to 14 ms.
pub fn manifest(memory: &SharedMemory, accepts: &[u32]) -> Vec<ManifestConn> {
    // An entry may belong to another connection by now, or be about to.
    let of = |accept: &u32| {
        Some(memory.entry(*accept)).filter(|e| e.conn.load(Acquire) == *accept).and_then(entry)
    };
    accepts.iter().filter_map(of).collect()
}

fn entry(e: &ConnEntry) -> Option<ManifestConn> {
    let state = e.state.load(Acquire);
    let open = state == conn_state::OPEN;
    (open || state == conn_state::CLOSED).then(|| ManifestConn {
        accept: e.conn.load(Relaxed),
        open,
        fd: e.fd.load(Relaxed),
        in_bytes: e.in_bytes.load(Relaxed),
        out_bytes: e.out_bytes.load(Relaxed),
        keep_from: e.keep_from.load(Relaxed),
        shut: e.shut.load(Relaxed),
        eof: e.eof.load(Relaxed) != 0,
    })
}

fn closing_state(c: &Closing) -> ClosingState {
    match (c.server_fin, c.server_fin_acked, c.client_fin) {
        (false, _, false) => ClosingState::Established,
        (false, _, true) => ClosingState::CloseWait,
        (true, false, false) => ClosingState::FinWait1,
        (true, true, false) => ClosingState::FinWait2,
        (true, false, true) => ClosingState::LastAck,
        (true, true, true) => ClosingState::TimeWait,
    }
}

/// Hands a connection to the replica, for its listener's next `accept`.
fn give(replica: &Server, key: &ConnKey, fd: &OwnedFd) -> bool {
    listener_of(replica, key).is_some_and(|l| replica.give_connection(l.fd, fd.as_fd()).is_ok())
}

/// The listener that the connection came to: the one of its port, preferably of
/// its own address family (an IPv6 listener can take IPv4 connections too).
fn listener_of(replica: &Server, key: &ConnKey) -> Option<Listener> {
    let port = key.server_port.to_be_bytes();
    let ipv4 = mapped_ipv4(&key.server).is_some();
    let listeners = replica.memory.listeners();
    let of_port = || listeners.iter().filter(|l| l.addr[2..4] == port);
    of_port().find(|l| is_ipv6(l) != ipv4).or_else(|| of_port().find(|_| ipv4)).copied()
}

fn is_ipv6(l: &Listener) -> bool {
    i32::from(u16::from_ne_bytes([l.addr[0], l.addr[1]])) == libc::AF_INET6
}

impl SocketRestorer {
    /// Room for so many connections: growing on the way would move megabytes while clients wait.
    pub fn reserve(&mut self, connections: usize) {
        self.sockets.reserve(connections);
    }

    /// Takes a connection on, with what is known of its streams.
    pub fn take(&mut self, restore: &Restore<'_>) {
        self.sockets.push(RestoredSocket::of(restore));
        self.adoptions.push(Adoption::of(restore));
    }

    /// Takes the sockets of the connections taken on since, and the output that their clients may
    /// lack, from the replica, and rebuilds them, which sends nothing yet. Meanwhile the gate
    /// learns of them by `adopt`. What failed is in `errors`, too.
    pub fn rebuild<S>(
        &mut self,
        replica: &Server,
        mut adopt: impl FnMut(&Adoption) -> S,
    ) -> Vec<Rebuilt<S>> {
        let adoptions = std::mem::take(&mut self.adoptions);
        let (fresh, room) = (&mut self.sockets[self.rebuilt..], &self.room);
        let work = |share: &mut [RestoredSocket]| {
            for c in share {
                c.fetch(replica, room);
                c.rebuild();
            }
        };
        let slots: Vec<S> =
            rebuild::in_shares(fresh, work, || adoptions.iter().map(&mut adopt).collect());
        let each = fresh.iter().zip(adoptions).zip(slots);
        let rebuilt = each.map(|((c, adoption), slot)| {
            let socket = if c.error.is_some() { 0 } else { c.cookie };
            Rebuilt { adoption, socket, slot }
        });
        let rebuilt = rebuilt.collect();
        let failed = self.sockets.extract_if(self.rebuilt.., |c| c.error.is_some());
        self.errors.extend(failed.filter_map(|c| c.error));
        self.rebuilt = self.sockets.len();
        rebuilt
    }

    /// Tells each socket the last timestamp of its client (RFC 7323 `TS.Recent`), before the
    /// sockets receive anything from clients: a client that was silent for a minute would else
    /// acknowledge the byte that asks for a sample, and the round trip would be that minute.
    pub fn show_clocks(&mut self, raw: &RawSender) {
        let is_slow = AtomicBool::new(false);
        let show = |share: &mut [RestoredSocket]| {
            for c in &mut *share {
                if let Err(error) = c.show_clock(raw) {
                    c.error = Some(format!("{}: {error}", c.key));
                }
            }
            // What this thread injects, one processor takes in order, but perhaps not at once.
            let until = Instant::now() + CLOCKS_MAX;
            let waits =
                || share.iter().rev().find_map(RestoredSocket::knows_round_trip) == Some(false);
            while !is_slow.load(Relaxed) && waits() {
                is_slow.store(Instant::now() > until, Relaxed);
                std::thread::yield_now();
            }
        };
        rebuild::in_shares(&mut self.sockets, show, || {});
        self.errors.extend(self.sockets.iter_mut().filter_map(|c| c.error.take()));
    }

    /// Writes retained output that no client has yet into the sockets, and fills the accept
    /// queue: both before the server writes again.
    pub fn send_retained(&mut self, replica: &Server) {
        for c in &self.sockets {
            let Some(fd) = &c.fd else { continue };
            match repair::live_send(fd.as_fd(), &c.retained) {
                Ok(n) if n == c.retained.len() => {}
                Ok(n) => self.errors.push(format!(
                    "{}: only {n} of {} retained bytes fit",
                    c.key,
                    c.retained.len()
                )),
                Err(error) => {
                    self.errors.push(format!("{}: sending retained output: {error}", c.key));
                }
            }
            if c.queued && !give(replica, &c.key, fd) {
                self.errors.push(format!("{}: the accept queue could not take it", c.key));
            }
        }
    }

    /// Sends every client that may lack one an ACK of what has arrived, brings half-closed
    /// connections into their states, delivers segments that lay beyond holes, and resends what may
    /// be lost. Then the descriptors are closed: for a connection that the server has closed this
    /// is the last descriptor, and the kernel ends the connection.
    pub fn kick(&mut self, raw: &RawSender) {
        self.by_key = self.sockets.iter().enumerate().map(|(at, c)| (c.key, at)).collect();
        for c in &mut self.sockets {
            if c.tell == Tell::Now {
                c.send_ack(raw);
            }
            c.finish(raw, &mut self.errors);
            for packet in &mut c.reinject {
                if complete_checksum(packet).is_ok() {
                    heed("a packet to a client", raw.send(packet));
                }
            }
            if !c.in_flight.is_empty() {
                let told = c.fd.as_ref().and_then(|fd| repair::segment_bytes(fd.as_fd()).ok());
                c.segment_bytes = told.unwrap_or(usize::MAX);
                c.nudge = Some(Nudge::default());
                c.moved_at = Instant::now();
                let una = c.snd_una;
                c.nudge(raw, una);
            }
            c.fd = None;
        }
    }

    #[must_use]
    pub fn has_nudges(&self) -> bool {
        let waits =
            |c: &RestoredSocket| c.nudge.is_some() || c.syn_ack.is_some() || c.tell == Tell::Soon;
        self.sockets.iter().any(waits)
    }

    /// Connections whose clients have not been heard since their SYN-ACK.
    #[must_use]
    pub fn unanswered(&self) -> Vec<ConnKey> {
        self.sockets.iter().filter(|c| c.syn_ack.is_some()).map(|c| c.key).collect()
    }

    /// Forgets all of them: what is kept of clients' streams is of no more use.
    pub fn forget(&mut self) {
        (self.sockets, self.rebuilt, self.by_key) = (Vec::new(), 0, HashMap::new());
    }

    /// Resends what may be lost, driven by a client's ACK.
    pub fn nudge(&mut self, raw: &RawSender, key: &ConnKey, ack: SeqNo) {
        if let Some(c) = self.by_key.get(key).and_then(|at| self.sockets.get_mut(*at)) {
            c.syn_ack = None;
            // Its own kernel has answered, or will with the server's next word.
            if c.tell == Tell::Soon {
                c.tell = Tell::Nothing;
            }
            c.nudge(raw, ack);
        }
    }

    /// Repeats a SYN-ACK for a client that repeats its SYN: the SYN-ACK was
    /// lost, and the rebuilt socket, which counts as established, does not know
    /// that it was ever sent.
    pub fn repeat_syn_ack(&self, raw: &RawSender, key: &ConnKey) {
        let of_key = self.by_key.get(key).and_then(|at| self.sockets.get(*at));
        if let Some(packet) = of_key.and_then(|c| c.syn_ack.as_ref()) {
            heed("a packet to a client", raw.send(packet));
        }
    }

    /// Resends once more to clients that have made no progress. Without timestamps the kernel
    /// has no sample of the round-trip time, and its retransmission timer stands at seconds. And
    /// sends ACKs to some of those whom a takeover has not told anything yet.
    pub fn nudge_again(&mut self, raw: &RawSender, now: Instant) {
        let untold = self.sockets.iter_mut().filter(|c| c.tell == Tell::Soon);
        for c in untold.take(ACKS_PER_LOOK) {
            c.send_ack(raw);
        }
        for c in self.sockets.iter_mut().filter(|c| now >= c.syn_ack_at) {
            let Some(packet) = &c.syn_ack else { continue };
            // Exponential back-off, steeper than a kernel's (RFC 6298 §5.5: 1, 3, 7, 15 s):
            // 1, 3, 9, 27 s after the takeover.
            c.syn_ack_at = now + 2 * (c.syn_ack_at - c.born);
            heed("a packet to a client", raw.send(packet));
        }
        for c in self.sockets.iter_mut().filter(|c| now - c.moved_at > NUDGE_IDLE) {
            c.nudge = None;
        }
        let stalled =
            |c: &&mut RestoredSocket| c.nudge.is_some() && now - c.nudged_at > NUDGE_AGAIN;
        for c in self.sockets.iter_mut().filter(stalled) {
            c.nudge = Some(Nudge::default());
            c.nudged_at = now;
            let ack = c.acked;
            c.nudge(raw, ack);
        }
    }
}

impl RestoredSocket {
    /// What a verdict says of the connection.
    fn of(r: &Restore<'_>) -> Self {
        // A FIN occupies one sequence number after the output.
        let snd_una = r.snd_una.plus(u64::from(r.closing.server_fin_acked));
        let clock = |tsval| ClientClock { tsval, rtt_ms: r.rtt_ms };
        let client_clock = r.client_tsval.map(clock);
        let tsval = r.tsval.filter(|_| r.record.tsval.is_some());
        let now = Instant::now();
        Self {
            fd: None,
            source: Source::of(r),
            key: r.record.key,
            record: *r.record,
            rcv_nxt: r.recv_start,
            unread: r.unread.concat(),
            snd_una,
            in_flight: r.earlier.to_vec(),
            retained: Vec::new(),
            peer_window_bytes: r.peer_window_bytes,
            right_edge: r.right_edge,
            receive_window_bytes: r.receive_window_bytes,
            tsval,
            client_clock,
            closing: closing_state(&r.closing),
            queued: r.accept.is_none(),
            reinject: r.reinject.iter().map(|p| p.to_vec()).collect(),
            tell: r.tell,
            syn_ack: r.half_open.as_ref().and_then(probe_packet),
            syn_ack_at: now + SYN_ACK_AFTER,
            cookie: 0,
            error: None,
            nudge: None,
            segment_bytes: usize::MAX,
            acked: snd_una,
            nudged_at: now,
            moved_at: now,
            born: now,
        }
    }

    /// Rebuilds the connection in its socket.
    fn rebuild(&mut self) {
        // From here on the kernel counts its clock, and this daemon must not be ahead of it: a client
        // would drop the server's next segment (RFC 7323 §5).
        self.born = Instant::now();
        let Some(fd) = &self.fd else { return };
        let unread = [self.unread.as_slice()];
        let restored = repair::restore(fd.as_fd(), &self.spec(&unread));
        self.cookie = unread::cookie(fd.as_fd()).unwrap_or(0);
        self.error = restored.err().map(|error| format!("{}: {error}", self.key));
    }

    fn spec<'s>(&'s self, unread: &'s [&'s [u8]]) -> RestoreSpec<'s> {
        RestoreSpec {
            key: self.key,
            record: &self.record,
            rcv_nxt: self.rcv_nxt,
            unread,
            snd_una: self.snd_una,
            in_flight: &self.in_flight,
            peer_window_bytes: self.peer_window_bytes,
            right_edge: self.right_edge,
            tsval: self.tsval,
            client_clock: self.client_clock,
            congestion: None,
            send_buffer_bytes: BUFFER_BYTES.max(2 * self.retained.len()),
            recv_buffer_bytes: BUFFER_BYTES,
            closing: self.closing,
        }
    }

    fn rcv_end(&self) -> SeqNo {
        self.rcv_nxt.plus(self.unread.len() as u64)
    }

    /// Timestamps (TSval and TSecr) for a segment to the client: the value that the rebuilt
    /// socket's clock shows by now, in ms (RFC 7323 §5: an older one would be dropped).
    fn timestamps(&self) -> Option<(u32, u32)> {
        let elapsed_ms = self.born.elapsed().as_millis() as u32;
        self.tsval.map(|v| (v.wrapping_add(elapsed_ms), 0))
    }

    fn window(&self) -> u16 {
        let shift = if self.record.rcv_wscale > 14 { 0 } else { self.record.rcv_wscale };
        (self.receive_window_bytes >> shift).min(65535) as u16
    }

    fn ack(&self) -> Option<Vec<u8>> {
        TcpSegment {
            key: self.key,
            to_client: true,
            seq: self.snd_una.plus(self.in_flight.len() as u64),
            ack: self.rcv_end(),
            flags: Flags::ACK,
            window: self.window(),
            options: TcpOptions { timestamps: self.timestamps(), ..TcpOptions::default() },
            payload: &[],
        }
        .build()
        .ok()
    }

    fn send_ack(&mut self, raw: &RawSender) {
        self.tell = Tell::Nothing;
        if let Some(packet) = self.ack() {
            heed("a packet to a client", raw.send(&packet));
        }
    }

    /// Shows the client's clock to the socket, as of now.
    fn show_clock(&self, raw: &RawSender) -> Result<(), RepairError> {
        let unread = [self.unread.as_slice()];
        let own = self.timestamps().map(|(own, _)| own);
        let spec = RestoreSpec { tsval: own, ..self.spec(&unread) };
        repair::show_clock(&spec, &mut |packet| raw.send(packet).map_err(io::Error::other))
    }

    /// Whether the clock that was shown has come; `None` if that cannot be seen.
    fn knows_round_trip(&self) -> Option<bool> {
        let unread = [self.unread.as_slice()];
        let fd = self.fd.as_ref().filter(|_| self.spec(&unread).is_sampled())?;
        Some(!timers::round_trip(fd.as_fd())?.0.is_zero())
    }

    fn finish(&self, raw: &RawSender, errors: &mut Vec<String>) {
        let unread = [self.unread.as_slice()];
        let Some(fd) = &self.fd else { return };
        let mut inject = |packet: &[u8]| raw.send(packet).map_err(io::Error::other);
        // The injected packet has no timestamp of its own, so it cannot make the client's next
        // one look old (PAWS, RFC 7323 §5).
        if let Err(error) =
            repair::finish_closing(fd.as_fd(), &self.spec(&unread), None, &mut inject)
        {
            errors.push(format!("{}: {error}", self.key));
        }
    }

    fn nudge(&mut self, raw: &RawSender, ack: SeqNo) {
        let Some(mut nudge) = self.nudge.take() else { return };
        if ack.after(self.acked) {
            self.acked = ack;
            self.nudged_at = Instant::now();
            self.moved_at = self.nudged_at;
        }
        let ack = self.acked;
        let header = NudgeHeader {
            ack: self.rcv_end(),
            window: self.window(),
            timestamps: self.timestamps(),
            segment_bytes: self.segment_bytes,
        };
        let unread = [self.unread.as_slice()];
        let spec = self.spec(&unread);
        for packet in nudge.packets(&spec, ack, &header).unwrap_or_default() {
            heed("a packet to a client", raw.send(&packet));
        }
        if !ack.after(self.snd_una.plus(self.in_flight.len() as u64 - 1)) {
            self.nudge = Some(nudge);
        }
    }
}

fn probe_packet(probe: &Probe) -> Option<Vec<u8>> {
    probe_segment(probe).build().ok()
}

#[cfg(test)]
mod tests;
