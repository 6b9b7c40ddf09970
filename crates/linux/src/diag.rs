//! The state of TCP connections by their exact four-tuple, asked of the kernel
//! without listing all sockets (`SOCK_DIAG_BY_FAMILY`), and ending connections
//! that nobody owns any more (`SOCK_DESTROY`).

use crate::clock::monotonic;
use crate::listeners::INODE;
use crate::netlink::{self, SOCK_DIAG_BY_FAMILY};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::map_ipv4;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const SOCK_DESTROY: u16 = 21;
/// `TCPF_LISTEN` as a bit in a request's mask of states.
const LISTENING: u32 = 1 << LISTENS;
/// `TCPF_FIN_WAIT1`, `TCPF_FIN_WAIT2`, `TCPF_LAST_ACK`, `TCPF_CLOSING`.
const CLOSING: u32 = 1 << 4 | 1 << 5 | 1 << 9 | 1 << 11;
/// `TCPF_TIME_WAIT`: a connection no longer the server's.
const PASSED: u32 = 1 << 6;
/// `TCPF_SYN_RECV`, `TCPF_NEW_SYN_RECV` and `TCPF_TIME_WAIT`: connections not yet or
/// no longer the server's.
const PASSING: u32 = 1 << 3 | PASSED | 1 << 12;
/// `TCPF_ESTABLISHED`, `TCPF_CLOSE_WAIT`: in them a connection without a process waits to be
/// accepted.
const COMPLETE: u32 = 1 << 1 | 1 << 8;
/// Lists that are asked for at most. A connection that is closed becomes another object
/// of the kernel's, under the same name: one that does so while it is listed is found
/// when it is listed again.
const ROUNDS_MAX: usize = 4;
/// Place of `struct inet_diag_sockid` in an answer.
const ID: std::ops::Range<usize> = 4..52;
/// Offset of `idiag_cookie` in that structure, low half first.
const COOKIE: usize = 40;
/// Size of the buffer for a list, in bytes: more than one of its datagrams.
const LIST_BYTES: usize = 64 << 10;
/// Most questions per system call; their answers must fit the socket's buffer.
const BATCH: usize = 32;
/// Sizes of `struct inet_diag_req_v2` and `struct inet_diag_msg`, in bytes.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Offset of `idiag_state` in `struct inet_diag_msg`; `TCP_LISTEN` and
/// `TCP_FIN_WAIT2` there.
const STATE: usize = 1;
const LISTENS: u8 = 10;
const WAITS_FOR_FIN: u8 = 5;
/// Offset of `idiag_timer` in it; its value for a connection whose peer's window
/// is closed.
const TIMER: usize = 2;
const ASKS_FOR_WINDOW: u8 = 4;
/// Offset of `idiag_retrans` in it: how often the kernel has repeated data, or asked
/// for a window, since the peer last answered.
const REPEATS: usize = 3;
/// Offset of `idiag_wqueue` in it: a listener's backlog, or what a connection's
/// peer has not acknowledged.
const WAITING: usize = 60;

/// `INET_DIAG_INFO`, the attribute of an answer with a `struct tcp_info`, its bit in `idiag_ext` of a
/// question, that field's offset, and the offset of `tcpi_last_ack_recv` in the structure: the time
/// in ms since the peer's last acceptable ACK, or since the connection was rebuilt.
const INFO: u16 = 2;
const WITH_INFO: u8 = 1 << (INFO - 1);
const EXTENSIONS: usize = 2;
const LAST_ACK: usize = 56;
/// By how much that time may exceed the truth: two ticks of a kernel with 100 Hz.
const TICKS: Duration = Duration::from_millis(20);

/// Why the kernel did not say.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    #[error("opening a socket diagnosis socket: {0}; the kernel must have CONFIG_INET_DIAG")]
    Open(io::Error),
    #[error("asking for the state of a connection: {0}")]
    Ask(io::Error),
    #[error("ending connections: {0}; the kernel must have CONFIG_INET_DIAG_DESTROY")]
    Destroy(io::Error),
}

/// TCP states of RFC 9293 §3.3.2, numbered as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Closing,
}

impl TcpState {
    /// The state with this number; `None` for a listener, which is no
    /// connection, and for unknown numbers.
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is Linux's NEW_SYN_RECV.
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => return None,
        })
    }
}

/// Output that a client has not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unacked {
    /// Bytes, sent or not.
    pub bytes: u32,
    /// How often the kernel has repeated data, or asked for a window, since the client last
    /// answered.
    pub repeats: u8,
    /// Whether the client lets the kernel send nothing.
    pub window_closed: bool,
}

/// A socket diagnosis socket.
#[derive(Debug)]
pub struct DiagSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl DiagSocket {
    /// # Errors
    /// [`DiagError::Open`].
    pub fn open() -> Result<Self, DiagError> {
        let fd = netlink::open(libc::NETLINK_SOCK_DIAG).map_err(DiagError::Open)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// The state of each connection as seen by this host as its server; `None`
    /// where it has no such connection.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn states(&mut self, keys: &[ConnKey]) -> Result<Vec<Option<TcpState>>, DiagError> {
        let mut states = vec![None; keys.len()];
        for (keys, states) in keys.chunks(BATCH).zip(states.chunks_mut(BATCH)) {
            self.batch(keys, states).map_err(DiagError::Ask)?;
        }
        Ok(states)
    }

    /// Like [`Self::states`], for one connection.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn state(&mut self, key: &ConnKey) -> Result<Option<TcpState>, DiagError> {
        let mut state = [None];
        self.batch(std::slice::from_ref(key), &mut state).map_err(DiagError::Ask)?;
        Ok(state[0])
    }

    /// Most connections that may wait for the listener that would take this one,
    /// in the handshake or after it; `None` if nobody listens.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn backlog(&mut self, key: &ConnKey) -> Result<Option<u32>, DiagError> {
        let mut backlog = None;
        let found = |_: usize, body: &[u8]| {
            backlog = waiting(body).filter(|_| body[STATE] == LISTENS);
        };
        self.look_up(std::slice::from_ref(key), found).map_err(DiagError::Ask)?;
        Ok(backlog)
    }

    /// The rest of each connection's output; nothing for a connection that this host
    /// does not have.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn unacked(&mut self, keys: &[ConnKey]) -> Result<Vec<Unacked>, DiagError> {
        let mut unacked = vec![Unacked::default(); keys.len()];
        for (keys, unacked) in keys.chunks(BATCH).zip(unacked.chunks_mut(BATCH)) {
            let found = |at: usize, body: &[u8]| {
                let bytes = waiting(body).filter(|_| body[STATE] != LISTENS);
                if let Some((unacked, bytes)) = unacked.get_mut(at).zip(bytes) {
                    let window_closed = body[TIMER] == ASKS_FOR_WINDOW;
                    *unacked = Unacked { bytes, repeats: body[REPEATS], window_closed };
                }
            };
            self.look_up(keys, found).map_err(DiagError::Ask)?;
        }
        Ok(unacked)
    }

    /// Those of the connections whose clients have sent no ACK since then
    /// ([`monotonic`]).
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn unheard(
        &mut self,
        keys: &[ConnKey],
        since: Duration,
    ) -> Result<Vec<ConnKey>, DiagError> {
        let mut unheard = Vec::new();
        let silence = monotonic().saturating_sub(since).saturating_sub(TICKS);
        for keys in keys.chunks(BATCH) {
            let mut questions: Vec<Vec<u8>> = keys.iter().map(request).collect();
            questions.iter_mut().for_each(|question| question[EXTENSIONS] = WITH_INFO);
            let found = |at: usize, body: &[u8]| {
                let is_silent = last_ack(body).is_some_and(|ago| ago >= silence);
                unheard.extend(keys.get(at).filter(|_| is_silent && body[STATE] != LISTENS));
            };
            self.ask(SOCK_DIAG_BY_FAMILY, &questions, found).map_err(DiagError::Ask)?;
        }
        Ok(unheard)
    }

    /// Ends connections without a word to their clients; a connection that is gone
    /// already is no error.
    ///
    /// # Errors
    /// [`DiagError::Destroy`].
    pub fn destroy(&mut self, keys: &[ConnKey]) -> Result<(), DiagError> {
        for keys in keys.chunks(BATCH) {
            // If there is no such connection, the kernel would end the listener that would
            // take it: connections are named by their cookies, therefore.
            let mut named = Vec::new();
            let found = |_: usize, body: &[u8]| {
                if body[STATE] != LISTENS {
                    named.push(by_id(body[0], u32::MAX, &body[ID]));
                }
            };
            self.look_up(keys, found).map_err(DiagError::Ask)?;
            if !named.is_empty() {
                self.ask(SOCK_DESTROY, &named, |_, _| {}).map_err(DiagError::Destroy)?;
            }
        }
        Ok(())
    }

    /// Ends every connection of this host whose own end is one of these
    /// addresses (IPv4 mapped into IPv6) and ports, whoever holds it; listeners
    /// stay. Returns their number.
    ///
    /// # Errors
    /// [`DiagError::Ask`], [`DiagError::Destroy`].
    pub fn destroy_own(
        &mut self,
        addresses: &[[u8; 16]],
        ports: &[u16],
    ) -> Result<usize, DiagError> {
        let mut destroyed = 0;
        for _ in 0..ROUNDS_MAX {
            let mut found = 0;
            for family in [libc::AF_INET, libc::AF_INET6] {
                let family = family as u8;
                for id in self.list(family, !LISTENING, addresses, ports, |_| true)? {
                    found += 1;
                    let was_there = self.destroy_one(family, &id).map_err(DiagError::Destroy)?;
                    destroyed += usize::from(was_there);
                }
            }
            if found == 0 {
                break;
            }
        }
        Ok(destroyed)
    }

    /// Number of connections of this host whose own end is one of these addresses
    /// and ports, without those that no process holds: the kernel alone still closes
    /// them, or nobody has accepted them yet.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn count_own(&mut self, addresses: &[[u8; 16]], ports: &[u16]) -> Result<usize, DiagError> {
        let mut count = 0;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let states = !(LISTENING | PASSING);
            count += self.list(family as u8, states, addresses, ports, is_held)?.len();
        }
        Ok(count)
    }

    /// Whether this connection waits in the queue of its listener until a process accepts it.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn is_queued(&mut self, key: &ConnKey) -> Result<bool, DiagError> {
        let mut queued = false;
        let found = |_: usize, body: &[u8]| {
            let state = COMPLETE.checked_shr(body[STATE].into()).unwrap_or(0);
            queued = state & 1 != 0 && !is_held(body);
        };
        self.look_up(std::slice::from_ref(key), found).map_err(DiagError::Ask)?;
        Ok(queued)
    }

    /// The connections that wait so at this address and port.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn queued(&mut self, address: [u8; 16], port: u16) -> Result<Vec<ConnKey>, DiagError> {
        self.keys(COMPLETE, &[address], &[port], |body| !is_held(body))
    }

    /// The connections that [`Self::count_own`] counts, and those that nobody has accepted
    /// yet, or that the kernel alone still closes; but of the latter not those whose client
    /// owes it nothing but its own end, or has made it repeat itself this often.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn living(
        &mut self,
        addresses: &[[u8; 16]],
        ports: &[u16],
        repeats: u8,
    ) -> Result<Vec<ConnKey>, DiagError> {
        let is_left = |body: &[u8]| {
            let closes = CLOSING.checked_shr(body[STATE].into()).unwrap_or(0) & 1 != 0;
            closes && !is_held(body) && (body[STATE] == WAITS_FOR_FIN || body[REPEATS] >= repeats)
        };
        self.keys(!(LISTENING | PASSING), addresses, ports, |body| !is_left(body))
    }

    /// Like [`Self::list`], for both address families.
    fn keys(
        &mut self,
        states: u32,
        addresses: &[[u8; 16]],
        ports: &[u16],
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<ConnKey>, DiagError> {
        let mut keys = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let ids = self.list(family, states, addresses, ports, &wanted)?;
            keys.extend(ids.iter().filter_map(|id| key_of(family, id)));
        }
        Ok(keys)
    }

    /// All of them, with handshakes, and the cookie of each socket (SO_COOKIE).
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn own_sockets(
        &mut self,
        addresses: &[[u8; 16]],
        ports: &[u16],
    ) -> Result<Vec<(ConnKey, u64)>, DiagError> {
        let mut sockets = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let ids = self.list(family, !(LISTENING | PASSED), addresses, ports, |_| true)?;
            let socket = |id: &Vec<u8>| {
                let cookie = u64::from_ne_bytes(*id.get(COOKIE..)?.first_chunk()?);
                Some((key_of(family, id)?, cookie))
            };
            sockets.extend(ids.iter().filter_map(socket));
        }
        Ok(sockets)
    }

    /// The `inet_diag_sockid` of each connection in one of `states` whose answer is
    /// `wanted`.
    fn list(
        &mut self,
        family: u8,
        states: u32,
        addresses: &[[u8; 16]],
        ports: &[u16],
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>, DiagError> {
        self.dump(family, states, |body| {
            let own = own_end(body)
                .is_some_and(|(port, source)| ports.contains(&port) && addresses.contains(&source));
            own && wanted(body)
        })
        .map_err(DiagError::Ask)
    }

    fn dump(
        &mut self,
        family: u8,
        states: u32,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<Vec<u8>>> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        let body = by_id(family, states, &[0; 48]);
        self.say(SOCK_DIAG_BY_FAMILY, flags, &body)?;
        let (mut ids, mut buffer) = (Vec::new(), vec![0; LIST_BYTES]);
        loop {
            for answer in netlink::answers(netlink::receive(&self.fd, &mut buffer)?) {
                if let Some(errno) = answer.errno() {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                if i32::from(answer.kind) == libc::NLMSG_DONE {
                    return Ok(ids);
                }
                if let Some(id) = answer.body.get(ID).filter(|_| wanted(answer.body)) {
                    ids.push(id.to_vec());
                }
            }
        }
    }

    /// Ends one connection; true if it was still there.
    fn destroy_one(&mut self, family: u8, id: &[u8]) -> io::Result<bool> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.say(SOCK_DESTROY, flags, &by_id(family, u32::MAX, id))?;
        let mut buffer = [0; 1024];
        let datagram = netlink::receive(&self.fd, &mut buffer)?;
        match netlink::answers(datagram).find_map(|answer| answer.errno()) {
            Some(0) => Ok(true),
            Some(libc::ENOENT) => Ok(false),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends one request under the next sequence number.
    fn say(&mut self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::new();
        netlink::append(&mut request, kind, flags, self.sequence, body);
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &request)
    }

    fn batch(&mut self, keys: &[ConnKey], states: &mut [Option<TcpState>]) -> io::Result<()> {
        self.look_up(keys, |index, body| {
            if let Some(state) = states.get_mut(index) {
                *state = TcpState::from_number(body[STATE]);
            }
        })
    }

    /// Asks about connections. `found` gets the index of a connection among the keys, and a
    /// whole `struct inet_diag_msg` about it, or, if there is no such connection, about the
    /// listener that would take it.
    fn look_up(&mut self, keys: &[ConnKey], found: impl FnMut(usize, &[u8])) -> io::Result<()> {
        let requests: Vec<Vec<u8>> = keys.iter().map(request).collect();
        self.ask(SOCK_DIAG_BY_FAMILY, &requests, found)
    }

    /// Sends requests, all at once; `found` gets the index of each that is answered, and the
    /// answer.
    fn ask(
        &mut self,
        what: u16,
        bodies: &[Vec<u8>],
        mut found: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let first = self.sequence;
        self.sequence = first.wrapping_add(bodies.len() as u32);
        let mut requests = Vec::with_capacity(bodies.len() * (REQUEST + 16));
        for (index, body) in bodies.iter().enumerate() {
            let sequence = first.wrapping_add(index as u32);
            let ack = if what == SOCK_DESTROY { libc::NLM_F_ACK } else { 0 };
            let flags = libc::NLM_F_REQUEST | ack;
            netlink::append(&mut requests, what, flags, sequence, body);
        }
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &requests)?;

        let mut buffer = [0; 8192];
        let mut missing = bodies.len();
        while missing > 0 {
            for answer in netlink::answers(netlink::receive(&self.fd, &mut buffer)?) {
                let index = answer.sequence.wrapping_sub(first) as usize;
                if index >= bodies.len() {
                    continue;
                }
                missing = missing.saturating_sub(1);
                match answer.errno() {
                    Some(libc::ENOENT | 0) => {}
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None if answer.body.len() >= ANSWER => found(index, answer.body),
                    None => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        }
        Ok(())
    }
}

/// How long ago a client's last ACK came, in an answer that tells.
fn last_ack(body: &[u8]) -> Option<Duration> {
    let (_, info) = netlink::attributes(body.get(ANSWER..)?).find(|(kind, _)| *kind == INFO)?;
    let ago_ms = u32::from_ne_bytes(*info.get(LAST_ACK..)?.first_chunk()?);
    Some(Duration::from_millis(ago_ms.into()))
}

/// The [`WAITING`] field of a `struct inet_diag_msg`.
fn waiting(body: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*body.get(WAITING..)?.first_chunk()?))
}

/// A `struct inet_diag_req_v2` for a mask of states, with this identity.
fn by_id(family: u8, states: u32, id: &[u8]) -> Vec<u8> {
    let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

/// Whether a process holds the socket: only then does it have an inode.
fn is_held(body: &[u8]) -> bool {
    body.get(INODE..).and_then(|rest| rest.first_chunk::<4>()).is_some_and(|inode| *inode != [0; 4])
}

/// Port and address of this host in a `struct inet_diag_msg`.
fn own_end(body: &[u8]) -> Option<(u16, [u8; 16])> {
    let id = body.get(..ANSWER)?.get(ID)?;
    let port = u16::from_be_bytes(*id.first_chunk()?);
    let source: [u8; 16] = id.get(4..20)?.try_into().ok()?;
    let is_v4 = i32::from(body[0]) == libc::AF_INET;
    let v4 = *source.first_chunk::<4>()?;
    Some((port, if is_v4 { map_ipv4(v4) } else { source }))
}

/// The connection of an `inet_diag_sockid`; its own end is the server's.
fn key_of(family: u8, id: &[u8]) -> Option<ConnKey> {
    let port = |at: usize| Some(u16::from_be_bytes(*id.get(at..)?.first_chunk()?));
    let address = |at: usize| {
        let bytes: [u8; 16] = id.get(at..at + 16)?.try_into().ok()?;
        let is_v4 = i32::from(family) == libc::AF_INET;
        Some(if is_v4 { map_ipv4(*bytes.first_chunk()?) } else { bytes })
    };
    Some(ConnKey {
        server: address(4)?,
        client: address(20)?,
        server_port: port(0)?,
        client_port: port(2)?,
    })
}

/// A `struct inet_diag_req_v2`. The kernel looks mapped addresses up among IPv4
/// connections too, whatever the family of their socket.
fn request(key: &ConnKey) -> Vec<u8> {
    let mut body = vec![libc::AF_INET6 as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(key.server_port.to_be_bytes());
    body.extend(key.client_port.to_be_bytes());
    body.extend(key.server);
    body.extend(key.client);
    // Any interface, any cookie.
    body.extend(0u32.to_ne_bytes());
    body.extend([0xff; 8]);
    body
}
