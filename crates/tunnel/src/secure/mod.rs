//! Who speaks to whom, and that nobody else hears or changes it: the layer between the coded
//! datagrams of a tunnel and the network.
//!
//! Two ends know each other's public keys (X25519). They agree on fresh keys by Noise IK, one round
//! trip, again each two minutes; each datagram is sealed after it has been coded, so nothing forged
//! comes near a decoder. An end is known by its key and not by its address: it may move. Whoever has
//! no key gets no answer; whoever floods with first messages gets a cookie to send back, and costs a
//! bounded number of agreements a second.
//!
//! It is WireGuard's design (Donenfeld, NDSS 2017, §5) with three differences: the cipher is agreed
//! on (AES-256-GCM where both processors have it), a datagram's number is that of the coding machine,
//! sent in 4 bytes and recovered as QUIC does (RFC 9000 A.3), and a message tells which life of the
//! peer speaks, so that a machine whose peer was started again starts again, too. All primitives are
//! those of `snow`, `ring`, `blake2` and `chacha20poly1305`.
//!
//! # Contract
//!
//! [`Secure`] neither reads a clock nor draws a random number nor opens a socket. Feed it with
//! [`Secure::handle_datagram`]; then drain [`Secure::poll`], which also does what is due, and call
//! that again at [`Secure::wake_at`]. Datagrams of the coding machine go through [`Secure::seal`]
//! while [`Secure::is_ready`]. After each datagram look at [`Secure::peer_life`]: when it has
//! changed, the peer's coding machine is a new one.

mod cipher;
mod cookie;
mod counters;
mod end;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod keys;
mod layout;
mod mtu;
mod number;
mod session;
mod timing;

#[cfg(test)]
mod tests;

pub use cipher::{Suite, Suites};
pub use counters::Counters;
pub use end::{Heard, Secure, Settings, Standing, ToSend};
pub use error::{Dropped, NoRandom};
pub use keys::{KEY_BYTES, NotAKey, PublicKey, SecretKey};
pub use layout::{HEADER_BYTES, OVERHEAD_BYTES};
pub use mtu::{UDP_BYTES_BASE, UDP_BYTES_MAX};

/// Where random bytes come from: the kernel, or in tests a seed.
pub trait Random: Send {
    /// Fills `bytes`, which nobody must be able to guess.
    ///
    /// # Errors
    /// If there are none; then no handshake is begun or answered.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom>;
}
