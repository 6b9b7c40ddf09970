//! The format of authenticated datagrams: heartbeats between hosts and through strings. They
//! have one size and a tag (MAC) made with the group's key. Each has a number within its
//! sender's session, and echoes the last number from the other end; with these a receiver tells
//! current datagrams from replayed ones.

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};

/// Size of every datagram, in bytes.
pub const DATAGRAM_BYTES: usize = BODY_BYTES + TAG_BYTES;
const BODY_BYTES: usize = 44;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// The last datagram that came from the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    pub session: u64,
    pub number: u64,
}

/// Content of a datagram. On the wire: 5 bytes of kind and version, the fields, and the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Three bytes whose meaning depends on the kind: sender, receiver and the like.
    pub head: [u8; 3],
    /// Session of its sender, new at each start of its daemon: random, not 0.
    pub session: u64,
    /// Number in the session, from 1.
    pub number: u64,
    pub echo: Echo,
    /// A number whose meaning depends on the kind, mostly a time.
    pub word: u32,
}

impl Datagram {
    /// The datagram as bytes, with `magic` as its kind and version.
    pub fn encode(&self, magic: [u8; 5], key: &[u8; 32]) -> [u8; DATAGRAM_BYTES] {
        let mut bytes = [0; DATAGRAM_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&magic);
        put(&self.head);
        for word in [self.session, self.number, self.echo.session, self.echo.number] {
            put(&word.to_le_bytes());
        }
        put(&self.word.to_le_bytes());
        let tag = tag([&bytes[..BODY_BYTES]], key);
        bytes[BODY_BYTES..].copy_from_slice(&tag);
        bytes
    }

    /// The three bytes of the head that a datagram claims, which says who may have made it; `None` if
    /// it is too short or long.
    pub fn claimed(bytes: &[u8]) -> Option<[u8; 3]> {
        let bytes: &[u8; DATAGRAM_BYTES] = bytes.try_into().ok()?;
        Some([bytes[5], bytes[6], bytes[7]])
    }

    /// The content of `bytes`; `None` if they were not made with `key`, or are of another kind
    /// or version than `magic`.
    pub fn decode(bytes: &[u8], magic: [u8; 5], key: &[u8; 32]) -> Option<Self> {
        let bytes: &[u8; DATAGRAM_BYTES] = bytes.try_into().ok()?;
        let (body, claimed) = bytes.split_last_chunk()?;
        if !is_tag(claimed, [body], key) || !body.starts_with(&magic) {
            return None;
        }
        let word = |index: usize| {
            let at = 8 + 8 * index;
            body.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes)
        };
        Some(Self {
            head: [body[5], body[6], body[7]],
            session: word(0)?,
            number: word(1)?,
            echo: Echo { session: word(2)?, number: word(3)? },
            word: u32::from_le_bytes(body.get(40..44)?.try_into().ok()?),
        })
    }
}

/// The tag that only `key` makes of these parts, one behind the other.
pub fn tag<const N: usize>(parts: [&[u8]; N], key: &[u8; 32]) -> [u8; TAG_BYTES] {
    let mut mac = blake2::Blake2sMac::<U16>::new(key.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize_fixed().into()
}

/// Whether that is the tag. All bytes are compared, so that the time it takes tells a forger
/// nothing.
pub fn is_tag<const N: usize>(
    claimed: &[u8; TAG_BYTES],
    parts: [&[u8]; N],
    key: &[u8; 32],
) -> bool {
    tag(parts, key).iter().zip(claimed).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
