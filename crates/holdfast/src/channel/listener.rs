//! The listening side: takes connections and hands them over once their
//! handshake has succeeded.
//!
//! Strangers get nothing: not a byte, not a slot that a member needs, and all
//! together no more than one line of the log per second.

use super::{Channel, ChannelError, Identity};
use holdfast_linux::epoll::{Epoll, Interest, Ready, Timer};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Most handshakes under way. One more takes the place of the one that has
/// waited longest, preferably a stranger's.
pub const PENDING_MAX: usize = 64;
/// Most handshakes under way from one address.
pub const PENDING_PER_ADDRESS_MAX: usize = 8;
/// Most addresses remembered because a peer with the key came from there.
const KNOWN_MAX: usize = 64;
/// Most connections taken in one turn, so that a flood of them cannot hold up the
/// loop.
const TAKEN_PER_TURN: usize = 64;
/// Time between two lines about refused connections.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Time after which a host that is out of descriptors or memory is asked again.
const PAUSE: Duration = Duration::from_millis(100);
const LISTENER: u64 = u64::MAX;
const PAUSE_OVER: u64 = u64::MAX - 1;

/// Accepts channels. Its descriptor is readable whenever [`Listener::accept`]
/// has something to do.
pub struct Listener {
    socket: TcpListener,
    epoll: Epoll,
    /// Rings when the listening socket is watched again.
    pause: Timer,
    identity: Identity,
    pending: [Option<Pending>; PENDING_MAX],
    ready: Vec<Ready>,
    /// Addresses from which peers are expected to come, or have come.
    known: VecDeque<IpAddr>,
    refused: u64,
    /// Refusals since the last line of the log, and the time of that line.
    unsaid: u64,
    said_at: Option<Instant>,
}

struct Pending {
    channel: Channel,
    from: IpAddr,
    since: Instant,
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// As `bind` and `listen`.
    pub fn bind(address: SocketAddr, identity: Identity) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        // Its connections inherit the timers, before their first round trip.
        let _ = holdfast_linux::timers::repeat_soon(socket.as_fd());
        let (epoll, pause) = (Epoll::new()?, Timer::new()?);
        epoll.add(&socket, LISTENER, Interest::Read)?;
        epoll.add(&pause, PAUSE_OVER, Interest::Rung)?;
        Ok(Self {
            socket,
            epoll,
            pause,
            identity,
            pending: [const { None }; PENDING_MAX],
            ready: Vec::new(),
            known: VecDeque::new(),
            refused: 0,
            unsaid: 0,
            said_at: None,
        })
    }

    /// Names addresses that peers come from. Connections from other addresses are
    /// taken as well, but never at the cost of these.
    pub fn prefer(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        addresses.into_iter().for_each(|address| self.know(address));
    }

    /// The address, with the port that the kernel chose if 0 was asked for.
    ///
    /// # Errors
    /// As `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Number of connections that were closed for lack of room or of the key.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of handshakes under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.iter().flatten().count()
    }

    /// The next deadline of a handshake.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.pending.iter().flatten().filter_map(|pending| pending.channel.deadline()).min()
    }

    /// Takes connections, drives their handshakes and returns one channel that
    /// has become open; call it until it answers `None`, when its descriptor is
    /// ready and at its deadline. The channel may already hold messages: call
    /// [`Channel::recv`] before waiting for its descriptor.
    ///
    /// # Errors
    /// Refused connections, for the log: one line a second at most. The listener
    /// goes on; call it again.
    pub fn accept(&mut self, now: Instant) -> Result<Option<Channel>, ChannelError> {
        self.ready.clear();
        self.epoll.wait(&mut self.ready, Some(Duration::ZERO))?;
        if self.is_ready(PAUSE_OVER) {
            self.epoll.modify(&self.socket, LISTENER, Interest::Read)?;
        }
        let taken = if self.is_ready(LISTENER) { self.take_connections(now) } else { Ok(()) };
        let mut line = taken.map_err(|error| self.refuse(None, error, now));
        for index in 0..self.pending.len() {
            let is_ready = self.is_ready(index as u64);
            let Some(pending) = &mut self.pending[index] else { continue };
            let channel = &mut pending.channel;
            let result = if is_ready { channel.handshake() } else { channel.tick(now) };
            let (from, is_open) = (pending.from, channel.is_open());
            if let Err(error) = result {
                self.pending[index] = None;
                line = line.and(Err(self.refuse(Some(from), error, now)));
            } else if is_open {
                self.know(from);
                let Some(pending) = self.pending[index].take() else { continue };
                self.epoll.remove(&pending.channel)?;
                return Ok(Some(pending.channel));
            }
        }
        match line {
            Err(Some(line)) => Err(line),
            _ => Ok(None),
        }
    }

    fn is_ready(&self, token: u64) -> bool {
        self.ready.iter().any(|ready| ready.token == token)
    }

    fn take_connections(&mut self, now: Instant) -> Result<(), ChannelError> {
        for _ in 0..TAKEN_PER_TURN {
            match self.socket.accept() {
                Ok((stream, from)) => self.begin(stream, from.ip().to_canonical(), now)?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has given up already, or a signal came.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(e) => {
                    // Out of descriptors or memory: the connection waits in the queue, and
                    // asking for it again at once would be all that this process does.
                    self.epoll.modify(&self.socket, LISTENER, Interest::Nothing)?;
                    self.pause.set(PAUSE)?;
                    return Err(e.into());
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, stream: TcpStream, from: IpAddr, now: Instant) -> io::Result<()> {
        let slot = self.slot_for(from);
        let Ok(channel) = Channel::accept(stream, &self.identity, now) else {
            self.refused += 1;
            return Ok(());
        };
        self.refused += u64::from(self.pending[slot].is_some());
        self.pending[slot] = None;
        self.epoll.add(&channel, slot as u64, Interest::Read)?;
        self.pending[slot] = Some(Pending { channel, from, since: now });
        Ok(())
    }

    /// A free place, or that of the connection with the least right to it.
    fn slot_for(&self, from: IpAddr) -> usize {
        let all = || self.pending.iter().enumerate().filter_map(|(i, p)| Some((i, p.as_ref()?)));
        let oldest = |of: &dyn Fn(&Pending) -> bool| {
            let those = all().filter(|(_, pending)| of(pending));
            those.min_by_key(|(_, pending)| pending.since).map(|(index, _)| index)
        };
        let same = |pending: &Pending| pending.from == from;
        if all().filter(|(_, pending)| same(pending)).count() >= PENDING_PER_ADDRESS_MAX {
            return oldest(&same).unwrap_or(0);
        }
        self.pending
            .iter()
            .position(Option::is_none)
            .or_else(|| oldest(&|pending| !self.known.contains(&pending.from)))
            .or_else(|| oldest(&|_| true))
            .unwrap_or(0)
    }

    fn know(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        if self.known.contains(&address) {
            return;
        }
        if self.known.len() == KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(address);
    }

    /// Counts a refusal; returns a line for the log if one may be written.
    fn refuse(
        &mut self,
        from: Option<IpAddr>,
        why: ChannelError,
        now: Instant,
    ) -> Option<ChannelError> {
        self.refused += u64::from(from.is_some());
        if self.said_at.is_some_and(|at| now.saturating_duration_since(at) < LINE_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.said_at = Some(now);
        let unsaid = std::mem::take(&mut self.unsaid);
        Some(match from {
            Some(from) => ChannelError::Refused { from, why: Box::new(why), unsaid },
            None => ChannelError::NotTaken { why: Box::new(why), unsaid },
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
