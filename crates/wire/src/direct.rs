//! Datagrams by which a server's own thread sends what it has logged to the backup, and hears from
//! it what it holds (decision 35): the short way, beside the daemons' channel.
//!
//! On the wire: the key's id and a counter, eight bytes each, in clear; then, sealed by
//! ChaCha20-Poly1305 (RFC 8439), a position of the log and what begins there. The counter is the
//! nonce, together with the direction.
//!
//! Lost datagrams, repeated ones and those in another order are harmless: a position says what is
//! new, and what is missing comes over the channel.

use crate::log::{Header, Op};
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};

/// Size of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Bytes in front of what is sealed.
pub const CLEAR_BYTES: usize = 16;
/// Most bytes of records in one datagram; more takes the channel.
pub const RECORDS_MAX: usize = 16 << 10;
/// Size of the largest datagram, in bytes.
pub const DATAGRAM_MAX: usize = CLEAR_BYTES + POSITION_BYTES + RECORDS_MAX + TAG_BYTES;
const POSITION_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The server's thread: records from a position on.
    Server,
    /// The backup: it holds everything before a position.
    Backup,
}

/// The key of one log's datagrams.
pub struct Seal {
    id: u64,
    cipher: ChaCha20Poly1305,
}

impl core::fmt::Debug for Seal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Seal({})", self.id)
    }
}

/// What a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    pub position: u64,
    /// Whole records, without tapped payload; of a backup, none.
    pub records: &'a [u8],
}

impl Seal {
    #[must_use]
    pub fn new(id: u64, key: &[u8; KEY_BYTES]) -> Self {
        Self { id, cipher: ChaCha20Poly1305::new(key.into()) }
    }

    /// Which key it is; not 0.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Seals a position and the `len` bytes of records that lie at [`records_at`] of `datagram`;
    /// returns the length of the datagram. No two may have the same `counter`. `None`: there is no
    /// room.
    pub fn seal(
        &self,
        speaker: Speaker,
        counter: u64,
        position: u64,
        len: usize,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let end = CLEAR_BYTES + POSITION_BYTES + len;
        let (clear, rest) = datagram.get_mut(..end + TAG_BYTES)?.split_at_mut(CLEAR_BYTES);
        let (plain, tag) = rest.split_at_mut(POSITION_BYTES + len);
        clear[..8].copy_from_slice(&self.id.to_le_bytes());
        clear[8..].copy_from_slice(&counter.to_le_bytes());
        plain[..POSITION_BYTES].copy_from_slice(&position.to_le_bytes());
        let nonce = nonce(speaker, counter);
        let sealed = self.cipher.encrypt_in_place_detached(&nonce.into(), clear, plain).ok()?;
        tag.copy_from_slice(&sealed);
        Some(end + TAG_BYTES)
    }

    /// Opens a datagram in place. `None`: it is not one that `speaker` has sealed with this key.
    pub fn open<'a>(&self, speaker: Speaker, datagram: &'a mut [u8]) -> Option<Said<'a>> {
        let (clear, rest) = datagram.split_at_mut_checked(CLEAR_BYTES)?;
        let (plain, tag) = rest.split_at_mut_checked(rest.len().checked_sub(TAG_BYTES)?)?;
        if plain.len() < POSITION_BYTES || word(clear) != Some(self.id) {
            return None;
        }
        let nonce = nonce(speaker, word(&clear[8..])?);
        let tag = (&*tag).into();
        self.cipher.decrypt_in_place_detached(&nonce.into(), clear, plain, tag).ok()?;
        let (position, records) = plain.split_at(POSITION_BYTES);
        Some(Said { position: word(position)?, records })
    }
}

/// Where records lie in a datagram that is made.
#[must_use]
pub const fn records_at() -> usize {
    CLEAR_BYTES + POSITION_BYTES
}

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|word| u64::from_le_bytes(*word))
}

fn nonce(speaker: Speaker, counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[0] = match speaker {
        Speaker::Server => 1,
        Speaker::Backup => 2,
    };
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// Bytes of this record in a datagram; `None`: it may not be in one. Of accepted connections, and of
/// those whose sending side ends, the primary's daemon says more than the record does.
#[must_use]
pub fn len_of(header: &Header) -> Option<usize> {
    match Op::from_u8(header.op)? {
        Op::Accept | Op::Close | Op::Shutdown | Op::Exit | Op::Death | Op::Pad => None,
        _ => Some(header.len_sent()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{AcceptInfo, HEADER_LEN, TAPPED, record_len};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn sealed(speaker: Speaker, counter: u64, position: u64, records: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; DATAGRAM_MAX];
        datagram[records_at()..records_at() + records.len()].copy_from_slice(records);
        let seal = Seal::new(5, &KEY);
        let len = seal.seal(speaker, counter, position, records.len(), &mut datagram);
        datagram.truncate(len.expect("there is room"));
        datagram
    }

    #[test]
    fn what_is_sealed_is_read_by_the_other_side_only() {
        let datagram = sealed(Speaker::Server, 3, 1 << 40, b"records!");
        let seal = Seal::new(5, &KEY);
        let said = Said { position: 1 << 40, records: b"records!" };
        assert_eq!(seal.open(Speaker::Server, &mut datagram.clone()), Some(said));
        assert_eq!(seal.open(Speaker::Backup, &mut datagram.clone()), None);
        assert_eq!(Seal::new(6, &KEY).open(Speaker::Server, &mut datagram.clone()), None);
        assert_eq!(Seal::new(5, &[8; 32]).open(Speaker::Server, &mut datagram.clone()), None);
        assert_ne!(sealed(Speaker::Server, 4, 1 << 40, b"records!"), datagram);
        assert!(seal.seal(Speaker::Server, 1, 0, 8, &mut [0; 40]).is_none(), "no room");
    }

    #[test]
    fn records_of_which_the_daemon_says_more_take_the_channel() {
        let of = |op: Op, flags| Header {
            op: op as u8,
            flags,
            payload_len: size_of::<AcceptInfo>() as u32,
            ..Header::default()
        };
        for op in [Op::Accept, Op::Close, Op::Shutdown, Op::Exit, Op::Death, Op::Pad] {
            assert_eq!(len_of(&of(op, 0)), None, "{op:?}");
        }
        assert_eq!(len_of(&of(Op::Read, TAPPED)), Some(HEADER_LEN));
        assert_eq!(len_of(&of(Op::Data, 0)), Some(record_len(size_of::<AcceptInfo>())));
        assert_eq!(len_of(&Header { op: 0xff, ..Header::default() }), None);
        assert_eq!(of(Op::Read, 0).as_bytes().len(), HEADER_LEN);
    }

    proptest! {
        #[test]
        fn a_damaged_datagram_is_none(
            at in any::<proptest::sample::Index>(), to in any::<u8>(), cut in 0..80usize,
        ) {
            let whole = sealed(Speaker::Backup, 1, 2, b"");
            let mut damaged = whole.clone();
            let at = at.index(whole.len());
            damaged[at] = to;
            damaged.truncate(whole.len().saturating_sub(cut));
            if damaged != whole {
                prop_assert_eq!(Seal::new(5, &KEY).open(Speaker::Backup, &mut damaged), None);
            }
        }
    }
}
