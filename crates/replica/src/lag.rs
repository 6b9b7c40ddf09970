//! How far the replica is behind the log, in time (decision 23).
//!
//! Whatever the replica has not run when the primary dies must be run before any
//! client hears of it again. So a backup whose replica is behind holds back its
//! confirmations, and with them the primary's output, until the replica has come
//! up: both servers run at the speed of the slower one. A replica that makes no
//! progress at all is hung: it ends the pair, for the primary is worth more. A
//! replica that starves on a busy machine is not hung until its clients have
//! waited too long.

use crate::Nanos;
use std::collections::VecDeque;

/// Time without running a record after which a replica is behind.
pub const LAG_MAX: Nanos = Nanos::from_ms(10);
/// Time after which a replica that sleeps while it has log to run is hung.
const HUNG_AFTER: Nanos = Nanos::from_ms(1000);
/// The same for a replica that computes, or waits for a processor or a disk: it
/// is only slow for this long.
const HUNG_BUSY: Nanos = Nanos::from_ms(10_000);
/// The same for a replica that has not begun: it may still be loading.
const HUNG_AT_START: Nanos = Nanos::from_ms(30_000);
/// Most time that counts between two looks: when the machine stood still, so
/// did the replica.
const LOOK_MAX: Nanos = Nanos::from_ms(50);
/// Resolution with which the time of a record is known.
const MARK_EVERY: Nanos = Nanos(500_000);
/// Most marks kept; at the limit the newest records have none.
const MARKS_MAX: usize = 256;

/// Knows when each part of the log was appended for the replica.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// Times at which the log ended at a position, oldest first.
    marks: VecDeque<(Nanos, u64)>,
    /// Position of the replica at the last look, when that was, and for how
    /// long it had not moved although there was log to run.
    executed: u64,
    looked: Nanos,
    stuck: Nanos,
}

impl Lag {
    /// The replica has run its log up to `executed`, and may run it up to
    /// `appended`.
    pub fn note(&mut self, now: Nanos, appended: u64, executed: u64) {
        let passed = now.since(self.looked).min(LOOK_MAX);
        let moved = executed != self.executed || appended == executed;
        self.stuck = if moved { Nanos(0) } else { self.stuck.plus(passed) };
        (self.executed, self.looked) = (executed, now);
        while self.marks.pop_front_if(|(_, position)| *position <= executed).is_some() {}
        let new = match self.marks.back() {
            Some((at, position)) => appended > *position && now.since(*at) >= MARK_EVERY,
            None => appended > executed,
        };
        if new && self.marks.len() < MARKS_MAX {
            self.marks.push_back((now, appended));
        }
    }

    /// Whether the primary must wait for the replica.
    #[must_use]
    pub fn is_behind(&self, now: Nanos) -> bool {
        self.marks.front().is_some_and(|(at, _)| now.since(*at) > LAG_MAX)
    }

    /// Whether the replica has log to run and does not run it. `is_busy`: it
    /// computes, or would if it could; asked only when that matters.
    #[must_use]
    pub fn is_hung(&self, is_busy: impl FnOnce() -> bool) -> bool {
        if self.executed == 0 {
            return self.stuck >= HUNG_AT_START;
        }
        self.stuck >= HUNG_AFTER && (!is_busy() || self.stuck >= HUNG_BUSY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_behind_by_the_age_of_what_it_has_not_run() {
        let mut lag = Lag::default();
        let at = Nanos::from_ms;
        lag.note(at(0), 100, 100);
        assert!(!lag.is_behind(at(500)), "nothing to run");
        lag.note(at(500), 200, 100);
        lag.note(at(504), 300, 100);
        assert!(!lag.is_behind(at(510)));
        assert!(lag.is_behind(at(511)));
        lag.note(at(511), 300, 200);
        assert!(!lag.is_behind(at(511)), "the rest is younger");
        assert!(lag.is_behind(at(515)));
        lag.note(at(515), 300, 300);
        assert!(!lag.is_behind(at(600)));
    }

    /// Looks every `step_ms` from the first to the second time.
    fn look(lag: &mut Lag, from_ms: u64, to_ms: u64, step_ms: u64, executed: u64) {
        for ms in (from_ms..=to_ms).step_by(step_ms as usize) {
            lag.note(Nanos::from_ms(ms), 100, executed);
        }
    }

    #[test]
    fn a_replica_without_progress_is_hung_after_a_second() {
        let mut lag = Lag::default();
        look(&mut lag, 0, 5000, 20, 0);
        assert!(!lag.is_hung(|| false), "it may still be loading");
        look(&mut lag, 5020, 6000, 20, 10);
        assert!(!lag.is_hung(|| false) && lag.is_behind(Nanos::from_ms(6000)));
        look(&mut lag, 6020, 6040, 20, 10);
        assert!(lag.is_hung(|| false));
        look(&mut lag, 6060, 6060, 20, 11);
        assert!(!lag.is_hung(|| false), "it moves");
        look(&mut lag, 6080, 9000, 20, 100);
        assert!(!lag.is_hung(|| false), "nothing to run");
        let mut lag = Lag::default();
        look(&mut lag, 0, 30_000, 20, 0);
        assert!(lag.is_hung(|| true), "it never began");
    }

    #[test]
    fn a_replica_that_computes_or_starves_has_ten_seconds() {
        let mut lag = Lag::default();
        look(&mut lag, 0, 9980, 20, 10);
        assert!(!lag.is_hung(|| true) && lag.is_hung(|| false));
        look(&mut lag, 10_000, 10_020, 20, 10);
        assert!(lag.is_hung(|| true));
    }

    #[test]
    fn time_in_which_nobody_ran_does_not_count() {
        let mut lag = Lag::default();
        look(&mut lag, 0, 10_000, 2500, 10);
        assert!(!lag.is_hung(|| false));
    }

    #[test]
    fn marks_are_limited() {
        let mut lag = Lag::default();
        for ms in 0..10 * MARKS_MAX as u64 {
            lag.note(Nanos::from_ms(ms), ms + 1, 0);
        }
        assert_eq!(lag.marks.len(), MARKS_MAX);
        assert_eq!(lag.marks.front(), Some(&(Nanos(0), 1)));
    }
}
