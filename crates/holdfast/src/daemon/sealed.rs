//! Datagrams that nobody without the group's key can make: a plaintext, and behind it a tag. What
//! is inside says whether it is fresh.

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

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
    [plain, &tag(plain, kind, key)].concat()
}

/// The plaintext of a datagram; `None` if it was not made with `key`, or for something else.
#[must_use]
pub fn open<'d>(datagram: &'d [u8], kind: Sealed, key: &[u8; 32]) -> Option<&'d [u8]> {
    let (plain, claimed) = datagram.split_at_checked(datagram.len().checked_sub(TAG_BYTES)?)?;
    // All bytes are compared, so that the time it takes tells a forger nothing.
    let differ = tag(plain, kind, key).iter().zip(claimed).fold(0, |all, (a, b)| all | (a ^ b));
    (differ == 0).then_some(plain)
}

fn tag(plain: &[u8], kind: Sealed, key: &[u8; 32]) -> [u8; TAG_BYTES] {
    let mut mac = blake2::Blake2sMac::<U16>::new(key.into());
    mac.update(kind.label());
    mac.update(plain);
    mac.finalize_fixed().into()
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
