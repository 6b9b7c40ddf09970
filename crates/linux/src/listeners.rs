//! The sockets of this network namespace that wait for clients: listening TCP
//! sockets and unconnected UDP sockets (`SOCK_DIAG_BY_FAMILY`, dumped).

use crate::netlink::{self, SOCK_DIAG_BY_FAMILY};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

const TCP_CLOSE: u32 = 7;
/// That of a UDP socket that is connected.
const TCP_ESTABLISHED: u32 = 1;
const TCP_LISTEN: u32 = 10;
/// Length of `struct inet_diag_msg` up to its source address, in bytes.
const ANSWER: usize = 24;
/// Length of `struct inet_diag_msg`, which attributes follow, and offset of its
/// inode, in bytes.
const ANSWER_WHOLE: usize = 72;
pub(crate) const INODE: usize = 68;
/// Where it says how many connections wait to be accepted (`idiag_rqueue`).
const QUEUED: usize = 56;
/// The attribute for IPV6_V6ONLY (`INET_DIAG_SKV6ONLY`).
const V6ONLY: u16 = 11;
/// Most sockets that are looked at.
pub const SOCKETS_MAX: usize = 65_536;

/// A service for which a socket waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// Address that it was bound to: unspecified for all addresses.
    pub address: IpAddr,
    pub port: u16,
    pub udp: bool,
}

/// A TCP socket that listens, or a UDP socket that hears anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Address that it was bound to: unspecified for all addresses.
    pub address: IpAddr,
    pub port: u16,
    /// Whether IPv4 does not reach it although it is bound to all addresses of
    /// IPv6.
    pub v6_only: bool,
    /// Inode of the socket, as in `/proc/PID/fd`.
    pub inode: u32,
    /// Connections that wait to be accepted.
    pub queued: u32,
}

impl Listening {
    /// Whether clients of this address and port reach it.
    #[must_use]
    pub fn serves(&self, address: IpAddr, port: u16) -> bool {
        let all = match self.address {
            IpAddr::V4(own) => own.is_unspecified() && address.is_ipv4(),
            IpAddr::V6(own) => own.is_unspecified() && (address.is_ipv6() || !self.v6_only),
        };
        self.port == port && (all || self.address == address)
    }
}

/// A place to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address; unspecified for all addresses.
    pub address: IpAddr,
    pub port: u16,
    /// Whether IPv4 shall not reach it although it is bound to all addresses of
    /// IPv6.
    pub v6_only: bool,
}

impl Listening {
    /// Whether nobody else can listen at this place.
    #[must_use]
    pub fn bars(&self, place: &Place) -> bool {
        let Place { address, port, v6_only } = *place;
        let has_own = match (address, self.address) {
            (IpAddr::V6(_), IpAddr::V4(_)) => !v6_only,
            (all, own) => all.is_ipv6() == own.is_ipv6(),
        };
        let is_covered = self.port == port && address.is_unspecified() && has_own;
        self.serves(address, port) || is_covered
    }
}

/// A socket diagnosis socket.
#[derive(Debug)]
pub struct ListenerSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl ListenerSocket {
    /// # Errors
    /// As socket(2); the kernel must have CONFIG_INET_DIAG.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: netlink::open(libc::NETLINK_SOCK_DIAG)?, sequence: 0 })
    }

    /// All waiting services, sorted, at most [`SOCKETS_MAX`]. If the kernel
    /// cannot tell about UDP, only those of TCP.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn waiting(&mut self) -> io::Result<Vec<Waiting>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.dump(family, false, &mut all)?;
            match self.dump(family, true, &mut all) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// All TCP sockets that listen, at most [`SOCKETS_MAX`].
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn listening(&mut self) -> io::Result<Vec<Listening>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.dump_as((family, false), 1 << TCP_LISTEN, &mut all, parse_listening)?;
        }
        Ok(all)
    }

    /// All UDP sockets, those that hear only one sender among them, at most [`SOCKETS_MAX`]; none if the kernel
    /// cannot tell.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn bound_udp(&mut self) -> io::Result<Vec<Listening>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let states = 1 << TCP_CLOSE | 1 << TCP_ESTABLISHED;
            match self.dump_as((family, true), states, &mut all, parse_listening) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(all)
    }

    fn dump(&mut self, family: i32, udp: bool, all: &mut Vec<Waiting>) -> io::Result<()> {
        let states = 1 << if udp { TCP_CLOSE } else { TCP_LISTEN };
        self.dump_as((family, udp), states, all, |body| parse(body, udp))
    }

    fn dump_as<T>(
        &mut self,
        (family, udp): (i32, bool),
        states: u32,
        all: &mut Vec<T>,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let protocol = if udp { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
        // struct inet_diag_req_v2: all sockets of the family in these states.
        let mut body = vec![family as u8, protocol as u8, 0, 0];
        body.extend(u32::to_ne_bytes(states));
        body.resize(56, 0);
        let mut request = Vec::new();
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        netlink::append(&mut request, SOCK_DIAG_BY_FAMILY, flags, self.sequence, &body);
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &request)?;
        let mut buffer = vec![0; 32 << 10];
        loop {
            for answer in netlink::answers(netlink::receive(&self.fd, &mut buffer)?) {
                if answer.sequence != self.sequence {
                    continue;
                }
                match answer.errno() {
                    Some(0) => return Ok(()),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None if i32::from(answer.kind) == libc::NLMSG_DONE => return Ok(()),
                    None if all.len() < SOCKETS_MAX => all.extend(parse(answer.body)),
                    None => {}
                }
            }
        }
    }
}

fn parse(body: &[u8], udp: bool) -> Option<Waiting> {
    let body: &[u8; ANSWER] = body.first_chunk()?;
    let port = u16::from_be_bytes([body[4], body[5]]);
    let v4: [u8; 4] = body[8..12].try_into().ok()?;
    let v6: [u8; 16] = body[8..24].try_into().ok()?;
    let address = match i32::from(body[0]) {
        libc::AF_INET => v4.into(),
        _ => Ipv6Addr::from(v6).to_canonical(),
    };
    Some(Waiting { address, port, udp })
}

fn parse_listening(body: &[u8]) -> Option<Listening> {
    let Waiting { address, port, .. } = parse(body, false)?;
    let word = |at| body.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let (inode, queued) = (word(INODE)?, word(QUEUED)?);
    let mut rest = body.get(ANSWER_WHOLE..)?;
    let mut v6_only = false;
    // struct nlattr: length with the header, kind; aligned to four bytes.
    while let Some(([l0, l1, k0, k1], value)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1])).max(4);
        if u16::from_ne_bytes([*k0, *k1]) == V6ONLY {
            v6_only = value.first().is_some_and(|byte| *byte != 0);
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Listening { address, port, v6_only, inode, queued })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn what_waits_is_found_and_what_left_is_not() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let of =
            |port: u16, udp: bool| Waiting { address: "127.0.0.1".parse().unwrap(), port, udp };
        let tcp_port = tcp.local_addr().unwrap().port();
        let mut socket = ListenerSocket::open().unwrap();
        let found = socket.waiting().unwrap();
        assert!(found.contains(&of(tcp_port, false)));
        assert!(found.contains(&of(udp.local_addr().unwrap().port(), true)));
        drop(tcp);
        assert!(!socket.waiting().unwrap().contains(&of(tcp_port, false)));
    }

    /// A listener on all addresses of IPv6, and of IPv4 too if not `only`.
    fn on_all(only: bool) -> OwnedFd {
        use crate::sockopt::{self, Address, checked};
        use std::os::fd::AsRawFd;
        let fd = sockopt::socket(libc::AF_INET6, libc::SOCK_STREAM, 0).unwrap();
        let value = i32::from(only);
        sockopt::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &value).unwrap();
        sockopt::bind(fd.as_fd(), &Address::inet6([0; 16], 0)).unwrap();
        // SAFETY: no memory of ours.
        checked(unsafe { libc::listen(fd.as_raw_fd(), 1) }).unwrap();
        fd
    }

    #[test]
    fn a_listener_bars_its_address_and_all_addresses_of_its_family() {
        let place = |address: &str| Place {
            address: address.trim_end_matches('+').parse().unwrap(),
            port: 80,
            // A plus says that IPv4 belongs to it.
            v6_only: !address.ends_with('+'),
        };
        let cases = [
            ("127.0.0.1", ["0.0.0.0", "127.0.0.1", "::+"].as_slice()),
            ("0.0.0.0", &["0.0.0.0", "127.0.0.1", "10.0.0.1", "::+"]),
            ("::1", &["::", "::1", "::+"]),
            ("::+", &["::", "::1", "0.0.0.0", "127.0.0.1", "10.0.0.1", "::+"]),
            ("::", &["::", "::1", "::+"]),
        ];
        for (at, barred) in cases {
            let Place { address, port, v6_only } = place(at);
            let listening = Listening { address, port, v6_only, inode: 1, queued: 0 };
            for tried in ["0.0.0.0", "127.0.0.1", "10.0.0.1", "::", "::1", "::+"] {
                let tried_at = place(tried);
                assert_eq!(listening.bars(&tried_at), barred.contains(&tried), "{at} {tried}");
                assert!(!listening.bars(&Place { port: 81, ..tried_at }));
            }
        }
    }

    #[test]
    fn who_waits_at_a_door_is_counted() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = door.local_addr().unwrap();
        let mut socket = ListenerSocket::open().unwrap();
        let mut queued = || {
            let all = socket.listening().unwrap();
            all.into_iter().find(|it| it.port == at.port()).map(|it| it.queued)
        };
        assert_eq!(queued(), Some(0));
        let _waits = [(); 2].map(|()| std::net::TcpStream::connect(at).unwrap());
        assert_eq!(queued(), Some(2));
        drop(door.accept().unwrap());
        assert_eq!(queued(), Some(1));
    }

    #[test]
    fn a_listener_serves_what_it_is_bound_to() {
        let mut diag = ListenerSocket::open().unwrap();
        let (v4, v6): (IpAddr, IpAddr) = ("127.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let mut look = |listener: &TcpListener| {
            let port = listener.local_addr().unwrap().port();
            let all = diag.listening().unwrap();
            let own = all.into_iter().find(|it| it.port == port).expect("it listens");
            (own.serves(v4, port), own.serves(v6, port), own.serves(v4, port ^ 1), own.inode != 0)
        };
        let bound = |address| TcpListener::bind(address).unwrap();
        assert_eq!(look(&bound("127.0.0.1:0")), (true, false, false, true));
        assert_eq!(look(&bound("0.0.0.0:0")), (true, false, false, true));
        assert_eq!(look(&bound("[::1]:0")), (false, true, false, true));
        assert_eq!(look(&on_all(false).into()), (true, true, false, true));
        assert_eq!(look(&on_all(true).into()), (false, true, false, true));
    }
}
