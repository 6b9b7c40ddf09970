//! The tunnel's share of a path that others fill: a window that shrinks and grows as theirs do.

use super::{INITIAL_WINDOW_BYTES, Rate};
use std::time::Duration;

/// CUBIC's constants (RFC 9438 §4.6 and §5), and the packets in which it counts.
pub(super) const CUBIC_BETA: f64 = 0.7;
const CUBIC_C: f64 = 0.4;
/// A window of so many products of rate and round trip is none.
const CAP_ENDS: f64 = 1.6;
const PACKET_BYTES: f64 = 1500.0;

/// The tunnel's share of a path that others use too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cap {
    /// Bytes that were on their way when the path was full.
    pub window_max: f64,
    pub since: Duration,
    /// Bytes that may be on their way now.
    pub window: f64,
    /// A router has asked for it: no measurement of losses says otherwise.
    pub is_asked_for: bool,
}

impl Rate {
    /// Answers congestion as CUBIC does (RFC 9438 §4.6), once per round trip, so that the tunnel
    /// gets what one plain flow gets. A mark is answered as a loss is (RFC 3168 §5), also where all
    /// loss is the path's: no path marks by mistake.
    pub(super) fn give_way(&mut self, is_asked_for: bool, now: Duration) {
        let rate = self.delivery();
        let round = self.rtt.smoothed().as_secs_f64();
        // In the start the rate is that of a round before, and half of what is sent is beyond it.
        let unmeasured = if self.startup.is_some() { self.inflight as f64 / 2.0 } else { 0.0 };
        let window_max = (rate * round).max(unmeasured);
        let window = window_max * CUBIC_BETA;
        self.cap = Some(Cap { window_max, since: now, window, is_asked_for });
        self.answered = self.first + self.log.len() as u64;
        self.drains_until = None;
        // Less than the first flight has filled no queue: that was lost by chance, at a late wake-up.
        if window_max >= INITIAL_WINDOW_BYTES || is_asked_for {
            self.startup = None;
        }
        self.note_cap(now);
    }

    /// Grows as CUBIC does (RFC 9438 §4.2 and §4.3), until the path takes more than it ever did.
    pub(super) fn regrow(&mut self, now: Duration) {
        let (best, has_made_room) = (self.best(), self.has_made_room());
        let Some(cap) = &mut self.cap else { return };
        let round = self.rtt.smoothed().as_secs_f64();
        let packets = cap.window_max / PACKET_BYTES;
        let time = now.saturating_sub(cap.since).as_secs_f64();
        let k = (packets * (1.0 - CUBIC_BETA) / CUBIC_C).cbrt();
        let cubic = CUBIC_C * (time + round - k).powi(3) + packets;
        let reno =
            packets * CUBIC_BETA + 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA) * time / round;
        cap.window = (cubic.max(reno) * PACKET_BYTES).max(2.0 * PACKET_BYTES);
        if cap.window > best * round * CAP_ENDS && !has_made_room {
            self.cap = None;
        }
    }
}
