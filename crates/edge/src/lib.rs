//! What an edge does for TCP while a member is replaced, as machines: they keep
//! the packets that the outage would swallow and resend them when it is over
//! ([`Recovery`], HALR), and share what is left of the bandwidth afterwards
//! ([`RateController`], PFRC). Both have hard limits on what they remember.
//! [`strings::Strings`] decides which of several parallel ways is used.
//!
//! They know no clock, no socket and no packet format: time and packets are
//! arguments, so the same machines run at the wire and in the simulator.
#![forbid(unsafe_code)]

mod pfrc;
mod recovery;
pub mod strings;

pub use pfrc::{PfrcConfig, PfrcCounts, RateController, RightEdge};
pub use recovery::{Direction, Passing, Recovery, RecoveryConfig, RecoveryCounts, Resend};

/// Time and durations, in nanoseconds.
pub type Ns = u64;
