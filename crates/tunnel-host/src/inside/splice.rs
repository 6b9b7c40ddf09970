//! TCP ports that lead through the tunnel. A connection ends at this host and another one begins at the
//! other: what is in between is a stream of the machine, so no congestion control of the ends sees what
//! the path loses. An acknowledgement therefore means that this host has the bytes, not that the far
//! end has them. When one end is lost the other one is reset, never silently closed.
//!
//! A stream begins with the target, as `target` writes it.

mod connection;
#[cfg(test)]
mod tests;

use super::target::{self, WITH_TARGET};
use super::{Counters, class_of, sockets};
use crate::config::{Allow, Config, Forward, Transport};
use anyhow::Context as _;
use connection::{Connection, Goes, Side};
use holdfast_tunnel::{Class, Endpoint, StreamEvent, StreamId};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that are accepted in a turn.
const ACCEPTED_PER_TURN: usize = 16;
/// Descriptors that no connection gets: this program's own, and one for who asks for its status.
const DESCRIPTORS_KEPT: usize = 24;
/// Tokens of listening sockets; those of connections are the numbers of their streams.
const LISTENERS: u64 = 1 << 63;

/// The TCP ports of one tunnel, and the connections through it.
pub struct Splice {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    allowed: Vec<Allow>,
    connections: HashMap<u64, Connection>,
    connections_max: usize,
    /// A descriptor to give up when no other is left, for a client that is to hear so.
    reserve: Option<OwnedFd>,
    buffer: Vec<u8>,
    counters: Counters,
}

struct Listener {
    socket: TcpListener,
    target: SocketAddr,
    class: Class,
}

impl Splice {
    /// Listens at all TCP ports of a file.
    ///
    /// # Errors
    /// With the port that could not be had.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut listeners = Vec::new();
        let is_tcp = |it: &&Forward| it.transport == Transport::Tcp;
        for Forward { listen, target, .. } in config.forwards.iter().filter(is_tcp) {
            let socket = TcpListener::bind(listen).with_context(|| format!("tcp {listen}"))?;
            socket.set_nonblocking(true).with_context(|| format!("tcp {listen}"))?;
            sockets::watch(&epoll, &socket, LISTENERS + listeners.len() as u64)?;
            let class = class_of(&config.rules, Transport::Tcp, target.port());
            listeners.push(Listener { socket, target: *target, class });
        }
        Ok(Self {
            reserve: Some(epoll.try_clone().context("a descriptor")?),
            epoll,
            listeners,
            allowed: config.allowed.clone(),
            connections: HashMap::new(),
            connections_max: config.flows_max.min(descriptors().saturating_sub(DESCRIPTORS_KEPT)),
            buffer: vec![0; connection::PIECE_BYTES],
            counters: Counters::default(),
        })
    }

    pub fn counters(&self) -> Counters {
        Counters { flows: self.connections.len() as u64, ..self.counters }
    }

    /// Moves what local sockets have or take; whether there may be more at once.
    ///
    /// # Errors
    /// As `epoll_wait`.
    pub fn take(&mut self, machine: &mut Endpoint, is_ready: bool) -> io::Result<bool> {
        if !is_ready {
            // Nobody has heard the peer for minutes, or it has said that it ends.
            self.reset_all();
        }
        let (ready, is_more) = sockets::ready(&self.epoll)?;
        for event in ready {
            let token = event.data.u64();
            match token.checked_sub(LISTENERS) {
                Some(listener) => self.accept(listener as usize, machine, is_ready),
                None => self.wake(token, event.flags, machine),
            }
        }
        Ok(is_more)
    }

    fn accept(&mut self, listener: usize, machine: &mut Endpoint, is_ready: bool) {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(Listener { socket, target, class }) = self.listeners.get(listener) else {
                return;
            };
            let (to, class) = (*target, *class);
            let socket = match socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if has_no_descriptor(&error) => return self.refuse_next(listener),
                Err(_) => return,
            };
            let has_room = self.connections.len() < self.connections_max;
            let stream = match has_room && is_ready {
                true => machine.stream_open(class).ok(),
                false => None,
            };
            let Some(stream) = stream else {
                connection::refuse(&socket);
                self.counters.flows_refused += 1;
                continue;
            };
            match Connection::of_client(socket, stream) {
                Ok(mut connection) => {
                    target::push(connection.begin(), to);
                    self.connections.insert(stream.0, connection);
                    self.go(stream, machine);
                }
                Err(_) => drop(machine.stream_reset(stream)),
            }
        }
    }

    /// Refuses the client that waits, for which no descriptor is left: who only waits keeps this loop awake.
    fn refuse_next(&mut self, listener: usize) {
        self.reserve = None;
        let waits = self.listeners.get(listener).map(|it| it.socket.accept());
        if let Some(Ok((socket, _))) = waits {
            connection::refuse(&socket);
            self.counters.flows_refused += 1;
        }
        self.reserve = self.epoll.try_clone().ok();
    }

    /// A socket has something, or room.
    fn wake(&mut self, token: u64, flags: epoll::EventFlags, machine: &mut Endpoint) {
        let stream = StreamId(token);
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if !connection.has_come(flags) {
            let _gone = machine.stream_reset(stream);
            self.lose(stream, Side::Here);
            return;
        }
        self.go(stream, machine);
    }

    /// Takes news of a stream.
    pub fn hear(&mut self, stream: StreamId, event: StreamEvent, machine: &mut Endpoint) {
        match event {
            StreamEvent::Opened if self.connections.len() >= self.connections_max => {
                self.counters.flows_refused += 1;
                let _gone = machine.stream_reset(stream);
            }
            StreamEvent::Opened => {
                self.connections.insert(stream.0, Connection::of_peer(stream));
            }
            StreamEvent::Readable | StreamEvent::Writable => {
                if self.name_target(stream, machine) {
                    self.go(stream, machine);
                } else {
                    let _gone = machine.stream_reset(stream);
                    self.connections.remove(&stream.0);
                }
            }
            StreamEvent::Reset => self.lose(stream, Side::There),
        }
    }

    /// Reads where a stream of the peer leads, and connects it; whether that may be.
    fn name_target(&mut self, stream: StreamId, machine: &mut Endpoint) -> bool {
        let Some(connection) = self.connections.get_mut(&stream.0) else { return true };
        let Some(head) = connection.head() else { return true };
        loop {
            let wanted = head.first().map_or(1, |flags| 1 + target::bytes(*flags));
            if head.len() == wanted {
                break;
            }
            match machine.stream_read(stream, head, wanted - head.len()) {
                Ok(Some(0)) => return true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        let named = head.split_first().filter(|(flags, _)| **flags & WITH_TARGET != 0);
        let Some((target, _)) = named.and_then(|(flags, rest)| target::read(*flags, rest)) else {
            return false;
        };
        if !self.allowed.contains(&Allow { transport: Transport::Tcp, target }) {
            self.counters.not_allowed += 1;
            return false;
        }
        let begun = connection.connect(target);
        match &begun {
            Err(error) if has_no_descriptor(error) => self.counters.flows_refused += 1,
            Err(_) => self.lose(stream, Side::Here),
            Ok(()) => {}
        }
        begun.is_ok()
    }

    /// Moves what can be moved, both ways.
    fn go(&mut self, stream: StreamId, machine: &mut Endpoint) {
        let Some(connection) = self.connections.get_mut(&stream.0) else { return };
        match connection.go(machine, &mut self.buffer, &mut self.counters) {
            Goes::On => {
                if connection.watch(&self.epoll).is_err() {
                    let _gone = machine.stream_reset(stream);
                    self.lose(stream, Side::Here);
                }
            }
            Goes::Done => drop(self.connections.remove(&stream.0).map(Connection::close)),
            Goes::Lost(side) => {
                let _gone = machine.stream_reset(stream);
                self.lose(stream, side);
            }
        }
    }

    /// Resets a connection that was lost on one side. What the far end has reset is counted here by what
    /// this end can know: a reset does not say why.
    fn lose(&mut self, stream: StreamId, side: Side) {
        let Some(connection) = self.connections.remove(&stream.0) else { return };
        self.counters.resets += 1;
        match side {
            Side::There => {
                self.counters.resets_unanswered += u64::from(connection.is_unanswered_client());
            }
            Side::Here => self.counters.targets_unreached += u64::from(connection.is_unreached()),
        }
    }

    /// The peer is gone, and its ends of all connections.
    pub fn reset_all(&mut self) {
        self.counters.resets += self.connections.drain().count() as u64;
    }
}

impl AsFd for Splice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// How many files this process may have open at once, when it has raised that as far as it may.
fn descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Whether this process, or its host, has as many files open as it may.
fn has_no_descriptor(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .map(Errno::raw_os_error)
        .contains(&error.raw_os_error().unwrap_or(0))
}
