//! One end: its sessions, its handshakes and what is due when.

mod due;
mod hear;

use super::Random;
use super::cipher::{Suite, Suites};
use super::cookie::{Cookie, Macs, Oven};
use super::counters::Counters;
use super::error::Dropped;
use super::handshake::{Initiation, Life, Stamp};
use super::keys::{PublicKey, SecretKey};
use super::layout::{Index, OVERHEAD_BYTES};
use super::mtu::{Search, UDP_BYTES_BASE};
use super::session::Session;
use super::timing::{
    ASK_AFTER, ASK_PAUSE, ASK_TIMES, COOKIES_AT_ONCE, COOKIES_PER_S, HANDSHAKES_AT_ONCE,
    HANDSHAKES_PER_S, PROVEN_HANDSHAKES_AT_ONCE, PROVEN_HANDSHAKES_PER_S, RETRY_FIRST, Rate,
};
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Most sessions: the current one, the one before, one that was answered, and one to spare where both
/// ends begin at once.
const SESSIONS_MAX: usize = 4;
/// Most datagrams of handshakes and control that wait for being sent.
const OUTBOX_MAX: usize = 64;

/// Who this end is, and who the peer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this end proves itself with.
    pub key: SecretKey,
    /// Whom it speaks with.
    pub peer: PublicKey,
    /// Where the peer is, if that is known; else it has to come.
    pub peer_address: Option<SocketAddr>,
    /// How often something is sent at least, so that middleboxes remember this end.
    pub keepalive: Option<Duration>,
    /// The ciphers that may be used.
    pub suites: Suites,
}

/// A datagram for the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToSend {
    /// To whom.
    pub to: SocketAddr,
    /// Its payload.
    pub bytes: Vec<u8>,
}

/// What was in a datagram of the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// Something for the coding machine.
    Data {
        /// The number that the peer's machine gave to it.
        number: u64,
        /// What the peer's machine said.
        plaintext: &'a [u8],
    },
    /// Something between the two ends of this layer.
    Own,
}

/// What is known of the peer, for people and for programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The cipher of the session that is sent with; `None` without one.
    pub suite: Option<Suite>,
    /// Age of that session.
    pub session_age: Option<Duration>,
    /// Where the peer was heard last, or is expected.
    pub peer_address: Option<SocketAddr>,
    /// How long ago something of the peer came.
    pub heard_age: Option<Duration>,
    /// Whether the peer said that it ends.
    pub is_closed_by_peer: bool,
    /// The largest UDP payload that is known to pass.
    pub udp_bytes: usize,
}

/// One end of a tunnel's secure layer; see the [module](super) for the contract.
pub struct Secure {
    settings: Settings,
    random: Box<dyn Random>,
    /// This life of this end; zero until it was drawn.
    life: Life,
    /// The one that is offered next, in the place of one that another life of the peer knows.
    next_life: Option<Life>,
    /// The one that another life of the peer was told in an answer, which may not have come.
    answered: Option<(Life, Life)>,
    own_macs: Macs,
    peer_macs: Macs,
    oven: Oven,
    /// A cookie of the peer, and when it came.
    cookie: Option<(Cookie, Duration)>,
    rates: Rates,
    /// Oldest first.
    sessions: Vec<Session>,
    /// The one that is sent with.
    current: Option<Index>,
    initiation: Option<Initiation>,
    initiated_at: Duration,
    retry_at: Duration,
    retry_pause: Duration,
    newest_stamp: Stamp,
    peer_address: Option<SocketAddr>,
    peer_life: Option<Life>,
    /// How many lives of the peer were heard.
    peer_lives: u64,
    /// How often the path to the peer became another one.
    paths: u64,
    is_closed_by_peer: bool,
    heard_at: Option<Duration>,
    /// Since when something is sent and nothing heard.
    unanswered_since: Option<Duration>,
    sent_at: Duration,
    asking: Option<Asking>,
    mtu: Option<Search>,
    outbox: VecDeque<ToSend>,
    counters: Counters,
}

#[derive(Debug)]
struct Rates {
    handshakes: Rate,
    proven: Rate,
    cookies: Rate,
}

/// Questions whether the peer is there.
#[derive(Clone, Copy, Debug)]
struct Asking {
    at: Duration,
    left: u32,
}

impl Secure {
    /// An end that has said nothing yet.
    #[must_use]
    pub fn new(settings: Settings, random: Box<dyn Random>, now: Duration) -> Self {
        let own_macs = Macs::of(&settings.key.public());
        let peer_macs = Macs::of(&settings.peer);
        let peer_address = settings.peer_address;
        Self {
            settings,
            random,
            life: 0,
            next_life: None,
            answered: None,
            own_macs,
            peer_macs,
            oven: Oven::default(),
            cookie: None,
            rates: Rates {
                handshakes: Rate::new(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE),
                proven: Rate::new(PROVEN_HANDSHAKES_PER_S, PROVEN_HANDSHAKES_AT_ONCE),
                cookies: Rate::new(COOKIES_PER_S, COOKIES_AT_ONCE),
            },
            sessions: Vec::with_capacity(SESSIONS_MAX + 1),
            current: None,
            initiation: None,
            initiated_at: now,
            retry_at: now,
            retry_pause: RETRY_FIRST,
            newest_stamp: [0; 12],
            peer_address,
            peer_life: None,
            peer_lives: 0,
            paths: 0,
            is_closed_by_peer: false,
            heard_at: None,
            unanswered_since: None,
            sent_at: now,
            asking: None,
            mtu: None,
            outbox: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Whether there is a session to seal with, and somebody to send to.
    #[must_use]
    pub fn is_ready(&self, now: Duration) -> bool {
        self.peer_address.is_some() && self.current().is_some_and(|it| it.may_seal(now))
    }

    /// Seals a datagram of the coding machine: what lies in `buffer` behind `at` and
    /// [`super::HEADER_BYTES`] of room, up to its end. To whom it goes; `None` if there is no session
    /// any more, or the number is not higher than all before it in this session.
    #[must_use]
    pub fn seal(
        &mut self,
        number: u64,
        buffer: &mut Vec<u8>,
        at: usize,
        now: Duration,
    ) -> Option<SocketAddr> {
        let to = self.peer_address?;
        let session = self.current_mut().filter(|it| it.may_seal(now))?;
        if !session.seal_data(number, buffer, at) {
            return None;
        }
        self.sent_at = now;
        if self.unanswered_since.is_none() {
            self.unanswered_since = Some(now);
            self.ask_from(now + ASK_AFTER);
        }
        Some(to)
    }

    /// Takes a datagram of the network, and opens it in its place.
    ///
    /// # Errors
    /// If it is dropped: it was no datagram of the peer, or not for now. It is counted.
    pub fn handle_datagram<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
        now: Duration,
    ) -> Result<Heard<'a>, Dropped> {
        match self.hear(from, datagram, now) {
            Ok(heard) => Ok(heard),
            Err(why) => {
                self.counters.drop(why);
                Err(why)
            }
        }
    }

    /// Does what is due, and gives the next datagram of this layer. `since_1970` is the time of day,
    /// by which the peer tells new handshakes from old ones.
    pub fn poll(&mut self, now: Duration, since_1970: Duration) -> Option<ToSend> {
        self.do_due(now, since_1970);
        self.outbox.pop_front()
    }

    /// Asks the peer whether it is there, even if nothing else is to be said. The answer shows in
    /// [`Standing::heard_age`].
    pub fn probe(&mut self, now: Duration) {
        self.ask_from(now);
    }

    /// Tells the peer that this end goes, and forgets all sessions.
    pub fn close(&mut self, now: Duration) {
        self.say(&[due::CLOSE], now);
        self.sessions.clear();
        (self.current, self.initiation) = (None, None);
    }

    /// How many lives of the peer were heard so far. When that changes, what the coding machine knows
    /// of the peer is of another life: it has to begin anew.
    #[must_use]
    pub fn peer_life(&self) -> u64 {
        self.peer_lives
    }

    /// How often the path between the ends became another one, as far as addresses tell: this end hears the
    /// peer from elsewhere, or the other way round. When that changes, what the coding machine has measured
    /// is of another path.
    #[must_use]
    pub fn paths(&self) -> u64 {
        self.paths
    }

    /// The plaintext that a datagram of the coding machine may have on this path, in bytes.
    #[must_use]
    pub fn datagram_bytes_max(&self) -> usize {
        self.udp_bytes() - OVERHEAD_BYTES
    }

    /// Datagrams of the coding machine seem to be too long for the path: it is asked at once. `round` is
    /// the time from a datagram to its answer.
    pub fn doubt_path(&mut self, round: Duration, now: Duration) {
        if let Some(search) = &mut self.mtu {
            search.doubt(round, now);
        }
    }

    /// Where this layer stands.
    #[must_use]
    pub fn standing(&self, now: Duration) -> Standing {
        let current = self.current().filter(|it| it.may_seal(now));
        Standing {
            suite: current.map(|it| it.suite),
            session_age: current.map(|it| now.saturating_sub(it.begun)),
            peer_address: self.peer_address,
            heard_age: self.heard_at.map(|at| now.saturating_sub(at)),
            is_closed_by_peer: self.is_closed_by_peer,
            udp_bytes: self.udp_bytes(),
        }
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn udp_bytes(&self) -> usize {
        self.mtu.as_ref().map_or(UDP_BYTES_BASE, Search::confirmed)
    }

    fn current(&self) -> Option<&Session> {
        let current = self.current?;
        self.sessions.iter().find(|it| it.index == current)
    }

    fn current_mut(&mut self) -> Option<&mut Session> {
        let current = self.current?;
        self.sessions.iter_mut().find(|it| it.index == current)
    }

    /// Asks from then on, unless it does already.
    fn ask_from(&mut self, at: Duration) {
        if self.asking.is_none_or(|asking| asking.at > at) {
            self.asking = Some(Asking { at, left: ASK_TIMES });
        }
    }

    /// A question was sent.
    fn asked(&mut self, now: Duration) {
        self.asking = self.asking.and_then(|Asking { left, .. }| {
            let left = left.checked_sub(1).filter(|left| *left > 0)?;
            Some(Asking { at: now + ASK_PAUSE, left })
        });
    }

    /// Puts a datagram into the outbox. What finds no room is lost, as on any path.
    fn send(&mut self, to: SocketAddr, bytes: Vec<u8>, now: Duration) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(ToSend { to, bytes });
            self.sent_at = now;
        }
    }

    /// Seals something of this layer's own for the peer.
    pub(super) fn say(&mut self, plaintext: &[u8], now: Duration) {
        let Some(to) = self.peer_address else { return };
        let sealed = match self.current_mut().filter(|it| it.may_seal(now)) {
            Some(session) => session.seal_control(plaintext),
            None => None,
        };
        if let Some(bytes) = sealed {
            self.send(to, bytes, now);
        }
    }
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secure")
            .field("settings", &self.settings)
            .field("sessions", &self.sessions)
            .field("peer_address", &self.peer_address)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
