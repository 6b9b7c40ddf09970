//! The lease of a pair without an edge: who of the two may speak, and until when.
//!
//! The primary asks its backup every period, and may speak until the time at which it *sent*
//! the newest question that was granted, and the lease. The backup promises with each grant
//! not to speak for longer than that. No clock is compared, only rates (Gray and Cheriton,
//! "Leases", 1989). Whoever wants to go on without the other one's grants changes the
//! arbiter's record first ([`crate::arbiter`]), which therefore is asked once per takeover.
//! The kernel silences a primary whose daemon does nothing: the machine's only word to it is
//! a point in time.
//!
//! Why at most one speaks: in `pair` mode the owner speaks before `sent + lease` of a grant;
//! the grant was made after that was sent, so the promise ends later, whatever the delay.
//! The other one speaks after its promise, and after it has made the record its own. In
//! `solo` mode the record bars everybody but the owner, who alone can change it back, and has
//! begun to live on grants before it asks for that.
//!
//! A member that sends and hears nothing harms nobody: it cannot change the record, because
//! that needs a ticket of an answer that it has heard since it began to doubt what it hears; so
//! its lease ends, and the other one, which sees that it echoes nothing, goes on without it.
//! One that loses its hearing in the very moment between a ticket and the answer to its change
//! owns the record without knowing, until it hears again.
//!
//! It holds as long as each member's clock runs at the rate of true time within
//! [`DRIFT_PPM_EACH`]. A virtual machine that is suspended with its clock breaks that, for up
//! to a lease after it goes on: then what the deposed member says must do no harm by itself
//! (output commit: nothing new leaves without the other's confirmation).

mod adopt;
mod doubt;
mod link;
mod machine;
mod message;
mod takeover;

pub use link::Reject;
pub use machine::{Counts, Kept, Lease, LeaseOutput, Note, Role, Setup};
pub use message::{Kind, LEASE_BYTES, Message};

use crate::Nanos;

/// How far the rate of a member's clock may be from true time, in parts per million. The
/// rates of two clocks differ by up to twice as much.
pub const DRIFT_PPM_EACH: u64 = 1000;
/// Part of a promise that covers what the drift does not: the time between reading a clock
/// and acting upon it.
pub const PROMISE_MARGIN: Nanos = Nanos(500_000);
/// Periods without a sign of life of the primary after which its backup takes over.
pub const DECLARE_PERIODS: u64 = 3;
/// Half-periods without a grant after which the primary asks to go on alone: before its
/// backup declares it dead, so that a cut between the two costs no client anything.
pub const SOLO_HALVES: u64 = 5;
/// Longest lease: a client's first repeat (RFC 6298: an RTO of 1 s) should find somebody.
pub const LEASE_MAX: Nanos = Nanos::from_ms(500);
/// Shortest and longest period.
pub const PERIODS: [Nanos; 2] = [Nanos::from_ms(1), Nanos::from_ms(100)];

/// Times of a lease that fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    period: Nanos,
    lease: Nanos,
    behind: Nanos,
}

/// Why times do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    #[error("a period is 1 to 100 ms")]
    Period,
    #[error("a lease is {DECLARE_PERIODS} periods or more, and at most 500 ms")]
    Lease,
    #[error("packets wait behind the hook for less than a lease")]
    Behind,
}

impl Timing {
    /// A question every `period`; its grant is good for `lease`, and packets leave up to
    /// `behind` after the kernel has let them pass (a queue behind the hook).
    ///
    /// # Errors
    /// If the primary could fall silent before its backup declares it dead, or if a time is
    /// out of its range.
    pub fn new(period: Nanos, lease: Nanos, behind: Nanos) -> Result<Self, TimingError> {
        if !(PERIODS[0]..=PERIODS[1]).contains(&period) {
            return Err(TimingError::Period);
        }
        if lease.0 < DECLARE_PERIODS * period.0 || lease > LEASE_MAX {
            return Err(TimingError::Lease);
        }
        if behind >= lease {
            return Err(TimingError::Behind);
        }
        Ok(Self { period, lease, behind })
    }

    /// Time between two questions.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// Time for which a grant is good, from when its question was sent.
    #[must_use]
    pub fn lease(&self) -> Nanos {
        self.lease
    }

    /// Time for which a backup promises not to speak: longer than the lease by any clock.
    #[must_use]
    pub fn promise(&self) -> Nanos {
        let drift = self.lease.0 * 2 * DRIFT_PPM_EACH / 1_000_000;
        self.lease.plus(Nanos(drift)).plus(PROMISE_MARGIN).plus(self.behind)
    }

    /// Silence after which the backup takes over.
    #[must_use]
    pub fn declare(&self) -> Nanos {
        Nanos(DECLARE_PERIODS * self.period.0)
    }

    /// Time after which a primary without grants asks to go on alone.
    #[must_use]
    pub fn solo(&self) -> Nanos {
        Nanos(SOLO_HALVES * self.period.0 / 2)
    }

    /// Time that a member which has started waits for a backup to say that it holds the
    /// connections: longer than a takeover.
    #[must_use]
    pub fn patience(&self) -> Nanos {
        self.promise().plus(self.declare())
    }
}

#[cfg(test)]
mod tests;
