//! The sending end of a TCP after RFC 9293: RFC 6298 timers, RFC 6675 or RFC 8985 loss detection,
//! and RFC 6937 recovery. Its profile's constants make it behave like that of ns-3 or of Linux.

mod ns3;

use super::cubic::Cubic;
use super::flight::{Delivered, Flight};
use super::hystart::{Acked, HyStart};
use super::profile::{Congestion, Profile};
use super::{Counts, Segment};
use crate::Ns;
use crate::net::packet::Packet;
use prefetch_index::prefetch_index;
use std::slice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Handshake,
    Open,
    /// Fast recovery from a loss.
    Recovery,
    /// Recovery after a timeout.
    Loss,
}

/// The purpose of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Retransmission,
    /// A tail-loss probe is due (RFC 8985 §7).
    Probe,
    /// The patience with reordering ends (RFC 8985 §6.3).
    Reordering,
}

/// The state to return to if a timeout was spurious.
#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: f64,
    ssthresh: f64,
    resent_at: Ns,
}

/// A sender; its contract is that of [`super::Sender`]. The fields that every acknowledgement
/// touches come first.
#[derive(Debug)]
#[repr(C)]
pub struct Sender {
    flight: Flight,
    snd_una: u32,
    snd_nxt: u32,
    segments: u32,
    window: u32,
    cwnd: f64,
    ssthresh: f64,
    timer: Option<(Ns, Timer)>,
    // Round trips, RFC 6298.
    srtt: Ns,
    rttvar: Ns,
    rtt_min: Ns,
    rtt_last: Ns,
    /// Sending time and number of the delivered segment that was sent last.
    rack: (Ns, u32),
    doublings: u32,
    /// Segment whose acknowledgement ends recovery.
    recover: u32,
    state: State,
    syn_due: bool,
    probe_due: bool,
    /// Whether a segment is sent whatever the window says.
    forced: bool,
    /// Whether ns-3's recovery has had a partial acknowledgement.
    was_partial: bool,
    /// Number of duplicates without blocks in a row, as ns-3 counts them.
    duplicates: u32,
    /// Whether a probe was sent; there is one for each flight.
    probed: bool,
    counts: Counts,
    syn_sent_at: Ns,
    // Proportional rate reduction, RFC 6937.
    prr_delivered: u32,
    prr_out: u32,
    prr_flight: u32,
    undo: Option<Undo>,
    cubic: Cubic,
    hystart: HyStart,
}

impl Sender {
    /// A sender of `segments` segments that has not begun.
    #[must_use]
    pub fn new(profile: &Profile, segments: u32) -> Self {
        Self {
            state: State::Handshake,
            snd_una: 0,
            snd_nxt: 0,
            segments,
            window: profile.window_segments,
            cwnd: f64::from(profile.initial_window_segments),
            ssthresh: f64::INFINITY,
            recover: 0,
            flight: Flight::default(),
            srtt: 0,
            rttvar: 0,
            rtt_min: Ns::MAX,
            rtt_last: 0,
            doublings: 0,
            timer: None,
            syn_due: true,
            syn_sent_at: 0,
            probe_due: false,
            forced: false,
            was_partial: false,
            duplicates: 0,
            probed: false,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            rack: (0, 0),
            undo: None,
            cubic: Cubic::default(),
            hystart: HyStart::default(),
            counts: Counts::default(),
        }
    }

    /// Prefetches what an acknowledgement touches beyond the first cache line.
    #[inline]
    pub(super) fn fetch(&self) {
        self.flight.fetch();
        prefetch_index(slice::from_ref(&self.cwnd), 0);
        prefetch_index(slice::from_ref(&self.srtt), 0);
        prefetch_index(slice::from_ref(&self.counts), 0);
    }

    fn end(&self) -> u32 {
        self.segments.saturating_add(1)
    }

    /// Takes an acknowledgement.
    pub fn handle_ack(&mut self, now: Ns, profile: &Profile, packet: &Packet) {
        if self.is_done() || packet.ack > self.snd_nxt || packet.ack < self.snd_una {
            return;
        }
        self.window = profile.window_segments.min(packet.window);
        if self.state == State::Handshake {
            return if packet.ack > 0 {
                self.connect(now, profile)
            };
        }
        let advanced = packet.ack > self.snd_una;
        let mut delivered = Delivered::default();
        self.flight.ack_to(packet.ack, &mut delivered);
        if profile.sack {
            self.flight.sack(&packet.sack, profile.ns3_recovery, &mut delivered);
        } else if advanced {
            self.flight.name(packet.ack - self.snd_una);
        } else if !profile.ns3_recovery {
            self.flight.sack_any(&mut delivered);
        }
        self.snd_una = packet.ack;
        self.measure(now, profile, packet, &delivered);
        self.rack = self.rack.max(delivered.newest);
        if advanced {
            self.doublings = 0;
            self.probed = false;
        }
        if profile.ns3_recovery {
            return self.handle_ack_ns3(now, profile, advanced, &delivered);
        }
        self.detect_spurious(profile, packet, advanced);
        self.detect_loss(profile);
        // The acknowledgement that ends a recovery does not also open the window.
        if !self.leave_recovery(profile) {
            self.adapt(now, profile, advanced, &delivered);
        }
        self.arm(now, profile, advanced);
    }

    fn connect(&mut self, now: Ns, profile: &Profile) {
        self.state = State::Open;
        (self.snd_una, self.snd_nxt) = (1, 1);
        self.flight.begin(1);
        if self.counts.syn_timeouts == 0 {
            self.sample(now - self.syn_sent_at);
        } else if profile.syn_loss_window_segments < profile.initial_window_segments {
            self.cwnd = f64::from(profile.syn_loss_window_segments);
        }
        self.doublings = 0;
        self.timer = None;
    }

    fn measure(&mut self, now: Ns, profile: &Profile, packet: &Packet, delivered: &Delivered) {
        let sent_at = if profile.timestamps && delivered.count > 0 {
            Some(packet.echo)
        } else {
            delivered.sample_sent_at
        };
        if let Some(sent_at) = sent_at {
            self.sample(now.saturating_sub(sent_at));
        }
    }

    /// Takes a round trip (RFC 6298 §2).
    fn sample(&mut self, rtt: Ns) {
        self.rtt_min = self.rtt_min.min(rtt);
        self.rtt_last = rtt;
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (rtt, rtt / 2);
            return;
        }
        self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(rtt) / 4;
        self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
    }

    fn rto_ns(&self, profile: &Profile) -> Ns {
        let base = match (self.srtt, profile.rto_floor_of_variation) {
            (0, _) => profile.syn_timeout_ns.max(profile.rto_min_ns),
            // Linux bounds the variation instead of the sum.
            (srtt, true) => srtt + (4 * self.rttvar).max(profile.rto_min_ns),
            (srtt, false) => {
                (srtt + (4 * self.rttvar).max(profile.tick_ns)).max(profile.rto_min_ns)
            }
        };
        base.saturating_mul(1 << self.doublings.min(30)).min(profile.rto_max_ns)
    }

    /// Detects a spurious timeout (Eifel, RFC 3522): the acknowledgement is for what was sent
    /// before the timeout, so nothing was lost.
    fn detect_spurious(&mut self, profile: &Profile, packet: &Packet, advanced: bool) {
        if self.state != State::Loss || !advanced || !profile.timestamps {
            return;
        }
        if let Some(undo) = self.undo.take()
            && packet.echo < undo.resent_at
        {
            self.cwnd = undo.cwnd;
            self.ssthresh = undo.ssthresh;
            self.flight.unmark_lost();
            self.state = State::Open;
        }
    }

    fn detect_loss(&mut self, profile: &Profile) {
        let found = if !profile.sack {
            self.detect_loss_without_blocks(profile)
        } else if profile.rack {
            self.flight.mark_lost_by_time(self.rack, self.patience_ns(profile))
        } else {
            self.flight.mark_lost_by_count(profile.dup_acks)
        };
        if found > 0 && self.state == State::Open {
            self.enter_recovery(profile);
        }
    }

    /// Detects losses without blocks: three duplicates, and every partial acknowledgement, mean
    /// that the first segment is lost (RFC 6582).
    fn detect_loss_without_blocks(&mut self, profile: &Profile) -> u32 {
        let partial = self.state == State::Recovery && self.snd_una < self.recover;
        if partial || self.flight.unnamed() >= profile.dup_acks {
            self.flight.lose_first();
        }
        u32::from(self.flight.next_lost().is_some())
    }

    /// The patience with reordering in ns: none once three segments have arrived behind a hole (RFC
    /// 8985 §6.2 step 4).
    fn patience_ns(&self, profile: &Profile) -> Ns {
        let sure = self.flight.sacked() >= profile.dup_acks || self.state != State::Open;
        if sure { 0 } else { self.rtt_min / 4 }
    }

    fn enter_recovery(&mut self, profile: &Profile) {
        let flight = self.snd_nxt - self.snd_una;
        self.begin_recovery(profile, f64::from(flight).min(self.cwnd), flight.max(1));
        self.flight.lose_first();
        if !profile.prr {
            self.cwnd = self.ssthresh;
        }
    }

    /// Begins a recovery. `window` determines the threshold, and the reduction is in proportion to
    /// `flight`.
    fn begin_recovery(&mut self, profile: &Profile, window: f64, flight: u32) {
        self.state = State::Recovery;
        self.recover = self.snd_nxt;
        self.counts.fast_retransmits += 1;
        self.reduce(profile, window);
        self.prr_flight = flight;
        (self.prr_delivered, self.prr_out) = (0, 0);
    }

    fn reduce(&mut self, profile: &Profile, window: f64) {
        self.ssthresh = match profile.congestion {
            Congestion::Cubic => self.cubic.reduce(window),
            _ => (window / 2.0).max(2.0),
        };
    }

    fn leave_recovery(&mut self, profile: &Profile) -> bool {
        if self.snd_una < self.recover || !matches!(self.state, State::Recovery | State::Loss) {
            return false;
        }
        if self.state == State::Recovery && (profile.prr || profile.ns3_recovery) {
            self.cwnd = self.ssthresh;
        }
        self.state = State::Open;
        self.undo = None;
        true
    }

    fn adapt(&mut self, now: Ns, profile: &Profile, advanced: bool, delivered: &Delivered) {
        if self.state == State::Recovery {
            if profile.prr {
                self.prr(delivered.count);
            }
            return;
        }
        if !advanced {
            return;
        }
        let acked = if profile.counts_segments { f64::from(delivered.count) } else { 1.0 };
        if self.cwnd < self.ssthresh {
            self.cwnd += acked;
            let cubic = profile.congestion == Congestion::Cubic;
            if cubic && profile.hystart && self.is_path_full(now) {
                self.ssthresh = self.cwnd;
            }
        } else if profile.congestion == Congestion::Cubic {
            self.cwnd = self.cubic.grow(now, self.srtt, self.cwnd, acked);
        } else {
            self.cwnd += acked / self.cwnd;
        }
    }

    fn is_path_full(&mut self, now: Ns) -> bool {
        let acked = Acked {
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            cwnd: self.cwnd,
            rtt: self.rtt_last,
            rtt_min: self.rtt_min,
        };
        self.hystart.handle_ack(now, &acked)
    }

    /// Sets the window in recovery by RFC 6937 §3, with the slow-start reduction bound.
    fn prr(&mut self, delivered: u32) {
        self.prr_delivered += delivered;
        let in_flight = self.flight.in_flight();
        let ssthresh = self.ssthresh as u32;
        let send = if in_flight > ssthresh {
            let share = u64::from(self.prr_delivered) * u64::from(ssthresh);
            (share.div_ceil(u64::from(self.prr_flight)) as u32).saturating_sub(self.prr_out)
        } else {
            let limit = self.prr_delivered.saturating_sub(self.prr_out).max(delivered) + 1;
            (ssthresh - in_flight).min(limit)
        };
        // The first retransmission leaves at once.
        let send = if self.prr_out == 0 { send.max(1) } else { send };
        self.cwnd = f64::from(in_flight + send);
    }

    fn arm(&mut self, now: Ns, profile: &Profile, advanced: bool) {
        if self.is_done() || self.snd_una == self.snd_nxt {
            self.timer = None;
        } else if profile.rack && self.state == State::Open && self.flight.sacked() > 0 {
            let at = self.rack.0 + self.srtt + self.rtt_min / 4;
            self.timer = Some((at.max(now), Timer::Reordering));
        } else if advanced || self.timer.is_none_or(|it| it.1 == Timer::Reordering) {
            self.restart(now, profile);
        }
    }

    fn restart(&mut self, now: Ns, profile: &Profile) {
        let may_probe = profile.tlp && self.state == State::Open && !self.probed && self.srtt > 0;
        if may_probe {
            // The time to a probe is two round trips; a lone segment may be acknowledged late (RFC
            // 8985 §7.2).
            let lone = if self.snd_nxt - self.snd_una == 1 { profile.rto_min_ns } else { 0 };
            let wait = (2 * self.srtt + lone).min(self.rto_ns(profile));
            self.timer = Some((now + wait, Timer::Probe));
        } else {
            self.timer = Some((now + self.rto_ns(profile), Timer::Retransmission));
        }
    }

    /// Handles the expiry of the timer.
    pub fn handle_timeout(&mut self, now: Ns, profile: &Profile) {
        let Some((_, timer)) = self.timer.filter(|(at, _)| *at <= now) else {
            return;
        };
        match (self.state, timer) {
            (State::Handshake, _) => {
                self.counts.syn_timeouts += 1;
                self.syn_due = true;
            }
            (_, Timer::Probe) => {
                self.probe_due = true;
                self.probed = true;
                self.restart(now, profile);
            }
            (_, Timer::Reordering) => {
                self.flight.mark_lost_by_time(self.rack, 0);
                if self.flight.next_lost().is_some() && self.state == State::Open {
                    self.enter_recovery(profile);
                    self.prr(0);
                }
                self.restart(now, profile);
            }
            (_, Timer::Retransmission) => self.expire(now, profile),
        }
    }

    /// Handles a timeout (RFC 6298 §5.4 to 5.6, RFC 5681 §3.1).
    fn expire(&mut self, now: Ns, profile: &Profile) {
        self.counts.timeouts += 1;
        let is_first = self.state != State::Loss || !self.flight.first_was_resent();
        if is_first || profile.reduces_again {
            let undo = Undo { cwnd: self.cwnd, ssthresh: self.ssthresh, resent_at: now };
            self.undo = Some(undo);
            let in_flight = f64::from(self.flight.in_flight());
            self.reduce(
                profile,
                if profile.congestion == Congestion::Cubic { self.cwnd } else { in_flight },
            );
        }
        self.cwnd = 1.0;
        self.state = State::Loss;
        self.recover = self.snd_nxt;
        self.flight.mark_all_lost();
        self.doublings += 1;
        self.timer = Some((now + self.rto_ns(profile), Timer::Retransmission));
    }

    /// The next segment to send; call it until there is none.
    pub fn poll_transmit(&mut self, now: Ns, profile: &Profile) -> Option<Segment> {
        if self.is_done() {
            return None;
        }
        if self.state == State::Handshake {
            return self.send_syn(now, profile);
        }
        if std::mem::take(&mut self.probe_due) {
            return self.send_probe(now);
        }
        let is_full = f64::from(self.flight.in_flight()) >= self.cwnd.floor();
        if is_full && !self.forced {
            return None;
        }
        let segment = if profile.ns3_recovery {
            self.next_segment_ns3(now)?
        } else {
            match self.flight.next_lost() {
                Some(seq) => self.send_again(now, seq),
                None => self.send_new(now)?,
            }
        };
        self.prr_out += u32::from(self.state == State::Recovery);
        // The probe is timed from the last segment of a burst.
        if self.timer.is_none_or(|it| it.1 == Timer::Probe) {
            self.restart(now, profile);
        }
        Some(segment)
    }

    fn send_syn(&mut self, now: Ns, profile: &Profile) -> Option<Segment> {
        if !std::mem::take(&mut self.syn_due) {
            return None;
        }
        let is_again = self.counts.syn_timeouts > 0;
        self.syn_sent_at = now;
        self.snd_nxt = 1;
        let doublings = self.counts.syn_timeouts.saturating_sub(profile.syn_linear_timeouts);
        let wait = profile.syn_timeout_ns.saturating_mul(1 << doublings.min(30));
        self.timer = Some((now + wait.min(profile.rto_max_ns), Timer::Retransmission));
        self.counts.sent += 1;
        self.counts.resent += u64::from(is_again);
        Some(Segment { seq: 0, is_again, push: false })
    }

    /// Sends a probe: a new segment, or the last one again (RFC 8985 §7.3).
    fn send_probe(&mut self, now: Ns) -> Option<Segment> {
        self.send_new(now).or_else(|| {
            let last = self.snd_nxt.checked_sub(1)?;
            Some(self.send_again(now, last))
        })
    }

    fn send_new(&mut self, now: Ns) -> Option<Segment> {
        let edge = self.snd_una.saturating_add(self.window);
        if self.snd_nxt >= self.end() || self.snd_nxt >= edge {
            return None;
        }
        self.flight.push(now);
        self.snd_nxt += 1;
        self.counts.sent += 1;
        let seq = self.snd_nxt - 1;
        Some(Segment { seq, is_again: false, push: seq == self.segments })
    }

    fn send_again(&mut self, now: Ns, seq: u32) -> Segment {
        self.flight.resend(now, seq);
        self.counts.sent += 1;
        self.counts.resent += 1;
        Segment { seq, is_again: true, push: seq == self.segments }
    }

    /// When [`Sender::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.timer.map(|(at, _)| at)
    }

    /// Whether everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.snd_una >= self.end()
    }

    /// Whether the SYN is acknowledged.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state != State::Handshake
    }

    /// Congestion window and slow-start threshold, in segments.
    #[must_use]
    pub fn window(&self) -> (f64, f64) {
        (self.cwnd, self.ssthresh)
    }

    /// Smoothed round trip in ns; `None` before the first one.
    #[must_use]
    pub fn smoothed_round_trip(&self) -> Option<Ns> {
        (self.srtt > 0).then_some(self.srtt)
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
