//! The listening side: takes connections and hands them over once their
//! handshake has succeeded.

use super::{Channel, ChannelError, Identity};
use holdfast_linux::epoll::{Epoll, Interest, Ready};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Handshakes under way at a time; more connections are closed at once.
pub const PENDING_MAX: usize = 16;
const LISTENER: u64 = u64::MAX;

/// Accepts channels. Its descriptor is readable whenever [`Listener::accept`]
/// has something to do.
pub struct Listener {
    socket: TcpListener,
    epoll: Epoll,
    identity: Identity,
    pending: [Option<Channel>; PENDING_MAX],
    ready: Vec<Ready>,
    refused: u64,
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// As `bind` and `listen`.
    pub fn bind(address: SocketAddr, identity: Identity) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        // Its connections inherit them, before their first round trip.
        let _ = holdfast_linux::timers::repeat_soon(socket.as_fd());
        let epoll = Epoll::new()?;
        epoll.add(&socket, LISTENER, Interest::Read)?;
        Ok(Self {
            socket,
            epoll,
            identity,
            pending: Default::default(),
            ready: Vec::new(),
            refused: 0,
        })
    }

    /// The address, with the port that the kernel chose if 0 was asked for.
    ///
    /// # Errors
    /// As `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Connections that were closed for want of room or of the key.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The next deadline of a handshake.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.pending.iter().flatten().filter_map(Channel::deadline).min()
    }

    /// Takes connections, drives their handshakes and returns one channel that
    /// has become open; call it until it answers `None`, when its descriptor is
    /// ready and at its deadline. The channel may already hold messages: call
    /// [`Channel::recv`] before waiting for its descriptor.
    ///
    /// # Errors
    /// A refused connection, for the log; the listener goes on.
    pub fn accept(&mut self, now: Instant) -> Result<Option<Channel>, ChannelError> {
        self.ready.clear();
        self.epoll.wait(&mut self.ready, Some(std::time::Duration::ZERO))?;
        if self.ready.iter().any(|r| r.token == LISTENER) {
            self.take_connections(now)?;
        }
        for index in 0..self.pending.len() {
            let is_ready = self.ready.iter().any(|r| r.token == index as u64);
            let Some(channel) = &mut self.pending[index] else { continue };
            let result = if is_ready { channel.handshake() } else { channel.tick(now) };
            if result.is_err() {
                self.pending[index] = None;
                self.refused += 1;
                return result.map(|()| None);
            }
            if channel.is_open() {
                self.epoll.remove(channel)?;
                return Ok(self.pending[index].take());
            }
        }
        Ok(None)
    }

    fn take_connections(&mut self, now: Instant) -> Result<(), ChannelError> {
        loop {
            let stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has given up already, or a signal came.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            let Some(free) = self.pending.iter().position(Option::is_none) else {
                self.refused += 1;
                continue;
            };
            let channel = Channel::accept(stream, &self.identity, now)?;
            self.epoll.add(&channel, free as u64, Interest::Read)?;
            self.pending[free] = Some(channel);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
