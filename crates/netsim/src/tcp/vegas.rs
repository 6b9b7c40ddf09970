//! Vegas (Brakmo and Peterson, JSAC 1995): compares the rate that the window
//! should give with the one it gives, once per round trip.

use crate::Ns;
use std::collections::VecDeque;

/// Segments that may wait in the network before the window stops growing, and
/// above which it shrinks (§3.2); slow start ends at the third (§3.3).
const ALPHA: f64 = 1.0;
const BETA: f64 = 3.0;
const GAMMA: f64 = 1.0;

/// Sending times that are remembered; beyond that round trips are not measured.
const TIMES_MAX: usize = 4096;

/// What Vegas knows of its path.
#[derive(Debug)]
pub struct Vegas {
    base_rtt: Ns,
    sum: Ns,
    samples: u64,
    /// The round trip ends when this segment is acknowledged.
    round_end: u32,
    slow: bool,
    /// In slow start the window grows every other round trip.
    grows: bool,
    first: u32,
    /// When the segments from `first` on were sent; 0 if again.
    times: VecDeque<Ns>,
}

impl Default for Vegas {
    fn default() -> Self {
        Self {
            base_rtt: Ns::MAX,
            sum: 0,
            samples: 0,
            round_end: 0,
            slow: true,
            grows: true,
            first: 0,
            times: VecDeque::new(),
        }
    }
}

impl Vegas {
    /// A segment leaves.
    pub fn note_sent(&mut self, now: Ns, seq: u32, is_again: bool) {
        if is_again {
            if let Some(time) = self.times.get_mut(seq.saturating_sub(self.first) as usize) {
                *time = 0;
            }
        } else if self.times.len() < TIMES_MAX {
            if self.times.is_empty() {
                self.first = seq;
            }
            self.times.push_back(now);
        }
    }

    /// A new acknowledgement; once per round trip it answers with a window.
    pub fn handle_ack(
        &mut self,
        now: Ns,
        ack: u32,
        snd_nxt: u32,
        flight: u32,
        cwnd: f64,
        slow: bool,
    ) -> Option<f64> {
        let mut sent_at = 0;
        while self.first < ack
            && let Some(time) = self.times.pop_front()
        {
            self.first += 1;
            sent_at = time;
        }
        if sent_at != 0 {
            let rtt = now - sent_at;
            self.base_rtt = self.base_rtt.min(rtt);
            self.sum += rtt;
            self.samples += 1;
        }
        self.slow &= slow;
        if ack <= self.round_end || self.samples == 0 {
            return (self.slow && self.grows && ack > 1).then_some(cwnd + 1.0);
        }
        self.round_end = snd_nxt;
        let rtt = self.sum as f64 / self.samples as f64;
        (self.sum, self.samples) = (0, 0);
        let base = self.base_rtt as f64;
        // Expected minus actual, in segments that wait somewhere.
        let waiting = f64::from(flight) * (1.0 - base / rtt);
        Some(self.next_window(cwnd, waiting))
    }

    fn next_window(&mut self, cwnd: f64, waiting: f64) -> f64 {
        if self.slow {
            if waiting > GAMMA {
                self.slow = false;
                return cwnd - cwnd / 8.0;
            }
            self.grows = !self.grows;
            return cwnd;
        }
        if waiting > BETA {
            cwnd - 1.0
        } else if waiting < ALPHA {
            cwnd + 1.0
        } else {
            cwnd
        }
    }

    /// Is the oldest segment out longer than two round trips of an empty path?
    /// Then the first duplicate is reason enough (§3.1).
    #[must_use]
    pub fn is_overdue(&self, now: Ns, snd_una: u32) -> bool {
        let at = snd_una.checked_sub(self.first).and_then(|at| self.times.get(at as usize));
        at.is_some_and(|at| *at != 0 && now - at > self.base_rtt.saturating_mul(2))
    }

    /// A timeout: slow start again.
    pub fn handle_timeout(&mut self) {
        self.slow = true;
        self.grows = true;
        self.round_end = 0;
        self.times.iter_mut().for_each(|time| *time = 0);
    }

    /// Is it in slow start?
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.slow
    }
}
