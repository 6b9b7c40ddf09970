//! The machines that decide who is alive and who may speak: a failure detector
//! for every channel, and the edge's epochs.
//!
//! Nothing here reads a clock, a socket or a disk. Time comes in as an argument;
//! what must be on disk before it is true leaves as a decision and comes back as
//! a confirmation.
#![forbid(unsafe_code)]

pub mod detector;
pub mod membership;
pub mod state;

/// Nanoseconds since an origin that the caller chooses and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `self + duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Self) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// A duration of `ms` milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
}
