//! The hosts' clocks. No two hosts agree on the origin of the monotonic clock, which machines and
//! kernels use, nor on its rate, nor on the time of day.

use crate::app::Clocks;
use crate::{Ns, Rng};

const SECOND: Ns = 1_000_000_000;
const DAY: Ns = 86_400 * SECOND;
const MILLION: i64 = 1_000_000;
/// The true time of day at the beginning of a run, in ns since 1970.
const TODAY: i64 = 1_700_000_000 * SECOND as i64;
/// Time longer than any run, in ns.
const RUN_MAX: Ns = 3600 * SECOND;

/// A host's clocks at the beginning of a run, and their rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockPlan {
    /// Value of the monotonic clock, in ns.
    pub since: Ns,
    /// How much faster than true time it goes, in ns per ms.
    pub ppm: i64,
    /// Error of the time of day, in ns.
    pub wrong: i64,
}

impl ClockPlan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let most = rng.pick(&[2 * SECOND, 2 * SECOND, 2 * SECOND, 3 * DAY]);
        let ahead = rng.spread(1, most) as i64;
        Self {
            since: if rng.one_in(2) { 0 } else { rng.spread(SECOND, 40 * DAY) },
            ppm: rng.below(401) as i64 - 200,
            wrong: if rng.one_in(2) { ahead } else { -ahead },
        }
    }
}

/// What happens to a host's clock while the host is suspended.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// It continues.
    Goes,
    /// It stops, too, as on a machine that sleeps.
    Stands,
    /// It continues, and jumps ahead by this much, in ns, when the host resumes.
    Leaps(Ns),
}

impl Pause {
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => Self::Stands,
            1 => Self::Leaps(rng.spread(SECOND / 1000, 100 * SECOND)),
            _ => Self::Goes,
        }
    }
}

/// The clocks of one host. The world's points in time are true time.
#[derive(Debug)]
pub struct Clock {
    since: i64,
    ppm: i64,
    wall: i64,
}

impl Clock {
    pub fn new(plan: ClockPlan) -> Self {
        let since = plan.since as i64;
        Self { since, ppm: plan.ppm, wall: TODAY + plan.wrong - since }
    }

    /// The monotonic clock.
    pub fn shows(&self, at: Ns) -> Ns {
        let at = at as i64;
        (self.since + at + at * self.ppm / MILLION) as Ns
    }

    /// The true time at which the monotonic clock shows this, or a little later.
    pub fn when(&self, shown: Ns) -> Ns {
        let since = (shown.min(i64::MAX as Ns) as i64 - self.since).clamp(0, RUN_MAX as i64);
        (since * MILLION / (MILLION + self.ppm)) as Ns + 1
    }

    /// What a server reads: the monotonic clock, and the time of day since 1970.
    pub fn both(&self, at: Ns) -> Clocks {
        let shown = self.shows(at) as i64;
        [shown, shown + self.wall]
    }

    /// Notes that the host stood still from `from` until `now`.
    pub fn paused(&mut self, from: Ns, now: Ns, how: Pause) {
        match how {
            Pause::Goes => {}
            Pause::Stands => {
                let lasted = (self.shows(now) - self.shows(from)) as i64;
                // Only the monotonic clock has stood still; the time of day has not.
                (self.since, self.wall) = (self.since - lasted, self.wall + lasted);
            }
            Pause::Leaps(by) => self.since += by as i64,
        }
    }

    /// Sets the time of day, `by` this much.
    pub fn step(&mut self, by: i64) {
        self.wall += by;
    }
}
