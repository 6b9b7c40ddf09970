//! How datagrams lie on the wire.
//!
//! ```text
//! initiation  1 | sender 3   |                          Noise IK, message 1 | mac1 16 | mac2 16
//! answer      2 | receiver 3 | sender 3 | zero 1 |      Noise IK, message 2 | mac1 16 | mac2 16
//! cookie      3 | receiver 3 | nonce 24 | sealed cookie 16 | tag 16
//! data        4 | receiver 3 | number 4 | sealed        | tag 16
//! control     5 | receiver 3 | number 4 | sealed kind 1, … | tag 16
//! ```
//!
//! A receiver is the number that the other end has given to a session. Data and control have numbers
//! of their own, of which the lower 4 bytes are sent (big endian, as all of them).

/// Bytes before what is sealed in data.
pub const HEADER_BYTES: usize = 8;
/// Bytes that a datagram of the machine grows by.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

pub(super) const TAG_BYTES: usize = 16;
pub(super) const MAC_BYTES: usize = 16;
pub(super) const COOKIE_BYTES: usize = 16;
pub(super) const COOKIE_NONCE_BYTES: usize = 24;
/// Payload of the first message: a time, a life, the ciphers.
pub(super) const HELLO_BYTES: usize = 12 + 8 + 1;
/// Payload of the second message: a life and the cipher.
pub(super) const WELCOME_BYTES: usize = 8 + 1;
/// Noise IK, first message: ephemeral key, sealed static key, sealed payload.
const NOISE_1_BYTES: usize = 32 + (32 + TAG_BYTES) + HELLO_BYTES + TAG_BYTES;
/// Noise IK, second message: ephemeral key, sealed payload.
const NOISE_2_BYTES: usize = 32 + WELCOME_BYTES + TAG_BYTES;
const INITIATION_HEADER_BYTES: usize = 4;
const ANSWER_HEADER_BYTES: usize = 8;
pub(super) const INITIATION_BYTES: usize = INITIATION_HEADER_BYTES + NOISE_1_BYTES + 2 * MAC_BYTES;
pub(super) const ANSWER_BYTES: usize = ANSWER_HEADER_BYTES + NOISE_2_BYTES + 2 * MAC_BYTES;
pub(super) const COOKIE_REPLY_BYTES: usize = 4 + COOKIE_NONCE_BYTES + COOKIE_BYTES + TAG_BYTES;

const INITIATION: u8 = 1;
const ANSWER: u8 = 2;
const COOKIE_REPLY: u8 = 3;
pub(super) const DATA: u8 = 4;
pub(super) const CONTROL: u8 = 5;

/// The number that an end gives to a session, 24 bits, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index(u32);

impl Index {
    /// The number made of random bytes.
    pub(super) fn from_random(bytes: [u8; 3]) -> Self {
        let [a, b, c] = bytes;
        Self(u32::from_be_bytes([0, a, b, c]).max(1))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c] = bytes.try_into().ok()?;
        Some(Self(u32::from_be_bytes([0, a, b, c])))
    }

    fn bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

/// A datagram by its type and length; nothing in it is proved yet.
#[derive(Debug)]
pub(super) enum Datagram<'a> {
    Initiation { sender: Index, noise: &'a [u8] },
    Answer { receiver: Index, sender: Index, noise: &'a [u8] },
    Cookie { receiver: Index, nonce: &'a [u8], sealed: &'a [u8] },
    Sealed { kind: u8, receiver: Index, number: u32 },
}

/// Looks at a datagram; `None` if it is no such thing.
pub(super) fn read(datagram: &[u8]) -> Option<Datagram<'_>> {
    let receiver = Index::read(datagram.get(1..4)?)?;
    match (datagram[0], datagram.len()) {
        (INITIATION, INITIATION_BYTES) => Some(Datagram::Initiation {
            sender: receiver,
            noise: &datagram[INITIATION_HEADER_BYTES..INITIATION_BYTES - 2 * MAC_BYTES],
        }),
        (ANSWER, ANSWER_BYTES) => Some(Datagram::Answer {
            receiver,
            sender: Index::read(&datagram[4..7])?,
            noise: &datagram[ANSWER_HEADER_BYTES..ANSWER_BYTES - 2 * MAC_BYTES],
        }),
        (COOKIE_REPLY, COOKIE_REPLY_BYTES) => {
            let (nonce, sealed) = datagram[4..].split_at(COOKIE_NONCE_BYTES);
            Some(Datagram::Cookie { receiver, nonce, sealed })
        }
        (kind @ (DATA | CONTROL), length) if length >= OVERHEAD_BYTES => {
            let number = u32::from_be_bytes(datagram[4..8].try_into().ok()?);
            Some(Datagram::Sealed { kind, receiver, number })
        }
        _ => None,
    }
}

/// Begins an initiation; Noise's message and two MACs follow.
pub(super) fn initiation(sender: Index) -> Vec<u8> {
    let [a, b, c] = sender.bytes();
    let mut out = Vec::with_capacity(INITIATION_BYTES);
    out.extend([INITIATION, a, b, c]);
    out
}

/// Begins an answer; Noise's message and two MACs follow.
pub(super) fn answer(receiver: Index, sender: Index) -> Vec<u8> {
    let mut out = Vec::with_capacity(ANSWER_BYTES);
    out.push(ANSWER);
    out.extend(receiver.bytes());
    out.extend(sender.bytes());
    out.push(0);
    out
}

/// Begins a reply with a cookie; a nonce and what is sealed follow.
pub(super) fn cookie_reply(receiver: Index) -> Vec<u8> {
    let mut out = Vec::with_capacity(COOKIE_REPLY_BYTES);
    out.push(COOKIE_REPLY);
    out.extend(receiver.bytes());
    out
}

/// The header of something sealed.
pub(super) fn header(kind: u8, receiver: Index, number: u64) -> [u8; HEADER_BYTES] {
    let [a, b, c] = receiver.bytes();
    // The receiver recovers the upper half (RFC 9000 A.3).
    let [_, _, _, _, d, e, f, g] = number.to_be_bytes();
    [kind, a, b, c, d, e, f, g]
}
