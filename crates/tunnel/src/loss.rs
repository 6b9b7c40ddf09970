//! Which datagrams were lost: counted by the receiver from their numbers, told to the sender as
//! cumulative counts, averaged there.
//!
//! TCP Boston's estimator (`holdfast-boston`, `redundancy.rs`) rises with half the weight of a
//! sample and falls with an eighth, so it stands above the truth on average: 12.3 % at 10 %. That
//! is safe for segments and too dear for a tunnel; this one is a ratio of sums, without bias.
//! A datagram that a repair made good for was lost all the same (RFC 9265 §3).

use crate::frame::LossCounts;
use crate::wire::{completed_24, truncated};
use std::collections::VecDeque;
use std::time::Duration;

/// Numbers that may be undecided; a longer gap is decided at once.
const UNDECIDED_MAX: usize = 4096;
/// Lost numbers that are remembered in case they come late.
const REMEMBERED_MAX: usize = 256;
/// Longest time for which a datagram that others overtook is not lost.
const TOLERANCE_MAX: Duration = Duration::from_millis(60);
/// Time without late arrivals after which the tolerance is halved.
const TOLERANCE_AGES: Duration = Duration::from_secs(10);
/// A tolerance below this is none.
const TOLERANCE_MIN: Duration = Duration::from_micros(100);

/// The receiver's view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observer {
    /// The first number whose fate is undecided.
    settled: u64,
    /// From `settled` on: when a missing number was noticed, `None` for one that came.
    undecided: VecDeque<Option<Duration>>,
    /// Lost numbers, and when they were noticed.
    remembered: VecDeque<(u64, Duration)>,
    lost: u64,
    runs: u64,
    is_in_run: bool,
    last_arrival: Duration,
    burst: Option<Duration>,
    tolerance: Duration,
    last_late: Duration,
    pub received: u64,
    pub reordered: u64,
}

impl Observer {
    /// One behind the highest number seen.
    pub fn next(&self) -> u64 {
        self.settled + self.undecided.len() as u64
    }

    /// All numbers before it have come or are lost.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// All numbers that did not come in time.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Notes a datagram; whether its number is the highest so far.
    pub fn arrives(&mut self, number: u64, now: Duration) -> bool {
        self.received += 1;
        let next = self.next();
        if number < next {
            self.arrives_late(number, now);
            return false;
        }
        let gap = number - next;
        if gap > 1 && self.received > 1 {
            self.note_burst(now.saturating_sub(self.last_arrival));
        }
        self.last_arrival = now;
        let decided_at_once = gap.saturating_sub(UNDECIDED_MAX as u64);
        if decided_at_once > 0 {
            self.decide_all();
            self.lost += decided_at_once;
            self.runs += u64::from(!self.is_in_run);
            self.is_in_run = true;
            self.settled += decided_at_once;
        }
        for _ in decided_at_once..gap {
            self.undecided.push_back(Some(now));
        }
        self.undecided.push_back(None);
        while self.undecided.len() > UNDECIDED_MAX {
            self.decide_first();
        }
        self.settle(now);
        true
    }

    fn arrives_late(&mut self, number: u64, now: Duration) {
        self.reordered += 1;
        let noticed = if number >= self.settled {
            self.undecided[(number - self.settled) as usize].take()
        } else if let Some(at) = self.remembered.iter().position(|lost| lost.0 == number) {
            self.lost = self.lost.saturating_sub(1);
            self.remembered.remove(at).map(|lost| lost.1)
        } else {
            None
        };
        if let Some(noticed) = noticed {
            let lag = now.saturating_sub(noticed);
            self.tolerance = self.tolerance.max(lag + lag / 4).min(TOLERANCE_MAX);
            self.last_late = now;
        }
        self.settle(now);
    }

    fn note_burst(&mut self, time: Duration) {
        self.burst = Some(self.burst.map_or(time, |mean| (mean * 7 + time) / 8));
    }

    /// Decides what cannot come any more. Call it when [`Observer::settles_at`] has come.
    pub fn settle(&mut self, now: Duration) {
        if now.saturating_sub(self.last_late) > TOLERANCE_AGES && !self.tolerance.is_zero() {
            self.tolerance /= 2;
            if self.tolerance < TOLERANCE_MIN {
                self.tolerance = Duration::ZERO;
            }
            self.last_late = now;
        }
        while let Some(first) = self.undecided.front() {
            if first.is_some_and(|noticed| noticed + self.tolerance > now) {
                return;
            }
            self.decide_first();
        }
    }

    fn decide_first(&mut self) {
        match self.undecided.pop_front() {
            Some(Some(noticed)) => {
                self.lost += 1;
                self.runs += u64::from(!self.is_in_run);
                self.is_in_run = true;
                self.remembered.push_back((self.settled, noticed));
                if self.remembered.len() > REMEMBERED_MAX {
                    self.remembered.pop_front();
                }
            }
            Some(None) => self.is_in_run = false,
            None => return,
        }
        self.settled += 1;
    }

    fn decide_all(&mut self) {
        while !self.undecided.is_empty() {
            self.decide_first();
        }
    }

    /// When the fate of the next number is decided, if it is open.
    pub fn settles_at(&self) -> Option<Duration> {
        let noticed = self.undecided.front().copied().flatten()?;
        Some(noticed + self.tolerance)
    }

    /// What the sender is told.
    pub fn counts(&self) -> LossCounts {
        LossCounts {
            settled: truncated(self.settled),
            lost: truncated(self.lost),
            runs: truncated(self.runs),
            burst_100us: self.burst.map_or(0, |burst| burst.as_micros() as u64 / 100),
        }
    }
}

/// Datagrams that a slow and a fast average reach back.
const SLOW: f64 = 1024.0;
const FAST: f64 = 100.0;
/// Standard deviations by which the fast average must differ to be believed: by chance this
/// happens about once in 10,000 fast averages.
const CHANGE_DEVIATIONS: f64 = 4.0;
/// Runs that must have been seen before bursts are believed.
const RUNS_MIN: f64 = 8.0;

/// Sums that forget.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    settled: f64,
    lost: f64,
    runs: f64,
}

impl Sums {
    fn add(&mut self, settled: f64, lost: f64, runs: f64, memory: f64) {
        let kept = (-settled / memory).exp();
        self.settled = self.settled * kept + settled;
        self.lost = (self.lost * kept + lost).max(0.0);
        self.runs = (self.runs * kept + runs).max(0.0);
    }

    fn loss(&self) -> f64 {
        if self.settled > 0.0 { (self.lost / self.settled).min(1.0) } else { 0.0 }
    }
}

/// The average of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    settled: u64,
    lost: u64,
    runs: u64,
    slow: Sums,
    fast: Sums,
    burst_ms: f64,
}

impl Estimate {
    /// Datagrams that these cumulative counts settle, and newly lost ones.
    pub fn news(&self, counts: LossCounts) -> (f64, f64) {
        let settled = completed_24(counts.settled, self.settled);
        if settled <= self.settled {
            return (0.0, 0.0);
        }
        let lost = completed_24(counts.lost, self.lost);
        ((settled - self.settled) as f64, lost as f64 - self.lost as f64)
    }

    /// Takes cumulative counts, in any order. What was lost in an outage is not averaged: no redundancy
    /// helps against it, and it says nothing of the path after it.
    pub fn note(&mut self, counts: LossCounts, is_outage: bool) {
        let (passed, of_lost) = self.news(counts);
        if passed == 0.0 {
            return;
        }
        let runs = completed_24(counts.runs, self.runs);
        // A late arrival takes a loss back, but no more than all of them arrive.
        let of_lost = of_lost.clamp(-passed, passed);
        let of_runs = (runs as f64 - self.runs as f64).clamp(0.0, passed);
        self.settled = completed_24(counts.settled, self.settled);
        self.lost = completed_24(counts.lost, self.lost);
        self.runs = runs;
        self.burst_ms = counts.burst_100us as f64 / 10.0;
        if is_outage {
            return;
        }
        self.slow.add(passed, of_lost, of_runs, SLOW);
        self.fast.add(passed, of_lost, of_runs, FAST);
        self.believe_a_change();
    }

    fn believe_a_change(&mut self) {
        let (slow, fast) = (self.slow.loss(), self.fast.loss());
        let variance = slow.max(1.0 / SLOW) * (1.0 - slow).max(1.0 / SLOW) / (2.0 * FAST);
        // Losses in bursts tell less, each run about as much as one loss (Gilbert's variance).
        let spread = (variance * (2.0 * self.burst_packets() - 1.0).max(1.0)).sqrt();
        let has_seen_enough = self.fast.settled > FAST / 2.0;
        if has_seen_enough && (fast - slow).abs() > CHANGE_DEVIATIONS * spread {
            self.slow = self.fast;
        }
    }

    /// Share of datagrams that is lost.
    pub fn loss(&self) -> f64 {
        self.slow.loss()
    }

    /// Datagrams lost in a row, on average, at least 1.
    pub fn burst_packets(&self) -> f64 {
        if self.slow.runs < RUNS_MIN { 1.0 } else { (self.slow.lost / self.slow.runs).max(1.0) }
    }

    /// How long a run of more than one lasts, in ms.
    pub fn burst_ms(&self) -> f64 {
        self.burst_ms
    }

    /// Datagrams whose fate is known.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Datagrams lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests;
