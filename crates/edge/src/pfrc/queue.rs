//! How long packets wait in front of a string, from round trips through it.

use crate::Ns;

/// Half the time for which the least delay of a path is remembered at most, in ns: a
/// path may become longer. A queue that never empties for that time is taken for a
/// part of the path.
const BASE_PERIOD_NS: Ns = 300_000_000_000;

/// The round trips through one string. The least of them is the path itself;
/// the excess of an interval's least one over it is the wait that no packet
/// avoided.
///
/// Contract: [`QueueDelay::handle_round_trip`] sees them as they are measured,
/// [`QueueDelay::take`] ends an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueDelay {
    /// Least round trip of this period, and of the one before.
    base: [Option<Ns>; 2],
    period_began: Ns,
    least: Option<Ns>,
}

impl QueueDelay {
    /// Notes the measured time of a round trip.
    pub fn handle_round_trip(&mut self, now: Ns, round_trip: Ns) {
        if now >= self.period_began + BASE_PERIOD_NS {
            self.period_began = now;
            self.base = [None, self.base[0]];
        }
        let lower = |least: Option<Ns>| Some(least.map_or(round_trip, |it| it.min(round_trip)));
        self.base[0] = lower(self.base[0]);
        self.least = lower(self.least);
    }

    /// Time that every packet had to wait since the last call; `None` if
    /// nothing was measured.
    pub fn take(&mut self) -> Option<Ns> {
        let least = self.least.take()?;
        let base = self.base.into_iter().flatten().min()?;
        Some(least.saturating_sub(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn what_nobody_came_round_is_the_queue() {
        let mut delay = QueueDelay::default();
        assert_eq!(delay.take(), None);
        delay.handle_round_trip(0, 3 * MS);
        assert_eq!(delay.take(), Some(0));
        for round_trip in [90 * MS, 60 * MS, 70 * MS] {
            delay.handle_round_trip(1, round_trip);
        }
        assert_eq!((delay.take(), delay.take()), (Some(57 * MS), None));
    }

    #[test]
    fn a_way_that_became_longer_is_no_queue_for_ever() {
        let mut delay = QueueDelay::default();
        delay.handle_round_trip(0, MS);
        for period in 1..3 {
            let _ended = delay.take();
            delay.handle_round_trip(period * BASE_PERIOD_NS, 5 * MS);
        }
        assert_eq!(delay.take(), Some(0));
    }
}
