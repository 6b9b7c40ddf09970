//! The share of its life in which a group was protected. A loss begins with the deed that causes it
//! and ends when every host says `protected` again, so the share is never too large.

use std::time::{Duration, Instant};

/// Times of protection of one life, or of all lives together.
#[derive(Debug, Default)]
pub struct Protection {
    since: Option<Instant>,
    lost_at: Option<Instant>,
    lived: Duration,
    unprotected: Duration,
    heals_ms: Vec<u64>,
}

impl Protection {
    /// Begins with a group that is protected now.
    pub fn begin(now: Instant) -> Self {
        Self { since: Some(now), ..Self::default() }
    }

    /// Notes that protection may be gone from now on.
    pub fn lost(&mut self, now: Instant) {
        self.lost_at.get_or_insert(now);
    }

    /// Notes that every host says that the group is protected.
    pub fn regained(&mut self, now: Instant) {
        if let Some(lost_at) = self.lost_at.take() {
            self.unprotected += now.saturating_duration_since(lost_at);
        }
    }

    /// Notes that a member has joined, `took_ms` after the deed that made it necessary.
    pub fn healed(&mut self, took_ms: u64) {
        self.heals_ms.push(took_ms);
    }

    /// Ends the life.
    pub fn end(&mut self, now: Instant) {
        self.regained(now);
        self.lived =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    }

    /// Adds another life that has ended.
    pub fn add(&mut self, life: &Self) {
        self.lived += life.lived;
        self.unprotected += life.unprotected;
        self.heals_ms.extend(&life.heals_ms);
    }

    /// Percentage of the time in which the group was protected.
    pub fn percent(&self) -> f64 {
        let unprotected =
            self.unprotected.as_secs_f64() / self.lived.as_secs_f64().max(f64::EPSILON);
        100.0 * (1.0 - unprotected).clamp(0.0, 1.0)
    }

    /// Number of heals, their median time, and the longest, in ms.
    pub fn heals(&self) -> (usize, u64, u64) {
        let mut sorted = self.heals_ms.clone();
        sorted.sort_unstable();
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0);
        (sorted.len(), at(sorted.len() / 2), sorted.last().copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_counts_from_the_deed_on() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut life = Protection::begin(start);
        life.lost(at(10));
        life.lost(at(12));
        life.regained(at(15));
        life.regained(at(20));
        life.healed(5000);
        life.lost(at(95));
        life.end(at(100));
        let mut all = Protection::default();
        all.add(&life);
        assert!((all.percent() - 90.0).abs() < 1e-9, "{}", all.percent());
        assert_eq!(all.heals(), (1, 5000, 5000));
        assert_eq!(Protection::default().heals(), (0, 0, 0));
    }
}
