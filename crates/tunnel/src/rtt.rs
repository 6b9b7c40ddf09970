//! Round trips: the smoothed one and its deviation (RFC 6298), and the least of the last seconds.
//!
//! `holdfast-boston` has the same smoothing with TCP's limits (a timeout of 200 ms and more); here a
//! retransmission is due one round trip and about a millisecond after the loss.

use std::collections::VecDeque;
use std::time::Duration;

/// How long the least round trip counts: routes change.
const LEAST_LASTS: Duration = Duration::from_secs(10);
/// Before anything was measured (RFC 6298 §2.1 has 1 s; here a guess that is too short costs one
/// repeated datagram).
const INITIAL: Duration = Duration::from_millis(100);
/// Deviations of the round trip that a timeout allows for (RFC 6298 §2.2).
const DEVIATIONS: u32 = 4;
/// The latest round trips, and how many of them may be longer than a timeout: one that took a few
/// milliseconds on a busy host raises the deviation for a dozen more, and what is lost meanwhile is
/// repaired late; what is repeated in vain costs one datagram.
const RECENT: usize = 32;
const RECENT_LONGER: usize = 2;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    /// The latest ones, in their order and by length.
    recent: VecDeque<Duration>,
    by_length: Vec<Duration>,
    /// Times and round trips, both rising.
    least: VecDeque<(Duration, Duration)>,
}

impl Rtt {
    pub fn sample(&mut self, rtt: Duration, now: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => {
                self.deviation = rtt / 8;
                rtt
            }
            Some(mean) => {
                self.deviation = (self.deviation * 3 + mean.abs_diff(rtt)) / 4;
                (mean * 7 + rtt) / 8
            }
        });
        self.note_recent(rtt);
        while self.least.back().is_some_and(|(_, longer)| *longer >= rtt) {
            self.least.pop_back();
        }
        self.least.push_back((now, rtt));
        while self.least.len() > 1
            && self.least.front().is_some_and(|(at, _)| *at + LEAST_LASTS < now)
        {
            self.least.pop_front();
        }
    }

    fn note_recent(&mut self, rtt: Duration) {
        if self.recent.len() == RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            let at = self.by_length.partition_point(|it| *it < oldest);
            self.by_length.remove(at);
        }
        self.recent.push_back(rtt);
        let at = self.by_length.partition_point(|it| *it < rtt);
        self.by_length.insert(at, rtt);
    }

    pub fn is_measured(&self) -> bool {
        self.smoothed.is_some()
    }

    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL)
    }

    pub fn latest(&self) -> Duration {
        self.recent.back().copied().unwrap_or_default()
    }

    /// The least of the last ten seconds.
    pub fn least(&self) -> Duration {
        self.least.front().map_or(INITIAL, |(_, rtt)| *rtt)
    }

    /// Time after which an answer that is not delayed on purpose is overdue.
    pub fn overdue(&self) -> Duration {
        let by_deviation = self.smoothed() + self.deviation * DEVIATIONS;
        match self.by_length.len() == RECENT {
            true => by_deviation.min(self.by_length[RECENT - 1 - RECENT_LONGER]),
            false => by_deviation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_constant_round_trip_is_overdue_at_once_and_the_least_is_forgotten() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.least(), rtt.is_measured()), (INITIAL, false));
        for i in 0..100 {
            rtt.sample(20 * MS, i * MS);
        }
        assert_eq!(rtt.least(), 20 * MS);
        assert!(rtt.overdue() < 21 * MS);
        for i in 0..12_000 {
            rtt.sample(30 * MS, (100 + i) * MS);
        }
        assert_eq!(rtt.least(), 30 * MS);
    }

    #[test]
    fn two_long_round_trips_of_thirty_make_no_timeout_longer() {
        let mut rtt = Rtt::default();
        for i in 0..1000 {
            let is_long = i % 16 == 15;
            rtt.sample(if is_long { 60 * MS } else { 20 * MS }, i * MS);
            assert!(i < 40 || rtt.overdue() < 21 * MS, "{i}: {:?}", rtt.overdue());
        }
        for i in 0..40 {
            rtt.sample(60 * MS, (1000 + i) * MS);
        }
        assert!(rtt.overdue() >= 60 * MS);
    }
}
