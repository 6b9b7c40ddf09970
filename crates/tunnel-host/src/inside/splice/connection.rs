//! One connection: a socket of this host, and a stream of the machine.

use crate::inside::Counters;
use holdfast_tunnel::{Endpoint, StreamId};
use rustix::event::epoll::{self, EventFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that are moved at once.
pub const PIECE_BYTES: usize = 64 << 10;
/// Pieces each way in a turn.
const PIECES_PER_TURN: usize = 8;
/// Silence after which a socket's other end is asked whether it is there, and the pause between such
/// questions, so many of which go unanswered before it is lost: two minutes, as for datagrams, instead
/// of the kernel's two hours.
const ASK_AFTER: Duration = Duration::from_secs(60);
const ASK_PAUSE: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 6;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    On,
    /// Both directions have ended.
    Done,
    /// It is lost on one side, so the other one has to be reset.
    Lost(Side),
}

/// Where a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The socket of this host.
    Here,
    /// The stream, which the far end has reset.
    There,
}

/// A connection of a local client, or one to a target of the peer. Unless it is closed, its end is
/// a reset: see [`prepare`].
pub struct Connection {
    stream: StreamId,
    /// Not there before the target is known.
    socket: Option<TcpStream>,
    is_connected: bool,
    is_of_client: bool,
    /// Something came from the far end, its orderly end too.
    is_answered: bool,
    /// What the peer has said of the target so far.
    head: Vec<u8>,
    to_peer: Way,
    to_socket: Way,
    watched: Option<EventFlags>,
}

/// One direction: what was taken at its begin, and not yet given at its end.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    given: usize,
    /// Its begin has ended, and that was told to its end.
    has_ended: bool,
    is_told: bool,
}

impl Way {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.given..).unwrap_or_default()
    }

    /// So many bytes were given; what is empty makes room.
    fn give(&mut self, count: usize) {
        self.given += count;
        if self.given >= self.bytes.len() {
            self.bytes.clear();
            self.given = 0;
        }
    }
}

/// Resets a connection that is not wanted.
pub fn refuse(socket: &TcpStream) {
    let _closed = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Prepares a socket. Until both directions have ended it is reset by whatever closes it: the kernel
/// that tidies up behind a killed program, too, would else say that all bytes were there (a FIN, RFC
/// 9293 §3.6).
fn prepare(socket: &SockRef<'_>) -> io::Result<()> {
    let asking = TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_PAUSE);
    socket.set_tcp_keepalive(&asking.with_retries(ASK_TIMES))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_linger(Some(Duration::ZERO))
}

impl Connection {
    /// That of a client which was accepted.
    ///
    /// # Errors
    /// If its socket is of no use.
    pub fn of_client(socket: TcpStream, stream: StreamId) -> io::Result<Self> {
        prepare(&SockRef::from(&socket))?;
        let of_peer = Self::of_peer(stream);
        Ok(Self { socket: Some(socket), is_connected: true, is_of_client: true, ..of_peer })
    }

    /// That of a stream which the peer has opened.
    pub fn of_peer(stream: StreamId) -> Self {
        Self {
            stream,
            socket: None,
            is_connected: false,
            is_of_client: false,
            is_answered: false,
            head: Vec::new(),
            to_peer: Way::default(),
            to_socket: Way::default(),
            watched: None,
        }
    }

    /// Whether a local client has heard nothing of the far end.
    pub fn is_unanswered_client(&self) -> bool {
        self.is_of_client && !self.is_answered
    }

    /// Whether its target was never reached.
    pub fn is_unreached(&self) -> bool {
        !self.is_of_client && !self.is_connected
    }

    /// What the peer is told first.
    pub fn begin(&mut self) -> &mut Vec<u8> {
        &mut self.to_peer.bytes
    }

    /// What the peer has said of the target, as long as it is not connected.
    pub fn head(&mut self) -> Option<&mut Vec<u8>> {
        self.socket.is_none().then_some(&mut self.head)
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn connect(&mut self, target: SocketAddr) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        prepare(&SockRef::from(&socket))?;
        match socket.connect(&target.into()) {
            Ok(()) => self.is_connected = true,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        self.socket = Some(socket.into());
        Ok(())
    }

    /// Takes what `epoll` says; whether the socket is still good.
    pub fn has_come(&mut self, flags: EventFlags) -> bool {
        let Some(socket) = &self.socket else { return true };
        if flags.contains(EventFlags::ERR) || !matches!(socket.take_error(), Ok(None)) {
            return false;
        }
        if flags.contains(EventFlags::OUT) {
            self.is_connected = true;
        }
        true
    }

    /// Moves what can be moved.
    pub fn go(
        &mut self,
        machine: &mut Endpoint,
        buffer: &mut [u8],
        counters: &mut Counters,
    ) -> Goes {
        if !self.is_connected {
            return Goes::On;
        }
        let there = self.go_to_peer(machine, buffer, counters);
        let back = self.go_to_socket(machine, counters);
        if let Err(side) = there.and(back) {
            return Goes::Lost(side);
        }
        if self.to_peer.is_told && self.to_socket.is_told { Goes::Done } else { Goes::On }
    }

    fn go_to_peer(
        &mut self,
        machine: &mut Endpoint,
        buffer: &mut [u8],
        counters: &mut Counters,
    ) -> Result<(), Side> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let way = &mut self.to_peer;
        for _ in 0..PIECES_PER_TURN {
            if way.rest().is_empty() && !way.has_ended {
                match socket.read(buffer) {
                    Ok(0) => way.has_ended = true,
                    Ok(count) => {
                        counters.taken_bytes += count as u64;
                        let came = buffer.get(..count).unwrap_or_default();
                        let written =
                            machine.stream_write(self.stream, came).map_err(|_| Side::There)?;
                        way.bytes.extend_from_slice(came.get(written..).unwrap_or_default());
                    }
                    Err(error) if is_for_later(&error) => return Ok(()),
                    Err(_) => return Err(Side::Here),
                }
            }
            if !way.rest().is_empty() {
                let written =
                    machine.stream_write(self.stream, way.rest()).map_err(|_| Side::There)?;
                way.give(written);
                if !way.rest().is_empty() {
                    // The machine says when it has room again.
                    return Ok(());
                }
            }
            if way.has_ended {
                if !way.is_told {
                    machine.stream_finish(self.stream).map_err(|_| Side::There)?;
                    way.is_told = true;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    fn go_to_socket(
        &mut self,
        machine: &mut Endpoint,
        counters: &mut Counters,
    ) -> Result<(), Side> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let way = &mut self.to_socket;
        while !way.is_told {
            if way.rest().is_empty() && !way.has_ended {
                let read = machine.stream_read(self.stream, &mut way.bytes, PIECE_BYTES);
                match read.map_err(|_| Side::There)? {
                    Some(0) => return Ok(()),
                    Some(_) => {}
                    None => way.has_ended = true,
                }
                self.is_answered = true;
            }
            if !way.rest().is_empty() {
                match socket.write(way.rest()) {
                    Ok(count) => {
                        way.give(count);
                        counters.given_bytes += count as u64;
                    }
                    Err(error) if is_for_later(&error) => return Ok(()),
                    Err(_) => return Err(Side::Here),
                }
            }
            if way.has_ended && way.rest().is_empty() {
                socket.shutdown(Shutdown::Write).map_err(|_| Side::Here)?;
                way.is_told = true;
            }
        }
        Ok(())
    }

    /// Watches for what it waits for, and nothing else: what is not waited for would wake the loop again
    /// and again.
    pub fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let reads = self.is_connected && !self.to_peer.has_ended && self.to_peer.rest().is_empty();
        let writes = !self.is_connected || !self.to_socket.rest().is_empty();
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, reads);
        flags.set(EventFlags::OUT, writes);
        let wanted = (!flags.is_empty()).then_some(flags);
        let data = epoll::EventData::new_u64(self.stream.0);
        match (self.watched, wanted) {
            (had, wanted) if had == wanted => {}
            (None, Some(flags)) => epoll::add(epoll, socket, data, flags)?,
            (Some(_), Some(flags)) => epoll::modify(epoll, socket, data, flags)?,
            (_, None) => epoll::delete(epoll, socket)?,
        }
        self.watched = wanted;
        Ok(())
    }

    /// Both directions have ended: what the kernel still has goes out first.
    pub fn close(self) {
        if let Some(socket) = &self.socket {
            let _resets = SockRef::from(socket).set_linger(None);
        }
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
