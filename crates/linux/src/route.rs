//! The path of packets to an address that leave this host (`RTM_GETROUTE`), and
//! its MTU.

pub mod table;

use crate::netlink;
use crate::sockopt::{self, checked};
use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
/// Size of `struct rtmsg`, in bytes.
const RTMSG: usize = 12;

/// Where packets to an address go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub ifindex: u32,
    /// The router, or the address itself if it is on the link.
    pub address: IpAddr,
    /// The route's own MTU or the interface's.
    pub mtu: u32,
}

/// A route netlink socket.
#[derive(Debug)]
pub struct RouteSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl RouteSocket {
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: netlink::open(libc::NETLINK_ROUTE)?, sequence: 0 })
    }

    /// The first hop towards `address`.
    ///
    /// # Errors
    /// What the kernel says when there is no route.
    pub fn next_hop(&mut self, address: IpAddr) -> io::Result<NextHop> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut body = vec![0; RTMSG];
        (body[0], body[1]) = match address {
            IpAddr::V4(_) => (libc::AF_INET as u8, 32),
            IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
        };
        netlink::address(&mut body, RTA_DST, address);
        let mut request = Vec::new();
        netlink::append(&mut request, RTM_GETROUTE, libc::NLM_F_REQUEST, self.sequence, &body);
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &request)?;
        let mut buffer = [0; 2048];
        for answer in netlink::answers(netlink::receive(&self.fd, &mut buffer)?) {
            match answer.errno() {
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None if answer.kind == RTM_NEWROUTE => return parse(address, answer.body),
                None => {}
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn parse(address: IpAddr, body: &[u8]) -> io::Result<NextHop> {
    let mut hop = NextHop { ifindex: 0, address, mtu: 0 };
    for (kind, value) in netlink::attributes(body.get(RTMSG..).unwrap_or_default()) {
        match kind {
            RTA_OIF => hop.ifindex = word(value),
            RTA_GATEWAY => {
                if let Ok(v4) = <[u8; 4]>::try_from(value) {
                    hop.address = v4.into();
                } else if let Ok(v6) = <[u8; 16]>::try_from(value) {
                    hop.address = v6.into();
                }
            }
            RTA_METRICS => {
                let metrics = netlink::attributes(value);
                hop.mtu = metrics.filter(|(k, _)| *k == RTAX_MTU).map(|(_, v)| word(v)).sum();
            }
            _ => {}
        }
    }
    if hop.ifindex == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let link = mtu_of(hop.ifindex)?;
    hop.mtu = if hop.mtu == 0 { link } else { hop.mtu.min(link) };
    Ok(hop)
}

fn word(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// The MTU of the interface called `name`.
///
/// # Errors
/// As `SIOCGIFMTU`.
pub fn mtu(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string that lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => mtu_of(index),
    }
}

fn mtu_of(ifindex: u32) -> io::Result<u32> {
    let fd = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: ifreq is plain data; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has IFNAMSIZ bytes, as the call asks for.
    if unsafe { libc::if_indextoname(ifindex, request.ifr_name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel reads and writes one ifreq, which is what we pass.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: SIOCGIFMTU has filled this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let mut socket = RouteSocket::open().unwrap();
        let hop = socket.next_hop("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(hop.address, "127.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(hop.mtu, mtu("lo").unwrap());
    }
}
