//! The retransmission timer of ns-1 (1996), in coarse ticks: every acknowledgement echoes when its
//! packet was sent, and the timeout doubles at most six times, also at a fast retransmit. Nothing
//! else bounds it from above.

use crate::Ns;

/// Timeout before anything was measured, in ns.
const INITIAL_NS: Ns = 3_000_000_000;
/// Most doublings of the timeout, to 64 times.
const DOUBLINGS_MAX: u32 = 6;
/// Number of doublings after which the measured round trip is forgotten.
const DOUBLINGS_TRUSTED: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    tick_ns: Ns,
    /// Smoothed round trip in eighths of ticks; 0 before the first sample.
    smoothed: i64,
    /// Variation in quarters of ticks.
    variation: i64,
    doublings: u32,
}

impl Timer {
    pub fn new(tick_ns: Ns) -> Self {
        Self { tick_ns, smoothed: 0, variation: (INITIAL_NS / tick_ns) as i64, doublings: 0 }
    }

    /// Takes a measured round trip.
    pub fn sample(&mut self, rtt_ns: Ns) {
        let ticks = (((rtt_ns + self.tick_ns / 2) / self.tick_ns) as i64).max(1);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (ticks << 3, ticks << 1);
            return;
        }
        let error = ticks - (self.smoothed >> 3);
        self.smoothed = (self.smoothed + error).max(1);
        self.variation = (self.variation + error.abs() - (self.variation >> 2)).max(1);
    }

    /// Backs off: the timer expired, or a packet is retransmitted.
    pub fn back_off(&mut self) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        if self.doublings > DOUBLINGS_TRUSTED {
            self.smoothed = 0;
        }
    }

    /// Ends the backoff: a packet that was sent once was acknowledged (Karn 1987).
    pub fn end_backoff(&mut self) {
        self.doublings = 0;
    }

    /// How long to wait for an acknowledgement.
    pub fn timeout_ns(&self) -> Ns {
        let ticks = ((self.smoothed >> 3) + self.variation) as Ns;
        ((ticks * self.tick_ns) << self.doublings).max(2 * self.tick_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn it_waits_three_seconds_at_first_and_64_times_the_usual_at_most() {
        let mut timer = Timer::new(100 * MS);
        assert_eq!(timer.timeout_ns(), 3000 * MS);
        timer.sample(430 * MS);
        // The timeout is 4 ticks plus four times a variation of 2.
        assert_eq!(timer.timeout_ns(), 1200 * MS);
        (0..50).for_each(|_| timer.sample(430 * MS));
        let usual = timer.timeout_ns();
        assert!((400 * MS..=800 * MS).contains(&usual), "{usual}");
        (0..3).for_each(|_| timer.back_off());
        assert_eq!(timer.timeout_ns(), 8 * usual);
        (0..20).for_each(|_| timer.back_off());
        assert!(timer.timeout_ns() <= 64 * usual);
        timer.end_backoff();
        timer.sample(430 * MS);
        assert_eq!(timer.timeout_ns(), 1200 * MS);
    }
}
