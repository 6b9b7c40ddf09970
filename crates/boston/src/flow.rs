//! The flow manager's window (TCP Boston §2.2: "any feedback-based TCP flow control
//! algorithm"), in cells. A full segment of m cells stands where TCP has a packet.

use crate::Nanos;

/// Packets that Vegas wants to have in queues, at least and at most, and the number at
/// which its slow start ends (the ns-1 module that the paper's authors are likely to
/// have used).
const VEGAS_QUEUED_MIN: f64 = 1.0;
const VEGAS_QUEUED_MAX: f64 = 3.0;
const VEGAS_SLOW_START_QUEUED: f64 = 1.0;
/// The window at the start, and its lower limit, in segments.
const WINDOW_FIRST: f64 = 2.0;
const WINDOW_MIN: f64 = 2.0;

/// The algorithm that decides how many cells may be on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowControl {
    /// Back to one segment after every loss.
    Tahoe,
    /// Half of the window after a loss, one segment after a timeout.
    #[default]
    Reno,
    /// Follows the round trip time; the paper's choice (§3.2).
    Vegas,
}

/// The congestion window.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    control: FlowControl,
    /// Cells of a full segment.
    segment: f64,
    window: f64,
    window_max: f64,
    slow_start_until: f64,
    /// Order before which lost cells belong to a window that was cut already.
    recover: u64,
    vegas: Vegas,
}

/// State of Vegas.
#[derive(Clone, Debug, Default)]
struct Vegas {
    /// The shortest round trip of a first transmission.
    base: Option<Nanos>,
    /// The shortest round trip in this round.
    shortest: Option<Nanos>,
    /// Order from which on cells belong to the next round.
    round_ends: u64,
    /// Whether slow start may double in this round: only in every other one, so
    /// that it can measure in between.
    may_grow: bool,
}

impl Flow {
    /// A window for segments of `cells` cells, at most `segments_max` of them
    /// at once.
    pub fn new(control: FlowControl, cells: usize, segments_max: usize) -> Self {
        let segment = cells as f64;
        Self {
            control,
            segment,
            window: WINDOW_FIRST * segment,
            // Room for the redundancy of a full window.
            window_max: 2.0 * segments_max as f64 * segment,
            slow_start_until: f64::MAX,
            recover: 0,
            vegas: Vegas { may_grow: true, ..Vegas::default() },
        }
    }

    /// Number of cells that may be on their way.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// Notes that `cells` more arrived; orders below `seen` are settled, and
    /// `next` is sent next.
    pub fn arrived(&mut self, cells: u64, seen: u64, next: u64) {
        if self.control == FlowControl::Vegas {
            if seen >= self.vegas.round_ends {
                self.vegas.round_ends = next;
                self.vegas_round();
            }
            if self.window < self.slow_start_until && self.vegas.may_grow {
                self.window += cells as f64;
            }
        } else if self.window < self.slow_start_until {
            self.window += cells as f64;
        } else {
            self.window += self.segment * cells as f64 / self.window;
        }
        self.window = self.window.min(self.window_max);
    }

    /// Notes a measured round trip.
    pub fn round_trip(&mut self, rtt: Nanos, is_first_transmission: bool) {
        let shorter = |known: Option<Nanos>| Some(known.map_or(rtt, |known| known.min(rtt)));
        self.vegas.shortest = shorter(self.vegas.shortest);
        if is_first_transmission {
            self.vegas.base = shorter(self.vegas.base);
        }
    }

    /// Checks once in a round trip whether too little or too much is in the
    /// queues.
    fn vegas_round(&mut self) {
        let (Some(base), Some(shortest)) = (self.vegas.base, self.vegas.shortest.take()) else {
            return;
        };
        let queued = self.window * (1.0 - base.0 as f64 / shortest.0.max(1) as f64);
        if self.window < self.slow_start_until {
            self.vegas.may_grow = !self.vegas.may_grow;
            if queued > VEGAS_SLOW_START_QUEUED * self.segment {
                self.window -= self.window / 8.0;
                self.slow_start_until = self.window;
            }
        } else if queued < VEGAS_QUEUED_MIN * self.segment {
            self.window += self.segment;
        } else if queued > VEGAS_QUEUED_MAX * self.segment {
            self.window -= self.segment;
        }
        self.window = self.window.max(WINDOW_MIN * self.segment);
    }

    /// Notes that a cell of order `lost` did not come, whether its segment needed
    /// it or not (RFC 9265, recommendation 1). Cuts the window once per window;
    /// true if it did.
    pub fn lost(&mut self, lost: u64, next: u64) -> bool {
        if lost < self.recover {
            return false;
        }
        self.recover = next;
        let least = WINDOW_MIN * self.segment;
        (self.window, self.slow_start_until) = match self.control {
            FlowControl::Tahoe => (self.segment, (self.window / 2.0).max(least)),
            FlowControl::Reno => ((self.window / 2.0).max(least), (self.window / 2.0).max(least)),
            FlowControl::Vegas => ((self.window * 0.75).max(least), least),
        };
        true
    }

    /// Notes that nothing came back at all.
    pub fn timed_out(&mut self, next: u64) {
        self.recover = next;
        self.slow_start_until = (self.window / 2.0).max(WINDOW_MIN * self.segment);
        self.window = match self.control {
            FlowControl::Tahoe | FlowControl::Reno => self.segment,
            FlowControl::Vegas => WINDOW_MIN * self.segment,
        };
        self.vegas.shortest = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_halves_once_per_window_and_tahoe_starts_anew() {
        let mut reno = Flow::new(FlowControl::Reno, 30, 64);
        for seen in 0..10 {
            reno.arrived(30, seen * 30, 1000);
        }
        assert_eq!(reno.window(), 360);
        reno.lost(500, 1000);
        reno.lost(999, 1300);
        assert_eq!(reno.window(), 180);
        reno.lost(1000, 1300);
        assert_eq!(reno.window(), 90);
        // From here on one segment per window.
        reno.arrived(90, 1400, 1500);
        assert_eq!(reno.window(), 120);
        let mut tahoe = Flow::new(FlowControl::Tahoe, 30, 64);
        tahoe.lost(0, 10);
        assert_eq!(tahoe.window(), 30);
    }

    #[test]
    fn vegas_keeps_one_to_three_segments_in_the_queues() {
        let mut vegas = Flow::new(FlowControl::Vegas, 30, 64);
        vegas.round_trip(Nanos::from_ms(40), true);
        vegas.lost(0, 0);
        let mut order = 0;
        for _ in 0..400 {
            // A bottleneck that takes 10 cells in 1 ms, 40 ms away.
            let queued = vegas.window().saturating_sub(400) as u64;
            vegas.round_trip(Nanos(40_000_000 + queued * 100_000), false);
            order += vegas.window() as u64;
            vegas.arrived(vegas.window() as u64, order, order);
        }
        assert!((430..=520).contains(&vegas.window()), "{}", vegas.window());
    }
}
