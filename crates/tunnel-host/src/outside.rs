//! The UDP socket towards the peer: many datagrams per system call (GSO, GRO), congestion marks, and
//! no fragments.

use holdfast_tunnel::Ecn;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of a receive buffer: a whole super-datagram.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of datagrams that one call sends: what an IPv4 packet holds.
const BATCH_BYTES_MAX: usize = 65_507;
/// Datagrams that one call sends (UDP_MAX_SEGMENTS of Linux before 6.9).
const BATCH_MAX: usize = 64;
/// Bytes of the kernel's buffers, each way; it gives what `net.core.rmem_max` allows.
const SOCKET_BYTES: usize = 4 << 20;

/// What the socket has done.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Datagrams, and system calls that brought or took them.
    pub received: u64,
    pub received_calls: u64,
    pub received_bytes: u64,
    pub sent: u64,
    pub sent_calls: u64,
    pub sent_bytes: u64,
    /// Datagrams that the kernel did not take.
    pub send_errors: u64,
}

/// The socket, and the datagrams that leave together next.
pub struct Outside {
    socket: UdpSocket,
    state: UdpSocketState,
    is_v6: bool,
    is_wildcard: bool,
    buffers: Vec<Vec<u8>>,
    batch: Batch,
    /// The own address at which the peer was heard: answers come from there.
    source: Option<(SocketAddr, IpAddr)>,
    counters: Counters,
}

/// Datagrams to one address, all as long as the first, but for the last one, which may be shorter.
#[derive(Default)]
struct Batch {
    to: Option<SocketAddr>,
    ecn: Ecn,
    bytes: Vec<u8>,
    datagram_bytes: usize,
    count: usize,
    is_closed: bool,
}

impl Outside {
    /// Listens at `listen`, or at any port.
    ///
    /// # Errors
    /// As `bind`.
    pub fn open(listen: Option<SocketAddr>) -> io::Result<Self> {
        let socket = match listen {
            Some(address) => UdpSocket::bind(address)?,
            // Of both families, where there are both.
            None => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?,
        };
        let state = UdpSocketState::new((&socket).into())?;
        // Less is what a kernel gives that allows no more.
        let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BYTES);
        let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BYTES);
        let own = socket.local_addr()?;
        Ok(Self {
            state,
            is_v6: own.is_ipv6(),
            is_wildcard: own.ip().is_unspecified(),
            socket,
            buffers: vec![vec![0; BUFFER_BYTES]; BATCH_SIZE.min(8)],
            batch: Batch::default(),
            source: None,
            counters: Counters::default(),
        })
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes what has come, at most one system call's worth; whether that was all.
    ///
    /// # Errors
    /// As `recvmmsg`, but for those that say that nothing is there.
    pub fn receive(
        &mut self,
        mut take: impl FnMut(SocketAddr, Ecn, &mut [u8]) -> bool,
    ) -> io::Result<bool> {
        let mut slices: Vec<IoSliceMut<'_>> =
            self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut metas = vec![RecvMeta::default(); slices.len()];
        let received = self.state.recv((&self.socket).into(), &mut slices, &mut metas);
        let messages = match received {
            Ok(messages) => messages,
            Err(error) if is_nothing(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        drop(slices);
        let mut count = 0;
        self.counters.received_calls += 1;
        for (buffer, meta) in self.buffers.iter_mut().zip(&metas).take(messages) {
            let from = canonical(meta.addr);
            let ecn = Ecn::of_bits(meta.ecn.map_or(0, |ecn| ecn as u8));
            let bytes = buffer.get_mut(..meta.len).unwrap_or_default();
            self.counters.received_bytes += bytes.len() as u64;
            for datagram in bytes.chunks_mut(meta.stride.max(1)) {
                count += 1;
                // Where a datagram of the peer was for, an answer comes from.
                if take(from, ecn, datagram)
                    && self.is_wildcard
                    && let Some(own) = meta.dst_ip
                {
                    self.source = Some((from, own));
                }
            }
        }
        self.counters.received += count as u64;
        // What has come since wakes the loop again.
        Ok(messages < self.buffers.len())
    }

    /// Whether another datagram of so many bytes may join those that wait; if not, they have to be
    /// flushed first.
    pub fn has_room(&self, to: SocketAddr, ecn: Ecn, bytes: usize) -> bool {
        let batch = &self.batch;
        let most = self.state.max_gso_segments().min(BATCH_MAX);
        batch.count == 0
            || (!batch.is_closed
                && batch.to == Some(to)
                && batch.ecn == ecn
                && bytes <= batch.datagram_bytes
                && batch.count < most
                && batch.bytes.len() + bytes <= BATCH_BYTES_MAX)
    }

    /// Adds a datagram for which there is room: `write` appends it to what waits.
    pub fn push(
        &mut self,
        to: SocketAddr,
        ecn: Ecn,
        write: impl FnOnce(&mut Vec<u8>, usize) -> bool,
    ) {
        let batch = &mut self.batch;
        let at = batch.bytes.len();
        if !write(&mut batch.bytes, at) {
            batch.bytes.truncate(at);
            return;
        }
        let bytes = batch.bytes.len() - at;
        if batch.count == 0 {
            (batch.to, batch.ecn, batch.datagram_bytes) = (Some(to), ecn, bytes);
        }
        batch.is_closed = bytes < batch.datagram_bytes;
        batch.count += 1;
    }

    /// Sends what waits. `false`: the kernel has no room, so it still waits.
    pub fn flush(&mut self) -> bool {
        let Some(to) = self.batch.to.filter(|_| self.batch.count > 0) else { return true };
        let result = self.send_batch(to);
        let (count, bytes) = (self.batch.count as u64, self.batch.bytes.len() as u64);
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Ok(()) => {
                self.counters.sent += count;
                self.counters.sent_bytes += bytes;
            }
            // A question about the path's size, which is answered by that.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
            // An interface that is down, a route that is not there: lost, as on any path. The own
            // address may be another one by now.
            Err(_) => {
                self.counters.send_errors += count;
                self.source = None;
            }
        }
        self.counters.sent_calls += 1;
        self.batch.bytes.clear();
        (self.batch.count, self.batch.is_closed) = (0, false);
        true
    }

    /// Whether something waits for the kernel's room.
    pub fn is_waiting(&self) -> bool {
        self.batch.count > 0
    }

    fn send_batch(&self, to: SocketAddr) -> io::Result<()> {
        let source = self.source.filter(|(peer, _)| *peer == to).map(|(_, own)| own);
        let mut transmit = Transmit {
            destination: self.for_socket(to),
            ecn: EcnCodepoint::from_bits(self.batch.ecn.bits()),
            contents: &self.batch.bytes,
            segment_size: (self.batch.count > 1).then_some(self.batch.datagram_bytes),
            src_ip: source,
        };
        let first = self.state.try_send((&self.socket).into(), &transmit);
        match first {
            // That address is not this host's any more.
            Err(error)
                if source.is_some()
                    && error.kind() != ErrorKind::WouldBlock
                    && error.raw_os_error() != Some(libc::EMSGSIZE) =>
            {
                transmit.src_ip = None;
                self.state.try_send((&self.socket).into(), &transmit)
            }
            first => first,
        }
    }

    /// An address as this socket's family has it.
    fn for_socket(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            other => other,
        }
    }
}

impl AsFd for Outside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An IPv4 address as such, even where it came through an IPv6 socket.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

/// Whether an error of receiving says only that nothing is there, or what became of something sent
/// (ICMP), which a tunnel does not believe.
fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::ConnectionReset
    ) || matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::ENOPROTOOPT | libc::EACCES | libc::EPROTO)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Outside, Outside, SocketAddr) {
        let listen = |text: &str| Outside::open(Some(text.parse().expect("an address")));
        let a = listen("127.0.0.1:0").expect("a socket");
        let b = listen("127.0.0.1:0").expect("a socket");
        let to = b.socket.local_addr().expect("an address");
        (a, b, to)
    }

    #[test]
    fn datagrams_of_one_length_leave_in_one_call_and_arrive_one_by_one() {
        let (mut a, mut b, to) = pair();
        let sizes = [1000usize, 1000, 1000, 400];
        for (number, size) in sizes.into_iter().enumerate() {
            assert!(a.has_room(to, Ecn::Capable0, size), "{number}");
            a.push(to, Ecn::Capable0, |bytes, _| {
                bytes.extend(vec![number as u8; size]);
                true
            });
        }
        assert!(!a.has_room(to, Ecn::Capable0, 400), "a short one is the last");
        assert!(a.flush() && !a.is_waiting());
        let mut came = Vec::new();
        while came.len() < sizes.len() {
            b.receive(|_, ecn, datagram| {
                assert_eq!(ecn, Ecn::Capable0);
                came.push((datagram[0], datagram.len()));
                true
            })
            .expect("datagrams");
        }
        assert_eq!(came, [(0, 1000), (1, 1000), (2, 1000), (3, 400)]);
        assert_eq!(a.counters().sent, 4);
    }

    #[test]
    fn what_does_not_go_together_waits_for_the_next_call() {
        let (mut a, _b, to) = pair();
        a.push(to, Ecn::NotCapable, |bytes, _| {
            bytes.extend([0; 500]);
            true
        });
        assert!(!a.has_room(to, Ecn::NotCapable, 501), "longer than the first");
        assert!(!a.has_room(to, Ecn::Congested, 500), "with another mark");
        let other = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert!(!a.has_room(other, Ecn::NotCapable, 500), "to somebody else");
        a.push(to, Ecn::NotCapable, |bytes, _| {
            bytes.extend([1; 100]);
            false
        });
        assert_eq!(a.batch.bytes.len(), 500, "what was not written leaves nothing");
    }

    #[test]
    fn an_ipv4_peer_is_one_even_at_a_socket_of_both_families() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:7".parse().expect("an address");
        assert_eq!(canonical(mapped), "192.0.2.1:7".parse().expect("an address"));
        let v6: SocketAddr = "[2001:db8::1]:7".parse().expect("an address");
        assert_eq!(canonical(v6), v6);
    }
}
