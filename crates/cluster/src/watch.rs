//! What a member knows of the other one: from its own ear, and from the edge's.
//!
//! Nobody healthy is replaced on the word of one witness. If both have lost the
//! other member, it is gone at once; if only one has, that witness's own path may
//! have failed, so the silence must last twice as long. A member that hears
//! neither the other one nor the edge has lost its own path, and accuses nobody
//! ([`crate::hearing`]).
//!
//! A primary that would run on alone, and may not, has lost this member, for whatever
//! reason. It is believed when it goes on asking for as long: a primary that misses a
//! member which comes back stops asking.

use crate::Nanos;
use crate::detector::{DECLARE_AFTER, Detector, Verdicts};
use crate::hearing::Hearing;

/// Time for which one witness alone must go on missing the other member, in
/// periods.
pub const ALONE_PERIODS: u64 = DECLARE_AFTER;

/// Time for which a member that has lost the other one, and asks to run on alone,
/// would take it back, in periods: less than makes the other one act upon it.
pub const DOUBT_PERIODS: u64 = ALONE_PERIODS - 1;

/// Which side misses the other member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// This member misses it, perhaps with the edge.
    Silent,
    /// The edge misses it, and this member hears the edge.
    Unheard,
    /// Nobody misses it, but the other member has lost this one.
    Alone,
}

/// What a member knows of the other one; see the module.
///
/// # Contract
/// Call as for [`Detector`], for the other member; every message of the edge goes
///   to `handle_edge`, and what it says of the other member to `handle_reach`,
///   too.
/// * Ask [`Watch::verdict`] after each of them; it may be taken back.
#[derive(Clone, Debug)]
pub struct Watch {
    period: Nanos,
    detector: Detector,
    hearing: Hearing,
    /// When this member began to miss the other one, and when the edge did.
    silent: Option<Nanos>,
    unheard: Option<Nanos>,
    /// When the other member began to ask to run on alone, and when it last did.
    alone: Option<(Nanos, Nanos)>,
    /// The last heartbeat that was sent when nobody was heard: the other member may have replaced
    /// this one by then.
    unproven: Option<u64>,
}

impl Watch {
    /// Everybody beats every `period`; the edge hears the other member.
    #[must_use]
    pub fn new(now: Nanos, period: Nanos) -> Self {
        Self {
            period,
            detector: Detector::new(now, period),
            hearing: Hearing::new(now, period),
            silent: None,
            unheard: None,
            alone: None,
            unproven: None,
        }
    }

    /// Notes a new channel to the other member, or another life of it.
    pub fn renew(&mut self, now: Nanos) {
        self.detector = Detector::new(now, self.period);
        (self.silent, self.alone, self.unproven) = (None, None, None);
    }

    /// Notes a sign of life of the edge.
    pub fn handle_edge(&mut self, now: Nanos) {
        self.hear(now);
    }

    /// Notes whether the edge says that it hears the other member.
    pub fn handle_reach(&mut self, now: Nanos, yes: bool) {
        self.unheard = if yes { None } else { self.unheard.or(Some(now)) };
    }

    /// Notes that the edge says that the other member has just asked to run on
    /// alone.
    pub fn handle_alone(&mut self, now: Nanos) {
        let goes_on = self.alone.filter(|(_, last)| now <= self.alone_until(*last));
        self.alone = Some((goes_on.map_or(now, |(since, _)| since), now));
    }

    /// Notes a sign of life of the other member, `now` or a moment ago.
    pub fn handle_received(&mut self, now: Nanos) {
        if now <= self.detector.last_heard() {
            return;
        }
        self.hear(now);
        self.silent = None;
        self.detector.handle_received(now, &mut Verdicts::default());
    }

    /// Notes its heartbeat.
    pub fn handle_beat(&mut self, now: Nanos, number: u64, echo: u64) {
        self.hear(now);
        self.silent = None;
        self.detector.handle_beat(now, number, echo, &mut Verdicts::default());
    }

    /// When [`Watch::handle_timeout`] is due: at least once per period, so that a
    /// verdict is late by no more.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.detector.next_deadline()
    }

    /// The heartbeat to send, if it is time: its number, and the last one received.
    pub fn handle_timeout(&mut self, now: Nanos) -> Option<(u64, u64)> {
        self.look_for_silence(now);
        self.detector.excuse(self.hearing.excused_until(now));
        let mut said = Verdicts::default();
        self.detector.handle_timeout(now, &mut said);
        if said.declared {
            // The other member may come back: the beats go on.
            self.detector.start_over(now);
            self.silent = self.silent.or(Some(now));
        }
        said.beat
    }

    /// Whether the other member is to be taken for dead, and why.
    #[must_use]
    pub fn verdict(&self, now: Nanos) -> Option<Ground> {
        let lasts = |since| now >= self.alone_until(since);
        let ground = match (self.silent, self.unheard) {
            (Some(_), Some(_)) => Some(Ground::Silent),
            (Some(since), None) => lasts(since).then_some(Ground::Silent),
            // An edge that says so must itself be heard.
            (None, Some(since)) => {
                (lasts(since) && self.hearing.excused_until(now) <= now).then_some(Ground::Unheard)
            }
            (None, None) => None,
        };
        let goes_on =
            |(since, last)| last >= self.alone_until(since) && now <= self.alone_until(last);
        ground.or_else(|| self.alone.is_some_and(goes_on).then_some(Ground::Alone))
    }

    /// The time until which the other member would be taken back, had it been
    /// missed since `since`.
    #[must_use]
    pub fn doubt_until(&self, since: Nanos) -> Nanos {
        since.plus(Nanos(self.period.0.saturating_mul(DOUBT_PERIODS)))
    }

    /// Whether neither the other member nor the edge is heard any more: for as long as
    /// makes a peer dead, plus the lateness that was seen.
    #[must_use]
    pub fn hears_nobody(&self, now: Nanos) -> bool {
        self.hearing.silence(now) >= self.detector.patience()
    }

    /// Somebody is heard.
    fn hear(&mut self, now: Nanos) {
        self.look_for_silence(now);
        self.hearing.handle_received(now);
    }

    /// Wants an answer if nobody was heard up to `now`, also where this process has slept through
    /// that.
    fn look_for_silence(&mut self, now: Nanos) {
        if self.hears_nobody(now) {
            self.unproven = Some(self.detector.sent());
        }
    }

    /// Whether the other member stands by this one: it has answered a heartbeat that was sent after
    /// nobody was heard for a while. What else comes may have been on its way since before.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.unproven.is_none_or(|number| self.detector.echoed() > number)
    }

    /// Whether this host was cut off from everybody for long, after `at`.
    #[must_use]
    pub fn was_out_since(&self, at: Nanos, now: Nanos) -> bool {
        self.hearing.was_out_since(at, now)
    }

    /// How often nobody at all was heard.
    #[must_use]
    pub fn deafened(&self) -> u64 {
        self.hearing.deafened()
    }

    /// How often this process itself was too late to judge.
    #[must_use]
    pub fn overslept(&self) -> u64 {
        self.detector.overslept()
    }

    fn alone_until(&self, since: Nanos) -> Nanos {
        since.plus(Nanos(self.period.0.saturating_mul(ALONE_PERIODS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 20;

    /// Runs a watch millisecond by millisecond: the other member and the edge
    /// beat until they are lost; the edge's reports come at `unheard`.
    fn run(
        other_until: u64,
        edge_until: u64,
        unheard: Option<u64>,
        until: u64,
    ) -> Option<(u64, Ground)> {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        for ms in 0..until {
            let at = Nanos::from_ms(ms);
            if ms % PERIOD == 0 && ms <= other_until {
                watch.handle_beat(at, ms / PERIOD, 0);
            }
            if ms % PERIOD == 7 && ms <= edge_until {
                watch.handle_edge(at);
            }
            if unheard == Some(ms) {
                watch.handle_reach(at, false);
            }
            if watch.next_deadline().is_some_and(|due| due <= at) {
                watch.handle_timeout(at);
            }
            if let Some(ground) = watch.verdict(at) {
                return Some((ms, ground));
            }
        }
        None
    }

    #[test]
    fn who_is_cut_off_from_everybody_knows_it_afterwards() {
        let (at, long) = (Nanos::from_ms, 5_000);
        let mut watch = Watch::new(at(0), at(PERIOD));
        for ms in (0..long).step_by(10) {
            watch.handle_edge(at(ms));
        }
        assert!(!watch.was_out_since(at(0), at(long)), "the edge was heard all the time");
        assert!(watch.was_out_since(at(long - 10), at(2 * long)), "nobody is heard");
        watch.handle_edge(at(2 * long));
        assert!(watch.was_out_since(at(long - 10), at(2 * long + 10)), "nobody was");
        assert!(!watch.was_out_since(at(2 * long), at(2 * long + 10)));
    }

    #[test]
    fn two_witnesses_are_believed_at_once() {
        assert_eq!(run(200, 2000, Some(255), 2000), Some((260, Ground::Silent)));
        assert_eq!(run(200, 2000, Some(265), 2000), Some((265, Ground::Silent)));
    }

    #[test]
    fn one_witness_must_go_on_missing_it() {
        assert_eq!(run(200, 2000, None, 2000), Some((320, Ground::Silent)));
        assert_eq!(run(2000, 2000, Some(250), 2000), Some((310, Ground::Unheard)));
    }

    #[test]
    fn who_hears_nobody_accuses_nobody() {
        assert_eq!(run(200, 207, None, 3000), None);
    }

    #[test]
    fn who_hears_nobody_knows_it_when_others_have_lost_it() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        let mut known = Vec::new();
        for ms in 0..600 {
            let at = Nanos::from_ms(ms);
            // Cut off from everybody for a while.
            if ms % PERIOD == 0 && !(201..400).contains(&ms) {
                watch.handle_beat(at, ms / PERIOD, 0);
                watch.handle_edge(at);
            }
            if watch.next_deadline().is_some_and(|due| due <= at) {
                watch.handle_timeout(at);
            }
            assert_eq!(watch.verdict(at), None, "{ms} ms");
            known.extend(watch.hears_nobody(at).then_some(ms));
        }
        let expected: Vec<u64> = (200 + DECLARE_AFTER * PERIOD..400).collect();
        assert_eq!(known, expected);
    }

    #[test]
    fn who_has_heard_nobody_wants_an_answer() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        let (mut sent, mut proven) = (0, Vec::new());
        for ms in 0..600 {
            let at = Nanos::from_ms(ms);
            // What was on its way before the cut comes first.
            let echo = if ms < 430 { sent.min(10) } else { sent };
            if ms % PERIOD == 0 && !(201..400).contains(&ms) {
                watch.handle_beat(at, ms / PERIOD, echo);
            }
            if watch.next_deadline().is_some_and(|due| due <= at)
                && let Some((number, _)) = watch.handle_timeout(at)
            {
                sent = number;
            }
            proven.extend((!watch.is_proven()).then_some(ms));
        }
        assert_eq!(proven, Vec::from_iter(260..440));
        // Who has slept all the time sees it when somebody is heard.
        watch.handle_edge(Nanos::from_ms(900));
        assert!(!watch.is_proven());
        watch.renew(Nanos::from_ms(900));
        assert!(watch.is_proven(), "of another channel");
    }

    #[test]
    fn who_asks_to_run_alone_must_go_on_asking() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        for ms in 0..400 {
            let at = Nanos::from_ms(ms);
            if ms % 10 == 0 {
                watch.handle_edge(at);
                watch.handle_received(at);
            }
            // Asking for less than three periods, twice, and then for longer.
            let asks = (100..150).contains(&ms) || (220..270).contains(&ms) || ms >= 331;
            if ms % 10 == 1 && asks {
                watch.handle_alone(at);
            }
            let expected = (ms >= 391).then_some(Ground::Alone);
            assert_eq!(watch.verdict(at), expected, "{ms} ms");
        }
        assert_eq!(watch.verdict(Nanos::from_ms(452)), None, "it asks no more");
        watch.handle_alone(Nanos::from_ms(400));
        watch.renew(Nanos::from_ms(401));
        assert_eq!(watch.verdict(Nanos::from_ms(401)), None, "another life of it");
    }

    /// Whatever it says shows that it lives, as of when it was said.
    #[test]
    fn every_word_is_a_sign_of_life_and_one_of_old_is_none() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        let mut missed = Vec::new();
        for ms in 0..3000 {
            let at = Nanos::from_ms(ms);
            if ms % 10 == 0 {
                watch.handle_edge(at);
                watch.handle_received(at.min(Nanos::from_ms(2000)));
            }
            if watch.next_deadline().is_some_and(|due| due <= at) {
                watch.handle_timeout(at);
            }
            missed.extend(watch.verdict(at).is_some().then_some(ms));
        }
        assert_eq!(missed, Vec::from_iter(2120..3000));
    }

    #[test]
    fn who_is_heard_again_is_alive_and_keeps_this_one_from_hearing_nobody() {
        let at = Nanos::from_ms;
        let mut watch = Watch::new(at(0), at(PERIOD));
        for ms in 0..2000 {
            watch.handle_edge(at(ms));
            if watch.next_deadline().is_some_and(|due| due <= at(ms)) {
                watch.handle_timeout(at(ms));
            }
        }
        assert_eq!(watch.verdict(at(1999)), Some(Ground::Silent));
        for ms in (2000..3000).step_by(10) {
            watch.handle_received(at(ms));
            assert_eq!(watch.verdict(at(ms)), None, "{ms} ms");
            assert!(!watch.hears_nobody(at(ms + 9)), "{ms} ms");
        }
    }

    #[test]
    fn who_comes_back_in_time_is_alive() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        for ms in 0..1000 {
            let at = Nanos::from_ms(ms);
            // Twice a silence of four heartbeats, confirmed by the edge for one of
            // them.
            let silent = (300..380).contains(&ms) || (600..680).contains(&ms);
            if ms % PERIOD == 0 && !silent {
                watch.handle_beat(at, ms / PERIOD, 0);
            }
            if ms % PERIOD == 7 {
                watch.handle_edge(at);
            }
            if ms == 800 || ms == 850 {
                watch.handle_reach(at, ms == 850);
            }
            if watch.next_deadline().is_some_and(|due| due <= at) {
                watch.handle_timeout(at);
            }
            assert_eq!(watch.verdict(at), None, "{ms} ms");
        }
    }

    #[test]
    fn a_watch_counts_what_befell_this_host() {
        let mut watch = Watch::new(Nanos(0), Nanos::from_ms(PERIOD));
        for ms in 0..200 {
            let at = Nanos::from_ms(ms);
            watch.handle_edge(at);
            watch.handle_received(at);
            watch.handle_timeout(at);
        }
        assert_eq!((watch.deafened(), watch.overslept()), (0, 0));
        // It sleeps, and hears nobody meanwhile.
        watch.handle_timeout(Nanos::from_ms(400));
        watch.handle_edge(Nanos::from_ms(400));
        assert_eq!((watch.deafened(), watch.overslept()), (1, 1));
        // It is awake, and hears nobody, twice.
        for ms in 401..600 {
            watch.handle_timeout(Nanos::from_ms(ms));
        }
        watch.handle_edge(Nanos::from_ms(500));
        watch.handle_edge(Nanos::from_ms(600));
        assert_eq!((watch.deafened(), watch.overslept()), (3, 1));
    }
}
