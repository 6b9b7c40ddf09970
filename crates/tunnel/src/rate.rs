//! How fast the tunnel sends: a model of the path (the highest delivery rate of the last rounds,
//! the least round trip), as BBR has it (draft-cardwell-iccrg-bbr), because a rate that is halved
//! at every loss is none at 10 % loss.
//!
//! What BBR does not have: loss of the *path* divides the pacing rate. A probe of 1.25 times the
//! rate that loses 20 % delivers the rate again, finds nothing, and the rate decays; sent at
//! 1 / (1 - loss), it does not. Which part of the loss belongs to the path is measured: for two
//! rounds less is sent, and what is lost then is not congestion. The rest is, and the rate gives
//! way to it.

mod alone;
mod cap;
mod losses;
mod outage;

use self::alone::Alone;
use self::cap::Cap;
use self::losses::{Compared, LOSS_MIN, Tally, is_excess};
use self::outage::Silence;
use crate::PathLoss;
use crate::endpoint::ACK_EVERY;
use crate::rtt::Rtt;
use crate::wire::completed;
use std::collections::VecDeque;
use std::time::Duration;

/// Rounds for which a delivery rate counts, and the time at least: on a path of less than a
/// millisecond ten rounds are over before a host's scheduler has given everybody his turn.
const RATE_ROUNDS: u64 = 10;
const RATE_LASTS: Duration = Duration::from_millis(100);
/// 2 / ln 2: doubles the delivery rate each round.
const STARTUP_GAIN: f64 = 2.885;
/// Growth below which a round of the start has found nothing, and so many such rounds end it.
const STARTUP_GROWTH: f64 = 1.25;
const STARTUP_ROUNDS: u32 = 3;
/// Rounds in which the queue that the start has built is emptied, at most.
const DRAIN_ROUNDS: u32 = 3;
/// Gains of a cycle, a round each.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Such a round lasts as long at least: what it brings has to show in acknowledgements.
const CYCLE_ROUND_MIN: Duration = Duration::from_millis(5);
/// The round of a cycle in which the queue of the one before is emptied.
const DRAIN_AT: usize = 1;
/// A round trip that is no longer than this part of the least has met no queue.
const EMPTY_RTT: f64 = 1.05;
/// A round trip that is longer by less than this tells of schedulers, not of a queue.
const NOISE: Duration = Duration::from_micros(500);
/// The gain while that takes longer than a round.
const DRAIN_GAIN: f64 = 0.9;
/// The gain of the two rounds in which the path's own loss is measured.
const LOW_GAIN: f64 = 0.6;
const LOW_ROUNDS: std::ops::RangeInclusive<usize> = 1..=2;
/// Most cycles from one such measurement to the next.
const LOW_EVERY_MAX: u32 = 8;
/// The pacing rate in windows per round trip: the window is the limit (as Linux does in congestion
/// avoidance).
const CAP_GAIN: f64 = 1.2;
/// Highest path loss that is made good for by sending more.
const COMPENSATED_MAX: f64 = 0.5;
/// A round trip so much longer than the least is a queue: then nothing is sent beyond the rate.
const QUEUE_RTT: f64 = 1.3;
/// Datagrams per round trip before anything was measured.
const INITIAL_WINDOW_BYTES: f64 = 16.0 * 1500.0;
/// The window, in products of rate and least round trip.
const WINDOW_GAIN: f64 = 2.0;
/// Shortest round trip that is believed.
const ROUND_TRIP_MIN: Duration = Duration::from_micros(50);
/// Where the least round trip of ten seconds becomes so many times longer, the path is another one.
const LONGER_PATH: u32 = 2;
/// With this one a queue of a few packets stands, which others may overflow: what is lost then is not
/// surely the path's.
const SHORT_QUEUE_RTT: f64 = 1.15;
/// A round trip so much longer than the least is one of a path that has no room to spare: below it a
/// queue may be what a connection inside has sent at once.
const SPARE_RTT: f64 = 2.0;
/// Part of its share below which the tunnel has room to spare.
const SPARE_FLIGHT: f64 = 0.75;
/// Time for which unused credit counts: wake-ups are late.
const CREDIT: Duration = Duration::from_millis(2);
/// Time for which datagrams of bulk are collected before they leave together: at 2 Gbit/s they are
/// 6 µs apart, and neither a timer nor a system call is as cheap as that.
const QUANTUM: Duration = Duration::from_micros(200);
/// Bytes, and the time at most, that urgent datagrams may be ahead of the rate.
const URGENT_BYTES: f64 = 64.0 * 1024.0;
const URGENT_AHEAD: Duration = Duration::from_millis(50);
/// Least rate: one datagram each 25 ms.
const RATE_MIN: f64 = 60_000.0;
/// Datagrams whose sending is remembered.
const LOG_MAX: usize = 32_768;
/// Bits of the received bytes' count.
const BYTES_BITS: u32 = 32;

/// A datagram on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Duration,
    bytes: u64,
    /// Bytes delivered, and the time of that news, when it was sent.
    delivered: u64,
    delivered_at: Duration,
    /// There was not enough to send: the rate of its round says little.
    is_limited: bool,
    is_low: bool,
}

/// How fast something was delivered, and when that was found.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    round: u64,
    at: Duration,
    bytes_per_s: f64,
}

/// What one acknowledgement says about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub highest: u64,
    pub held: Duration,
    /// Bytes of datagrams received, truncated.
    pub bytes: Option<u32>,
    /// Datagrams newly settled and newly lost among them.
    pub settled: f64,
    pub lost: f64,
    /// Loss on average.
    pub loss: f64,
    /// Datagrams came with a mark of congestion.
    pub is_congested: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Rate {
    mode: PathLoss,
    log: VecDeque<Sent>,
    /// Number of the first datagram in the log.
    first: u64,
    inflight: u64,
    /// Bytes that were sent, and those of them that the peer says it has.
    sent_bytes: u64,
    delivered: u64,
    delivered_at: Duration,
    /// When something was sent last that asks for an acknowledgement.
    asked_at: Duration,
    silence: Silence,
    /// Delivery rates that count, falling.
    rates: VecDeque<Delivery>,
    /// Whether one was measured in this round.
    has_rate: bool,
    round: u64,
    round_ends: u64,
    /// The best rate of the start, and the rounds since; `None` when it is over.
    startup: Option<(f64, u32)>,
    /// Until when the queue that the start has built is emptied.
    drains_until: Option<Duration>,
    /// Rounds for which the present draining was prolonged.
    drained: u32,
    cycle_at: usize,
    cycle_since: Duration,
    low_every: u32,
    low_in: u32,
    low: Tally,
    /// Whether the path's loss was measured at a low rate.
    has_low: bool,
    /// Losses while nothing waited in the path's queues.
    quiet: Tally,
    high: Tally,
    start: Compared,
    path_loss: f64,
    loss: f64,
    cap: Option<Cap>,
    alone: Alone,
    /// Losses of datagrams before this number were answered.
    answered: u64,
    /// Datagrams before this number took another path.
    path_from: u64,
    next_at: Duration,
    /// When there is room for a quantum of bulk again, and for an urgent datagram.
    opens_at: Duration,
    urgent_at: Duration,
    rtt: Rtt,
    is_limited: bool,
}

impl Rate {
    pub fn new(mode: PathLoss, now: Duration) -> Self {
        Self {
            mode,
            log: VecDeque::new(),
            first: 0,
            inflight: 0,
            sent_bytes: 0,
            delivered: 0,
            delivered_at: now,
            asked_at: now,
            silence: Silence::default(),
            rates: VecDeque::new(),
            has_rate: false,
            round: 0,
            round_ends: 0,
            startup: Some((0.0, 0)),
            drains_until: None,
            drained: 0,
            cycle_at: 2,
            cycle_since: now,
            low_every: 1,
            low_in: 1,
            low: Tally::default(),
            has_low: false,
            quiet: Tally::default(),
            high: Tally::default(),
            start: Compared::default(),
            path_loss: 0.0,
            loss: 0.0,
            cap: None,
            alone: Alone::default(),
            answered: 0,
            path_from: 0,
            next_at: now,
            opens_at: now,
            urgent_at: now,
            rtt: Rtt::default(),
            is_limited: true,
        }
    }

    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The loss that does not vanish when less is sent.
    pub fn path_loss(&self) -> f64 {
        match self.mode {
            PathLoss::Assume => self.loss,
            PathLoss::Measure => self.path_loss.min(self.loss),
        }
    }

    /// Bytes per second that the path delivers, or that are the tunnel's share of it.
    pub fn delivery(&self) -> f64 {
        let best = self.best();
        let round = self.rtt.smoothed().as_secs_f64();
        self.cap.map_or(best, |cap| (cap.window / round).min(best * STARTUP_GROWTH))
    }

    /// When the rate was found that counts.
    pub fn measured_at(&self) -> Option<Duration> {
        self.rates.front().map(|rate| rate.at)
    }

    /// Whether the path has room for redundancy, which then costs nobody time: nothing waits for it, and
    /// less is under way than may be.
    pub fn has_spare(&self) -> bool {
        let has_room = |cap: Cap| (self.inflight as f64) < SPARE_FLIGHT * cap.window;
        self.cap.is_none_or(has_room) && !self.has_queue_of(SPARE_RTT)
    }

    /// The highest rate of the last rounds.
    fn best(&self) -> f64 {
        self.rates.front().map_or(0.0, |rate| rate.bytes_per_s)
    }

    fn is_low(&self) -> bool {
        self.startup.is_none()
            && self.drains_until.is_none()
            && self.low_in == 0
            && LOW_ROUNDS.contains(&self.cycle_at)
    }

    /// Bytes per second to send now.
    pub fn pacing(&self) -> f64 {
        let delivery = self.delivery();
        if delivery == 0.0 {
            return (INITIAL_WINDOW_BYTES / self.rtt.smoothed().as_secs_f64()).max(RATE_MIN);
        }
        if self.is_trial() {
            return self.trial_rate().max(RATE_MIN);
        }
        let initial = INITIAL_WINDOW_BYTES / self.rtt.least().as_secs_f64().max(1e-3);
        let gain = match self.startup {
            Some(_) => return (delivery * STARTUP_GAIN * self.compensation()).max(initial),
            None if self.cap.is_some() && !self.is_low() => CAP_GAIN,
            None if self.drains_until.is_some() => 1.0 / STARTUP_GAIN,
            None if self.drained > 0 => DRAIN_GAIN,
            None if self.is_low() => LOW_GAIN,
            None => CYCLE[self.cycle_at],
        };
        (delivery * gain * self.compensation()).max(RATE_MIN)
    }

    /// The factor that makes good for the path's loss.
    fn compensation(&self) -> f64 {
        if self.has_standing_queue() {
            return 1.0;
        }
        1.0 / (1.0 - self.path_loss().min(COMPENSATED_MAX))
    }

    /// Whether the round trip is that of a queue, on average.
    fn has_standing_queue(&self) -> bool {
        let least = self.rtt.least().as_secs_f64();
        self.rtt.smoothed().as_secs_f64() > queue_from(QUEUE_RTT, least)
    }

    /// Whether the last round trip was so many times the least.
    fn has_queue_of(&self, factor: f64) -> bool {
        self.rtt.latest().as_secs_f64() > queue_from(factor, self.rtt.least().as_secs_f64())
    }

    /// Bytes that may be on their way, as far as acknowledgements tell: what arrives in the pause
    /// between two of them counts as on its way, too.
    fn window(&self) -> f64 {
        let untold = self.delivery() * ACK_EVERY.as_secs_f64();
        if self.is_trial() {
            return self.trial_window() + untold;
        }
        if let Some(cap) = self.cap {
            return cap.window + untold;
        }
        let product = self.delivery() * self.rtt.least().as_secs_f64() + untold;
        let gain = if self.startup.is_some() { STARTUP_GAIN } else { WINDOW_GAIN };
        let compensated = gain * product / (1.0 - self.path_loss().min(COMPENSATED_MAX));
        compensated.max(2.0 * INITIAL_WINDOW_BYTES)
    }

    /// When the next datagram of bulk may leave, as far as the rate is concerned.
    pub fn opens_at(&self) -> Duration {
        self.opens_at
    }

    /// When an urgent datagram may leave: it may be ahead of the rate, and what follows pays for it.
    pub fn urgent_at(&self) -> Duration {
        self.urgent_at
    }

    /// Whether there was too little to send lately.
    pub fn note_backlog(&mut self, has_backlog: bool) {
        self.is_limited = !has_backlog;
    }

    /// Notes the datagram that is sent next, of `bytes` bytes on the wire. One that nobody
    /// acknowledges is not under way for ever.
    pub fn sent(&mut self, bytes: u64, is_answered: bool, now: Duration) {
        if self.inflight == 0 {
            // Nothing was on its way: no time has passed for deliveries.
            self.delivered_at = now;
        }
        self.sent_bytes += bytes;
        let counted = if is_answered { bytes } else { 0 };
        self.asked_at = if is_answered { now } else { self.asked_at };
        self.log.push_back(Sent {
            at: now,
            bytes: counted,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            is_limited: self.is_limited,
            is_low: self.is_low(),
        });
        self.inflight += counted;
        if self.log.len() > LOG_MAX {
            self.forget_first();
        }
        if !is_answered {
            // Acknowledgements follow from what the peer sends: they must not take this end's turn.
            return;
        }
        let pacing = self.pacing();
        let takes = Duration::from_secs_f64(bytes as f64 / pacing);
        let ahead = Duration::from_secs_f64(URGENT_BYTES / pacing).min(URGENT_AHEAD);
        self.next_at = self.next_at.max(now.saturating_sub(CREDIT)) + takes;
        // What urgent datagrams took must be paid back, but not without end.
        self.next_at = self.next_at.min(now + takes + ahead);
        self.urgent_at = self.next_at.saturating_sub(ahead);
        self.opens_at = match self.next_at > now {
            true => self.next_at + QUANTUM.saturating_sub(takes),
            false => self.next_at,
        };
    }

    fn forget_first(&mut self) {
        if let Some(sent) = self.log.pop_front() {
            self.inflight -= sent.bytes;
            self.first += 1;
        }
    }

    /// What is remembered of a datagram.
    fn sent_as(&self, number: u64) -> Option<&Sent> {
        self.log.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Bytes on the wire of a datagram that is remembered; 0 of one that asks for no answer.
    pub fn sent_bytes(&self, number: u64) -> usize {
        self.sent_as(number).map_or(0, |sent| sent.bytes as usize)
    }

    /// Takes an acknowledgement.
    pub fn acknowledged(&mut self, news: &News, now: Duration) {
        self.loss = news.loss;
        let Some(sent) = self.sent_as(news.highest).copied() else { return };
        // A peer that says it has held the answer for longer than that lies, or its clock is coarse.
        let took = now.saturating_sub(sent.at).saturating_sub(news.held).max(ROUND_TRIP_MIN);
        let least = self.rtt.least();
        if news.highest >= self.path_from {
            self.rtt.sample(took, now);
        }
        if self.rtt.least() > least * LONGER_PATH {
            self.restart();
        }
        self.tally(news, sent.is_low);
        if let Some(bytes) = news.bytes {
            self.note_delivery(u64::from(bytes), &sent, now);
        }
        while self.first <= news.highest && !self.log.is_empty() {
            self.forget_first();
        }
        if news.highest >= self.round_ends {
            self.round += 1;
            self.round_ends = self.first + self.log.len() as u64;
            self.end_round(now);
        }
        let is_overflow = self.mode == PathLoss::Measure
            && self.has_queue_of(QUEUE_RTT)
            && self.path_loss() < LOSS_MIN;
        let has_overflown = news.lost > 0.0 && is_overflow;
        if (has_overflown || news.is_congested) && news.highest >= self.answered {
            self.give_way(news.is_congested, now);
        }
        self.regrow(now);
        self.end_trial(now);
        if self.startup.is_none() {
            self.turn_cycle(now);
        }
    }

    /// Sorts losses. What is lost while no queue delays anything is lost by the path; what is lost
    /// while one does may be overflow.
    fn tally(&mut self, news: &News, is_low: bool) {
        let has_queue = self.has_queue_of(SHORT_QUEUE_RTT);
        if !has_queue {
            self.quiet.note(news);
        }
        match (is_low, has_queue) {
            (true, false) => self.low.note(news),
            (true, true) => {}
            (false, _) => self.high.note(news),
        }
        if self.startup.is_some() {
            let has_queue = self.has_queue_of(EMPTY_RTT);
            self.start.note(has_queue, news);
        }
        if !self.has_low && self.quiet.settled > 0.0 {
            self.path_loss = self.start.path_loss().unwrap_or_else(|| self.quiet.share());
        }
    }

    fn note_delivery(&mut self, bytes: u64, sent: &Sent, now: Duration) {
        let delivered = completed(bytes, BYTES_BITS, self.delivered);
        // What was never sent has not come: a peer that says so wants to be flooded.
        if delivered <= self.delivered || delivered > self.sent_bytes {
            return;
        }
        let was_silent = self.is_silent_since(sent.delivered_at, now);
        (self.delivered, self.delivered_at) = (delivered, now);
        if was_silent {
            return;
        }
        // A burst that was held up says nothing about the rate: no faster than it was sent over.
        let took = now.saturating_sub(sent.delivered_at).max(self.rtt.least() / 2);
        if took.is_zero() {
            return;
        }
        let rate = delivered.saturating_sub(sent.delivered) as f64 / took.as_secs_f64();
        self.has_rate = true;
        if sent.is_limited && rate <= self.best() {
            return;
        }
        while self.rates.back().is_some_and(|lower| lower.bytes_per_s <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back(Delivery { round: self.round, at: now, bytes_per_s: rate });
        let round = self.round;
        let is_old = |it: &Delivery| it.round + RATE_ROUNDS < round && it.at + RATE_LASTS < now;
        while self.rates.len() > 1 && self.rates.front().is_some_and(is_old) {
            self.rates.pop_front();
        }
    }

    fn end_round(&mut self, now: Duration) {
        let may_overflow = self.startup.is_some() && self.mode == PathLoss::Measure;
        if may_overflow && self.start.overflows() {
            self.give_way(false, now);
        }
        let delivery = self.delivery();
        if self.startup.is_some() {
            self.quiet.age();
        }
        if let Some((best, rounds)) = &mut self.startup {
            if self.is_limited {
                *rounds = 0;
            } else if !self.has_rate {
                // Acknowledgements without counts say nothing.
            } else if delivery > *best * STARTUP_GROWTH {
                (*best, *rounds) = (delivery, 0);
            } else {
                *rounds += 1;
            }
            if *rounds >= STARTUP_ROUNDS {
                self.startup = None;
                self.drains_until = Some(now + self.rtt.smoothed() * DRAIN_ROUNDS);
            }
        }
        self.has_rate = false;
    }

    fn turn_cycle(&mut self, now: Duration) {
        if let Some(until) = self.drains_until {
            let product = self.delivery() * self.rtt.least().as_secs_f64();
            if (self.inflight as f64) > product && now < until {
                return;
            }
            self.drains_until = None;
            (self.cycle_at, self.cycle_since, self.low_in) = (1, now, 0);
        }
        let is_drained = self.drained > 0 && !self.has_queue_of(EMPTY_RTT);
        let round = self.rtt.smoothed().max(CYCLE_ROUND_MIN);
        if !is_drained && now.saturating_sub(self.cycle_since) < round {
            return;
        }
        if self.has_queue_of(EMPTY_RTT) && self.cycle_at == DRAIN_AT && self.drained < DRAIN_ROUNDS
        {
            // The rate is a maximum, a little above the truth: what it adds to the queue leaves here.
            self.drained += 1;
            self.cycle_since = now;
            return;
        }
        self.drained = 0;
        self.cycle_since = now;
        self.cycle_at = (self.cycle_at + 1) % CYCLE.len();
        if self.cycle_at != 0 {
            return;
        }
        self.begin_trial(now);
        self.judge(now);
    }

    /// Once per cycle: which loss is the path's, and whether to give way.
    fn judge(&mut self, now: Duration) {
        if self.mode == PathLoss::Assume {
            return;
        }
        let was_low = self.low_in == 0;
        if was_low && self.low.settled > 0.0 {
            self.path_loss = self.low.share();
            self.has_low = true;
        }
        let base = if self.low.settled > 0.0 { self.low.share() } else { self.path_loss };
        let is_congested = is_excess(self.high, self.low, base);
        if is_congested {
            self.give_way(false, now);
            (self.low_every, self.low_in) = (1, 0);
            self.high = Tally::default();
        }
        if self.has_low && !is_congested && self.path_loss > LOSS_MIN {
            // All of it is the path's, also what was taken for overflow before.
            self.path_loss = self.loss;
            self.cap = self.cap.filter(|cap| cap.is_asked_for);
        }
        if !is_congested && self.loss > LOSS_MIN {
            if was_low {
                self.low_every = (self.low_every * 2).min(LOW_EVERY_MAX);
                self.low_in = self.low_every;
            }
            self.low_in -= u32::from(self.low_in > 0);
        } else if !is_congested {
            // Nothing is lost: nothing to measure.
            (self.path_loss, self.low_every, self.low_in) = (0.0, 1, 1);
            self.has_low = false;
        }
        self.low.age();
        self.quiet.age();
        self.high.age();
    }
}

/// From which round trip on a queue is behind it, in seconds.
fn queue_from(factor: f64, least: f64) -> f64 {
    (factor * least).max(least + NOISE.as_secs_f64())
}
