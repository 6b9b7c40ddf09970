//! Rebuilding an established TCP connection on an unconnected socket
//! (`TCP_REPAIR`): the step of a promotion that gives the replica its clients.
//!
//! [`restore`] works on the very socket that the replica's process holds, so
//! that its descriptor number, its duplicates and its epoll registrations stay
//! valid (decision 13). Half-closed connections are finished by
//! [`finish_closing`] once the service address is local.
//!
//! The rebuilt socket has no round-trip sample, so its retransmission timer starts
//! at 3 s (measured, Linux 6.18): [`show_clock`] gives it a sample if the
//! connection has timestamps, and output that may be lost needs a [`Nudge`].
//!
//! Linux sends no wake-up for bytes that are put into a receive queue this way:
//! a poll on the socket must be armed again afterwards.

mod closing;
mod nudge;

pub use closing::{ClosingState, finish_closing, show_clock};
pub use nudge::{NUDGE_SEGMENTS_FIRST, NUDGE_SEGMENTS_MAX, Nudge, NudgeHeader, segment_bytes};

use crate::sockopt::{self, Address};
use holdfast_wire::message::{ConnKey, ConnRecord};
use holdfast_wire::packet::mapped_ipv4;
use holdfast_wire::seq::SeqNo;
use libc::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use zerocopy::{Immutable, IntoBytes};

// linux/tcp.h; libc does not have them all.
pub(crate) const TCP_REPAIR_ON: c_int = 1;
pub(crate) const TCP_REPAIR_OFF_NO_WP: c_int = -1;
const TCP_RECV_QUEUE: c_int = 1;
pub(crate) const TCP_SEND_QUEUE: c_int = 2;
const TCPOPT_MSS: u32 = 2;
const TCPOPT_WINDOW: u32 = 3;
const TCPOPT_SACK_PERM: u32 = 4;
const TCPOPT_TIMESTAMP: u32 = 8;
const TCP_TIMESTAMP: c_int = 24;
const SO_BUF_LOCK: c_int = 72;
const IPV6_TRANSPARENT: c_int = 75;

/// Least value that setsockopt(`TCP_MAXSEG`) accepts, in bytes.
const MSS_MIN: u16 = 88;
const MSS_MAX: u16 = 32767;
/// Segment size of a client whose SYN announces none (RFC 9293 §3.7.1), in bytes.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// [`ConnRecord`]'s mark for "no window scaling".
const NO_WSCALE: u8 = 255;
/// Largest window without scaling, in bytes.
const WINDOW_MAX_UNSCALED: u32 = 65535;
/// Room that a queue needs beside its bytes, for the kernel's bookkeeping.
const QUEUE_SLACK_BYTES: usize = 256 << 10;

/// A connection as the client must find it.
#[derive(Clone, Copy, Debug)]
pub struct RestoreSpec<'a> {
    pub key: ConnKey,
    /// What SYN and SYN-ACK agreed on.
    pub record: &'a ConnRecord,
    /// The first byte of `unread`: what the server's process reads next.
    pub rcv_nxt: SeqNo,
    /// Client bytes that the process has not read, in order. They count as
    /// received and will be acknowledged.
    pub unread: &'a [&'a [u8]],
    /// The client's cumulative ACK: everything before it has arrived.
    pub snd_una: SeqNo,
    /// Output from `snd_una` on that may still reach the client from elsewhere.
    /// The kernel treats it as already sent and sends it again only after seconds,
    /// so a [`Nudge`] should follow. Output that no client can have belongs in
    /// [`live_send`].
    pub in_flight: &'a [u8],
    /// The client's window, scaled, in bytes.
    pub peer_window_bytes: u32,
    /// The largest right edge ever advertised to the client (L4).
    pub right_edge: SeqNo,
    /// TSval to continue from: not below any value sent before. Its lowest bit
    /// is the kernel's switch for microseconds; 0 there means milliseconds.
    pub tsval: Option<u32>,
    /// The client's clock, if the connection has timestamps and it is known:
    /// [`show_clock`] needs it.
    pub client_clock: Option<ClientClock>,
    /// Congestion control by name; `None` leaves the system's choice.
    pub congestion: Option<&'a str>,
    /// Least buffer sizes in bytes; raised as the queues and the right edge need.
    pub send_buffer_bytes: usize,
    pub recv_buffer_bytes: usize,
    /// How far each side had come with closing.
    pub closing: ClosingState,
}

/// What the rebuilt socket is to learn of the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientClock {
    /// TSval of the client's latest segment.
    pub tsval: u32,
    /// The round trip to the client, as far as it is known.
    pub rtt_ms: u32,
}

impl RestoreSpec<'_> {
    /// The sequence number behind `unread`: what the kernel acknowledges after
    /// [`restore`].
    #[must_use]
    pub fn rcv_end(&self) -> SeqNo {
        self.rcv_nxt.plus(self.unread_len() as u64)
    }

    /// Segment size towards the client, TCP options included (RFC 6691).
    #[must_use]
    pub fn mss(&self) -> u16 {
        let mss = match self.record.peer_mss {
            0 if mapped_ipv4(&self.key.client).is_some() => MSS_DEFAULT_V4,
            0 => MSS_DEFAULT_V6,
            peer => peer,
        };
        mss.clamp(MSS_MIN, MSS_MAX)
    }

    /// Bytes before `snd_una` that count as under way until [`show_clock`] plays
    /// their ACK: only an ACK of some byte gives the kernel a round-trip sample.
    /// The client has long had the byte, and ignores it should it be sent again.
    fn marker(&self) -> &'static [u8] {
        let sent_any = self.snd_una != self.record.iss.plus(1);
        let shown = self.tsval.and(self.client_clock).is_some();
        if shown && sent_any && !self.closing.own_fin_acked() { &[0] } else { &[] }
    }

    /// Whether [`show_clock`] gives the kernel a sample of the round trip.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        !self.marker().is_empty()
    }

    /// Where the send queue starts.
    fn send_start(&self) -> SeqNo {
        let before = self.marker().len() as u32;
        SeqNo(self.snd_una.plus(self.closing.sent_fin_offset()).0.wrapping_sub(before))
    }

    fn unread_len(&self) -> usize {
        self.unread.iter().map(|piece| piece.len()).sum()
    }
}

/// What failed while a connection was being rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error("{step}: {source}; {remedy}")]
    Step {
        /// The system call and option.
        step: &'static str,
        remedy: &'static str,
        source: io::Error,
    },
    #[error(
        "the kernel took {taken} of {len} bytes into the {queue} queue; raise the buffer size in the specification"
    )]
    QueueFull { queue: &'static str, taken: usize, len: usize },
    #[error(
        "an IPv6 connection cannot be rebuilt on an AF_INET socket; the replica must create the socket in the listener's family"
    )]
    Family,
    #[error(
        "output in flight behind a FIN that the client has acknowledged: the specification contradicts itself"
    )]
    AckedFinWithOutput,
}

/// Names the failing step; used as `.map_err(step(..))`.
fn step(step: &'static str, remedy: &'static str) -> impl FnOnce(io::Error) -> RepairError {
    move |source| RepairError::Step { step, remedy, source }
}

const NEEDS_NET_ADMIN: &str = "the daemon needs CAP_NET_ADMIN in the socket's network namespace";
/// State of a TCP socket that is not connected, as TCP_INFO has it (`TCP_CLOSE`).
const TCP_CLOSE: u8 = 7;
const NEEDS_CLOSED: &str = "the socket must be a TCP socket that was never connected";
const NEEDS_FRESH: &str = "the socket must not have sent anything since it was rebuilt";
const KERNEL_TOO_OLD: &str = "the kernel must have CONFIG_CHECKPOINT_RESTORE (Linux 4.10 or later)";

/// Rebuilds one connection on `fd`, an unconnected TCP socket of family
/// `AF_INET`, or of `AF_INET6` (which also carries IPv4 clients, mapped).
///
/// Nothing is sent. On return the socket is established, or in the state that
/// [`finish_closing`] starts from. The service address need not be local yet.
///
/// # Errors
/// [`RepairError`]; the socket must then be thrown away. While it is in repair
/// mode closing it sends nothing.
pub fn restore(fd: BorrowedFd<'_>, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    if spec.closing.own_fin_acked() && !spec.in_flight.is_empty() {
        return Err(RepairError::AckedFinWithOutput);
    }
    ensure_blank(fd)?;
    let family = family(fd)?;
    let restored = rebuild(fd, family, spec);
    if restored.is_err() {
        // The owner of the socket has no right to another's address.
        let (level, name) = transparent(family);
        let _ = int(fd, level, name, 0);
    }
    restored
}

fn rebuild(fd: BorrowedFd<'_>, family: c_int, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    prepare(fd, family, spec)?;
    int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, TCP_REPAIR_ON)
        .map_err(step("TCP_REPAIR on", NEEDS_NET_ADMIN))?;
    connect(fd, family, spec)?;
    negotiated(fd, spec)?;
    // The send queue is the one that was chosen last, and goes first: connections at rest, most
    // of ten thousand, have nothing in the other one.
    refill(fd, "send", &[spec.marker(), spec.in_flight])?;
    if spec.unread_len() > 0 {
        select_queue(fd, TCP_RECV_QUEUE)?;
        refill(fd, "receive", spec.unread)?;
    }
    if spec.closing.own_fin_acked() {
        closing::queue_sent_fin(fd)?;
    }
    windows(fd, spec)?;
    int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)
        .map_err(step("TCP_REPAIR off without window probe", KERNEL_TOO_OLD))?;
    // Leaving repair mode forbids the reuse of the address, on which the
    // listener's bind would fail.
    reuse(fd)?;
    // Explicit sizes have locked the buffers; the kernel shall tune them again.
    int(fd, libc::SOL_SOCKET, SO_BUF_LOCK, 0)
        .map_err(step("SO_BUF_LOCK", "Linux 5.15 or later is needed"))
}

/// Writes output that was never sent. Returns how many bytes the send buffer
/// took: 0 means that it is full.
///
/// # Errors
/// As send(2), without `EAGAIN`.
pub fn live_send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut taken = 0;
    while taken < bytes.len() {
        match sockopt::send(fd, &bytes[taken..]) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

fn int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    sockopt::set(fd, level, name, &value)
}

fn reuse(fd: BorrowedFd<'_>) -> Result<(), RepairError> {
    int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(step("SO_REUSEADDR", NEEDS_CLOSED))
}

/// Checks that the descriptor is a blank TCP socket. Only the server says which of
/// its descriptors stands for a connection, and any other socket must not get options
/// that only root may set.
fn ensure_blank(fd: BorrowedFd<'_>) -> Result<(), RepairError> {
    let protocol = sockopt::get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
        .map_err(step("SO_PROTOCOL", NEEDS_CLOSED))?;
    // The first byte of TCP_INFO is the state; of another kind of socket, as a raw one for TCP,
    // there is none.
    let closed = protocol == libc::IPPROTO_TCP
        && sockopt::get::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
            .is_ok_and(|state| state == TCP_CLOSE);
    if closed {
        return Ok(());
    }
    let other = io::Error::from(io::ErrorKind::InvalidInput);
    Err(step("the descriptor", NEEDS_CLOSED)(other))
}

fn family(fd: BorrowedFd<'_>) -> Result<c_int, RepairError> {
    sockopt::get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
        .map_err(step("SO_DOMAIN", NEEDS_CLOSED))
}

fn transparent(family: c_int) -> (c_int, c_int) {
    if family == libc::AF_INET6 {
        (libc::IPPROTO_IPV6, IPV6_TRANSPARENT)
    } else {
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT)
    }
}

/// Sets everything that must be in place before repair mode.
fn prepare(fd: BorrowedFd<'_>, family: c_int, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    reuse(fd)?;
    // Only TRANSPARENT lets connect() route from an address that is not local
    // yet; FREEBIND allows no more than the bind().
    let (level, name) = transparent(family);
    int(fd, level, name, 1).map_err(step("IP_TRANSPARENT", NEEDS_NET_ADMIN))?;
    // The buffers come first: connect() derives the largest window from them,
    // and a full queue refuses bytes.
    let window = usize::try_from(spec.right_edge.since(spec.rcv_nxt)).unwrap_or(0);
    let receive = spec.unread_len().max(window) + QUEUE_SLACK_BYTES;
    let send = spec.in_flight.len() + QUEUE_SLACK_BYTES;
    let size = |wanted: usize, least: usize| -> c_int {
        // The kernel doubles what it is given.
        wanted.max(least).try_into().unwrap_or(c_int::MAX / 2).min(c_int::MAX / 2)
    };
    let receive = size(spec.recv_buffer_bytes, receive);
    int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, receive)
        .map_err(step("SO_RCVBUFFORCE", NEEDS_NET_ADMIN))?;
    int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size(spec.send_buffer_bytes, send))
        .map_err(step("SO_SNDBUFFORCE", NEEDS_NET_ADMIN))?;
    if let Some(name) = spec.congestion {
        sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes()).map_err(
            step("TCP_CONGESTION", "name one of net.ipv4.tcp_available_congestion_control"),
        )?;
    }
    Ok(())
}

/// Sets addresses, sequence numbers and segment size, up to `ESTABLISHED`.
fn connect(fd: BorrowedFd<'_>, family: c_int, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    let (local, remote) = addresses(family, &spec.key)?;
    sockopt::bind(fd, &local)
        .map_err(step("bind", "the socket must be unbound and no other may hold the connection"))?;
    queue_seq(fd, TCP_RECV_QUEUE, spec.rcv_nxt)?;
    queue_seq(fd, TCP_SEND_QUEUE, spec.send_start())?;
    // connect() computes the segment size before TCP_REPAIR_OPTIONS are known and
    // would keep 536 bytes until the path's MTU changes.
    let mss = c_int::from(spec.mss());
    int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss).map_err(step("TCP_MAXSEG", NEEDS_CLOSED))?;
    sockopt::connect(fd, &remote).map_err(step("connect", "the client must be routable"))
}

fn addresses(family: c_int, key: &ConnKey) -> Result<(Address, Address), RepairError> {
    if family == libc::AF_INET6 {
        return Ok((
            Address::inet6(key.server, key.server_port),
            Address::inet6(key.client, key.client_port),
        ));
    }
    match (mapped_ipv4(&key.server), mapped_ipv4(&key.client)) {
        (Some(server), Some(client)) => {
            Ok((Address::inet(server, key.server_port), Address::inet(client, key.client_port)))
        }
        _ => Err(RepairError::Family),
    }
}

fn select_queue(fd: BorrowedFd<'_>, queue: c_int) -> Result<(), RepairError> {
    int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
        .map_err(step("TCP_REPAIR_QUEUE", NEEDS_NET_ADMIN))
}

fn queue_seq(fd: BorrowedFd<'_>, queue: c_int, seq: SeqNo) -> Result<(), RepairError> {
    select_queue(fd, queue)?;
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &seq.0)
        .map_err(step("TCP_QUEUE_SEQ", NEEDS_CLOSED))
}

/// `struct tcp_repair_opt`.
#[derive(IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// Sets everything that SYN and SYN-ACK agreed on.
fn negotiated(fd: BorrowedFd<'_>, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    let record = spec.record;
    let mut options = [RepairOption::default(); 4];
    options[0] = RepairOption { code: TCPOPT_MSS, value: u32::from(spec.mss()) };
    let mut count = 1;
    let mut add = |code, value| {
        options[count] = RepairOption { code, value };
        count += 1;
    };
    if record.sack {
        add(TCPOPT_SACK_PERM, 0);
    }
    // Without scaling, too: connect() has chosen a shift of its own, by which the kernel
    // would divide every window that it advertises.
    let scaled = record.snd_wscale != NO_WSCALE && record.rcv_wscale != NO_WSCALE;
    let (send, receive) = if scaled { (record.snd_wscale, record.rcv_wscale) } else { (0, 0) };
    add(TCPOPT_WINDOW, u32::from(send) | u32::from(receive) << 16);
    if spec.tsval.is_some() {
        add(TCPOPT_TIMESTAMP, 0);
    }
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &options[..count])
        .map_err(step("TCP_REPAIR_OPTIONS", NEEDS_FRESH))?;
    if let Some(tsval) = spec.tsval {
        sockopt::set(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP, &tsval)
            .map_err(step("TCP_TIMESTAMP", NEEDS_NET_ADMIN))?;
    }
    Ok(())
}

/// Fills the chosen queue: in repair mode, send() does that; one call takes at most about 70 kB.
fn refill(fd: BorrowedFd<'_>, name: &'static str, pieces: &[&[u8]]) -> Result<(), RepairError> {
    for piece in pieces {
        let taken = live_send(fd, piece).map_err(step("filling a queue", NEEDS_NET_ADMIN))?;
        if taken < piece.len() {
            return Err(RepairError::QueueFull { queue: name, taken, len: piece.len() });
        }
    }
    Ok(())
}

/// `struct tcp_repair_window`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// Sets both windows. The right edge reaches as far as it was ever advertised
/// (L4): Linux 6.17 and later drop what ends beyond it.
fn windows(fd: BorrowedFd<'_>, spec: &RestoreSpec<'_>) -> Result<(), RepairError> {
    let rcv_end = spec.rcv_end();
    let advertised = u32::try_from(spec.right_edge.since(rcv_end)).unwrap_or(0);
    let largest = match spec.record.rcv_wscale {
        NO_WSCALE => WINDOW_MAX_UNSCALED,
        shift => WINDOW_MAX_UNSCALED << shift.min(14),
    };
    // A FIN needs a place in the window like a byte, even when the window is full.
    let fin = u32::from(spec.closing.peer_fin());
    let window = RepairWindow {
        snd_wl1: rcv_end.0,
        snd_wnd: spec.peer_window_bytes,
        max_window: spec.peer_window_bytes.max(u32::from(spec.mss())),
        rcv_wnd: advertised.min(largest).max(fin),
        rcv_wup: rcv_end.0,
    };
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window)
        .map_err(step("TCP_REPAIR_WINDOW", KERNEL_TOO_OLD))
}
