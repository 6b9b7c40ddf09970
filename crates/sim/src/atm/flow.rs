//! The flow manager: ns-1's Reno, and Vegas (Brakmo and Peterson, JSAC 1995) as
//! its module had it. It counts packets; connections are open from the start.
//!
//! [`crate::tcp`] has both too, but its Vegas has no fine timer, whose sendings
//! before the third duplicate decide how often Vegas runs into a timeout here.

use super::scenario::{FlowControl, Scenario, WINDOW_PACKETS_MAX};
use crate::Ns;
use crate::tcp::{Profile, TickEstimator};

/// Packets whose sending is remembered: twice a window.
const RECORDS: usize = 2 * WINDOW_PACKETS_MAX as usize;
const DUP_ACKS: u32 = 3;
/// Packets in queues: below it Vegas' window grows, above it shrinks, and above
/// the third slow start ends.
const ALPHA: f64 = 1.0;
const BETA: f64 = 3.0;
const GAMMA: f64 = 1.0;
/// Vegas' smallest window.
const VEGAS_WINDOW_MIN: f64 = 2.0;
/// Acknowledgements after a retransmission at which the next packet is checked.
const WORRIED_ACKS: u8 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    sent_at: Ns,
    transmits: u8,
}

/// Who sends how much when. After every `handle_*` call [`Flow::poll_transmit`]
/// until there is nothing more.
#[derive(Debug)]
pub(super) struct Flow {
    window_max: f64,
    /// Losses are reported by [`Flow::handle_loss`]; duplicates say nothing of them.
    told_of_losses: bool,
    una: u32,
    nxt: u32,
    /// One beyond the highest that was ever sent.
    max: u32,
    cwnd: f64,
    ssthresh: f64,
    dup_acks: u32,
    inflation: u32,
    recovering: bool,
    /// Before it lies the window that was cut last.
    cut_until: u32,
    after_timeout: bool,
    resend: Option<u32>,
    timed: Option<(u32, Ns)>,
    rtt: TickEstimator,
    profile: Profile,
    deadline: Ns,
    records: [Record; RECORDS],
    vegas: Option<Vegas>,
    pub timeouts: u64,
    pub cuts: u64,
}

#[derive(Debug)]
struct Vegas {
    base: Ns,
    sum: Ns,
    samples: u64,
    /// Smoothed round trip and its variation, ns.
    smoothed: f64,
    variation: f64,
    round_end: u32,
    slow: bool,
    /// In slow start the window grows every other round.
    grows: bool,
    cut_at: Ns,
    worried: u8,
}

impl Flow {
    pub fn new(scenario: &Scenario) -> Self {
        let is_vegas = scenario.flow_control == FlowControl::Vegas;
        let window_max = f64::from(scenario.window_packets());
        Self {
            window_max,
            told_of_losses: scenario.protocol.repairs_at_once(),
            una: 0,
            nxt: 0,
            max: 0,
            cwnd: if is_vegas { VEGAS_WINDOW_MIN } else { 1.0 },
            ssthresh: window_max,
            dup_acks: 0,
            inflation: 0,
            recovering: false,
            cut_until: 0,
            after_timeout: false,
            resend: None,
            timed: None,
            rtt: TickEstimator::default(),
            profile: Profile { tick_ns: scenario.tick_ns, ..Profile::NS2 },
            deadline: Ns::MAX,
            records: [Record::default(); RECORDS],
            vegas: is_vegas.then(Vegas::new),
            timeouts: 0,
            cuts: 0,
        }
    }

    /// The first packet that is not acknowledged.
    pub fn una(&self) -> u32 {
        self.una
    }

    /// When it wants to be called again.
    pub fn deadline(&self) -> Ns {
        self.deadline
    }

    /// Everything before `ack` is there.
    pub fn handle_ack(&mut self, now: Ns, ack: u32) {
        if ack > self.una {
            self.advance(now, ack);
        } else if ack == self.una && self.una < self.max {
            self.duplicate(now);
        }
    }

    fn advance(&mut self, now: Ns, ack: u32) {
        let newest = self.records[(ack - 1) as usize % RECORDS];
        if let Some((_, at)) = self.timed.filter(|(seq, _)| *seq < ack) {
            self.timed = None;
            self.rtt.end_backoff();
            self.rtt.sample(&self.profile, at, now - at);
        }
        let was_recovering = std::mem::take(&mut self.recovering);
        self.inflation = 0;
        self.dup_acks = 0;
        let flight = self.nxt.saturating_sub(self.una);
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        if let Some(vegas) = &mut self.vegas {
            if newest.transmits == 1 {
                vegas.sample(now - newest.sent_at);
            }
            vegas.slow &= self.cwnd < self.ssthresh;
            self.cwnd = vegas.window(self.cwnd, ack, self.nxt, flight);
            self.cwnd = self.cwnd.max(VEGAS_WINDOW_MIN);
        } else if !was_recovering {
            self.cwnd += if self.cwnd < self.ssthresh { 1.0 } else { 1.0 / self.cwnd };
        }
        self.cwnd = self.cwnd.min(self.window_max);
        self.restart_timer(now);
        self.check_again(now);
    }

    /// The first acknowledgements after a retransmission: was the next packet lost
    /// with it (Brakmo and Peterson §3.1)?
    fn check_again(&mut self, now: Ns) {
        let is_out = self.una < self.max && !self.told_of_losses;
        let record = self.records[self.una as usize % RECORDS];
        if let Some(vegas) = &mut self.vegas
            && vegas.worried > 0
        {
            vegas.worried -= 1;
            if is_out && vegas.is_overdue(now, record) {
                self.resend = Some(self.una);
            }
        }
    }

    fn duplicate(&mut self, now: Ns) {
        self.dup_acks += 1;
        if self.told_of_losses {
            self.inflation += u32::from(self.recovering);
            return;
        }
        let record = self.records[self.una as usize % RECORDS];
        let overdue = self.vegas.as_ref().is_some_and(|it| it.is_overdue(now, record));
        if self.dup_acks == DUP_ACKS || (self.dup_acks < DUP_ACKS && overdue) {
            self.fast_retransmit(now, record);
        } else if self.dup_acks > DUP_ACKS && self.recovering {
            self.inflation += 1;
        }
    }

    fn fast_retransmit(&mut self, now: Ns, record: Record) {
        self.dup_acks = DUP_ACKS;
        if self.vegas.is_none() && self.after_timeout && self.una < self.cut_until {
            // ns' `bug_fix_`: duplicates of what the timeout sent again.
            return;
        }
        let again = record.transmits > 1;
        if self.vegas.as_ref().is_none_or(|it| record.sent_at > it.cut_at) {
            self.cut(now, again);
        }
        if let Some(vegas) = &mut self.vegas {
            vegas.worried = WORRIED_ACKS;
        }
        self.recovering = true;
        self.inflation = DUP_ACKS;
        self.resend = Some(self.una);
        self.restart_timer(now);
    }

    /// Boston: cells were lost, the last just now. The window is cut once for a
    /// window of data; `hole` says that a packet waits for a repair.
    pub fn handle_loss(&mut self, now: Ns, hole: bool) {
        if self.una < self.cut_until {
            return;
        }
        self.cut(now, false);
        if hole {
            self.recovering = true;
            self.inflation = DUP_ACKS;
        }
    }

    fn cut(&mut self, now: Ns, again: bool) {
        self.cuts += 1;
        self.after_timeout = false;
        self.cut_until = self.max;
        if let Some(vegas) = &mut self.vegas {
            // A quarter less; half, if the packet was lost twice.
            let factor = if again { 0.5 } else { 0.75 };
            self.cwnd = (self.cwnd * factor).max(VEGAS_WINDOW_MIN);
            self.ssthresh = VEGAS_WINDOW_MIN;
            vegas.slow = false;
            vegas.cut_at = now;
        } else {
            self.ssthresh = (self.cwnd / 2.0).floor().max(2.0);
            self.cwnd = self.ssthresh;
        }
    }

    /// Boston: a packet is being repaired, so its round trip says nothing, and the
    /// timer has something new to wait for.
    pub fn note_repair(&mut self, now: Ns, seq: u32) {
        let record = &mut self.records[seq as usize % RECORDS];
        record.transmits = record.transmits.saturating_add(1);
        record.sent_at = now;
        self.timed = self.timed.filter(|(timed, _)| *timed != seq);
        self.restart_timer(now);
    }

    /// Its deadline has come.
    pub fn handle_timeout(&mut self, now: Ns) {
        self.timeouts += 1;
        self.ssthresh = (self.cwnd / 2.0).floor().max(2.0);
        self.cwnd = if self.vegas.is_some() { VEGAS_WINDOW_MIN } else { 1.0 };
        self.cut_until = self.max;
        self.after_timeout = true;
        self.recovering = false;
        self.inflation = 0;
        self.dup_acks = 0;
        self.resend = None;
        self.timed = None;
        self.nxt = self.una;
        self.rtt.back_off();
        if let Some(vegas) = &mut self.vegas {
            vegas.slow = true;
            vegas.grows = true;
            vegas.round_end = 0;
            vegas.worried = 0;
            vegas.cut_at = now;
        }
        self.deadline = now + self.rtt.timeout_ns(&self.profile);
    }

    fn restart_timer(&mut self, now: Ns) {
        let is_out = self.una < self.max;
        self.deadline = if is_out { now + self.rtt.timeout_ns(&self.profile) } else { Ns::MAX };
    }

    /// The next packet, and whether it was sent before.
    pub fn poll_transmit(&mut self, now: Ns) -> Option<(u32, bool)> {
        let window = (self.cwnd + f64::from(self.inflation)).min(self.window_max) as u32;
        let seq = match self.resend.take() {
            Some(seq) => seq,
            None if self.nxt < self.una + window.max(1) => {
                self.nxt += 1;
                self.nxt - 1
            }
            None => return None,
        };
        let is_again = seq < self.max;
        let record = &mut self.records[seq as usize % RECORDS];
        record.sent_at = now;
        if is_again {
            record.transmits = record.transmits.saturating_add(1);
            self.timed = self.timed.filter(|(timed, _)| *timed != seq);
        } else {
            record.transmits = 1;
            self.max = seq + 1;
            self.timed = self.timed.or(Some((seq, now)));
        }
        if self.deadline == Ns::MAX {
            self.restart_timer(now);
        }
        Some((seq, is_again))
    }
}

impl Vegas {
    fn new() -> Self {
        Self {
            base: Ns::MAX,
            sum: 0,
            samples: 0,
            smoothed: 0.0,
            variation: 0.0,
            round_end: 0,
            slow: true,
            grows: true,
            cut_at: 0,
            worried: 0,
        }
    }

    fn sample(&mut self, rtt: Ns) {
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
    }

    /// Has a packet been out longer than the fine timer allows?
    fn is_overdue(&self, now: Ns, record: Record) -> bool {
        let patience = (self.smoothed + 2.0 * self.variation) * 17.0 / 16.0;
        self.smoothed > 0.0 && (now - record.sent_at) as f64 > patience
    }

    /// The window after an acknowledgement: once in a round, what the window
    /// should give is compared with what it gives (§3.2).
    fn window(&mut self, cwnd: f64, ack: u32, nxt: u32, flight: u32) -> f64 {
        if ack <= self.round_end || self.samples == 0 {
            return if self.slow && self.grows { cwnd + 1.0 } else { cwnd };
        }
        self.round_end = nxt;
        let rtt = self.sum as f64 / self.samples as f64;
        (self.sum, self.samples) = (0, 0);
        let waiting = f64::from(flight) * (1.0 - self.base as f64 / rtt);
        if self.slow {
            if waiting > GAMMA {
                self.slow = false;
                return cwnd - cwnd / 8.0;
            }
            self.grows = !self.grows;
            cwnd
        } else if waiting > BETA {
            cwnd - 1.0
        } else if waiting < ALPHA {
            cwnd + 1.0
        } else {
            cwnd
        }
    }
}
