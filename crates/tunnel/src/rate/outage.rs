//! Outages: what a path that is silent for a while says about the one before and after it.

use super::Rate;
use super::losses::Compared;
use std::time::Duration;

/// Silence beyond these round trips and this time, at the end of which nearly all of so many datagrams
/// turn out to be lost, was an outage: what is known of the path is from before it.
const OUTAGE_ROUNDS: u32 = 3;
const OUTAGE_BEYOND: Duration = Duration::from_millis(50);
const OUTAGE_DATAGRAMS: f64 = 16.0;
const OUTAGE_LOST: f64 = 0.9;
/// How often new bulk leaves in silence although the window is full.
const ASK_EVERY: Duration = Duration::from_millis(25);

impl Rate {
    /// When a new symbol of bulk may: the window holds it up, too, but in silence not for ever. What was
    /// given up is not sent again, so that nothing else may ask for the acknowledgement that opens it.
    pub fn opens_for_new_at(&self) -> Duration {
        if (self.inflight as f64) < self.window() {
            return self.opens_at;
        }
        let latest = self.log.back().map_or(Duration::ZERO, |sent| sent.at);
        let asks_at = (self.delivered_at + self.silence()).max(latest + ASK_EVERY);
        self.opens_at.max(asks_at)
    }

    /// Time without news of what is under way from which on there is an outage, or may be.
    fn silence(&self) -> Duration {
        self.rtt.smoothed() * OUTAGE_ROUNDS + OUTAGE_BEYOND
    }

    /// Whether news of datagrams up to `highest`, of which so many are newly settled and lost, tell of
    /// an outage. It is none of the losses that the path has on average.
    pub fn is_outage(&self, highest: u64, (settled, lost): (f64, f64), now: Duration) -> bool {
        let at = highest.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(sent) = at.and_then(|at| self.log.get(at)) else { return false };
        let was_silent = now.saturating_sub(sent.delivered_at) > self.silence();
        was_silent && settled >= OUTAGE_DATAGRAMS && lost >= OUTAGE_LOST * settled
    }

    /// Starts again, with what is known of the path's losses: the rates of before are old, and what
    /// came through at the end of an outage is none.
    pub fn restart(&mut self) {
        self.rates.clear();
        self.start = Compared::default();
        self.startup = Some((0.0, 0));
        (self.cap, self.drains_until, self.drained) = (None, None, 0);
        self.answered = self.first + self.log.len() as u64;
    }
}
