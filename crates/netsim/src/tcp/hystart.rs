//! HyStart (Ha and Rhee, PFLDNeT 2008) as Linux's CUBIC has it: slow start ends
//! when a round's acknowledgements show that the path is full, before its queue
//! overflows.

use crate::Ns;

const MS: Ns = 1_000_000;
/// Window in segments below which slow start goes on: `hystart_low_window`.
const WINDOW_MIN_SEGMENTS: f64 = 16.0;
/// Gap in ns below which acknowledgements belong to one train.
const TRAIN_GAP: Ns = 2 * MS;
/// Number of samples in a round from which its delay counts.
const SAMPLES_MIN: u32 = 8;
/// Least growth of the round trip that is allowed, in ns, even if an eighth of it is less.
const DELAY_MIN: Ns = 4 * MS;
/// Largest growth of the round trip that is allowed, in ns, even if an eighth of it is more.
const DELAY_MAX: Ns = 16 * MS;

/// State of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyStart {
    /// Segment whose acknowledgement ends the round.
    end: u32,
    began: Ns,
    last_ack: Ns,
    rtt: Option<Ns>,
    samples: u32,
}

/// An acknowledgement in slow start, with what is known of the path.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub cwnd: f64,
    /// Round trip of the acknowledged segment, in ns.
    pub rtt: Ns,
    pub rtt_min: Ns,
}

impl HyStart {
    /// Takes an acknowledgement; returns whether the path is full.
    pub fn handle_ack(&mut self, now: Ns, acked: &Acked) -> bool {
        if acked.snd_una > self.end {
            *self = Self { end: acked.snd_nxt, began: now, last_ack: now, rtt: None, samples: 0 };
        }
        if acked.cwnd < WINDOW_MIN_SEGMENTS {
            return false;
        }
        self.is_train_long(now, acked.rtt_min) || self.is_delayed(acked)
    }

    /// Whether the train of acknowledgements is as long as half a round trip: data that fills the
    /// path needs one half, and acknowledgements the other.
    fn is_train_long(&mut self, now: Ns, rtt_min: Ns) -> bool {
        if now - self.last_ack > TRAIN_GAP {
            return false;
        }
        self.last_ack = now;
        now - self.began > rtt_min / 2
    }

    fn is_delayed(&mut self, acked: &Acked) -> bool {
        let rtt = self.rtt.map_or(acked.rtt, |rtt| rtt.min(acked.rtt));
        self.rtt = Some(rtt);
        if self.samples < SAMPLES_MIN {
            self.samples += 1;
            return false;
        }
        rtt > acked.rtt_min + (acked.rtt_min / 8).clamp(DELAY_MIN, DELAY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a round of acknowledgements, `gap` apart, each with the round trip `rtt`.
    fn round(gap: Ns, count: u64, rtt: Ns) -> Option<u64> {
        let mut hystart = HyStart::default();
        (0..count).find(|ack| {
            let acked = Acked { snd_una: 1, snd_nxt: 100, cwnd: 50.0, rtt, rtt_min: 100 * MS };
            hystart.handle_ack(ack * gap, &acked)
        })
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        assert_eq!(round(MS, 100, 100 * MS), Some(51));
        // At this distance the acknowledgements are no train.
        assert_eq!(round(3 * MS, 100, 100 * MS), None);
    }

    #[test]
    fn a_growing_delay_ends_slow_start() {
        assert_eq!(round(3 * MS, 100, 112 * MS), None);
        assert_eq!(round(3 * MS, 100, 113 * MS), Some(8));
    }

    #[test]
    fn small_windows_go_on() {
        let mut hystart = HyStart::default();
        let acked = Acked { snd_una: 1, snd_nxt: 9, cwnd: 15.0, rtt: MS, rtt_min: MS };
        assert!(!(0..100).any(|ack| hystart.handle_ack(ack * MS, &acked)));
    }
}
