//! Round trips in coarse ticks and the timeout that follows from them, as BSD
//! and ns-2 had it (Jacobson 1988, appendix A; RFC 6298 with a clock of 0.5 s).

use super::profile::Profile;
use crate::Ns;

/// Number of fraction bits of the smoothed round trip.
const SRTT_BITS: u32 = 3;
/// Number of fraction bits of the round trip's variation.
const RTTVAR_BITS: u32 = 2;

/// Longest round trip in ns: ten years, so that sums of times cannot overflow.
const ROUND_TRIP_MAX_NS: Ns = 315_000_000_000_000_000;

/// The estimator of round trips of the one-way agents.
#[derive(Clone, Copy, Debug, Default)]
pub struct TickEstimator {
    /// Smoothed round trip in eighths of ticks; 0 before the first sample.
    srtt: u64,
    /// Variation in quarters of ticks.
    rttvar: u64,
    /// Timeout in ticks; 0 before the first sample.
    rto: u64,
    doublings: u32,
    /// Length of the last sample's tick, in ns.
    tick_ns: Ns,
}

impl TickEstimator {
    /// Takes a round trip that took `rtt_ns` and began at `sent_at`. The clock ticks on its own, so
    /// that a trip that begins late in a tick seems longer.
    pub fn sample(&mut self, profile: &Profile, sent_at: Ns, rtt_ns: Ns) {
        let tick = profile.tick_ns.max(1);
        self.tick_ns = tick;
        let ticks = ((rtt_ns.min(ROUND_TRIP_MAX_NS) + sent_at % tick) / tick).max(1);
        if self.srtt == 0 {
            self.srtt = ticks << SRTT_BITS;
            self.rttvar = ticks << (RTTVAR_BITS - 1);
        } else {
            let error = ticks as i64 - (self.srtt >> SRTT_BITS) as i64;
            self.srtt = self.srtt.saturating_add_signed(error).max(1);
            let change = error.abs() - (self.rttvar >> RTTVAR_BITS) as i64;
            self.rttvar = self.rttvar.saturating_add_signed(change).max(1);
        }
        self.rto = ((self.rttvar << (2 + SRTT_BITS - RTTVAR_BITS)) + self.srtt) >> SRTT_BITS;
    }

    /// Smoothed round trip in ns; `None` before the first sample and where it is no longer trusted.
    #[must_use]
    pub fn smoothed_ns(&self) -> Option<Ns> {
        (self.srtt > 0).then(|| self.srtt.saturating_mul(self.tick_ns) >> SRTT_BITS)
    }

    /// Ends the backoff: a segment that was sent once was acknowledged (Karn 1987).
    pub fn end_backoff(&mut self) {
        self.doublings = 0;
    }

    /// Backs off, because the timer expired.
    pub fn back_off(&mut self) {
        self.doublings = (self.doublings + 1).min(30);
        // After so many doublings the estimate is no longer trusted.
        if self.doublings > 3 {
            self.rttvar += self.srtt >> SRTT_BITS;
            self.srtt = 0;
        }
    }

    /// How long to wait for an acknowledgement.
    #[must_use]
    pub fn timeout_ns(&self, profile: &Profile) -> Ns {
        let first = match self.rto {
            0 => profile.syn_timeout_ns,
            ticks => ticks.saturating_mul(profile.tick_ns),
        };
        let timeout = first.max(profile.rto_min_ns).saturating_mul(1 << self.doublings);
        timeout.min(profile.rto_max_ns).max(2 * profile.tick_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn the_first_timeout_is_three_ticks() {
        let profile = Profile::NS2;
        let mut estimator = TickEstimator::default();
        assert_eq!(estimator.timeout_ns(&profile), 3000 * MS);
        for _ in 0..20 {
            estimator.sample(&profile, 123 * MS, 200 * MS);
            assert_eq!(estimator.timeout_ns(&profile), 1500 * MS, "{estimator:?}");
        }
        estimator.back_off();
        assert_eq!(estimator.timeout_ns(&profile), 3000 * MS);
        estimator.end_backoff();
        assert_eq!(estimator.timeout_ns(&profile), 1500 * MS);
        (0..40).for_each(|_| estimator.back_off());
        assert_eq!(estimator.timeout_ns(&profile), profile.rto_max_ns);
    }
}
