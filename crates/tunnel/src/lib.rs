//! The machine of a coded tunnel: packets in, datagrams out, and back again.
//!
//! One [`Endpoint`] is one end of one tunnel to one peer. It reads no clock and no
//! socket and has no randomness of its own: time and a seed come in as arguments,
//! datagrams, packets and the time of the next wake-up go out.
//!
//! The contract: after any `handle_*` call and whenever [`Endpoint::wake_at`] has
//! come, call [`Endpoint::poll_datagram`] and [`Endpoint::poll_inside`] until both
//! answer `None`. Time never runs backwards; all of it counts from one arbitrary
//! origin.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
mod assembly;
mod config;
mod decoder;
mod ecn;
mod endpoint;
mod frame;
#[cfg(all(feature = "secure", any(test, fuzzing)))]
pub mod fuzz;
mod header;
mod inner;
mod item;
mod loss;
mod mss;
mod outbound;
pub mod plan;
mod queue;
mod rate;
mod report;
mod resequence;
mod rtt;
#[cfg(feature = "secure")]
pub mod secure;
mod stream;
mod wire;

pub use api::{Ecn, Inside, Malformed, Outgoing, Refused, StreamError, StreamEvent, StreamId};
pub use config::{
    Budgets, Class, Config, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, INNER_MTU_MAX, Limits,
    PathLoss, Rule,
};
pub use endpoint::Endpoint;
pub use mss::clamp_mss;
pub use report::{Receiving, Redundancy, Report, Sending};

/// The example in the read-me is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
