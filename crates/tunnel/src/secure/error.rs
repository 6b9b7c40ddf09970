//! Why a datagram is dropped, each reason with its counter.

/// Why a datagram was not taken. All of them are counted, and none is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what they are")]
pub enum Dropped {
    #[error("it is no datagram of a tunnel")]
    Malformed,
    #[error("it is for a session that is not or no longer here")]
    UnknownSession,
    #[error("it has come before, or is too old to tell")]
    Replayed,
    #[error("it was not sealed by the peer, or has been changed")]
    Forged,
    #[error("who sent it does not know this end's public key")]
    WrongMac,
    #[error("its handshake does not fit the keys of this tunnel")]
    WrongKey,
    #[error("a handshake of the same or a later time has come before")]
    Stale,
    #[error("more handshakes come than are answered")]
    Flood,
    #[error("nobody waits for it")]
    NotAwaited,
    #[error("the ends have no cipher in common")]
    NoCipher,
    #[error("there are no random bytes to answer it with")]
    NoRandom,
}

/// The kernel gave no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no random bytes")]
pub struct NoRandom;
