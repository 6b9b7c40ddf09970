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
/// Deviations of the round trip that a timeout allows for.
const DEVIATIONS: u32 = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    latest: Duration,
    /// Times and round trips, both rising.
    least: VecDeque<(Duration, Duration)>,
}

impl Rtt {
    pub fn sample(&mut self, rtt: Duration, now: Duration) {
        self.latest = rtt;
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

    pub fn is_measured(&self) -> bool {
        self.smoothed.is_some()
    }

    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL)
    }

    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// The least of the last ten seconds.
    pub fn least(&self) -> Duration {
        self.least.front().map_or(INITIAL, |(_, rtt)| *rtt)
    }

    /// Time after which an answer that is not delayed on purpose is overdue.
    pub fn overdue(&self) -> Duration {
        self.smoothed() + self.deviation * DEVIATIONS
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
}
