//! Which sockets of this network namespace wait for clients: listening TCP
//! sockets and unconnected UDP sockets (`SOCK_DIAG_BY_FAMILY`, dumped).

use crate::netlink;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
/// `struct inet_diag_msg` as far as its source address, in bytes.
const ANSWER: usize = 24;
/// More sockets than this are not looked at.
pub const SOCKETS_MAX: usize = 65_536;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// As it was bound: unspecified for all addresses.
    pub address: IpAddr,
    pub port: u16,
    pub udp: bool,
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

    /// All of them, sorted, at most [`SOCKETS_MAX`]. Where the kernel cannot tell
    /// about UDP, TCP's are all.
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

    fn dump(&mut self, family: i32, udp: bool, all: &mut Vec<Waiting>) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let protocol = if udp { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
        let states = 1 << if udp { TCP_CLOSE } else { TCP_LISTEN };
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
                    None if all.len() < SOCKETS_MAX => all.extend(parse(answer.body, udp)),
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
}
