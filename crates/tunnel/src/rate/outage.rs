//! Outages: what a path that is silent for a while says about the one before and after it.

use super::Rate;
use super::alone::Alone;
use super::losses::Compared;
use crate::rtt::Rtt;
use std::time::Duration;

/// Silence beyond these round trips and this time, at the end of which nearly all of so many datagrams
/// turn out to be lost, was an outage: what is known of the path is from before it. Acknowledgements that
/// nobody waits for take `PATIENT_DELAY` by themselves.
const OUTAGE_ROUNDS: u32 = 3;
const OUTAGE_BEYOND: Duration = Duration::from_millis(150);
const OUTAGE_DATAGRAMS: f64 = 16.0;
const OUTAGE_LOST: f64 = 0.9;
/// How often new bulk leaves in silence although the window is full.
const ASK_EVERY: Duration = Duration::from_millis(25);

/// The last silence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Datagrams before this number may have been lost in it.
    before: u64,
    /// Whether the rate has started again after it.
    is_answered: bool,
}

impl Rate {
    /// When a new symbol of bulk may: the window holds it up, too, but in silence not for ever. What was
    /// given up is not sent again, so that nothing else may ask for the acknowledgement that opens it.
    pub fn opens_for_new_at(&self) -> Duration {
        if (self.inflight as f64) < self.window() {
            return self.opens_at;
        }
        let asks_at = (self.delivered_at + self.silence()).max(self.asked_at + ASK_EVERY);
        self.opens_at.max(asks_at)
    }

    /// Time without news of what is under way from which on there is an outage, or may be.
    fn silence(&self) -> Duration {
        self.rtt.smoothed() * OUTAGE_ROUNDS + OUTAGE_BEYOND
    }

    /// Whether nothing has been heard of what is under way for so long that there is an outage, or may be.
    pub fn is_silent(&self, now: Duration) -> bool {
        self.inflight > 0 && self.is_silent_since(self.delivered_at, now)
    }

    /// Whether so long a time without news was a silence: what came through at its end is no rate.
    pub(super) fn is_silent_since(&self, delivered_at: Duration, now: Duration) -> bool {
        now.saturating_sub(delivered_at) > self.silence()
    }

    /// Takes news of datagrams up to `highest`, of which so many after the first `before` are settled and
    /// lost; whether they tell of an outage, whose losses are none of those that the path has on average.
    /// What was reordered before is counted as lost later than the first news after a silence come.
    pub fn takes_outage(
        &mut self,
        highest: u64,
        before: u64,
        (settled, lost): (f64, f64),
        now: Duration,
    ) -> bool {
        if self.sent_as(highest).is_some_and(|sent| self.is_silent_since(sent.delivered_at, now)) {
            self.silence = Silence { before: highest + 1, is_answered: false };
        }
        let is_outage = before < self.silence.before
            && settled >= OUTAGE_DATAGRAMS
            && lost >= OUTAGE_LOST * settled;
        if is_outage && !self.silence.is_answered {
            self.silence.is_answered = true;
            self.restart();
        }
        is_outage
    }

    /// The peer is elsewhere now: nothing is known of the path to it.
    pub fn path_changed(&mut self) {
        self.restart();
        self.rtt = Rtt::default();
        self.path_from = self.first + self.log.len() as u64;
    }

    /// Starts again: rates and losses of before are old.
    pub(super) fn restart(&mut self) {
        self.rates.clear();
        self.start = Compared::default();
        self.startup = Some((0.0, 0));
        (self.cap, self.drains_until, self.drained) = (None, None, 0);
        self.alone = Alone::default();
        (self.low, self.quiet, self.high) = Default::default();
        self.has_low = false;
        self.answered = self.first + self.log.len() as u64;
    }
}
