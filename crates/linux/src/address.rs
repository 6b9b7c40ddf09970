//! Taking and giving up the service address (`RTM_NEWADDR`, `RTM_DELADDR`), over
//! a socket that is opened before it is needed; and whether an address is this host's.

use crate::netlink;
use holdfast_wire::packet::mapped_ipv4;
use libc::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Size of `struct ifaddrmsg`, in bytes.
const IFADDRMSG: usize = 8;
/// Room for a part of the list of addresses: the kernel sends no longer ones.
const LIST_BYTES: usize = 32 << 10;
/// No duplicate address detection: an address must work at once, and the fence
/// already guarantees that nobody else speaks for it.
const IFA_F_NODAD: u32 = 0x02;

/// Longest time until an added address must be usable.
pub const LOCAL_MAX: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Why an address could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("opening a netlink socket: {0}")]
    Open(io::Error),
    #[error(
        "{action} the service address: {source}; the daemon needs CAP_NET_ADMIN and the interface must exist"
    )]
    Change { action: &'static str, source: io::Error },
}

/// A route netlink socket.
#[derive(Debug)]
pub struct AddressSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl AddressSocket {
    /// # Errors
    /// [`AddressError::Open`].
    pub fn open() -> Result<Self, AddressError> {
        let fd = netlink::open(libc::NETLINK_ROUTE).map_err(AddressError::Open)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Adds `address` (IPv4 mapped into IPv6) as /32 or /128 to the interface with
    /// this index. An address that is there already is no error.
    ///
    /// # Errors
    /// [`AddressError::Change`].
    pub fn add(&mut self, interface: u32, address: &[u8; 16]) -> Result<(), AddressError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.change(RTM_NEWADDR, flags, interface, address)
            .map_err(|source| AddressError::Change { action: "adding", source })
    }

    /// Like [`Self::add`]; true if the address was not there yet.
    ///
    /// # Errors
    /// [`AddressError::Change`].
    pub fn restore(&mut self, interface: u32, address: &[u8; 16]) -> Result<bool, AddressError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        match self.change(RTM_NEWADDR, flags, interface, address) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(source) => Err(AddressError::Change { action: "adding", source }),
        }
    }

    /// Waits until packets to an added address come in. The kernel answers the
    /// request for an IPv6 address before it has its route, which a worker of
    /// normal priority makes; until then they would leave through the interface.
    ///
    /// # Errors
    /// [`AddressError::Change`] if that takes longer than [`LOCAL_MAX`].
    pub fn wait_local(&mut self, address: &[u8; 16]) -> Result<(), AddressError> {
        let failed = |source| AddressError::Change { action: "waiting for", source };
        let begun = Instant::now();
        while mapped_ipv4(address).is_none() && !self.is_routed_here(address).map_err(failed)? {
            if begun.elapsed() > LOCAL_MAX {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Whether `address` (IPv4 mapped into IPv6) is one of this host's: an interface has it, or
    /// packets to it stay here. The routes alone would not tell: those of an interface in a VRF
    /// are in another table, and rules may come before the table of local ones. Nor would a bind:
    /// with `ip_nonlocal_bind` it is allowed to any address.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn is_local(&mut self, address: &[u8; 16]) -> io::Result<bool> {
        Ok(self.has_interface(address)? || self.is_routed_here(address)?)
    }

    /// Whether an interface has the address.
    fn has_interface(&mut self, address: &[u8; 16]) -> io::Result<bool> {
        let ipv4 = mapped_ipv4(address);
        let (family, bytes) = family_of(address, ipv4.as_ref());
        let mut body = vec![0; IFADDRMSG];
        body[0] = family as u8;
        self.request(RTM_GETADDR, libc::NLM_F_DUMP, &body)?;
        let (mut found, mut buffer) = (false, vec![0; LIST_BYTES]);
        loop {
            let datagram = netlink::receive(&self.fd, &mut buffer)?;
            let own = |answer: &netlink::Answer<'_>| answer.sequence == self.sequence;
            for answer in netlink::answers(datagram).filter(own) {
                if let Some(errno) = answer.errno() {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                if c_int::from(answer.kind) == libc::NLMSG_DONE {
                    return Ok(found);
                }
                found |= answer.kind == RTM_NEWADDR && has(answer.body, bytes);
            }
        }
    }

    /// Whether the kernel's routes keep packets to the address here.
    fn is_routed_here(&mut self, address: &[u8; 16]) -> io::Result<bool> {
        let ipv4 = mapped_ipv4(address);
        let (family, bytes) = family_of(address, ipv4.as_ref());
        // struct rtmsg: family, prefix length, and nothing else known.
        let mut body = vec![0; 12];
        (body[0], body[1]) = (family as u8, 8 * bytes.len() as u8);
        netlink::attribute(&mut body, RTA_DST, bytes);
        self.request(RTM_GETROUTE, 0, &body)?;
        let mut buffer = [0; 1024];
        let datagram = netlink::receive(&self.fd, &mut buffer)?;
        // The type is the eighth byte; without a route the answer is an error.
        Ok(netlink::answers(datagram)
            .any(|answer| answer.kind == RTM_NEWROUTE && answer.body.get(7) == Some(&RTN_LOCAL)))
    }

    /// Removes `address` from the interface; true if it was there.
    ///
    /// # Errors
    /// [`AddressError::Change`].
    pub fn remove(&mut self, interface: u32, address: &[u8; 16]) -> Result<bool, AddressError> {
        match self.change(RTM_DELADDR, 0, interface, address) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(false),
            Err(source) => Err(AddressError::Change { action: "removing", source }),
        }
    }

    fn change(
        &mut self,
        kind: u16,
        flags: c_int,
        interface: u32,
        address: &[u8; 16],
    ) -> io::Result<()> {
        let ipv4 = mapped_ipv4(address);
        let (family, bytes) = family_of(address, ipv4.as_ref());
        // struct ifaddrmsg
        let mut body = vec![family as u8, 8 * bytes.len() as u8, 0, 0];
        body.extend(interface.to_ne_bytes());
        netlink::attribute(&mut body, IFA_LOCAL, bytes);
        netlink::attribute(&mut body, IFA_ADDRESS, bytes);
        if family == libc::AF_INET6 {
            netlink::attribute(&mut body, IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        }
        self.request(kind, flags | libc::NLM_F_ACK, &body)?;
        self.acknowledged()
    }

    /// Sends a request under the next sequence number.
    fn request(&mut self, kind: u16, flags: c_int, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::new();
        netlink::append(&mut request, kind, flags | libc::NLM_F_REQUEST, self.sequence, body);
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &request)
    }

    fn acknowledged(&self) -> io::Result<()> {
        let mut buffer = [0; 1024];
        loop {
            let datagram = netlink::receive(&self.fd, &mut buffer)?;
            let own = |answer: &netlink::Answer<'_>| answer.sequence == self.sequence;
            let errno = netlink::answers(datagram).filter(own).find_map(|answer| answer.errno());
            match errno {
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None => {}
            }
        }
    }
}

/// An address as netlink has it: its family, and its bytes.
fn family_of<'a>(address: &'a [u8; 16], ipv4: Option<&'a [u8; 4]>) -> (c_int, &'a [u8]) {
    match ipv4 {
        Some(ipv4) => (libc::AF_INET, ipv4),
        None => (libc::AF_INET6, address),
    }
}

/// Whether an entry of the list is this address. Where there is a peer, `IFA_ADDRESS` is that one's.
fn has(entry: &[u8], address: &[u8]) -> bool {
    let all = || netlink::attributes(entry.get(IFADDRMSG..).unwrap_or_default());
    let of = |wanted| all().find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS)) == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::testing::{inside, run};
    use holdfast_wire::packet::mapped;

    #[test]
    fn only_this_hosts_addresses_are_local() {
        let mut socket = AddressSocket::open().unwrap();
        let mut is_local = |ip: &str| socket.is_local(&mapped(ip.parse().unwrap())).unwrap();
        assert!(is_local("127.0.0.1") && is_local("127.9.9.9"));
        assert!(!is_local("192.0.2.7") && !is_local("2001:db8::7"));
    }

    #[test]
    fn an_address_whose_routes_are_elsewhere_is_local_too() {
        inside("hfa", || {
            run("ip", "link set lo up");
            let of = |text: &str| mapped(text.parse().unwrap());
            let mut socket = AddressSocket::open().unwrap();
            for (family, own, other) in
                [("-4", "192.0.2.7", "192.0.2.8"), ("-6", "2001:db8::7", "2001:db8::8")]
            {
                run("ip", &format!("{family} address add {own} dev lo"));
                socket.wait_local(&of(own)).unwrap();
                // As for an interface in a VRF: no rule leads to the table of its routes. With
                // no rule of one's own IPv6 would look there all the same.
                run("ip", &format!("{family} rule add pref 1 to {own} lookup 77"));
                run("ip", &format!("{family} rule del pref 0"));
                assert!(!socket.is_routed_here(&of(own)).unwrap());
                assert!(socket.is_local(&of(own)).unwrap(), "{own}");
                assert!(!socket.is_local(&of(other)).unwrap(), "{other}");
            }
        });
    }
}
