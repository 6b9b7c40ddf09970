//! Recovery as ns-3.48 has it. It differs from RFC 6675, RFC 6582 and RFC 6937 in
//! what decides how long a flow takes after an outage:
//!
//! * the threshold is half of what is still on its way when the loss is noticed,
//!   not half of what was sent;
//! * the first partial acknowledgement restarts the timer, the others do not;
//! * a duplicate counts as one more segment delivered, and an acknowledgement
//!   that is partial and a duplicate counts twice;
//! * a repetition that arrived behind a hole is on its way until it is
//!   acknowledged;
//! * beyond the highest segment reported nothing is sent again;
//! * without blocks the window is made before a duplicate takes a segment from
//!   those on their way, and after a timeout duplicates say nothing.

use super::{Sender, State};
use crate::Ns;
use crate::tcp::Segment;
use crate::tcp::flight::Delivered;
use crate::tcp::profile::Profile;

impl Sender {
    /// Does everything that follows from an acknowledgement whose blocks were noted.
    pub(super) fn handle_ack_ns3(
        &mut self,
        now: Ns,
        profile: &Profile,
        advanced: bool,
        delivered: &Delivered,
    ) {
        let is_safe =
            self.state == State::Recovery && self.snd_una < self.recover && delivered.acked_resent;
        if profile.sack {
            self.flight.mark_lost_by_count(profile.dup_acks);
            if delivered.reported > 0 {
                self.handle_report_ns3(profile, delivered.count, is_safe);
            }
        } else if !advanced && self.snd_una < self.snd_nxt {
            self.handle_duplicate_ns3(profile);
        }
        let was_partial = self.was_partial;
        if advanced {
            self.duplicates = 0;
            self.advance_ns3(now, profile, delivered, is_safe);
        }
        let is_held = self.state == State::Recovery && was_partial;
        self.arm(now, profile, advanced && !is_held);
    }

    /// Handles blocks that name segments for the first time.
    fn handle_report_ns3(&mut self, profile: &Profile, count: u32, is_safe: bool) {
        let in_flight = self.flight.in_flight();
        match self.state {
            State::Recovery => self.prr_ns3(in_flight, count, true, is_safe),
            State::Open if self.flight.is_first_lost() => {
                self.enter_recovery_ns3(profile, in_flight, count);
            }
            _ => {}
        }
    }

    /// Handles a duplicate without blocks.
    fn handle_duplicate_ns3(&mut self, profile: &Profile) {
        let in_flight = self.flight.in_flight();
        match self.state {
            State::Recovery => {
                self.flight.sack_any(&mut Delivered::default());
                self.prr_ns3(in_flight, 0, true, false);
            }
            State::Open => {
                self.duplicates += 1;
                self.flight.sack_any(&mut Delivered::default());
                if self.duplicates == profile.dup_acks {
                    self.flight.lose_first_again();
                    // The first segment counts as in flight again.
                    self.enter_recovery_ns3(profile, self.flight.in_flight() + 1, 0);
                }
            }
            State::Handshake | State::Loss => {}
        }
    }

    fn enter_recovery_ns3(&mut self, profile: &Profile, window: u32, count: u32) {
        let in_flight = self.flight.in_flight();
        self.begin_recovery(profile, f64::from(window), in_flight);
        self.forced = true;
        self.prr_ns3(in_flight, count, true, false);
    }

    fn advance_ns3(&mut self, now: Ns, profile: &Profile, delivered: &Delivered, is_safe: bool) {
        if self.state == State::Recovery && self.snd_una < self.recover {
            let in_flight = self.flight.in_flight();
            if !profile.sack {
                self.flight.lose_first_again();
            }
            if delivered.count > 0 {
                // A duplicate that arrived for the new first segment was already noticed.
                let noticed = !profile.sack && self.flight.unnamed() > 0;
                let in_flight = in_flight.saturating_sub(u32::from(noticed));
                self.prr_ns3(in_flight, delivered.count, false, is_safe);
            }
            self.forced |= !self.flight.is_first_resent();
            self.was_partial = true;
            return;
        }
        let was_lost = self.state == State::Loss;
        if self.leave_recovery(profile) {
            self.was_partial = false;
            if was_lost {
                return;
            }
        }
        self.adapt(now, profile, true, delivered);
    }

    /// Sets the window in recovery by RFC 6937 §3 as in ns-3.48: once more was sent than delivered,
    /// its unsigned difference is so large that nothing is sent.
    fn prr_ns3(&mut self, in_flight: u32, delivered: u32, is_duplicate: bool, is_safe: bool) {
        let may_add = is_duplicate && self.prr_delivered < self.prr_flight;
        let delivered = delivered + u32::from(may_add);
        if delivered == 0 {
            return;
        }
        self.prr_delivered += delivered;
        let in_flight = f64::from(in_flight);
        let (all, out) = (f64::from(self.prr_delivered), f64::from(self.prr_out));
        let send = if in_flight > self.ssthresh {
            all * self.ssthresh / f64::from(self.prr_flight.max(1)) - out
        } else {
            let credit = if out > all { all - out } else { (all - out).max(delivered.into()) };
            (credit + f64::from(u8::from(is_safe))).min(self.ssthresh - in_flight)
        };
        // The first retransmission leaves at once.
        self.cwnd = in_flight + send.max(if self.prr_out == 0 { 1.0 } else { 0.0 });
    }

    /// The next segment by RFC 6675 §4 `NextSeg`; if one is forced and there is none, the first
    /// segment.
    pub(super) fn next_segment_ns3(&mut self, now: Ns) -> Option<Segment> {
        let forced = std::mem::take(&mut self.forced);
        let lost = self.flight.next_lost().filter(|seq| !self.flight.is_beyond_reports(*seq));
        if let Some(seq) = lost {
            return Some(self.send_again(now, seq));
        }
        if let Some(segment) = self.send_new(now) {
            return Some(segment);
        }
        let doubtful = match self.state {
            State::Recovery => self.flight.next_doubtful(),
            _ => None,
        };
        let seq = doubtful.or(forced.then_some(self.snd_una))?;
        Some(self.send_again(now, seq))
    }
}
