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

mod config;
mod endpoint;
pub mod plan;
mod report;
#[cfg(feature = "secure")]
pub mod secure;

pub use config::{
    Budgets, Class, Config, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, INNER_MTU_MAX, Limits,
    PathLoss, Rule,
};
pub use endpoint::{
    Ecn, Endpoint, Inside, Malformed, Outgoing, Refused, StreamError, StreamEvent, StreamId,
};
pub use report::{Receiving, Redundancy, Report, Sending};
