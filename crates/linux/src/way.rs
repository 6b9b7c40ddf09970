//! Proving a path on Ethernet: the edge sends numbered frames of an Ethernet type of their
//! own to the hardware address that its file names for a member, and the member reports
//! over its channel which number has arrived, and which address it has there. No stack, no
//! server and no client sees them. Members without an edge send each other frames of that type, too
//! (`holdfast_wire::segment`).

use crate::frame::{FrameError, FrameSender, Hop};
use crate::link::Link;
use crate::packet::PacketSocket;
use crate::sockopt::{self, Address};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

/// Ethernet type for experiments within one organisation (IEEE 802-2014 §9.2.4).
pub const ETHERTYPE: u16 = 0x88b5;
const MAGIC: [u8; 8] = *b"hfastway";
/// Size of a frame's payload, in bytes.
const BYTES: usize = MAGIC.len() + 8;
/// Largest frame, in bytes; no card sends a shorter one.
const BYTES_MAX: usize = 64;

/// The number that a frame's payload carries, if it is a sign.
#[must_use]
pub fn number_of(payload: &[u8]) -> Option<u64> {
    let (magic, rest) = payload.split_first_chunk()?;
    let number = rest.first_chunk()?;
    (*magic == MAGIC).then_some(u64::from_le_bytes(*number))
}

/// Sends a sign to the next hop.
///
/// # Errors
/// [`FrameError::Send`].
pub fn send(number: u64, hop: &Hop, by: &mut FrameSender) -> Result<(), FrameError> {
    let mut payload = [0; BYTES];
    payload[..MAGIC.len()].copy_from_slice(&MAGIC);
    payload[MAGIC.len()..].copy_from_slice(&number.to_le_bytes());
    send_words(&payload, hop, by)
}

/// Sends other words in a frame of that type.
///
/// # Errors
/// [`FrameError::Send`].
pub fn send_words(words: &[u8], hop: &Hop, by: &mut FrameSender) -> Result<(), FrameError> {
    by.send_as(hop, ETHERTYPE, words)
}

/// The member's socket for signs, where no tap watches.
#[derive(Debug)]
pub struct SignSocket {
    fd: PacketSocket,
    /// Number of the interface.
    index: u32,
}

impl SignSocket {
    /// Opens the socket on an interface.
    ///
    /// # Errors
    /// As socket(2) and bind(2) of a packet socket, or if there is no such interface.
    pub fn open(interface: &str) -> io::Result<Self> {
        let link = Link::by_name(interface).map_err(io::Error::other)?;
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
        let fd = PacketSocket::open(kind)?;
        sockopt::bind(fd.as_fd(), &Address::link(link.index, ETHERTYPE, None))?;
        Ok(Self { fd, index: link.index })
    }

    /// Listens at the interface with this number from now on, which the name has if the
    /// interface was made anew. Whether that is another one.
    ///
    /// # Errors
    /// As bind(2) of a packet socket.
    pub fn follow(&mut self, index: u32) -> io::Result<bool> {
        if self.index == index {
            return Ok(false);
        }
        sockopt::bind(self.fd.as_fd(), &Address::link(index, ETHERTYPE, None))?;
        self.index = index;
        Ok(true)
    }

    /// Passes the payload of each frame that waits to `each`.
    pub fn drain(&self, mut each: impl FnMut(&[u8])) {
        /// Most frames looked at in a turn: a flood of strangers' frames waits for the
        /// next one.
        const LOOKS_MAX: usize = 64;
        for _ in 0..LOOKS_MAX {
            let mut payload = [0; BYTES_MAX];
            match sockopt::receive(self.fd.as_fd(), &mut payload, libc::MSG_DONTWAIT) {
                Ok(len) => payload.get(..len).into_iter().for_each(&mut each),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}

impl AsFd for SignSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_sign_is_one() {
        let mut payload = MAGIC.to_vec();
        payload.extend(7u64.to_le_bytes());
        assert_eq!(number_of(&payload), Some(7));
        // A card pads short frames.
        payload.resize(46, 0);
        assert_eq!(number_of(&payload), Some(7));
        for len in 0..BYTES {
            assert_eq!(number_of(&payload[..len]), None);
        }
        payload[0] ^= 1;
        assert_eq!(number_of(&payload), None);
    }
}
