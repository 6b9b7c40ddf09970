//! What an edge does for TCP while a member is replaced, as machines: they keep the packets
//! that the outage would swallow and resend them when it is over ([`Recovery`], HALR; [`halr`]
//! says when), and share what is left of the bandwidth afterwards ([`Pfrc`], PFRC). Both have
//! hard limits on what they remember. [`strings::Strings`] decides which of several parallel
//! paths is used.
//!
//! [`maglev`] tells the member of a new flow where several serve.
//!
//! The machines know no clock, no socket and no packet format: time and packets
//! are arguments, so the same machines run on the wire and in the simulator.
#![forbid(unsafe_code)]

pub mod halr;
mod heaviest;
pub mod maglev;
mod pfrc;
mod pool;
mod recovery;
mod slabs;
pub mod strings;

pub use halr::{Halr, HalrConfig, HalrHost, HalrLimits, Intake, Keeps};
pub use holdfast_wire::seq::SeqNo;
pub use pfrc::{
    Flows, Law, Measurement, Pfrc, PfrcConfig, PfrcCounts, PfrcHost, PfrcSettings, QueueDelay,
    RightEdge, WindowControl, clamp,
};
pub use recovery::{
    Direction, Inline, PacketStore, Passing, Recovery, RecoveryConfig, RecoveryCounts, Resend,
};
pub use slabs::{PACKET_MAX, Slabs, Slot};

/// Time and durations, in nanoseconds.
pub type Ns = u64;

/// The example in the read-me is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
