//! Heartbeats that a busy daemon does not delay: a thread of its own sends a UDP datagram to
//! every peer once per period, and notes when those of the peers arrive.
//!
//! Messages on the channel count as heartbeats, too, and suffice where a packet filter drops the
//! datagrams. The datagrams are better in three ways. Nothing that the loop does (a start of the
//! server, a write to the disk or to a log, a full table) delays them. A lost datagram costs one
//! heartbeat, whereas a lost TCP segment holds up everything behind it. And each end sends on
//! its own, so that a path that fails in one direction silences only one end.
//!
//! A daemon whose loop hangs must be noticed, too, so each datagram says for how long its
//! sender's loop has not turned; beyond [`STUCK_MAX`] it is no sign of life. Nor is a datagram
//! from a host that receives nothing ([`UNHEARD_MAX`]): no client reaches that host either.

mod datagram;

use crate::config::Config;
use crate::daemon::heed;
use crate::daemon::proven::DATAGRAM_BYTES;
use crate::key::{GroupKey, Keyring};
use crate::poll::{Interest, Poll};
use datagram::{Datagrams, Received, Reject};
use holdfast_cluster::Nanos;
use holdfast_cluster::hearing::UNHEARD_MAX;
use holdfast_linux::priority;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The edge's id on the wire; a member's is its index in the configuration.
const EDGE_ID: u8 = 254;
/// Index of the edge among a member's peers, for [`Pulse::heard`].
pub const EDGE: usize = 0;
/// Index of the other member.
pub const OTHER: usize = 1;
/// Time without a turn after which a loop counts as hung.
const STUCK_MAX: Duration = Duration::from_secs(1);
/// Longest time that a starting daemon waits for its heartbeat thread to begin.
const BEGIN_MAX: Duration = Duration::from_secs(1);
/// Most datagrams taken from a socket in one turn.
const BATCH_MAX: usize = 64;
/// Pause of the thread after a full turn, so that a stranger who floods its port costs a few
/// percent of a processor.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
/// Real-time priority, above the daemons' own loops.
pub(crate) const PRIORITY: i32 = 21;

/// A daemon's handle on its heartbeat thread. Dropping it ends the thread.
pub struct Pulse {
    shared: Arc<Shared>,
    started: Instant,
    /// `None` if there could be none.
    thread: Option<JoinHandle<()>>,
}

/// What the loop and the thread share; all times are in ns since `started`.
struct Shared {
    /// When each peer was last heard; 0: never.
    heard: Vec<AtomicU64>,
    /// When the loop last turned, or until when it is excused.
    turned: AtomicU64,
    /// How often the thread woke more than half a period late.
    late_count: AtomicU64,
    /// The longest time by which it ever woke late, in ns.
    late_worst: AtomicU64,
    /// Number of datagrams that were forged or replayed.
    refused: AtomicU64,
    stop: AtomicBool,
}

/// Address of a peer.
#[derive(Clone, Copy)]
enum Place {
    /// Set by the configuration; datagrams from elsewhere are ignored.
    Fixed(SocketAddr),
    /// Learnt from the peer's last datagram: the peer sends first.
    Learnt(Option<SocketAddr>),
}

/// A peer, and which of the sockets reaches it.
struct Way {
    id: u8,
    socket: usize,
    /// Its index for [`Pulse::heard`].
    peer: usize,
    place: Place,
    /// Its role.
    name: String,
}

impl Pulse {
    /// The edge's heartbeats; peer `i` is member `i`.
    #[must_use]
    pub fn of_edge(config: &Config, at: SocketAddr, key: &Keyring, started: Instant) -> Self {
        let ways = config.members.iter().enumerate();
        let ways = ways
            .map(|(index, member)| Way {
                id: index as u8,
                socket: 0,
                peer: index,
                place: Place::Learnt(None),
                name: member.name.clone(),
            })
            .collect();
        Self::start(config, key, EDGE_ID, &[at], ways, started)
    }

    /// The heartbeats of member `me`; its peers are [`EDGE`] and [`OTHER`].
    #[must_use]
    pub fn of_member(config: &Config, key: &Keyring, me: usize, started: Instant) -> Self {
        let other = 1 - me.min(1);
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let address = |index: usize| config.members.get(index).map_or(v4, |m| m.address);
        let place = Place::Fixed(address(other));
        let mut bind = vec![address(me)];
        let name = config.members.get(other).map_or_else(String::new, |it| it.name.clone());
        let mut ways = vec![Way { id: other as u8, socket: 0, peer: OTHER, place, name }];
        if let Some(edge) = &config.edge {
            bind.push(if edge.listen.is_ipv4() { v4 } else { v6 });
            let place = Place::Fixed(edge.listen);
            let name = "edge".to_owned();
            ways.push(Way { id: EDGE_ID, socket: 1, peer: EDGE, place, name });
        }
        Self::start(config, key, me as u8, &bind, ways, started)
    }

    fn start(
        config: &Config,
        key: &Keyring,
        me: u8,
        bind: &[SocketAddr],
        ways: Vec<Way>,
        started: Instant,
    ) -> Self {
        let shared = Arc::new(Shared {
            heard: (0..ways.iter().map(|way| way.peer + 1).max().unwrap_or(0))
                .map(|_| AtomicU64::new(0))
                .collect(),
            turned: AtomicU64::new(started.elapsed().as_nanos() as u64),
            late_count: AtomicU64::new(0),
            late_worst: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let period = config.heartbeat();
        let realtime = config.group.realtime;
        let begun = Thread::new(key.clone(), me, bind, ways, period, Arc::clone(&shared), started);
        let (begins, first) = mpsc::channel();
        let spawned = begun.and_then(|mut thread| {
            let name = std::thread::Builder::new().name("pulse".to_owned());
            name.spawn(move || {
                if realtime {
                    // Without the privilege heartbeats are only less punctual.
                    let _ = priority::set_realtime(PRIORITY);
                }
                let _ = begins.send(());
                thread.run();
            })
        });
        match &spawned {
            // A new thread begins with ordinary priority: on a busy machine its first turn may
            // come after the time of many heartbeats. A peer that knew this daemon before then
            // would miss them, so this waits.
            Ok(_) => heed("heartbeats", first.recv_timeout(BEGIN_MAX)),
            Err(error) => {
                tracing::warn!("no heartbeats by datagrams: {error}; those of the channels remain")
            }
        }
        Self { shared, started, thread: spawned.ok() }
    }

    /// Notes that the loop has turned and does not hang.
    pub fn turned(&self) {
        self.shared.turned.store(self.started.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Excuses the loop, which is about to do something long: until it turns again, but
    /// for at most `at_most`, it does not count as hung.
    pub fn excuse(&self, at_most: Duration) {
        let until = self.started.elapsed() + at_most;
        self.shared.turned.store(until.as_nanos() as u64, Relaxed);
    }

    /// When the last valid heartbeat of the peer at `index` came, since `started`.
    #[must_use]
    pub fn heard(&self, index: usize) -> Option<Nanos> {
        let at = self.shared.heard.get(index)?.load(Relaxed);
        (at > 0).then_some(Nanos(at))
    }

    /// Counters for the status, by name.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("late", self.shared.late_count.load(Relaxed)),
            ("late_worst_us", self.shared.late_worst.load(Relaxed) / 1000),
            ("refused", self.shared.refused.load(Relaxed)),
        ]
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // A daemon that begins anew binds the same sockets. The thread ends within one heartbeat.
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread's own state.
struct Thread {
    keyring: Keyring,
    datagrams: Datagrams,
    sockets: Vec<UdpSocket>,
    ways: Vec<Way>,
    poll: Poll,
    period: Duration,
    shared: Arc<Shared>,
    started: Instant,
}

impl Thread {
    fn new(
        keyring: Keyring,
        me: u8,
        bind: &[SocketAddr],
        ways: Vec<Way>,
        period: Duration,
        shared: Arc<Shared>,
        started: Instant,
    ) -> io::Result<Self> {
        let mut session = [0; 8];
        getrandom::fill(&mut session).map_err(io::Error::other)?;
        let session = u64::from_le_bytes(session) | 1;
        let ids: Vec<u8> = ways.iter().map(|way| way.id).collect();
        let datagrams = Datagrams::new(me, &ids, session);
        let poll = Poll::new()?;
        let mut sockets = Vec::new();
        for (token, address) in bind.iter().enumerate() {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            poll.add(&socket, token as u64, Interest::Read)?;
            sockets.push(socket);
        }
        Ok(Self { keyring, datagrams, sockets, ways, poll, period, shared, started })
    }

    fn run(&mut self) {
        let mut due = Instant::now();
        while !self.shared.stop.load(Relaxed) {
            if self.poll.wait(Some(due)).is_err() {
                return;
            }
            let now = Instant::now();
            self.take_keys();
            let full = (0..self.sockets.len()).any(|socket| self.take(socket));
            if now >= due {
                self.note_lateness(now - due);
                self.send();
                due = (due + self.period).max(now + self.period / 2);
            }
            if full {
                std::thread::sleep(FLOOD_PAUSE);
            }
        }
    }

    /// Takes the keys that count now: they may be changed at any time.
    fn take_keys(&mut self) {
        for (index, way) in self.ways.iter().enumerate() {
            let keys = self.keyring.with(&way.name).iter().map(GroupKey::pulse_key).collect();
            self.datagrams.set_keys(index, keys);
        }
    }

    fn note_lateness(&self, late: Duration) {
        if late > self.period / 2 {
            self.shared.late_count.fetch_add(1, Relaxed);
        }
        self.shared.late_worst.fetch_max(late.as_nanos() as u64, Relaxed);
    }

    fn send(&mut self) {
        for index in 0..self.ways.len() {
            if let Place::Fixed(to) | Place::Learnt(Some(to)) = self.ways[index].place {
                self.send_to(index, to);
            }
        }
    }

    fn send_to(&mut self, index: usize, to: SocketAddr) {
        let datagram = self.datagrams.send(index, self.stuck_ms());
        self.put(index, to, datagram);
    }

    fn answer(&mut self, index: usize, to: SocketAddr) {
        let datagram = self.datagrams.answer(index, self.stuck_ms());
        self.put(index, to, datagram);
    }

    /// Time for which the loop has not turned, in ms.
    fn stuck_ms(&self) -> u32 {
        let turned = Duration::from_nanos(self.shared.turned.load(Relaxed));
        let stuck = self.started.elapsed().saturating_sub(turned);
        u32::try_from(stuck.as_millis()).unwrap_or(u32::MAX)
    }

    fn put(&self, index: usize, to: SocketAddr, datagram: Option<[u8; DATAGRAM_BYTES]>) {
        if let Some(datagram) = datagram {
            // A datagram that cannot be sent is as good as lost.
            let _ = self.sockets[self.ways[index].socket].send_to(&datagram, to);
        }
    }

    /// Takes the datagrams that have arrived; true if there may be more.
    fn take(&mut self, socket: usize) -> bool {
        // One byte more than a datagram has, to notice those that are too long.
        let mut buffer = [0; DATAGRAM_BYTES + 1];
        for _ in 0..BATCH_MAX {
            match self.sockets[socket].recv_from(&mut buffer) {
                Ok((len, from)) => self.heed(socket, &buffer[..len], from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An ICMP error about an earlier datagram of ours.
                Err(_) => {}
            }
        }
        true
    }

    fn heed(&mut self, socket: usize, datagram: &[u8], from: SocketAddr) {
        let expected = |way: &Way| {
            way.socket == socket && !matches!(way.place, Place::Fixed(place) if place != from)
        };
        let known = datagram.len() == DATAGRAM_BYTES && self.ways.iter().any(expected);
        let result = if known { self.datagrams.receive(datagram) } else { Err(Reject::Forged) };
        match result {
            Ok(Received { index, stuck_ms, unheard }) => {
                let at = self.started.elapsed().as_nanos() as u64;
                if u128::from(stuck_ms) <= STUCK_MAX.as_millis() && unheard <= UNHEARD_MAX {
                    self.shared.heard[self.ways[index].peer].store(at, Relaxed);
                }
                self.learn(index, from);
            }
            // The sender may be current; our answer lets it prove that.
            Err(Reject::Unproven { index }) => self.answer(index, from),
            Err(Reject::Forged | Reject::Replayed) => {
                self.shared.refused.fetch_add(1, Relaxed);
            }
        }
    }

    fn learn(&mut self, index: usize, from: SocketAddr) {
        if let Some(Way { place: Place::Learnt(place), .. }) = self.ways.get_mut(index) {
            *place = Some(from);
        }
    }
}
