//! Whether a queue that stands is the tunnel's own. Who shares a path with connections that send until
//! a queue overflows has to do the same, or has nothing; who is alone there only delays itself.
//!
//! For a few round trips less is sent than the path takes. What others keep in the queue stays there;
//! what was only the tunnel's is gone.

use super::cap::{CUBIC_BETA, Cap};
use super::{EMPTY_RTT, LOW_GAIN, QUEUE_RTT, Rate};
use std::time::Duration;

/// Round trips after which a queue that is still there is others'.
const TRIAL_ROUNDS: u32 = 3;
/// Trials in a row that have to find it gone.
const TRIALS: u32 = 3;
/// Cycles before the first trial, how many times more after one that failed, and at most: each costs some of
/// the tunnel's share.
const EVERY_FIRST: u32 = 2;
const EVERY_TIMES: u32 = 4;
const EVERY_MAX: u32 = 128;
/// Who has to give way again so soon after such trials was not alone.
const MISTAKEN: Duration = Duration::from_secs(10);
/// The window of a trial, in products of rate and least round trip.
const TRIAL_WINDOW: f64 = 0.9;

#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    /// Until when less is sent.
    until: Option<Duration>,
    /// Cycles from one trial to the next, and until the next.
    every: u32,
    next_in: u32,
    /// Trials in a row that found the queue gone.
    found: u32,
    /// One has failed in this cycle: round trips are shorter than they will be.
    is_settling: bool,
    /// When the cap was lifted last.
    lifted_at: Option<Duration>,
}

impl Default for Alone {
    fn default() -> Self {
        Self {
            until: None,
            every: EVERY_FIRST,
            next_in: EVERY_FIRST,
            found: 0,
            is_settling: false,
            lifted_at: None,
        }
    }
}

impl Rate {
    pub(super) fn is_trial(&self) -> bool {
        self.alone.until.is_some()
    }

    /// Whether there is a trial, or was one just before.
    pub(super) fn has_made_room(&self) -> bool {
        self.is_trial() || self.alone.is_settling
    }

    /// Bytes per second, and bytes on their way, during a trial.
    pub(super) fn trial_rate(&self) -> f64 {
        self.best() * LOW_GAIN
    }

    pub(super) fn trial_window(&self) -> f64 {
        self.best() * self.rtt.least().as_secs_f64() * TRIAL_WINDOW
    }

    /// The tunnel has to give way.
    pub(super) fn note_cap(&mut self, now: Duration) {
        let alone = &mut self.alone;
        (alone.until, alone.found) = (None, 0);
        if alone.lifted_at.take().is_some_and(|at| now < at + MISTAKEN) {
            (alone.every, alone.next_in) = (EVERY_MAX, EVERY_MAX);
        }
    }

    /// Once per cycle: begins a trial if there is reason to. A queue that stands although the tunnel keeps
    /// none, since its cap was lifted, is others'.
    pub(super) fn begin_trial(&mut self, now: Duration) {
        self.alone.is_settling = false;
        let keeps_none = self.cap.is_none() && self.alone.lifted_at.is_some();
        if keeps_none && self.has_standing_queue() {
            let window = self.best() * self.rtt.smoothed().as_secs_f64();
            let window_max = window / CUBIC_BETA;
            self.cap = Some(Cap { window_max, since: now, window, is_asked_for: false });
            self.note_cap(now);
            return;
        }
        self.alone.next_in = self.alone.next_in.saturating_sub(1);
        let is_capped = self.cap.is_some_and(|cap| !cap.is_asked_for);
        let may = is_capped && !self.is_limited && self.alone.next_in == 0;
        if may && self.has_queue_of(QUEUE_RTT) {
            self.alone.until = Some(now + self.rtt.smoothed() * TRIAL_ROUNDS);
        }
    }

    /// Ends a trial when the queue is gone, or its time is over.
    pub(super) fn end_trial(&mut self, now: Duration) {
        let Some(until) = self.alone.until else { return };
        let is_gone = !self.has_queue_of(EMPTY_RTT);
        if !is_gone && now < until {
            return;
        }
        let alone = &mut self.alone;
        alone.until = None;
        if !is_gone {
            (alone.found, alone.is_settling) = (0, true);
            alone.every = (alone.every * EVERY_TIMES).min(EVERY_MAX);
            alone.next_in = alone.every;
            return;
        }
        (alone.found, alone.next_in) = (alone.found + 1, 1);
        if alone.found >= TRIALS {
            *alone = Alone { lifted_at: Some(now), ..Alone::default() };
            self.cap = None;
        }
    }
}
