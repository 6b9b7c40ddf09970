//! What the kernel believes of a neighbour's hardware address (ARP, neighbour discovery). A switch
//! that was taught another port for it swallows what is sent there, and the kernel would ask the
//! same address for seconds before it asks everybody.

use crate::netlink::{self, RTM_DELNEIGH, RTM_NEWNEIGH};
use crate::route::RouteSocket;
use libc::c_int;
use std::io;
use std::net::IpAddr;

const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
/// Entries that somebody has made, or that no question is asked about.
const LASTING: u16 = 0x80 | 0x40;
/// Place of the state in `struct ndmsg`.
const STATE_AT: usize = 8;

/// Has the kernel ask everybody again for the first hop towards `address`: whoever answers shows the
/// switch where it is. Whether there was something to forget; what an administrator has written down
/// is not.
///
/// # Errors
/// As the kernel says, for want of CAP_NET_ADMIN or of a route.
pub fn forget(address: IpAddr) -> io::Result<bool> {
    let hop = RouteSocket::open()?.next_hop(address)?;
    match request(RTM_GETNEIGH, 0, hop.ifindex, hop.address)? {
        Some(state) if state & LASTING == 0 => {
            request(RTM_DELNEIGH, libc::NLM_F_ACK, hop.ifindex, hop.address).map(|_| true)
        }
        _ => Ok(false),
    }
}

/// Asks about an entry; returns its state where that is the answer, and nothing if there is none.
fn request(kind: u16, flags: c_int, interface: u32, address: IpAddr) -> io::Result<Option<u16>> {
    let fd = netlink::open(libc::NETLINK_ROUTE)?;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = netlink::neighbour(family, interface, 0, 0);
    netlink::address(&mut body, NDA_DST, address);
    let mut request = Vec::new();
    netlink::append(&mut request, kind, flags | libc::NLM_F_REQUEST, 1, &body);
    netlink::send(&fd, &request)?;
    let mut buffer = [0; 2048];
    for answer in netlink::answers(netlink::receive(&fd, &mut buffer)?) {
        match answer.errno() {
            Some(0 | libc::ENOENT) => return Ok(None),
            Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            None if answer.kind == RTM_NEWNEIGH => {
                let state = answer.body.get(STATE_AT..).and_then(<[u8]>::first_chunk);
                return Ok(state.map(|state| u16::from_ne_bytes(*state)));
            }
            None => {}
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::testing::{inside, run};

    #[test]
    fn what_was_learnt_is_forgotten_and_what_was_written_down_is_not() {
        inside("hfn", || {
            run("ip", "link add v0 type veth peer name v1");
            for line in ["v0 address 02:00:00:00:00:01", "v1 up", "v0 up"] {
                run("ip", &format!("link set {line}"));
            }
            run("ip", "address add 10.9.0.2/24 dev v0");
            run("ip", "address add fd09::2/64 dev v0 nodad");
            for to in ["10.9.0.9", "fd09::9"] {
                let address = to.parse().unwrap();
                assert!(!forget(address).unwrap(), "nothing is known");
                let entry = format!("{to} dev v0 lladdr 02:00:00:00:00:09 nud");
                run("ip", &format!("neigh replace {entry} reachable"));
                assert!(forget(address).unwrap());
                assert!(!forget(address).unwrap());
                run("ip", &format!("neigh replace {entry} permanent"));
                assert!(!forget(address).unwrap());
            }
            assert!(forget("10.8.0.1".parse().unwrap()).is_err(), "no way there");
        });
    }
}
