//! The flow manager: ns-1's Reno and its [`Vegas`], with its [`Timer`]. It counts
//! packets; connections are open from the start.
//!
//! [`crate::tcp`] has both too, but as in ns-2.34. ns-1's timer, and the moment at which its Vegas
//! sends before the third duplicate, decide how often a connection starves.

use super::scenario::{FlowControl, Scenario, WINDOW_PACKETS_MAX};
use super::timer::Timer;
use super::vegas::{Vegas, WINDOW_MIN};
use crate::Ns;

/// Number of packets whose sending is remembered: two windows.
const RECORDS: usize = 2 * WINDOW_PACKETS_MAX as usize;
const DUP_ACKS: u32 = 3;
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    sent_at: Ns,
    transmits: u8,
}

/// The flow manager of a connection: decides how much to send and when. After every `handle_*`
/// call, call [`Flow::poll_transmit`] until it returns nothing.
#[derive(Debug)]
pub(super) struct Flow {
    window_max: f64,
    /// Whether losses are reported by [`Flow::handle_loss`], so that duplicates say nothing about
    /// them.
    told_of_losses: bool,
    una: u32,
    nxt: u32,
    /// Number after the highest packet that was ever sent.
    max: u32,
    cwnd: f64,
    ssthresh: f64,
    dup_acks: u32,
    inflation: u32,
    recovering: bool,
    /// End of the window that was the last to be cut.
    cut_until: u32,
    after_timeout: bool,
    resend: Option<u32>,
    /// A packet that was sent once, whose acknowledgement ends the backoff.
    timed: Option<u32>,
    timer: Timer,
    deadline: Ns,
    records: [Record; RECORDS],
    vegas: Option<Vegas>,
    pub timeouts: u64,
    pub cuts: u64,
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
            cwnd: 1.0,
            ssthresh: window_max,
            dup_acks: 0,
            inflation: 0,
            recovering: false,
            cut_until: 0,
            after_timeout: false,
            resend: None,
            timed: None,
            timer: Timer::new(scenario.tick_ns),
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

    /// When [`Flow::handle_timeout`] is due.
    pub fn deadline(&self) -> Ns {
        self.deadline
    }

    /// Takes an acknowledgement: everything before `ack` has arrived.
    pub fn handle_ack(&mut self, now: Ns, ack: u32) {
        if ack > self.una {
            self.advance(now, ack);
        } else if ack == self.una && self.una < self.max {
            self.duplicate(now);
        }
    }

    fn advance(&mut self, now: Ns, ack: u32) {
        let newest = self.records[(ack - 1) as usize % RECORDS];
        if self.timed.is_some_and(|timed| timed < ack) {
            self.timed = None;
            self.timer.end_backoff();
        }
        // The packet that fills a hole is the one that is acknowledged and echoed.
        self.timer.sample(now - self.records[self.una as usize % RECORDS].sent_at);
        let was_recovering = std::mem::take(&mut self.recovering);
        let dup_acks = std::mem::take(&mut self.dup_acks);
        self.inflation = 0;
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        if let Some(vegas) = &mut self.vegas {
            if dup_acks > DUP_ACKS && !self.told_of_losses {
                self.cwnd = vegas.deflated(self.cwnd);
                self.ssthresh = WINDOW_MIN;
            }
            [self.cwnd, self.ssthresh] = vegas.grow(now, ack, self.nxt, self.cwnd, self.ssthresh);
            if newest.transmits == 1 {
                vegas.sample(now - newest.sent_at);
            }
        } else if !was_recovering {
            self.cwnd += if self.cwnd < self.ssthresh { 1.0 } else { 1.0 / self.cwnd };
        }
        self.cwnd = self.cwnd.min(self.window_max);
        self.restart_timer(now);
        self.check_again(now);
    }

    /// Vegas: checks whether the next packet was lost with one that was
    /// retransmitted.
    fn check_again(&mut self, now: Ns) {
        let record = self.records[self.una as usize % RECORDS];
        if let Some(vegas) = &mut self.vegas
            && self.una < self.max
            && !self.told_of_losses
            && vegas.suspects(now, record.sent_at)
        {
            self.dup_acks = DUP_ACKS;
            self.resend = Some(self.una);
        }
    }

    fn duplicate(&mut self, now: Ns) {
        self.dup_acks += 1;
        if self.told_of_losses {
            self.inflation += u32::from(self.recovering);
            return;
        }
        let record = self.records[self.una as usize % RECORDS];
        let overdue = self.vegas.as_ref().is_some_and(|it| it.is_overdue(now, record.sent_at));
        if self.dup_acks == DUP_ACKS || overdue {
            self.fast_retransmit(now, record);
        } else if self.dup_acks > DUP_ACKS {
            match self.vegas {
                Some(_) => self.cwnd = (self.cwnd + 1.0).min(self.window_max),
                None => self.inflation += u32::from(self.recovering),
            }
        }
    }

    fn fast_retransmit(&mut self, now: Ns, record: Record) {
        if self.after_timeout && self.una < self.cut_until {
            // Duplicates of what was sent again after the timeout do not count (ns' `bug_fix_`).
            return;
        }
        let was_again = record.transmits > 1;
        if let Some(vegas) = &mut self.vegas {
            let (cwnd, flight) = (self.cwnd.min(self.window_max), self.nxt - self.una);
            let dup_acks = self.dup_acks;
            let cut = vegas.retransmit(now, record.sent_at, was_again, cwnd, dup_acks, flight);
            self.cuts += u64::from(cut.is_some());
            self.cwnd = cut.unwrap_or(self.cwnd);
            (self.after_timeout, self.cut_until) = (false, self.max);
            if !was_again {
                self.dup_acks = DUP_ACKS;
            }
        } else {
            self.dup_acks = DUP_ACKS;
            self.cut(now);
            self.recovering = true;
            self.inflation = DUP_ACKS;
        }
        self.resend = Some(self.una);
        self.timed = None;
        self.restart_timer(now);
        self.timer.back_off();
    }

    /// Boston: notes that cells were lost, the last of them just now. The window is cut once for a
    /// window of data; `hole`: a packet waits for a repair.
    pub fn handle_loss(&mut self, now: Ns, hole: bool) {
        if self.una < self.cut_until {
            return;
        }
        self.cut(now);
        if hole {
            self.recovering = true;
            self.inflation = DUP_ACKS;
        }
    }

    fn cut(&mut self, now: Ns) {
        self.cuts += 1;
        self.after_timeout = false;
        self.cut_until = self.max;
        if let Some(vegas) = &mut self.vegas {
            self.cwnd = vegas.cut(now, self.cwnd);
            self.ssthresh = WINDOW_MIN;
        } else {
            self.ssthresh = (self.cwnd / 2.0).floor().max(2.0);
            self.cwnd = self.ssthresh;
        }
    }

    /// Boston: notes that a packet is being repaired, so that its round trip means nothing and the
    /// timer starts again.
    pub fn note_repair(&mut self, now: Ns, seq: u32) {
        let record = &mut self.records[seq as usize % RECORDS];
        record.transmits = record.transmits.saturating_add(1);
        record.sent_at = now;
        self.timed = self.timed.filter(|timed| *timed != seq);
        self.restart_timer(now);
    }

    /// Handles the expiry of the timer.
    pub fn handle_timeout(&mut self, now: Ns) {
        self.timeouts += 1;
        self.ssthresh = (self.cwnd / 2.0).floor().max(2.0);
        self.cwnd = if self.vegas.is_some() { WINDOW_MIN } else { 1.0 };
        self.cut_until = self.max;
        self.after_timeout = true;
        self.recovering = false;
        self.inflation = 0;
        self.dup_acks = 0;
        self.resend = None;
        self.timed = None;
        self.nxt = self.una;
        if let Some(vegas) = &mut self.vegas {
            vegas.restart(now);
        }
        self.deadline = now + self.timer.timeout_ns();
        self.timer.back_off();
    }

    fn restart_timer(&mut self, now: Ns) {
        let is_out = self.una < self.max;
        self.deadline = if is_out { now + self.timer.timeout_ns() } else { Ns::MAX };
    }

    /// The next packet, and whether it was sent before.
    pub fn poll_transmit(&mut self, now: Ns) -> Option<(u32, bool)> {
        let window = (self.cwnd + f64::from(self.inflation)).min(self.window_max) as u32;
        // One or two duplicates may mean a loss: Vegas waits.
        let waits = self.vegas.is_some() && !self.told_of_losses;
        let waits = waits && (1..DUP_ACKS).contains(&self.dup_acks);
        let seq = match self.resend.take() {
            Some(seq) => seq,
            None if !waits && self.nxt < self.una + window.max(1) => {
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
            self.timed = self.timed.filter(|timed| *timed != seq);
        } else {
            record.transmits = 1;
            self.max = seq + 1;
            self.timed = self.timed.or(Some(seq));
        }
        if self.deadline == Ns::MAX {
            self.restart_timer(now);
        }
        Some((seq, is_again))
    }
}
