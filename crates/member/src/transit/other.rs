//! What is known of the other edge's daemon, whichever string its heartbeats come through. Packets
//! of flows tell of a string, and nothing of that daemon: without its heartbeats no string can be
//! declared dead, so nothing is protected.

use holdfast_cluster::Nanos;
use holdfast_cluster::detector::FIRST_PATIENCE;

/// Heartbeats of this edge without one of the other's after which that one counts as silent. Strings
/// that are full may swallow some in a row.
const UNHEARD_BEATS: u64 = 10;
/// Heartbeats of this edge for which it is remembered that some of another key have come: who sends
/// them goes on.
const FOREIGN_BEATS: u64 = 100;

/// What has changed, and is worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Silent,
    Foreign,
    Heard,
}

#[derive(Debug)]
pub(super) struct Other {
    /// Whether it was ever heard.
    heard: bool,
    /// Heartbeats that this edge has sent since the last one came.
    missed: u64,
    /// Heartbeats to be sent before those of another key are forgotten.
    foreign: u64,
    /// What was told since it was last heard.
    told_silent: bool,
    told_foreign: bool,
    /// Heartbeats for which a first one is waited for before its absence is worth telling.
    patience: u64,
}

impl Other {
    pub fn new(period: Nanos) -> Self {
        let patience = FIRST_PATIENCE.0 / period.0.max(1);
        let (told_silent, told_foreign) = (false, false);
        Self { heard: false, missed: 0, foreign: 0, told_silent, told_foreign, patience }
    }

    /// A fresh heartbeat has come.
    pub fn handle_beat(&mut self) {
        (self.heard, self.missed, self.foreign) = (true, 0, 0);
    }

    /// A heartbeat has come from its address that was made with another key.
    pub fn handle_foreign(&mut self) {
        self.foreign = FOREIGN_BEATS;
    }

    /// This edge sends a heartbeat.
    pub fn handle_sent(&mut self) {
        self.missed = self.missed.saturating_add(1);
        self.foreign = self.foreign.saturating_sub(1);
    }

    /// Whether nothing that it says is known to be so now.
    pub fn is_unheard(&self) -> bool {
        !self.heard || self.missed >= UNHEARD_BEATS
    }

    /// Whether it is there with another key, as far as anybody can tell who has not got it.
    pub fn is_foreign(&self) -> bool {
        self.is_unheard() && self.foreign > 0
    }

    /// What has changed since the last call; `all_silent`: all strings are silent.
    pub fn poll_news(&mut self, all_silent: bool) -> Option<News> {
        let wait = UNHEARD_BEATS + if self.heard { 0 } else { self.patience };
        if !self.told_silent && (all_silent || self.missed >= wait) {
            self.told_silent = true;
            return Some(News::Silent);
        }
        if !self.told_foreign && self.is_foreign() {
            self.told_foreign = true;
            return Some(News::Foreign);
        }
        if (self.told_silent || self.told_foreign) && !all_silent && !self.is_unheard() {
            (self.told_silent, self.told_foreign) = (false, false);
            return Some(News::Heard);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_ms(100);

    /// Number of this edge's heartbeats after which the other one is called silent.
    fn silent_after(other: &mut Other) -> Option<u64> {
        (1..1000).find(|_| {
            other.handle_sent();
            other.poll_news(false) == Some(News::Silent)
        })
    }

    #[test]
    fn who_was_never_heard_has_time_to_start() {
        let mut other = Other::new(PERIOD);
        assert_eq!(silent_after(&mut other), Some(UNHEARD_BEATS + FIRST_PATIENCE.0 / PERIOD.0));
        let mut other = Other::new(PERIOD);
        other.handle_beat();
        assert_eq!(silent_after(&mut other), Some(UNHEARD_BEATS));
    }

    #[test]
    fn another_key_is_told_at_once_and_once() {
        let mut other = Other::new(PERIOD);
        other.handle_foreign();
        assert_eq!(other.poll_news(false), Some(News::Foreign));
        assert_eq!(other.poll_news(false), None);
        other.handle_beat();
        assert_eq!(other.poll_news(false), Some(News::Heard));
    }
}
