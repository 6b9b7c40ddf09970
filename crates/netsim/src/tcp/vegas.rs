//! Vegas (Brakmo and Peterson, JSAC 1995): once in a round trip it compares the rate that the
//! window should give with the one it gives.

use crate::Ns;
use std::collections::VecDeque;

/// Segments waiting in the network below which the window grows (§3.2).
const ALPHA: f64 = 1.0;
/// Segments waiting in the network above which the window shrinks (§3.2).
const BETA: f64 = 3.0;
/// Segments waiting in the network above which slow start ends (§3.3).
const GAMMA: f64 = 1.0;

/// Most sending times that are remembered; beyond them round trips are not measured.
const TIMES_MAX: usize = 4096;

/// What Vegas knows of its path.
#[derive(Debug)]
pub struct Vegas {
    base_rtt: Ns,
    sum: Ns,
    samples: u64,
    /// Segment whose acknowledgement ends the round trip.
    round_end: u32,
    slow: bool,
    /// Whether the window grows in this round trip: in slow start, in every other one.
    grows: bool,
    first: u32,
    /// Sending times in ns of the segments from `first` on; 0 if sent again.
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
    /// Notes that a segment is sent.
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

    /// Takes a new acknowledgement; returns a window once in a round trip.
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
        // Expected rate minus actual rate, in segments that wait somewhere.
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

    /// Whether the oldest segment has been out for longer than two round trips of an empty path, so
    /// that the first duplicate is reason enough to resend (§3.1).
    #[must_use]
    pub fn is_overdue(&self, now: Ns, snd_una: u32) -> bool {
        let at = snd_una.checked_sub(self.first).and_then(|at| self.times.get(at as usize));
        at.is_some_and(|at| *at != 0 && now - at > self.base_rtt.saturating_mul(2))
    }

    /// Begins slow start again after a timeout.
    pub fn handle_timeout(&mut self) {
        self.slow = true;
        self.grows = true;
        self.round_end = 0;
        self.times.iter_mut().for_each(|time| *time = 0);
    }

    /// Whether it is in slow start.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.slow
    }
}
