//! A host that hears nobody accuses nobody. When every peer falls silent at
//! once, what they have in common has failed: this host's own link, or its own
//! process. The end of such a silence does not reach all peers in the same
//! moment: each channel repeats what it lost in its own time.
//!
//! Silence is evidence against one peer only while another one is heard.

use crate::Nanos;

/// Time since the last sign of life of any peer after which nobody counts as heard, in
/// halves of a heartbeat period: a heartbeat comes each period, and may be half a
/// period late.
pub const DEAF_HALVES: u64 = 3;
/// Time after the end of such a silence until a peer may be accused again, in
/// periods: links come up one after the other, and neighbours have to be found
/// again.
pub const GRACE_PERIODS: u64 = 5;
/// Shortest silence of all peers that a channel may not outlive: its repeats come so seldom by
/// then that it can be given up after the silence has ended.
pub const OUTAGE_MIN: Nanos = Nanos::from_ms(1000);
/// Most heartbeats of ours that a peer may have missed while it speaks. A peer that has
/// missed more is deaf, and its messages are no sign of life: no client reaches it, and
/// it would never know. One more than makes a peer dead.
pub const UNHEARD_MAX: u64 = crate::detector::DECLARE_AFTER + 1;

/// Notes when this host last heard any of its peers.
///
/// # Contract
/// Tell it of every message of every peer. Before a peer is judged, ask
/// [`Hearing::excused_until`], and hand the answer to the peer's detector.
#[derive(Clone, Copy, Debug)]
pub struct Hearing {
    period: Nanos,
    /// The last sign of life of any peer.
    heard: Nanos,
    /// When the last silence of all peers ended.
    since: Nanos,
    /// When the last one that lasted [`OUTAGE_MIN`] did.
    out_until: Option<Nanos>,
    deafened: u64,
}

impl Hearing {
    /// A host that has heard nobody yet. All peers beat every `period`.
    #[must_use]
    pub fn new(now: Nanos, period: Nanos) -> Self {
        Self { period, heard: now, since: now, out_until: None, deafened: 0 }
    }

    /// Notes that some peer was heard.
    pub fn handle_received(&mut self, now: Nanos) {
        if now.since(self.heard) > self.patience() {
            self.since = now;
            self.deafened += 1;
        }
        if self.silence(now) >= OUTAGE_MIN {
            self.out_until = Some(now);
        }
        self.heard = self.heard.max(now);
    }

    /// Until when no peer's silence means anything, as far as is known at `now`.
    #[must_use]
    pub fn excused_until(&self, now: Nanos) -> Nanos {
        let grace = Nanos(self.period.0.saturating_mul(GRACE_PERIODS));
        let from = if now.since(self.heard) > self.patience() { now } else { self.since };
        from.plus(grace)
    }

    /// Time for which nobody has been heard.
    #[must_use]
    pub fn silence(&self, now: Nanos) -> Nanos {
        now.since(self.heard)
    }

    /// Whether a silence of all peers of at least [`OUTAGE_MIN`] lasts, or has ended after `at`.
    #[must_use]
    pub fn was_out_since(&self, at: Nanos, now: Nanos) -> bool {
        self.silence(now) >= OUTAGE_MIN || self.out_until.is_some_and(|end| end > at)
    }

    /// How often nobody was heard for a while.
    #[must_use]
    pub fn deafened(&self) -> u64 {
        self.deafened
    }

    fn patience(&self) -> Nanos {
        Nanos(self.period.0.saturating_mul(DEAF_HALVES) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_ms(20);

    #[test]
    fn silence_of_all_accuses_nobody_until_a_while_after_its_end() {
        let mut hearing = Hearing::new(Nanos(0), PERIOD);
        for ms in (0..=1000).step_by(10) {
            hearing.handle_received(Nanos::from_ms(ms));
        }
        let at = Nanos::from_ms;
        // Somebody is heard: a silent peer may be accused.
        assert!(hearing.excused_until(at(1030)) < at(1030));
        // Nobody is heard.
        for ms in 1031..1100 {
            assert_eq!(hearing.excused_until(at(ms)), at(ms + 100));
        }
        hearing.handle_received(at(1100));
        assert_eq!(hearing.deafened(), 1);
        for ms in [1100, 1120, 1139] {
            hearing.handle_received(at(ms));
            assert_eq!(hearing.excused_until(at(ms)), at(1200));
        }
        assert_eq!(hearing.deafened(), 1);
    }

    #[test]
    fn a_long_silence_is_remembered_until_something_is_heard_after_it() {
        let at = Nanos::from_ms;
        let mut hearing = Hearing::new(Nanos(0), PERIOD);
        hearing.handle_received(at(999));
        assert!(!hearing.was_out_since(Nanos(0), at(1998)), "it was short");
        assert!(hearing.was_out_since(at(999), at(1999)), "it lasts");
        hearing.handle_received(at(1999));
        hearing.handle_received(at(2010));
        assert!(hearing.was_out_since(at(1998), at(2010)));
        assert!(!hearing.was_out_since(at(1999), at(2010)), "that was heard at its end");
    }
}
