//! The meeting: how three hosts that know nothing of each other but a code agree on one file.
//!
//! The host where `init` runs listens; two guests, where `join` runs, connect to it. All here are
//! machines: bytes, times and facts come in as arguments, bytes and events come out.
//!
//! ```text
//! guest                                     host
//!   preamble, Noise NNpsk0 (the code)  ──▶
//!                                      ◀──   preamble, its part of the handshake
//!   Hello: release, facts of this host ──▶
//!                                      ◀──   Wanted: what the server needs (or Refused)
//!   Able: what this host lacks, if any,
//!   and its public key                 ──▶
//!                                      ◀──   Offer: file, the guest's role, and the key if all
//!                                            hosts have the same                  (when both are here)
//!   Ready: both can be written         ──▶         (or Unable)
//!                                      ◀──   Commit                               (when all can)
//!   Done                               ──▶
//! ```
//!
//! When a guest leaves before the commit, the other one gets another offer as soon as somebody has
//! taken the place. Its answer to the former one may still be on its way: offers have numbers.

mod code;
mod host;
mod link;
mod talk;
#[cfg(test)]
pub(super) mod tests;

pub use code::{Code, CodeError};
pub use host::{Event, GUESTS, Host, Left, Output, SILENCE};
pub use link::{Link, LinkError, MESSAGE_MAX, parse};
pub use talk::{Lack, ToGuest, ToHost};
