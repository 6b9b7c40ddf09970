//! How late heartbeats have been: the longest delay in recent time.
//!
//! Stalling schedulers, hypervisors that take the processor away and paths that lose
//! packets have tails that no normal distribution describes (phi-accrual,
//! Hayashibara et al. 2004, assumes one), and means forget what matters. So the
//! estimate is the largest sample within a window, the filter by which BBR keeps its
//! round trip (Cardwell et al. 2016), here in two halves. What it adds to the
//! time-out is the safety margin of Chen, Toueg and Aguilera (2002).

use crate::Nanos;

/// Least time for which a delay is remembered; it may be up to twice as long.
pub const LATE_MEMORY: Nanos = Nanos::from_ms(30_000);

/// The longest recent delay; see the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    /// Largest delay of this half of the window, and of the one before.
    halves: [Nanos; 2],
    /// When this half began.
    since: Nanos,
}

impl Lateness {
    /// Notes that something came late by `late`.
    pub fn note(&mut self, now: Nanos, late: Nanos) {
        self.turn(now);
        self.halves[0] = self.halves[0].max(late);
    }

    /// The largest delay that is remembered.
    #[must_use]
    pub fn worst(&self) -> Nanos {
        self.halves[0].max(self.halves[1])
    }

    fn turn(&mut self, now: Nanos) {
        let age = now.since(self.since).0 / LATE_MEMORY.0;
        if age > 0 {
            self.halves = [Nanos(0), if age == 1 { self.halves[0] } else { Nanos(0) }];
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_delay_is_remembered_for_a_while() {
        let mut lateness = Lateness::default();
        let at = |ms| Nanos::from_ms(ms);
        lateness.note(at(1000), at(7));
        for ms in (2000..=59_000).step_by(1000) {
            lateness.note(at(ms), at(2));
            assert_eq!(lateness.worst(), at(7), "{ms} ms");
        }
        lateness.note(at(61_000), at(1));
        assert_eq!(lateness.worst(), at(2));
        lateness.note(at(500_000), at(1));
        assert_eq!(lateness.worst(), at(1));
    }
}
