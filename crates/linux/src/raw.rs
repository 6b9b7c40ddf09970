//! Sending whole IP packets: owed ACKs, probes and kicks to clients, and
//! clients' packets played to the local stack.
//!
//! The source need not be a local address, so a member can speak for the service
//! before it owns its address (Linux 6.18, IPv4 and IPv6). A packet whose
//! destination is local comes in again through the loopback interface with its
//! route already chosen, which spares it the reverse-path filter.

use crate::sockopt::{self, Address};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Why a packet did not leave.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    #[error("opening a raw socket: {0}; the daemon needs CAP_NET_RAW")]
    Open(io::Error),
    #[error("SO_MARK: {0}; the daemon needs CAP_NET_ADMIN")]
    Mark(io::Error),
    #[error("SO_BINDTODEVICE {interface}: {source}; is there such an interface?")]
    Bind { interface: String, source: io::Error },
    #[error("sending a raw packet: {0}")]
    Send(io::Error),
    #[error("not an IPv4 or IPv6 packet with a whole header")]
    NoPacket,
}

/// Two raw sockets, opened before they are needed. Sending allocates nothing.
#[derive(Debug)]
pub struct RawSender {
    ipv4: OwnedFd,
    ipv6: OwnedFd,
}

impl RawSender {
    /// Opens both sockets; `mark` becomes the firewall mark of every packet.
    ///
    /// # Errors
    /// [`RawError::Open`] and [`RawError::Mark`].
    pub fn open(mark: Option<u32>) -> Result<Self, RawError> {
        // IPPROTO_RAW implies that the caller writes the IP header, and receives nothing.
        let open = |family| {
            sockopt::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW).map_err(RawError::Open)
        };
        let sender = Self { ipv4: open(libc::AF_INET)?, ipv6: open(libc::AF_INET6)? };
        let on: libc::c_int = 1;
        sockopt::set(sender.ipv6.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, &on)
            .map_err(RawError::Open)?;
        if let Some(mark) = mark {
            for fd in [&sender.ipv4, &sender.ipv6] {
                sockopt::set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &mark)
                    .map_err(RawError::Mark)?;
            }
        }
        Ok(sender)
    }

    /// Like [`RawSender::open`]; every packet leaves through `interface`, by
    /// the best of the routes that lead there.
    ///
    /// # Errors
    /// [`RawError::Open`] and [`RawError::Bind`].
    pub fn open_on(interface: &str) -> Result<Self, RawError> {
        let sender = Self::open(None)?;
        for fd in [&sender.ipv4, &sender.ipv6] {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            sockopt::set(fd.as_fd(), level, name, interface.as_bytes())
                .map_err(|source| RawError::Bind { interface: interface.to_owned(), source })?;
        }
        Ok(sender)
    }

    /// Sends one packet, IP header first, to the destination it names. Its
    /// checksums must be complete.
    ///
    /// # Errors
    /// [`RawError::NoPacket`], or [`RawError::Send`]: `EMSGSIZE` beyond the
    /// link's MTU, `EAGAIN` when the socket's buffer is full.
    pub fn send(&self, l3: &[u8]) -> Result<(), RawError> {
        let (fd, to) = match l3.first().map(|byte| byte >> 4) {
            Some(4) => (&self.ipv4, Address::inet(part(l3, 16)?, 0)),
            Some(6) => (&self.ipv6, Address::inet6(part(l3, 24)?, 0)),
            _ => return Err(RawError::NoPacket),
        };
        sockopt::send_to(fd.as_fd(), l3, &to).map_err(RawError::Send)?;
        Ok(())
    }
}

fn part<const N: usize>(l3: &[u8], at: usize) -> Result<[u8; N], RawError> {
    l3.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(RawError::NoPacket)
}
