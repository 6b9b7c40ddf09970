//! The encrypted channel between two daemons: messages over TCP, sealed by
//! Noise (NNpsk0, 25519, AES-GCM, BLAKE2s) with a secret that both ends share. There may be
//! several: who connects takes one, and another one if it is refused; who is connected to takes
//! any of them.
//!
//! It never blocks, and reads the clock only while a record is unfinished. A caller watches [`Channel::as_fd`],
//! calls [`Channel::recv`] when it is ready, queues with [`Channel::send`] and
//! calls [`Channel::flush`] once per turn of its loop, so that all messages of
//! a turn leave in one write. Wherever the bytes are not exactly what a peer
//! with the key has sent, in order and once, the channel closes with an error.
//!
//! On the wire: eight bytes in clear (magic and version, so that another
//! release is recognised), then records of a two-byte length and a Noise
//! message. The plaintext of the records is one stream of messages, each with
//! a four-byte length.
//!
//! The one that connects says the version. One that does not speak it answers with its own newest
//! and closes; who connected may try again with that (`Dialer`). The version is mixed into the
//! keys, so both ends have the same one. But somebody on the way can forge the answer that closes,
//! and two new ends would speak an old version. So a channel that was accepted, and speaks an older
//! version than its end could, begins with an empty record: that is sealed like all others, is
//! nothing to releases that do not know it, and one that has come down to this version for want of
//! a better one closes ([`ChannelError::TalkedDown`]).

mod error;
mod handshake;
mod listener;
#[cfg(test)]
mod tests;
mod unfinished;

pub use error::ChannelError;
pub use listener::{Listener, PENDING_MAX, PENDING_PER_ADDRESS_MAX};

use crate::key::{GroupKey, Keyring};
use handshake::{Handshake, Side, Turn};
use holdfast_wire::message::{MESSAGE_MAX, Message, VERSION};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use unfinished::Unfinished;

/// Time after which a handshake is given up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);
/// Most bytes that wait to be sent; a peer that lets more pile up is not
/// reading.
pub const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Longest name of a group or a member, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Age of unacknowledged data at which the TCP connection is closed.
const USER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two probes of an idle channel: without them, nobody would notice
/// that the other end's host was restarted while it has nothing to say.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Largest Noise message (Noise specification §3).
const RECORD_MAX: usize = 65535;
const TAG_BYTES: usize = 16;
const RECORD_PLAIN_MAX: usize = RECORD_MAX - TAG_BYTES;
const RECORD_HEADER: usize = 2;
const MESSAGE_HEADER: usize = 4;
/// Size of the read buffer, in bytes: two whole records.
const RAW_BYTES: usize = 2 * (RECORD_HEADER + RECORD_MAX);
/// Most reads of one [`Channel::recv`], so that a fast peer cannot starve the
/// loop.
const READS_PER_TURN: usize = 16;
/// Bytes of waiting plaintext at which [`Channel::send`] flushes by itself.
const PLAIN_FLUSH_BYTES: usize = RECORD_PLAIN_MAX;

/// What the two ends must agree on, and the identity of this end.
#[derive(Clone)]
pub struct Identity {
    /// What this end shares with others.
    pub keyring: Keyring,
    /// The roles that may be at the other end; of who connects, the one that it connects to.
    pub peers: Vec<String>,
    /// How often who connects was refused: it takes another secret each time.
    pub attempt: usize,
    pub group: String,
    /// This end's name: a member's, or `edge`.
    pub me: String,
    pub kind: Kind,
}

/// Which conversation the channel carries; both ends must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between a member and the edge.
    Edge,
    /// Between the two members.
    Pair,
    /// Between a host server and the edge of a spread group.
    Spread,
}

/// One end of a channel.
pub struct Channel {
    socket: TcpStream,
    stage: Stage,
    /// Of the messages, and the newest that this end speaks.
    version: u32,
    newest: u32,
    peer: String,
    /// The secret that has opened it.
    secret: Option<Box<GroupKey>>,
    /// Whether each host has a key of its own.
    is_in_pairs: bool,
    handshake_until: Instant,
    /// Bytes as read; `raw[raw_start..raw_end]` is not yet looked at.
    raw: Box<[u8]>,
    raw_start: usize,
    raw_end: usize,
    unfinished: Unfinished,
    /// Decrypted bytes; `inbox[..inbox_end]` is the start of a message.
    inbox: Vec<u8>,
    inbox_end: usize,
    /// Messages that are not yet encrypted.
    plain: Vec<u8>,
    /// Encrypted bytes; `out[out_start..]` is not yet written.
    out: Vec<u8>,
    out_start: usize,
}

enum Stage {
    /// The TCP connection is being established.
    Connecting(Box<Handshake>),
    Handshaking(Box<Handshake>),
    /// `confirmed`: a record of the peer was opened, so the handshake was no replay.
    /// `fresh`: none was opened yet.
    Open {
        noise: Box<snow::TransportState>,
        confirmed: bool,
        fresh: bool,
    },
    Closed,
}

impl Channel {
    /// Begins to connect, for a conversation in the newest version. The handshake follows by
    /// itself in [`Channel::recv`] and [`Channel::flush`]; until it is over, messages wait.
    ///
    /// # Errors
    /// If the socket cannot be made or the address is unreachable at once.
    pub fn connect(
        address: SocketAddr,
        identity: &Identity,
        now: Instant,
    ) -> Result<Self, ChannelError> {
        Self::connect_in(VERSION, address, identity, now)
    }

    /// As [`Channel::connect`], for a conversation in this version.
    ///
    /// # Errors
    /// As [`Channel::connect`].
    pub fn connect_in(
        version: u32,
        address: SocketAddr,
        identity: &Identity,
        now: Instant,
    ) -> Result<Self, ChannelError> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        // A lost segment must not look like a lost peer, not even the first one:
        // the handshake's round trip starts the estimate. Older kernels refuse.
        let _ = holdfast_linux::timers::repeat_soon(socket.as_fd());
        match socket.connect(&SockAddr::from(address)) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e.into()),
            _ => {}
        }
        let handshake = Handshake::new(identity, Side::Initiator, version)?;
        let stage = Stage::Connecting(Box::new(handshake));
        Self::new(socket.into(), stage, (identity, version), now)
    }

    /// Takes an accepted connection. It counts as open only when the first
    /// record of the peer proves that its handshake was not a recording. Send nothing before
    /// that: in which version is not known.
    ///
    /// # Errors
    /// If the socket's options cannot be set.
    pub fn accept(
        stream: TcpStream,
        identity: &Identity,
        now: Instant,
    ) -> Result<Self, ChannelError> {
        stream.set_nonblocking(true)?;
        let handshake = Handshake::new(identity, Side::Responder, VERSION)?;
        let stage = Stage::Handshaking(Box::new(handshake));
        Self::new(stream, stage, (identity, VERSION), now)
    }

    fn new(
        socket: TcpStream,
        stage: Stage,
        (identity, version): (&Identity, u32),
        now: Instant,
    ) -> Result<Self, ChannelError> {
        let options = socket2::SockRef::from(&socket);
        options.set_tcp_nodelay(true)?;
        // The host's default may be one that probes with delay; if cubic is
        // missing, the default has to do.
        let _ = options.set_tcp_congestion(b"cubic");
        options.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        options.set_tcp_keepalive(&probes)?;
        Ok(Self {
            socket,
            stage,
            version,
            newest: VERSION,
            peer: String::new(),
            secret: None,
            is_in_pairs: identity.keyring.is_in_pairs(),
            handshake_until: now + HANDSHAKE_LIMIT,
            raw: vec![0; RAW_BYTES].into_boxed_slice(),
            raw_start: 0,
            raw_end: 0,
            unfinished: Unfinished::default(),
            inbox: Vec::new(),
            inbox_end: 0,
            plain: Vec::new(),
            out: Vec::new(),
            out_start: 0,
        })
    }

    /// Whether the peer has proved that it holds the key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open { confirmed: true, .. })
    }

    /// The name the peer gave in the handshake; empty before.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The version of the messages, once open.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The secret that has opened the channel; `None` before.
    #[must_use]
    pub fn secret(&self) -> Option<&GroupKey> {
        self.secret.as_deref()
    }

    /// When the handshake is given up; `None` once the channel is open.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (!self.is_open()).then_some(self.handshake_until)
    }

    /// Whether the descriptor must be watched for writing too.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        matches!(self.stage, Stage::Connecting(_)) || self.out_start < self.out.len()
    }

    /// Bytes that wait to be sent.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.plain.len() + self.out.len() - self.out_start
    }

    /// Gives up a handshake that takes too long.
    ///
    /// # Errors
    /// [`ChannelError::HandshakeTimeout`]; the channel is closed.
    pub fn tick(&mut self, now: Instant) -> Result<(), ChannelError> {
        if self.deadline().is_some_and(|at| at <= now) {
            return self.fail(ChannelError::HandshakeTimeout);
        }
        Ok(())
    }

    /// Queues a message for the next [`Channel::flush`].
    ///
    /// # Errors
    /// [`ChannelError::MessageTooLong`] leaves the channel as it was, without the
    /// message; all others close it: a peer that missed one message must miss all
    /// that follow.
    pub fn send(&mut self, message: &Message<'_>) -> Result<(), ChannelError> {
        if matches!(self.stage, Stage::Closed) {
            return Err(ChannelError::Closed);
        }
        let start = self.plain.len();
        self.plain.extend_from_slice(&[0; MESSAGE_HEADER]);
        message.encode_in(self.version, &mut self.plain);
        let bytes = self.plain.len().saturating_sub(start + MESSAGE_HEADER);
        if bytes > MESSAGE_MAX {
            self.plain.truncate(start);
            return Err(ChannelError::MessageTooLong { bytes });
        }
        if self.backlog_bytes() > BACKLOG_BYTES_MAX {
            tracing::warn!("{}: {}", self.peer(), ChannelError::Backlog);
            return self.fail(ChannelError::Backlog);
        }
        self.plain[start..start + MESSAGE_HEADER].copy_from_slice(&(bytes as u32).to_le_bytes());
        if self.plain.len() >= PLAIN_FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Encrypts what is queued and writes what the socket takes.
    ///
    /// # Errors
    /// When the connection is broken; the channel is closed then.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        self.finish_connecting()?;
        self.seal()?;
        while self.out_start < self.out.len() {
            match self.socket.write(&self.out[self.out_start..]) {
                Ok(written) => self.out_start += written,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return self.fail(e.into()),
            }
        }
        self.out.clear();
        self.out_start = 0;
        Ok(())
    }

    /// Reads what has arrived and hands over every complete message. Also
    /// drives the handshake. Messages that a peer sent before it closed are
    /// handed over before the error that says it closed.
    ///
    /// # Errors
    /// When the peer has closed, or sent what no peer with the key sends; the
    /// channel is closed then.
    pub fn recv(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<(), ChannelError> {
        self.receive(Some(&mut each))
    }

    /// Drives the handshake only. Messages that follow it stay buffered: call
    /// [`Channel::recv`] once as soon as [`Channel::is_open`].
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn handshake(&mut self) -> Result<(), ChannelError> {
        self.receive(None)
    }

    fn receive(
        &mut self,
        mut each: Option<&mut dyn FnMut(Message<'_>)>,
    ) -> Result<(), ChannelError> {
        self.finish_connecting()?;
        if let Stage::Connecting(_) = self.stage {
            return Ok(());
        }
        if let Some(each) = &mut each {
            self.hand_over(*each)?;
        }
        self.open_records(&mut each)?;
        for _ in 0..READS_PER_TURN {
            if each.is_none() && self.is_open() {
                break;
            }
            self.make_room();
            let room = self.raw.len() - self.raw_end;
            match self.socket.read(&mut self.raw[self.raw_end..]) {
                Ok(0) if self.is_introducing_itself() => {
                    return self.fail(ChannelError::NotWelcome);
                }
                Err(e)
                    if e.kind() == ErrorKind::ConnectionReset && self.is_introducing_itself() =>
                {
                    return self.fail(ChannelError::NotWelcome);
                }
                Ok(0) if self.raw_start == self.raw_end && self.inbox_end == 0 => {
                    return self.fail(ChannelError::Closed);
                }
                Ok(0) => return self.fail(ChannelError::Truncated),
                Ok(count) => {
                    self.raw_end += count;
                    self.open_records(&mut each)?;
                    self.expect_the_rest()?;
                    // A short read emptied the socket: asking again costs a call.
                    if count < room {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return self.fail(e.into()),
            }
        }
        Ok(())
    }

    /// Whether nobody has answered our first bytes yet.
    fn is_introducing_itself(&self) -> bool {
        matches!(&self.stage, Stage::Handshaking(handshake) if handshake.is_initiator())
            && self.raw_start == self.raw_end
    }

    /// Checks whether the TCP connection is established, and if so says hello.
    fn finish_connecting(&mut self) -> Result<(), ChannelError> {
        match &self.stage {
            Stage::Closed => return Err(ChannelError::Closed),
            Stage::Handshaking(_) | Stage::Open { .. } => return Ok(()),
            Stage::Connecting(_) => {}
        }
        if let Some(error) = self.socket.take_error()? {
            return self.fail(error.into());
        }
        if self.socket.peer_addr().is_err() {
            return Ok(());
        }
        let Stage::Connecting(mut handshake) = std::mem::replace(&mut self.stage, Stage::Closed)
        else {
            return Ok(());
        };
        handshake.begin(&mut self.out)?;
        self.stage = Stage::Handshaking(handshake);
        self.flush()
    }

    /// Opens every complete record in `raw`.
    fn open_records(
        &mut self,
        each: &mut Option<&mut dyn FnMut(Message<'_>)>,
    ) -> Result<(), ChannelError> {
        loop {
            let progress = match &mut self.stage {
                Stage::Open { confirmed: true, .. } if each.is_none() => false,
                Stage::Open { .. } => self.open_record()?,
                Stage::Handshaking(_) => self.step_handshake()?,
                Stage::Connecting(_) | Stage::Closed => false,
            };
            if !progress {
                return Ok(());
            }
            if let Some(each) = each {
                self.hand_over(*each)?;
            }
        }
    }

    /// Decrypts one record to the inbox; false if none is complete.
    fn open_record(&mut self) -> Result<bool, ChannelError> {
        let Some(record) = next_record(&self.raw[self.raw_start..self.raw_end]) else {
            return Ok(false);
        };
        let length = record.len();
        if self.inbox.len() < self.inbox_end + length {
            self.inbox.resize(self.inbox_end + length, 0);
        }
        let Stage::Open { noise, confirmed, fresh } = &mut self.stage else { return Ok(false) };
        let opened = noise.read_message(record, &mut self.inbox[self.inbox_end..]);
        *confirmed |= opened.is_ok();
        let is_first = std::mem::take(fresh) && noise.is_initiator();
        let version = self.version;
        match opened {
            Ok(0) if is_first && version < self.newest => {
                return self.fail(ChannelError::TalkedDown { version });
            }
            Ok(bytes) => self.inbox_end += bytes,
            Err(_) => return self.fail(ChannelError::Tampered),
        }
        self.raw_start += RECORD_HEADER + length;
        self.unfinished.finish();
        Ok(true)
    }

    /// Gives the channel up where a record that has begun does not come to its end.
    fn expect_the_rest(&mut self) -> Result<(), ChannelError> {
        let is_left = self.is_open() && self.raw_start < self.raw_end;
        if is_left && self.unfinished.is_stuck(Instant::now()) {
            return self.fail(ChannelError::Unfinished);
        }
        Ok(())
    }

    /// Hands over the complete messages in the inbox.
    fn hand_over(&mut self, each: &mut dyn FnMut(Message<'_>)) -> Result<(), ChannelError> {
        let mut at = 0;
        while let Some(header) = self.inbox[at..self.inbox_end].first_chunk::<MESSAGE_HEADER>() {
            let bytes = u32::from_le_bytes(*header) as usize;
            if bytes > MESSAGE_MAX {
                return self.fail(ChannelError::GiantMessage { bytes });
            }
            let start = at + MESSAGE_HEADER;
            let Some(encoded) = self.inbox[..self.inbox_end].get(start..start + bytes) else {
                break;
            };
            match Message::decode_in(self.version, encoded) {
                Ok(message) => each(message),
                Err(error) => return self.fail(error.into()),
            }
            at = start + bytes;
        }
        self.inbox.copy_within(at..self.inbox_end, 0);
        self.inbox_end -= at;
        Ok(())
    }

    fn step_handshake(&mut self) -> Result<bool, ChannelError> {
        let Stage::Handshaking(handshake) = &mut self.stage else { return Ok(false) };
        let (taken, turn) =
            match handshake.step(&self.raw[self.raw_start..self.raw_end], &mut self.out) {
                Ok(step) => step,
                Err(error) => {
                    // Our version may still tell the peer what is wrong.
                    let _ = self.flush_out_once();
                    return self.fail(error);
                }
            };
        self.raw_start += taken;
        let finished = match turn {
            Turn::Wait => return Ok(false),
            Turn::Progress => return Ok(true),
            Turn::Finished(finished) => finished,
        };
        let initiator = finished.noise.is_initiator();
        (self.peer, self.version) = (finished.peer, finished.version);
        self.secret = Some(Box::new(finished.secret));
        let noise = Box::new(finished.noise);
        self.stage = Stage::Open { noise, confirmed: initiator, fresh: true };
        // An initiator's empty record proves to the other side that this is no recording; a
        // responder's, that it knows a newer version.
        if initiator || self.version < self.newest {
            self.seal_chunk(0..0)?;
        }
        self.flush()?;
        Ok(true)
    }

    /// Encrypts all of `plain` once the channel is open.
    fn seal(&mut self) -> Result<(), ChannelError> {
        // Nothing of value leaves before the peer has proved itself.
        if self.plain.is_empty() || !self.is_open() {
            return Ok(());
        }
        let mut start = 0;
        while start < self.plain.len() {
            let end = self.plain.len().min(start + RECORD_PLAIN_MAX);
            self.seal_chunk(start..end)?;
            start = end;
        }
        self.plain.clear();
        Ok(())
    }

    /// Encrypts one record of `plain` to the end of `out`.
    fn seal_chunk(&mut self, range: std::ops::Range<usize>) -> Result<(), ChannelError> {
        let Stage::Open { noise, .. } = &mut self.stage else { return Ok(()) };
        let at = self.out.len();
        let length = range.len() + TAG_BYTES;
        self.out.extend_from_slice(&(length as u16).to_le_bytes());
        self.out.resize(at + RECORD_HEADER + length, 0);
        match noise.write_message(&self.plain[range], &mut self.out[at + RECORD_HEADER..]) {
            Ok(_) => Ok(()),
            Err(_) => self.fail(ChannelError::Tampered),
        }
    }

    fn flush_out_once(&mut self) -> io::Result<usize> {
        self.socket.write(&self.out[self.out_start..])
    }

    /// Moves what is left in `raw` to its front if the rest could not hold a record.
    fn make_room(&mut self) {
        if self.raw_start == self.raw_end {
            (self.raw_start, self.raw_end) = (0, 0);
        } else if self.raw.len() - self.raw_start < RECORD_HEADER + RECORD_MAX {
            self.raw.copy_within(self.raw_start..self.raw_end, 0);
            (self.raw_start, self.raw_end) = (0, self.raw_end - self.raw_start);
        }
    }

    fn fail<T>(&mut self, error: ChannelError) -> Result<T, ChannelError> {
        self.stage = Stage::Closed;
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        Err(if self.is_in_pairs { error.in_pairs() } else { error })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The body of the first record of `bytes`, if it is complete.
fn next_record(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER>()?;
    rest.get(..usize::from(u16::from_le_bytes(*header)))
}
