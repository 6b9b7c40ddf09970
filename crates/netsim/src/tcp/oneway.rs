//! The sending end of ns-2.34's one-way agents: Reno, NewReno, SACK and Vegas. Segment 0 is the
//! SYN; the data is `1..end`.
//!
//! What the papers' numbers depend on behaves as in `tcp.cc`, `tcp-reno.cc`, `tcp-newreno.cc`,
//! `tcp-sack1.cc` and `tcp-vegas.cc` with the defaults of `ns-default.tcl`; the code is another.

use super::profile::{Congestion, Profile};
use super::scoreboard::Scoreboard;
use super::ticks::TickEstimator;
use super::vegas::Vegas;
use super::{Counts, Segment};
use crate::Ns;
use crate::net::packet::Packet;

/// Reason of the last reduction of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    None,
    /// Duplicate acknowledgements: fast recovery has begun.
    Duplicates,
    /// The end of fast recovery.
    Recovered,
    Timeout,
}

/// A sender. Feed it with [`Sender::handle_ack`] and [`Sender::handle_timeout`], then call
/// [`Sender::poll_transmit`] until it returns no segment; its deadline is [`Sender::poll_timeout`].
#[derive(Debug)]
pub struct Sender {
    snd_una: u32,
    snd_nxt: u32,
    /// Number after the highest segment ever sent.
    snd_max: u32,
    /// Number of segments that the application asked for.
    segments: u32,
    /// Number after the last segment of the transfer.
    end: u32,
    cwnd: f64,
    ssthresh: u32,
    /// Number of segments that the receiver can take.
    window: u32,
    initial_window: u32,
    dup_acks: u32,
    /// Number of segments that duplicates have shown to have left the network.
    inflation: u32,
    /// `snd_max` when the last recovery began.
    recover: u32,
    last_cut: Cut,
    saw_partial_ack: bool,
    /// Number of segments that may still leave before the next acknowledgement.
    burst: u32,
    resend: Option<u32>,
    limited: bool,
    timed: Option<(u32, Ns)>,
    /// Highest segment that was ever timed.
    timed_max: Option<u32>,
    rtt: TickEstimator,
    deadline: Option<Ns>,
    sack: Option<Box<Scoreboard>>,
    vegas: Option<Box<Vegas>>,
    counts: Counts,
}

impl Sender {
    /// A sender of `segments` segments that has not begun.
    #[must_use]
    pub fn new(profile: &Profile, segments: u32) -> Self {
        Self {
            snd_una: 0,
            snd_nxt: 0,
            snd_max: 0,
            segments,
            // The SYN adds one, so that all of the data is sent.
            end: segments.saturating_add(1),
            cwnd: 1.0,
            ssthresh: profile.window_segments,
            window: profile.window_segments,
            initial_window: profile.initial_window_segments,
            dup_acks: 0,
            inflation: 0,
            recover: 1,
            last_cut: Cut::None,
            saw_partial_ack: false,
            burst: u32::MAX,
            resend: None,
            limited: false,
            timed: None,
            timed_max: None,
            rtt: TickEstimator::default(),
            deadline: None,
            sack: (profile.congestion == Congestion::Sack).then(Box::default),
            vegas: (profile.congestion == Congestion::Vegas).then(Box::default),
            counts: Counts::default(),
        }
    }

    /// Takes an acknowledgement.
    pub fn handle_ack(&mut self, now: Ns, profile: &Profile, packet: &Packet) {
        if self.is_done() || packet.ack > self.snd_max {
            return;
        }
        self.window = profile.window_segments.min(packet.window);
        if let Some(board) = &mut self.sack {
            board.mark(self.snd_una, &packet.sack);
        }
        self.burst = 0;
        if packet.ack > self.snd_una {
            self.advance(now, profile, packet.ack);
        } else if packet.ack == self.snd_una {
            self.duplicate(now, profile);
        }
    }

    fn advance(&mut self, now: Ns, profile: &Profile, ack: u32) {
        let in_recovery = self.last_cut == Cut::Duplicates && ack < self.recover;
        let stays = matches!(profile.congestion, Congestion::NewReno | Congestion::Sack);
        if let Some(vegas) = &mut self.vegas {
            let flight = self.snd_max - self.snd_una;
            let slow = self.cwnd < f64::from(self.ssthresh);
            if let Some(cwnd) = vegas.handle_ack(now, ack, self.snd_nxt, flight, self.cwnd, slow) {
                self.cwnd = cwnd.clamp(2.0, f64::from(profile.window_segments));
                self.ssthresh = if vegas.is_slow() { self.ssthresh } else { 2 };
            }
        }
        if in_recovery && stays {
            self.partial_ack(now, profile, ack);
        } else {
            self.full_ack(now, profile, ack);
        }
        self.burst = u32::MAX;
    }

    fn full_ack(&mut self, now: Ns, profile: &Profile, ack: u32) {
        if self.inflation > 0 || self.sack.is_some() {
            self.inflation = 0;
            if self.last_cut == Cut::Duplicates {
                self.last_cut = Cut::Recovered;
            }
        }
        self.saw_partial_ack = false;
        let was_syn = self.snd_una == 0;
        self.acknowledge(now, profile, ack);
        self.deadline = Some(now + self.rtt.timeout_ns(profile));
        self.open(profile);
        if was_syn {
            // Only from here on the window grows (`delay_growth_`).
            self.cwnd = f64::from(self.initial_window);
        }
        if self.is_done() {
            self.deadline = None;
        }
    }

    /// Handles an acknowledgement of a part of the segments that were out when the loss was
    /// noticed.
    fn partial_ack(&mut self, now: Ns, profile: &Profile, ack: u32) {
        let newly = ack - self.snd_una;
        if let Some(board) = &mut self.sack {
            board.partial_ack();
        } else if self.inflation > newly {
            // The window is deflated by what was acknowledged (`partial_window_deflation_`, RFC
            // 6582 §3.2 step 5).
            self.inflation -= newly - 1;
        } else {
            self.cwnd = (self.cwnd - f64::from(newly - self.inflation)).max(1.0);
            self.inflation = 1;
        }
        self.acknowledge(now, profile, ack);
        if !self.saw_partial_ack || !profile.impatient || self.sack.is_some() {
            self.saw_partial_ack = true;
            self.deadline = Some(now + self.rtt.timeout_ns(profile));
        }
        if self.sack.is_none() {
            self.resend = Some(self.snd_una);
        }
    }

    fn acknowledge(&mut self, now: Ns, profile: &Profile, ack: u32) {
        self.dup_acks = 0;
        self.snd_una = ack;
        self.snd_nxt = self.snd_nxt.max(ack);
        if let Some(board) = &mut self.sack {
            board.advance(ack);
        }
        if let Some((seq, at)) = self.timed.filter(|(seq, _)| *seq < ack) {
            let _ = seq;
            self.timed = None;
            self.rtt.end_backoff();
            self.rtt.sample(profile, at, now - at);
        }
    }

    fn open(&mut self, profile: &Profile) {
        if profile.congestion == Congestion::Vegas && self.snd_una > 1 {
            return;
        }
        if self.cwnd < f64::from(self.ssthresh) {
            self.cwnd += 1.0;
        } else {
            self.cwnd += 1.0 / self.cwnd;
        }
    }

    fn duplicate(&mut self, now: Ns, profile: &Profile) {
        self.dup_acks += 1;
        if let Some(vegas) = &mut self.vegas
            && vegas.is_overdue(now, self.snd_una)
            && self.dup_acks < profile.dup_acks
        {
            self.dup_acks = profile.dup_acks;
        }
        let recovering = self.last_cut == Cut::Duplicates && self.inflation > 0;
        if self.dup_acks == profile.dup_acks {
            self.fast_retransmit(now, profile);
        } else if self.dup_acks > profile.dup_acks && self.last_cut == Cut::Duplicates {
            self.inflation += 1;
            if let Some(board) = &mut self.sack {
                board.one_left();
            }
        } else if let Some(board) = self.sack.as_mut().filter(|_| recovering) {
            // In SACK recovery every duplicate stands for a segment that has left the network.
            board.one_left();
        } else if self.dup_acks < profile.dup_acks && profile.limited_transmit {
            self.limited = true;
        }
        if self.dup_acks >= profile.dup_acks || (recovering && self.sack.is_some()) {
            // NewReno sends at most two segments for one duplicate.
            let calm = profile.congestion == Congestion::NewReno;
            self.burst = if calm { 2 } else { u32::MAX };
        }
    }

    fn fast_retransmit(&mut self, now: Ns, profile: &Profile) {
        // There is one reduction for a window of data (`bug_fix_`), except that Reno allows another
        // right after a fast retransmit.
        let again = profile.congestion == Congestion::Reno && self.last_cut == Cut::Duplicates;
        // The first data segment may be the one that was lost (`bugfix_ss_`).
        if self.snd_una <= self.recover && !again && self.snd_una != 1 {
            return;
        }
        self.recover = self.snd_max;
        self.last_cut = Cut::Duplicates;
        let window = self.usable_window(profile);
        self.halve(window);
        self.cwnd = f64::from(window / 2).max(1.0);
        if profile.congestion == Congestion::Vegas {
            // The window shrinks by a quarter (Brakmo and Peterson §3.1).
            self.cwnd = (f64::from(window) * 0.75).max(2.0);
        }
        self.deadline = Some(now + self.rtt.timeout_ns(profile));
        self.timed = None;
        self.inflation = profile.dup_acks;
        self.resend = Some(self.snd_una);
        self.counts.fast_retransmits += 1;
        if let Some(board) = &mut self.sack {
            board.enter(self.snd_una, self.snd_max, profile.dup_acks);
        }
    }

    fn halve(&mut self, window: u32) {
        self.ssthresh = (window / 2).max(2);
    }

    /// Handles the expiry of the timer.
    pub fn handle_timeout(&mut self, now: Ns, profile: &Profile) {
        if self.is_done() || self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.snd_una == 0 {
            self.counts.syn_timeouts += 1;
            // A lost SYN means that the network is slow or full (`bugfix_ss_`).
            self.initial_window = profile.syn_loss_window_segments;
        } else {
            self.counts.timeouts += 1;
        }
        self.inflation = 0;
        self.dup_acks = 0;
        self.recover = self.snd_max;
        self.halve(self.usable_window(profile));
        self.cwnd = 1.0;
        self.last_cut = Cut::Timeout;
        self.rtt.back_off();
        self.snd_nxt = self.snd_una;
        self.timed = None;
        self.resend = None;
        self.limited = false;
        self.burst = u32::MAX;
        if let Some(board) = &mut self.sack {
            board.clear();
        }
        if let Some(vegas) = &mut self.vegas {
            vegas.handle_timeout();
        }
        self.deadline = Some(now + self.rtt.timeout_ns(profile));
    }

    /// The next segment to send; call it until there is none.
    pub fn poll_transmit(&mut self, now: Ns, profile: &Profile) -> Option<Segment> {
        if self.is_done() {
            return None;
        }
        let seq = self.next_to_send(profile)?;
        let was_idle = self.snd_una == self.snd_max;
        if seq == 0 && self.snd_max > 0 && profile.syn_adds_segment {
            self.end = self.end.saturating_add(1);
        }
        let is_again = seq < self.snd_max;
        if !is_again {
            self.snd_max = seq + 1;
            if self.timed.is_none() && self.timed_max.is_none_or(|it| seq > it) {
                self.timed = Some((seq, now));
                self.timed_max = Some(seq);
            }
        }
        if let Some(vegas) = &mut self.vegas {
            vegas.note_sent(now, seq, is_again);
        }
        if self.deadline.is_none() || was_idle {
            self.deadline = Some(now + self.rtt.timeout_ns(profile));
        }
        self.counts.sent += 1;
        self.counts.resent += u64::from(is_again);
        Some(Segment { seq, is_again, push: seq == self.segments })
    }

    fn next_to_send(&mut self, profile: &Profile) -> Option<u32> {
        if let Some(seq) = self.resend.take() {
            return Some(seq);
        }
        if std::mem::take(&mut self.limited) {
            // Each of the first duplicates allows one segment beyond the window (RFC 3042).
            let beyond = f64::from(self.snd_una) + self.cwnd + f64::from(self.dup_acks);
            let open = f64::from(self.snd_nxt) < beyond.min(self.right_edge());
            return (open && self.snd_nxt < self.end).then(|| self.take_next());
        }
        if self.burst == 0 {
            return None;
        }
        let recovering = self.last_cut == Cut::Duplicates;
        if let Some(board) = self.sack.as_mut().filter(|_| recovering) {
            if board.pipe() >= self.cwnd as i64 {
                return None;
            }
            if let Some(hole) = board.next_hole(self.snd_una, self.recover) {
                board.one_sent();
                return Some(hole);
            }
            if self.snd_nxt < self.end && f64::from(self.snd_nxt) < self.right_edge() {
                self.sack.as_mut()?.one_sent();
                return Some(self.take_next());
            }
            return None;
        }
        let edge = self.snd_una.saturating_add(self.usable_window(profile));
        if self.snd_nxt >= self.end || self.snd_nxt >= edge {
            return None;
        }
        self.burst -= 1;
        Some(self.take_next())
    }

    fn take_next(&mut self) -> u32 {
        self.snd_nxt += 1;
        self.snd_nxt - 1
    }

    fn right_edge(&self) -> f64 {
        f64::from(self.snd_una) + f64::from(self.window)
    }

    /// Number of whole segments that may be out at once.
    fn usable_window(&self, profile: &Profile) -> u32 {
        let inflation = if profile.congestion == Congestion::Sack { 0 } else { self.inflation };
        ((self.cwnd as u32) + inflation).min(self.window)
    }

    /// When [`Sender::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.deadline
    }

    /// Whether everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.snd_una >= self.end
    }

    /// Whether the SYN is acknowledged.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.snd_una > 0
    }

    /// Congestion window and slow-start threshold, in segments.
    #[must_use]
    pub fn window(&self) -> (f64, f64) {
        (self.cwnd, f64::from(self.ssthresh))
    }

    /// Smoothed round trip in ns; `None` before the first one.
    #[must_use]
    pub fn smoothed_round_trip(&self) -> Option<Ns> {
        self.rtt.smoothed_ns()
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
