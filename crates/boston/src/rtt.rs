//! How long an answer takes (RFC 6298).

use crate::Nanos;
use crate::receiver::ACK_DELAY;

/// Timeout before anything was measured (RFC 6298 §2.1).
const RTO_INITIAL: Nanos = Nanos::from_ms(1000);
/// Lower limit of the timeout, as in Linux; the RFC's 1 s predates fine clocks.
const RTO_MIN: Nanos = Nanos::from_ms(200);
/// Longest timeout: after a long blackout the path's return is noticed within it.
const RTO_MAX: Nanos = Nanos::from_ms(8000);
/// Number of doublings after which waiting longer makes no difference.
const BACKOFF_MAX: u32 = 10;

/// Round trip times and the timeout that follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    /// Smoothed round trip time and its mean deviation.
    smoothed: Option<(Nanos, Nanos)>,
    backoff: u32,
}

impl Rtt {
    pub fn sample(&mut self, rtt: Nanos) {
        self.smoothed = Some(match self.smoothed {
            None => (rtt, Nanos(rtt.0 / 2)),
            Some((mean, deviation)) => (
                Nanos((7 * mean.0 + rtt.0) / 8),
                Nanos((3 * deviation.0 + mean.0.abs_diff(rtt.0)) / 4),
            ),
        });
    }

    /// Notes that an answer came.
    pub fn progress(&mut self) {
        self.backoff = 0;
    }

    /// Notes that no answer came in time: waits twice as long for the next.
    pub fn timed_out(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    pub fn timeout(&self) -> Nanos {
        let usual = self.smoothed.map_or(RTO_INITIAL, |(mean, deviation)| {
            Nanos(mean.0.saturating_add(4 * deviation.0)).max(RTO_MIN)
        });
        Nanos(usual.0 << self.backoff).min(RTO_MAX)
    }

    /// Time without an answer after which a single cell asks for one (RFC 8985
    /// §7.2); only once, and before the timeout or not at all.
    pub fn probe_timeout(&self) -> Option<Nanos> {
        let (mean, _) = self.smoothed?;
        let patience = Nanos(2 * mean.0).plus(ACK_DELAY);
        (self.backoff == 0 && patience < self.timeout()).then_some(patience)
    }

    /// Time for which a cell that others overtook may still come.
    pub fn reordering(&self) -> Nanos {
        self.smoothed.map_or(RTO_MIN, |(mean, _)| Nanos(mean.0 / 4))
    }
}
