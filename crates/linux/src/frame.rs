//! Sending whole packets to a neighbour of one's choice, whatever the routing
//! table says: packets cached for a service are resent to the host that serves
//! it now.

use crate::packet::PacketSocket;
use crate::sockopt::{self, Address};
use std::io;
use std::os::fd::AsFd;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const ETHERNET: usize = 14;

/// Why a frame did not leave.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("opening a packet socket: {0}; the daemon needs CAP_NET_RAW")]
    Open(io::Error),
    #[error("sending a frame: {0}")]
    Send(io::Error),
    #[error("not an IPv4 or IPv6 packet")]
    NoPacket,
}

/// The next host on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Number of the interface that leads there.
    pub ifindex: u32,
    /// Source address of the frames.
    pub from: [u8; 6],
    /// Destination address of the frames.
    pub to: [u8; 6],
}

/// A packet socket that receives nothing, opened before it is needed.
#[derive(Debug)]
pub struct FrameSender {
    fd: PacketSocket,
    frame: Vec<u8>,
}

impl FrameSender {
    /// Opens the socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`FrameError::Open`].
    pub fn open() -> Result<Self, FrameError> {
        let fd = PacketSocket::open(libc::SOCK_RAW).map_err(FrameError::Open)?;
        Ok(Self { fd, frame: Vec::with_capacity(ETHERNET + 9216) })
    }

    /// Sends one packet, IP header first, whose checksums are complete.
    ///
    /// # Errors
    /// [`FrameError::NoPacket`], or [`FrameError::Send`]: `EMSGSIZE` beyond the
    /// link's MTU, `EAGAIN` or `ENOBUFS` when its queue is full.
    pub fn send(&mut self, hop: &Hop, l3: &[u8]) -> Result<(), FrameError> {
        let protocol = ethertype(l3).ok_or(FrameError::NoPacket)?;
        self.send_as(hop, protocol, l3)
    }

    /// Sends a frame of any Ethernet type.
    pub(crate) fn send_as(
        &mut self,
        hop: &Hop,
        protocol: u16,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        write(&mut self.frame, (hop.to, hop.from), protocol, payload);
        let to = Address::link(hop.ifindex, protocol, Some(hop.to));
        sockopt::send_to(self.fd.as_fd(), &self.frame, &to).map_err(FrameError::Send)?;
        Ok(())
    }
}

/// Ethernet type of a packet, IP header first.
pub(crate) fn ethertype(l3: &[u8]) -> Option<u16> {
    match l3.first().map(|byte| byte >> 4) {
        Some(4) => Some(ETHERTYPE_IPV4),
        Some(6) => Some(ETHERTYPE_IPV6),
        _ => None,
    }
}

/// Puts a packet into a frame to the first and from the second of two
/// addresses.
pub(crate) fn write(frame: &mut Vec<u8>, ends: ([u8; 6], [u8; 6]), protocol: u16, l3: &[u8]) {
    frame.clear();
    frame.extend(ends.0);
    frame.extend(ends.1);
    frame.extend(protocol.to_be_bytes());
    frame.extend(l3);
}
