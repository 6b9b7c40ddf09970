//! Datagrams that nobody without the group's key can make: a plaintext, and behind it a tag. What
//! is inside says whether it is fresh.

use super::proven::{is_tag, tag};
use crate::key::{GroupKey, Secrets};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

pub use super::proven::TAG_BYTES;

/// What a datagram is for: one kind is never taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// Of a member, to its witness.
    Question,
    /// The witness's reply.
    Reply,
    /// Between the members, about the right to speak.
    Lease,
}

impl Sealed {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Question => b"question",
            Self::Reply => b"reply",
            Self::Lease => b"lease",
        }
    }
}

/// The datagram of a plaintext.
#[must_use]
pub fn seal(plain: &[u8], kind: Sealed, key: &[u8; 32]) -> Vec<u8> {
    [plain, &tag([kind.label(), plain], key)].concat()
}

/// The plaintext of a datagram that was made with any of these secrets, and the one that it was made
/// with.
#[must_use]
pub fn open_with<'d, 's>(
    datagram: &'d [u8],
    kind: Sealed,
    secrets: &'s Secrets,
) -> Option<(&'d [u8], &'s GroupKey)> {
    let opened =
        |secret: &'s GroupKey| Some((open(datagram, kind, &secret.arbiter_key())?, secret));
    let found = secrets.iter().find_map(opened);
    found.iter().for_each(|_| secrets.proven().note());
    found
}

/// The plaintext of a datagram; `None` if it was not made with `key`, or for something else.
#[must_use]
pub fn open<'d>(datagram: &'d [u8], kind: Sealed, key: &[u8; 32]) -> Option<&'d [u8]> {
    let (plain, claimed) = datagram.split_last_chunk()?;
    is_tag(claimed, [kind.label(), plain], key).then_some(plain)
}

/// The next datagram that has come; `Some(None)` if it is not from `peer`, `None` if there is none.
pub fn receive<'b>(
    socket: &UdpSocket,
    peer: SocketAddr,
    buffer: &'b mut [u8],
) -> Option<Option<&'b [u8]>> {
    let (len, from) = loop {
        match socket.recv_from(buffer) {
            Ok(got) => break got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            // An ICMP error about an earlier datagram of ours: it is told once.
            Err(_) => {}
        }
    };
    Some(buffer.get(..len).filter(|_| from == peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_opens_and_only_as_what_it_is() {
        let key = [7; 32];
        let datagram = seal(b"words", Sealed::Lease, &key);
        assert_eq!(open(&datagram, Sealed::Lease, &key), Some(&b"words"[..]));
        assert_eq!(open(&datagram, Sealed::Reply, &key), None);
        assert_eq!(open(&datagram, Sealed::Lease, &[8; 32]), None);
        for at in 0..datagram.len() {
            let mut forged = datagram.clone();
            forged[at] ^= 1;
            assert_eq!(open(&forged, Sealed::Lease, &key), None);
            assert_eq!(open(&datagram[..at], Sealed::Lease, &key), None);
        }
    }
}
