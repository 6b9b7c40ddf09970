//! Vegas (Brakmo and Peterson, JSAC 1995) with the rules of ns-1's module, with which TCP Boston
//! was probably simulated. Three of them are not in the paper: the difference between windows is
//! rounded to whole packets; a round of one packet *sets* the base round trip, so that it rises
//! when queues stay; and the window after a fast retransmit keeps what the duplicates added unless
//! there were more than three.

use crate::Ns;

/// Packets in queues below which the window grows.
const ALPHA: i64 = 1;
/// Packets in queues above which the window shrinks.
const BETA: i64 = 3;
/// Packets in queues above which slow start ends.
const GAMMA: i64 = 1;
/// Smallest window, in packets.
pub const WINDOW_MIN: f64 = 2.0;
/// Number of acknowledgements after a retransmission at which the next packet is checked.
const WORRIED_ACKS: u32 = 2;
/// Packets by which a window may exceed what is under way and still grow.
const AHEAD_MAX: f64 = 2.0;

#[derive(Debug)]
pub(super) struct Vegas {
    base: Ns,
    sum: Ns,
    samples: u64,
    /// Smoothed round trip, in ns.
    smoothed: f64,
    /// Variation of the round trip, in ns.
    variation: f64,
    /// Time after which a packet is overdue, in ns.
    patience: f64,
    /// Packet whose acknowledgement ends the round.
    round_end: u32,
    round_began_at: Ns,
    /// Growth of the window by an acknowledgement in this round.
    step: f64,
    /// Whether the window grows in this round: in slow start, every other one.
    grows: bool,
    pub cut_at: Ns,
    /// The window without what duplicates have added.
    target: f64,
    worried: u32,
}

impl Vegas {
    pub fn new() -> Self {
        Self {
            base: Ns::MAX,
            sum: 0,
            samples: 0,
            smoothed: 0.0,
            variation: 0.0,
            patience: f64::MAX,
            round_end: 0,
            round_began_at: 0,
            step: 0.0,
            grows: true,
            cut_at: 0,
            target: 0.0,
            worried: 0,
        }
    }

    /// Takes the round trip of a packet that was sent once.
    pub fn sample(&mut self, rtt: Ns) {
        self.base = self.base.min(rtt);
        self.sum += rtt;
        self.samples += 1;
        let rtt = rtt as f64;
        if self.smoothed == 0.0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2.0);
        } else {
            let error = rtt - self.smoothed;
            self.smoothed += error / 8.0;
            self.variation += (error.abs() - self.variation) / 4.0;
        }
        self.patience = (self.smoothed + 2.0 * self.variation) * 17.0 / 16.0;
    }

    /// Whether a packet has been out longer than the fine timer allows (§3.1).
    pub fn is_overdue(&self, now: Ns, sent_at: Ns) -> bool {
        (now - sent_at) as f64 >= self.patience
    }

    /// The window after the last duplicate.
    pub fn deflated(&self, cwnd: f64) -> f64 {
        cwnd.min(self.target.max(WINDOW_MIN))
    }

    /// The window and the threshold after everything before `ack` has arrived. Once in a round the
    /// throughput that the window should give is compared with the one it gives (§3.2). `flight`
    /// includes the packet that was just acknowledged.
    pub fn grow(
        &mut self,
        now: Ns,
        ack: u32,
        nxt: u32,
        mut cwnd: f64,
        mut ssthresh: f64,
    ) -> [f64; 2] {
        let flight = f64::from(nxt - ack + 1);
        if ack > self.round_end {
            let waiting = self.end_round(now, nxt, flight);
            if cwnd < ssthresh {
                self.grows = !self.grows;
                self.step = f64::from(u8::from(self.grows));
                if self.grows && waiting > GAMMA {
                    ssthresh = WINDOW_MIN;
                    cwnd = (cwnd - cwnd / 8.0).max(WINDOW_MIN);
                    self.step = 0.0;
                }
            } else if waiting > BETA {
                cwnd = (cwnd - 1.0).max(WINDOW_MIN);
                self.step = 0.0;
            } else {
                self.step = if waiting < ALPHA { 1.0 / cwnd } else { 0.0 };
            }
        }
        if self.step == 1.0 && cwnd >= ssthresh {
            self.step = 0.0;
        }
        if cwnd - flight <= AHEAD_MAX {
            cwnd += self.step;
        }
        [cwnd, ssthresh]
    }

    /// Number of the round's packets that waited in queues.
    fn end_round(&mut self, now: Ns, nxt: u32, flight: f64) -> i64 {
        let rtt = self.sum.checked_div(self.samples).unwrap_or(now - self.round_began_at).max(1);
        (self.sum, self.samples) = (0, 0);
        let length = nxt - self.round_end;
        if rtt < self.base || length <= 1 {
            self.base = rtt;
        }
        (self.round_end, self.round_began_at) = (nxt, now);
        (flight - f64::from(length) * self.base as f64 / rtt as f64 + 0.5) as i64
    }

    /// The new window when a packet is retransmitted before the timer expires, at a duplicate: a
    /// quarter less, or half if the packet was lost twice; unchanged if the packet was sent before
    /// the window was last cut.
    pub fn retransmit(
        &mut self,
        now: Ns,
        sent_at: Ns,
        was_again: bool,
        cwnd: f64,
        dup_acks: u32,
        flight: u32,
    ) -> Option<f64> {
        self.worried = WORRIED_ACKS.min(flight + 1);
        self.patience *= if was_again { 2.0 } else { 1.125 };
        (self.cut_at < sent_at).then(|| {
            let window = cwnd as u32;
            let less = if was_again { window / 2 } else { window - window / 4 };
            self.target = f64::from(if window <= 3 { 2 } else { less });
            self.cut_at = now;
            self.target + f64::from(dup_acks)
        })
    }

    /// The window after a reported loss, for Boston's repairs at once.
    pub fn cut(&mut self, now: Ns, cwnd: f64) -> f64 {
        (self.cut_at, self.step) = (now, 0.0);
        (cwnd * 0.75).max(WINDOW_MIN)
    }

    /// Whether the next packet was lost together with a retransmitted one (§3.1); asked at the
    /// first acknowledgements after that.
    pub fn suspects(&mut self, now: Ns, sent_at: Ns) -> bool {
        let overdue = self.worried > 0 && self.is_overdue(now, sent_at);
        self.worried = if overdue { self.worried - 1 } else { 0 };
        overdue
    }

    /// Restarts after the timer expired.
    pub fn restart(&mut self, now: Ns) {
        (self.cut_at, self.target, self.worried) = (now, 0.0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// The window after a round of eight packets with a round trip of `rtt`, of which 40 ms are
    /// without waiting, and after the next acknowledgement.
    fn after_a_round(rtt: Ns) -> f64 {
        let mut vegas = Vegas::new();
        vegas.sample(40 * MS);
        (vegas.sum, vegas.samples, vegas.round_end) = (8 * rtt, 8, 8);
        let [cwnd, _] = vegas.grow(0, 9, 16, 8.0, WINDOW_MIN);
        vegas.grow(0, 10, 17, cwnd, WINDOW_MIN)[0]
    }

    #[test]
    fn the_window_follows_what_waits_in_queues() {
        // Of the eight packets none waits, two do, or four do.
        assert!(after_a_round(40 * MS) > 8.2);
        assert_eq!(after_a_round(40 * MS * 8 / 6), 8.0);
        assert_eq!(after_a_round(40 * MS * 8 / 4), 7.0);
    }

    #[test]
    fn a_round_of_one_packet_sets_the_base() {
        let mut vegas = Vegas::new();
        vegas.sample(40 * MS);
        vegas.sum = 300 * MS;
        vegas.samples = 1;
        vegas.round_end = 7;
        vegas.grow(0, 8, 8, 2.0, WINDOW_MIN);
        assert_eq!(vegas.base, 300 * MS);
    }
}
