//! The failure detector of one channel: sends heartbeats, suspects after two
//! missed ones and declares the peer dead after three (HALR §3.3). The lateness
//! of recent heartbeats, whatever its cause, is added to both: a member that has
//! seen stalls waits longer for a while (see [`crate::lateness`]). Time that this
//! process itself overslept is never held against the peer.

use crate::Nanos;
use crate::lateness::Lateness;

/// Heartbeats missed in a row before the peer is suspected.
pub const SUSPECT_AFTER: u64 = 2;
/// Heartbeats missed in a row before the peer is declared dead.
pub const DECLARE_AFTER: u64 = 3;
/// How often the worst lateness remembered counts in the time-out of a declaration,
/// because the next one may be worse; in that of a suspicion it counts once.
pub const LATE_MARGIN: u64 = 2;
/// Lateness that the number of missed heartbeats already allows for, in half
/// periods.
pub const LATE_FREE_HALVES: u64 = 1;
/// Longest patience, in periods.
pub const PATIENCE_MAX: u64 = 25;
/// Time since a peer was last heard, in periods, during which packets of it that still
/// pass keep it from being declared dead. No longer, because a kernel speaks without
/// its daemon.
pub const PASSING_PERIODS: u64 = 2 * DECLARE_AFTER;
/// Additional time for the first sign of life of a peer, and for every one of a peer that
/// is known to be starting: its host is busy with that, and nothing depends on it yet.
pub const FIRST_PATIENCE: Nanos = Nanos::from_ms(1000);

/// What the detector wants done.
pub trait DetectorOutput {
    /// Sends heartbeat `number`; `echo` is the last one received.
    fn beat(&mut self, number: u64, echo: u64);
    /// Two heartbeats are missing.
    fn suspected(&mut self);
    /// A suspected peer was heard again.
    fn trusted(&mut self);
    /// Three heartbeats are missing. Final: said once, and never taken back.
    fn declared(&mut self);
}

/// What a detector wanted in one call, for a caller that acts upon it
/// afterwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdicts {
    /// The heartbeat to send: its number, and the last one received.
    pub beat: Option<(u64, u64)>,
    pub suspected: bool,
    pub declared: bool,
}

impl DetectorOutput for Verdicts {
    fn beat(&mut self, number: u64, echo: u64) {
        self.beat = Some((number, echo));
    }
    fn suspected(&mut self) {
        self.suspected = true;
    }
    fn trusted(&mut self) {}
    fn declared(&mut self) {
        self.declared = true;
    }
}

/// What this member believes about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Alive,
    Suspected,
    Dead,
}

/// The failure detector of one channel; see the module.
///
/// # Contract
/// * Call `handle_received` for every message, after decryption; for a heartbeat
///   `handle_beat` instead.
/// * Before `handle_timeout`, read whatever the socket already holds: a heartbeat
///   that waits there is not missing.
/// * Sleep no longer than until `next_deadline`. If the process itself slept
///   longer, the time it overslept is not held against the peer.
#[derive(Clone, Debug)]
pub struct Detector {
    /// Time between two heartbeats.
    period: Nanos,
    heard: bool,
    starting: bool,
    last_heard: Nanos,
    lateness: Lateness,
    next_beat: Nanos,
    number: u64,
    peer_number: u64,
    echoed: u64,
    peer: Peer,
    overslept: u64,
    /// Time until which the peer's silence means nothing.
    excused: Nanos,
    /// Time until which the peer is not declared dead, because its packets
    /// pass.
    passing: Nanos,
}

impl Detector {
    /// A detector for a channel that was opened now. Both sides beat every
    /// `period`, a duration that they must have agreed on.
    #[must_use]
    pub fn new(now: Nanos, period: Nanos) -> Self {
        Self {
            period,
            heard: false,
            starting: false,
            last_heard: now,
            lateness: Lateness::default(),
            next_beat: now,
            number: 0,
            peer_number: 0,
            echoed: 0,
            peer: Peer::Alive,
            overslept: 0,
            excused: Nanos(0),
            passing: Nanos(0),
        }
    }

    /// Begins again as if the channel were new; the count of heartbeats and the
    /// lateness that was learnt stay.
    pub fn start_over(&mut self, now: Nanos) {
        self.heard = false;
        self.last_heard = now;
        self.next_beat = now;
        self.peer = Peer::Alive;
    }

    /// Notes a message: any message shows that the peer lives.
    pub fn handle_received(&mut self, now: Nanos, out: &mut impl DetectorOutput) {
        let gap = now.since(self.last_heard);
        if self.heard && !self.starting && now >= self.excused {
            self.lateness.note(now, gap.since(self.period));
        }
        self.heard = true;
        self.last_heard = self.last_heard.max(now);
        if self.peer == Peer::Suspected {
            self.peer = Peer::Alive;
            out.trusted();
        }
    }

    /// Notes a heartbeat: `echo` is the last of ours that the peer had.
    pub fn handle_beat(
        &mut self,
        now: Nanos,
        number: u64,
        echo: u64,
        out: &mut impl DetectorOutput,
    ) {
        self.peer_number = self.peer_number.max(number);
        // A peer cannot have what was never sent.
        self.echoed = self.echoed.max(echo.min(self.number));
        self.handle_received(now, out);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None` once the
    /// peer is declared dead.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let missed = match self.peer {
            Peer::Alive => SUSPECT_AFTER,
            Peer::Suspected => DECLARE_AFTER,
            Peer::Dead => return None,
        };
        Some(self.next_beat.min(self.missed_at(missed)))
    }

    /// Sends what is due and judges the peer.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut impl DetectorOutput) {
        let Some(due) = self.next_deadline() else { return };
        let late = now.since(due);
        self.overslept += u64::from(late > self.period);
        self.last_heard = self.last_heard.plus(late).min(now);
        if now >= self.next_beat {
            self.number += 1;
            self.next_beat = now.plus(self.period);
            out.beat(self.number, self.peer_number);
        }
        if self.peer == Peer::Alive && now >= self.missed_at(SUSPECT_AFTER) {
            self.peer = Peer::Suspected;
            out.suspected();
        }
        if self.peer == Peer::Suspected && now >= self.missed_at(DECLARE_AFTER) {
            self.peer = Peer::Dead;
            out.declared();
        }
    }

    /// Does not hold the peer's silence until `until` against it: there is a
    /// reason for it that is not the peer's (see [`crate::hearing`]).
    pub fn excuse(&mut self, until: Nanos) {
        self.excused = self.excused.max(until);
    }

    /// Notes that a part of this host stood still at `at`, where what the peer has sent may wait:
    /// the peer has a period more from then on.
    pub fn handle_standstill(&mut self, at: Nanos) {
        self.excuse(at.plus(self.period));
    }

    /// Whether the peer is still starting, as far as is known: it then has
    /// [`FIRST_PATIENCE`] for every sign of life.
    pub fn set_starting(&mut self, yes: bool) {
        self.starting = yes;
    }

    /// Notes that packets of the peer have passed during the last period. Its host
    /// and its path live then, and its heartbeats may only be late.
    pub fn handle_passing(&mut self, now: Nanos) {
        let limit = self.period.0.saturating_mul(PASSING_PERIODS);
        // Not for longer, so that a peer that dies now is not noticed later
        // because of this.
        let until = now.plus(self.period).min(self.last_heard.plus(Nanos(limit)));
        self.passing = self.passing.max(until);
    }

    /// When the peer was last heard; time that this process overslept counts as
    /// heard.
    #[must_use]
    pub fn last_heard(&self) -> Nanos {
        self.last_heard
    }

    /// The worst lateness that is remembered.
    #[must_use]
    pub fn lateness(&self) -> Nanos {
        self.lateness.worst()
    }

    /// What this member believes about the peer now.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Number of the last heartbeat that was sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.number
    }

    /// Our last heartbeat that the peer has confirmed: the channel works both ways.
    #[must_use]
    pub fn echoed(&self) -> u64 {
        self.echoed
    }

    /// How often this process itself was too late to judge.
    #[must_use]
    pub fn overslept(&self) -> u64 {
        self.overslept
    }

    /// Silence after which a peer that was heard is dead, if nothing excuses it.
    #[must_use]
    pub fn patience(&self) -> Nanos {
        self.wait(DECLARE_AFTER)
    }

    /// The time that this many heartbeats take, plus the lateness.
    fn wait(&self, missed: u64) -> Nanos {
        let free = self.period.0.saturating_mul(LATE_FREE_HALVES) / 2;
        let late = self.lateness.worst().since(Nanos(free)).0;
        let margin = if missed == DECLARE_AFTER { LATE_MARGIN } else { 1 };
        let wait = self.period.0.saturating_mul(missed).saturating_add(late.saturating_mul(margin));
        Nanos(wait.min(self.period.0.saturating_mul(PATIENCE_MAX)))
    }

    fn missed_at(&self, missed: u64) -> Nanos {
        let is_known = self.heard && !self.starting;
        let patience = if is_known { Nanos(0) } else { FIRST_PATIENCE };
        let wait = self.wait(missed);
        let passing = if missed == DECLARE_AFTER { self.passing } else { Nanos(0) };
        self.last_heard.plus(wait).plus(patience).max(self.excused).max(passing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lateness::LATE_MEMORY;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Notes(Vec<&'static str>);

    impl DetectorOutput for Notes {
        fn beat(&mut self, _: u64, _: u64) {
            self.0.push("beat");
        }
        fn suspected(&mut self) {
            self.0.push("suspected");
        }
        fn trusted(&mut self) {
            self.0.push("trusted");
        }
        fn declared(&mut self) {
            self.0.push("declared");
        }
    }

    fn run_until(detector: &mut Detector, until: Nanos, notes: &mut Notes) -> Nanos {
        let mut now = Nanos(0);
        while let Some(at) = detector.next_deadline().filter(|at| *at <= until) {
            now = at;
            detector.handle_timeout(now, notes);
        }
        now
    }

    const PERIODS_MS: [u64; 3] = [5, 20, 100];

    /// A detector that has heard its peer at zero.
    fn heard(period_ms: u64, notes: &mut Notes) -> Detector {
        let mut detector = Detector::new(Nanos(0), Nanos::from_ms(period_ms));
        detector.handle_received(Nanos(0), notes);
        detector
    }

    #[test]
    fn verdicts_are_those_of_one_call() {
        let period = Nanos::from_ms(10);
        let mut detector = Detector::new(Nanos(0), period);
        detector.handle_beat(Nanos(1), 1, 0, &mut Verdicts::default());
        let said = (0..40).map(|ms| {
            let mut said = Verdicts::default();
            detector.handle_timeout(Nanos::from_ms(ms), &mut said);
            (said.suspected, said.declared)
        });
        let said: Vec<_> = said.filter(|(suspected, declared)| suspected | declared).collect();
        assert_eq!(said, [(true, false), (false, true)]);
    }

    /// Packets say that the peer lives, and nothing of how late its heartbeats are.
    #[test]
    fn packets_that_pass_put_off_the_end_and_not_the_suspicion() {
        let mut notes = Notes::default();
        let mut detector = heard(10, &mut notes);
        for ms in 1..=21 {
            detector.handle_passing(Nanos::from_ms(ms));
            detector.handle_timeout(Nanos::from_ms(ms), &mut notes);
        }
        assert_eq!(detector.peer(), Peer::Suspected);
        assert!(!notes.0.contains(&"declared"));
    }

    #[test]
    fn each_heartbeat_confirms_the_newest_of_the_peer_and_a_new_channel_is_one_that_is_heard() {
        #[derive(Default)]
        struct Confirmed(Vec<u64>);
        impl DetectorOutput for Confirmed {
            fn beat(&mut self, _: u64, confirmed: u64) {
                self.0.push(confirmed);
            }
            fn suspected(&mut self) {}
            fn trusted(&mut self) {}
            fn declared(&mut self) {}
        }
        let mut said = Confirmed::default();
        let mut detector = Detector::new(Nanos(0), Nanos::from_ms(10));
        detector.handle_timeout(Nanos(0), &mut said);
        detector.handle_beat(Nanos::from_ms(1), 7, 0, &mut said);
        detector.handle_beat(Nanos::from_ms(2), 6, 0, &mut said);
        detector.handle_timeout(Nanos::from_ms(10), &mut said);
        assert_eq!(said.0, [0, 7]);
        detector.start_over(Nanos::from_ms(15));
        assert_eq!(detector.last_heard(), Nanos::from_ms(15));
    }

    #[test]
    fn a_silent_peer_is_suspected_after_two_and_declared_after_three() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            run_until(&mut detector, Nanos::from_ms(2 * ms - 1), &mut notes);
            assert_eq!(notes.0, ["beat", "beat"], "{ms} ms");
            run_until(&mut detector, Nanos::from_ms(3 * ms - 1), &mut notes);
            assert_eq!(detector.peer(), Peer::Suspected, "{ms} ms");
            let end = run_until(&mut detector, Nanos::from_ms(5000), &mut notes);
            assert_eq!(end, Nanos::from_ms(3 * ms));
            assert_eq!(detector.peer(), Peer::Dead);
            assert_eq!(notes.0.iter().filter(|note| **note == "declared").count(), 1);
            assert_eq!(detector.next_deadline(), None);
        }
    }

    #[test]
    fn packets_that_pass_buy_a_silent_peer_twice_the_time_and_cost_a_dead_one_none() {
        for ms in PERIODS_MS {
            let run = |packets_until: u64| {
                let mut notes = Notes::default();
                let mut detector = heard(ms, &mut notes);
                for at in (0..20 * ms).map(Nanos::from_ms) {
                    if at < Nanos::from_ms(packets_until) && at.0 % Nanos::from_ms(ms).0 == 0 {
                        detector.handle_passing(at);
                    }
                    detector.handle_timeout(at, &mut notes);
                    if detector.peer() == Peer::Dead {
                        return at;
                    }
                }
                panic!("never declared dead");
            };
            assert_eq!(run(0), Nanos::from_ms(3 * ms), "{ms} ms");
            assert_eq!(run(2 * ms), Nanos::from_ms(3 * ms), "{ms} ms: they end with it");
            assert_eq!(run(4 * ms), Nanos::from_ms(4 * ms), "{ms} ms: they go on for a while");
            assert_eq!(run(20 * ms), Nanos::from_ms(6 * ms), "{ms} ms: a kernel alone speaks");
        }
    }

    #[test]
    fn a_peer_that_was_never_heard_may_still_be_starting() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = Detector::new(Nanos(0), Nanos::from_ms(ms));
            run_until(&mut detector, FIRST_PATIENCE, &mut notes);
            assert_eq!(detector.peer(), Peer::Alive, "{ms} ms");
            let end = run_until(&mut detector, Nanos::from_ms(5000), &mut notes);
            assert_eq!(end, FIRST_PATIENCE.plus(Nanos::from_ms(3 * ms)));
            assert_eq!(detector.peer(), Peer::Dead);
        }
    }

    #[test]
    fn a_peer_that_is_known_to_start_has_more_time_after_each_sign_of_life() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            detector.set_starting(true);
            run_until(&mut detector, FIRST_PATIENCE, &mut notes);
            detector.handle_received(FIRST_PATIENCE, &mut notes);
            let until = FIRST_PATIENCE.plus(FIRST_PATIENCE);
            run_until(&mut detector, until, &mut notes);
            assert_eq!(detector.peer(), Peer::Alive, "{ms} ms");
            detector.handle_received(until, &mut notes);
            detector.set_starting(false);
            let end = run_until(&mut detector, until.plus(FIRST_PATIENCE), &mut notes);
            assert_eq!(end, until.plus(Nanos::from_ms(3 * ms)), "what is past is no lateness");
            assert_eq!(detector.peer(), Peer::Dead, "{ms} ms");
        }
    }

    #[test]
    fn any_message_ends_a_suspicion() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            run_until(&mut detector, Nanos::from_ms(9 * ms / 4), &mut notes);
            assert_eq!(detector.peer(), Peer::Suspected, "{ms} ms");
            detector.handle_received(Nanos::from_ms(9 * ms / 4), &mut notes);
            assert_eq!(notes.0.last(), Some(&"trusted"));
            run_until(&mut detector, Nanos::from_ms(4 * ms), &mut notes);
            assert_eq!(detector.peer(), Peer::Alive, "{ms} ms");
        }
    }

    #[test]
    fn who_has_seen_long_silences_waits_longer_for_a_while() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            // A heartbeat late by a period, half of which is free.
            run_until(&mut detector, Nanos::from_ms(2 * ms - 1), &mut notes);
            detector.handle_beat(Nanos::from_ms(2 * ms), 1, 0, &mut notes);
            assert_eq!(detector.lateness(), Nanos::from_ms(ms));
            run_until(&mut detector, Nanos::from_ms(6 * ms - 1), &mut notes);
            assert_eq!(detector.peer(), Peer::Suspected, "{ms} ms");
            let end = run_until(&mut detector, Nanos::from_ms(50 * ms), &mut notes);
            assert_eq!(end, Nanos::from_ms(6 * ms), "{ms} ms");
        }
    }

    #[test]
    fn a_long_silence_is_forgotten() {
        let mut notes = Notes::default();
        let mut detector = heard(20, &mut notes);
        let memory = 2 * LATE_MEMORY.0 / 1_000_000;
        for at_ms in std::iter::once(50).chain((60..=60 + memory + 40).step_by(20)) {
            run_until(&mut detector, Nanos::from_ms(at_ms), &mut notes);
            detector.handle_beat(Nanos::from_ms(at_ms), 1, 0, &mut notes);
        }
        let last = detector.last_heard;
        let end = run_until(&mut detector, last.plus(Nanos::from_ms(1000)), &mut notes);
        assert_eq!(end, last.plus(Nanos::from_ms(60)));
    }

    #[test]
    fn oversleeping_is_not_held_against_the_peer() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = Detector::new(Nanos(0), Nanos::from_ms(ms));
            detector.handle_timeout(Nanos(0), &mut notes);
            detector.handle_beat(Nanos::from_ms(ms / 2), 1, 1, &mut notes);
            detector.handle_timeout(Nanos::from_ms(45 * ms), &mut notes);
            assert_eq!(detector.peer(), Peer::Alive, "{ms} ms");
            assert_eq!((detector.overslept(), detector.echoed()), (1, 1));
            run_until(&mut detector, Nanos::from_ms(50 * ms), &mut notes);
            assert_eq!(detector.peer(), Peer::Dead, "{ms} ms");
        }
    }

    #[test]
    fn an_excused_peer_is_declared_only_when_the_excuse_ends() {
        for ms in PERIODS_MS {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            detector.excuse(Nanos::from_ms(7 * ms));
            run_until(&mut detector, Nanos::from_ms(7 * ms - 1), &mut notes);
            assert_eq!(detector.peer(), Peer::Alive, "{ms} ms");
            run_until(&mut detector, Nanos::from_ms(7 * ms), &mut notes);
            assert_eq!(detector.peer(), Peer::Dead, "{ms} ms");
        }
    }

    proptest! {
        #[test]
        fn a_peer_that_beats_is_never_declared(
            ms in 5_u64..=1000,
            jitters in proptest::collection::vec(0_u64..1000, 1..200),
        ) {
            let mut notes = Notes::default();
            let mut detector = heard(ms, &mut notes);
            for (n, jitter) in jitters.iter().enumerate() {
                // Each beat is late by less than a period.
                let at = Nanos::from_ms(ms * (n as u64 + 1) + jitter % ms);
                run_until(&mut detector, at, &mut notes);
                detector.handle_beat(at, n as u64, u64::MAX, &mut notes);
            }
            prop_assert!(!notes.0.contains(&"declared") && !notes.0.contains(&"suspected"));
        }
    }

    /// Whoever comes back then hears at once that this member lives.
    #[test]
    fn who_starts_over_beats_at_once() {
        let mut notes = Notes::default();
        let mut detector = heard(20, &mut notes);
        let now = run_until(&mut detector, Nanos::from_ms(1000), &mut notes);
        assert_eq!(detector.peer(), Peer::Dead);
        detector.start_over(now);
        assert_eq!(detector.next_deadline(), Some(now));
    }
}
