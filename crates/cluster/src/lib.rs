//! The machines that decide who is alive and who may speak: a failure detector
//! for every channel, the edge's epochs, and, for pairs without an edge, the lease
//! between the members and the arbiter's record.
//!
//! Nothing here reads a clock, a socket or a disk. Time comes in as an argument;
//! what must be on disk before it is true leaves as a decision and comes back as
//! a confirmation.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod detector;
pub mod hearing;
pub mod lateness;
pub mod lease;
pub mod membership;
pub mod state;
pub mod watch;

pub use holdfast_wire::time::Nanos;
