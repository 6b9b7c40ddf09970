//! Losses that are counted apart, and compared.

use super::News;

/// Loss below which there is nothing to tell apart.
pub(super) const LOSS_MIN: f64 = 0.003;
/// Standard deviations, and a share, by which loss must exceed the path's to be congestion.
const EXCESS_DEVIATIONS: f64 = 2.0;
const EXCESS_MIN: f64 = 0.005;
/// Weight of older cycles, or rounds of the start, in what is known of losses.
const WEIGHT: f64 = 0.7;
/// Datagrams of either kind, and losses, from which on the start's losses are compared.
const COMPARED_MIN: f64 = 30.0;
const COMPARED_LOST_MIN: f64 = 8.0;

/// Losses of some rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub settled: f64,
    lost: f64,
}

impl Tally {
    pub fn note(&mut self, news: &News) {
        self.settled += news.settled;
        self.lost += news.lost;
    }

    pub fn share(&self) -> f64 {
        if self.settled > 0.0 { (self.lost / self.settled).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub fn age(&mut self) {
        self.settled *= WEIGHT;
        self.lost *= WEIGHT;
    }
}

/// Losses of the start: while the round trip was the least, and while it was longer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compared {
    calm: Tally,
    busy: Tally,
}

impl Compared {
    pub fn note(&mut self, has_queue: bool, news: &News) {
        let tally = if has_queue { &mut self.busy } else { &mut self.calm };
        tally.note(news);
    }

    /// What is lost while no queue stands; `None` if too little is known.
    pub fn path_loss(&self) -> Option<f64> {
        (self.calm.settled >= COMPARED_MIN).then(|| self.calm.share())
    }

    /// Whether more is lost where a queue stands than where none does: a queue that is too short to
    /// show in the rate, or to stop whoever has little to send. Once per round.
    pub fn overflows(&mut self) -> bool {
        let (calm, busy) = (self.calm, self.busy);
        self.calm.age();
        self.busy.age();
        let is_known =
            calm.settled.min(busy.settled) >= COMPARED_MIN && busy.lost >= COMPARED_LOST_MIN;
        is_known && is_excess(busy, calm, calm.share())
    }
}

/// Whether more is lost than `base`, which was found in `low`, by more than chance.
pub(super) fn is_excess(high: Tally, low: Tally, base: f64) -> bool {
    let samples = 1.0 / low.settled.max(1.0) + 1.0 / high.settled.max(1.0);
    let share = high.share();
    let spread = (share.max(LOSS_MIN) * (1.0 - share) * samples).sqrt();
    share - base > EXCESS_DEVIATIONS * spread + EXCESS_MIN
}
