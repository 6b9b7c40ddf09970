//! How far the replica is behind the log, in time (decision 23).
//!
//! Whatever the replica has not run when the primary dies must be run before any
//! client hears of it again. So a backup whose replica is behind holds back its
//! confirmations, and with them the primary's output, until the replica has come
//! up: both servers run at the speed of the slower one.

use crate::Nanos;
use std::collections::VecDeque;

/// A replica that has not run a record for this long is behind.
pub const LAG_MAX: Nanos = Nanos::from_ms(10);
/// A replica that is behind for longer than this may be stuck or at a long
/// computation; the primary is not held back by it any more.
pub const LAG_GIVEN_UP: Nanos = Nanos::from_ms(1000);
/// How exactly the time of a record is known.
const MARK_EVERY: Nanos = Nanos(500_000);
/// Marks kept; at the limit the newest records have none.
const MARKS_MAX: usize = 256;

/// Knows when which part of the log was appended for the replica.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// When the log ended at this position, oldest first.
    marks: VecDeque<(Nanos, u64)>,
}

impl Lag {
    /// The replica has run its log up to `executed`, and may run it up to
    /// `appended`.
    pub fn note(&mut self, now: Nanos, appended: u64, executed: u64) {
        while self.marks.pop_front_if(|(_, position)| *position <= executed).is_some() {}
        let new = match self.marks.back() {
            Some((at, position)) => appended > *position && now.since(*at) >= MARK_EVERY,
            None => appended > executed,
        };
        if new && self.marks.len() < MARKS_MAX {
            self.marks.push_back((now, appended));
        }
    }

    /// Must the primary wait for the replica?
    #[must_use]
    pub fn is_behind(&self, now: Nanos) -> bool {
        let age = self.marks.front().map(|(at, _)| now.since(*at));
        age.is_some_and(|age| age > LAG_MAX && age < LAG_GIVEN_UP)
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

    #[test]
    fn a_replica_that_is_stuck_does_not_hold_the_primary_for_ever() {
        let mut lag = Lag::default();
        lag.note(Nanos(0), 100, 0);
        assert!(lag.is_behind(Nanos::from_ms(999)));
        assert!(!lag.is_behind(Nanos::from_ms(1000)));
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
