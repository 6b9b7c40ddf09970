//! Taking and giving up the service address (`RTM_NEWADDR`, `RTM_DELADDR`), over
//! a socket that is opened before it is needed.

use crate::netlink;
use holdfast_wire::packet::mapped_ipv4;
use libc::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection: an address must work at once, and the fence
/// already guarantees that nobody else speaks for it.
const IFA_F_NODAD: u32 = 0x02;

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

    /// Removes `address` from the interface. An address that is not there is no error.
    ///
    /// # Errors
    /// [`AddressError::Change`].
    pub fn remove(&mut self, interface: u32, address: &[u8; 16]) -> Result<(), AddressError> {
        match self.change(RTM_DELADDR, 0, interface, address) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            result => result.map_err(|source| AddressError::Change { action: "removing", source }),
        }
    }

    fn change(
        &mut self,
        kind: u16,
        flags: c_int,
        interface: u32,
        address: &[u8; 16],
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let ipv4 = mapped_ipv4(address);
        let (family, bytes): (c_int, &[u8]) = match &ipv4 {
            Some(ipv4) => (libc::AF_INET, ipv4),
            None => (libc::AF_INET6, address),
        };
        // struct ifaddrmsg
        let mut body = vec![family as u8, 8 * bytes.len() as u8, 0, 0];
        body.extend(interface.to_ne_bytes());
        netlink::attribute(&mut body, IFA_LOCAL, bytes);
        netlink::attribute(&mut body, IFA_ADDRESS, bytes);
        if family == libc::AF_INET6 {
            netlink::attribute(&mut body, IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        }
        let mut request = Vec::new();
        let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        netlink::append(&mut request, kind, flags, self.sequence, &body);
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &request)?;
        self.acknowledged()
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
