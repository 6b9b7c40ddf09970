//! How much redundancy buys which delay: equations (1) and (2) of TCP Boston
//! §2.1 as printed, the exact chain of what Boston really does, and the cheapest
//! redundancy that keeps a deadline.
//!
//! Symbols: `m` cells make a segment; `m + alpha` are sent at first; a *round* is a
//! round trip; a lost cell is independent of other rounds.

use alloc::vec;
use alloc::vec::Vec;

use crate::ROWS;

/// How cells are lost within a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each with the same probability, independent of the others.
    Bernoulli {
        /// Share of cells that is lost, 0 to 1.
        rate: f64,
    },
    /// In bursts: a channel that is good (no loss) or bad (all is lost), and
    /// changes between two cells with fixed probabilities (Gilbert 1960, Elliott
    /// 1963). A round trip is long: each round begins in the stationary state.
    GilbertElliott {
        /// Share of cells that is lost on average, 0 to 1.
        rate: f64,
        /// Cells lost in a row on average, at least 1.
        burst_cells: f64,
    },
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Too few or too many cells.
    #[error("a segment has 1 to {ROWS} cells, not {0}")]
    Cells(usize),
    /// A probability that is none, or with which nothing arrives.
    #[error("a loss of {0} leaves nothing to plan: give a share from 0 to below 1")]
    Rate(f64),
    /// A burst that such a loss cannot have.
    #[error(
        "bursts of {0} cells do not give that loss: a burst has at least one cell, and longer ones when most cells are lost"
    )]
    Burst(f64),
    /// No round at all.
    #[error("a deadline of 0 rounds cannot be met: allow one")]
    Rounds,
}

impl Loss {
    /// Losses with this rate; in bursts if `burst_cells` is given.
    ///
    /// # Errors
    /// If there is no such channel.
    pub fn new(rate: f64, burst_cells: Option<f64>) -> Result<Self, PlanError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(PlanError::Rate(rate));
        }
        let Some(burst_cells) = burst_cells else { return Ok(Self::Bernoulli { rate }) };
        let loss = Self::GilbertElliott { rate, burst_cells };
        let [enter, leave] = loss.transitions();
        if (0.0..=1.0).contains(&enter) && (0.0..=1.0).contains(&leave) {
            Ok(loss)
        } else {
            Err(PlanError::Burst(burst_cells))
        }
    }

    /// Share of cells that is lost.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match *self {
            Self::Bernoulli { rate } | Self::GilbertElliott { rate, .. } => rate,
        }
    }

    /// The probabilities that the next cell is lost after one that was not, and
    /// that it is not lost after one that was.
    fn transitions(&self) -> [f64; 2] {
        match *self {
            Self::Bernoulli { rate } => [rate, 1.0 - rate],
            Self::GilbertElliott { rate, burst_cells } => {
                let leave = 1.0 / burst_cells;
                [leave * rate / (1.0 - rate), leave]
            }
        }
    }
}

/// The probabilities of k arrivals among n cells, for all n up to a limit.
#[derive(Clone, Debug)]
struct Arrivals(Vec<Vec<f64>>);

impl Arrivals {
    fn new(loss: Loss, cells_max: usize) -> Self {
        let [enter, leave] = loss.transitions();
        let rate = loss.rate();
        // By arrivals so far: the last cell arrived, the last cell was lost.
        let (mut good, mut bad) = (vec![1.0 - rate], vec![rate]);
        let mut all = vec![vec![1.0]];
        for n in 1..=cells_max {
            // The first cell is lost with the stationary probability, which is
            // also what the transitions preserve.
            let arrives = |k: usize| good[k] * (1.0 - enter) + bad[k] * leave;
            let is_lost = |k: usize| good[k] * enter + bad[k] * (1.0 - leave);
            let mut next_good = vec![0.0; n + 1];
            let mut next_bad = vec![0.0; n + 1];
            for k in 0..n {
                next_good[k + 1] = arrives(k);
                next_bad[k] = is_lost(k);
            }
            (good, bad) = (next_good, next_bad);
            all.push(good.iter().zip(&bad).map(|(good, bad)| good + bad).collect());
        }
        Self(all)
    }

    /// Probability that `k` of `n` cells arrive.
    fn exactly(&self, n: usize, k: usize) -> f64 {
        self.0[n][k]
    }

    /// Probability that at least `k` of `n` cells arrive.
    fn at_least(&self, n: usize, k: usize) -> f64 {
        self.0[n].iter().skip(k).sum()
    }
}

/// Equation (1): the probability W that more than `alpha` of `m + alpha` cells are
/// lost, each with probability `rate`.
#[must_use]
pub fn equation_1(m: usize, alpha: usize, rate: f64) -> f64 {
    1.0 - no_retransmission(m, alpha, rate)
}

/// Equation (2): the mean number U of rounds, if every retransmission failed with
/// probability W as the first transmission does. This is what the paper plots in
/// Fig. 2; since only the missing cells are sent again, it overstates.
#[must_use]
pub fn equation_2(m: usize, alpha: usize, rate: f64) -> f64 {
    1.0 / no_retransmission(m, alpha, rate)
}

/// Σ for i = 0 to alpha of (m+alpha over i) · rate^i · (1-rate)^(m+alpha-i).
fn no_retransmission(m: usize, alpha: usize, rate: f64) -> f64 {
    let n = m + alpha;
    let mut term = (0..n).fold(1.0, |product, _| product * (1.0 - rate));
    let mut sum = term;
    for i in 1..=alpha {
        term *= (n - i + 1) as f64 / i as f64 * rate / (1.0 - rate);
        sum += term;
    }
    sum
}

/// The consequences of a choice of redundancy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Cells sent beyond `m` at first.
    pub alpha_first: usize,
    /// Cells sent beyond those that are missing, in every later round.
    pub alpha_retransmit: usize,
    /// Rounds until the segment is there, on average.
    pub rounds: f64,
    /// Cells sent until then, on average.
    pub cells: f64,
    /// The probability that it takes more rounds than the deadline.
    pub late: f64,
}

/// The exact chain of TCP Boston's rounds: a receiver that misses p cells is sent
/// p + α fresh ones, any p of which complete the segment.
#[derive(Clone, Debug)]
pub struct Planner {
    m: usize,
    within_rounds: usize,
    arrivals: Arrivals,
}

/// What is still to come when `p` cells are missing, for every p.
struct Rest {
    rounds: Vec<f64>,
    cells: Vec<f64>,
    /// Probability of not being done within one round less than the deadline.
    late: Vec<f64>,
}

impl Planner {
    /// A planner for segments of `m` cells that should be complete within
    /// `within_rounds` rounds.
    ///
    /// # Errors
    /// If there are no such segments, or no round.
    pub fn new(m: usize, loss: Loss, within_rounds: usize) -> Result<Self, PlanError> {
        if !(1..=ROWS).contains(&m) {
            return Err(PlanError::Cells(m));
        }
        if within_rounds == 0 {
            return Err(PlanError::Rounds);
        }
        Ok(Self { m, within_rounds, arrivals: Arrivals::new(loss, ROWS) })
    }

    /// The most redundancy that a code has for these segments.
    #[must_use]
    pub fn alpha_max(&self) -> usize {
        ROWS - self.m
    }

    /// The consequences of this redundancy; more than [`Planner::alpha_max`] counts as
    /// that.
    #[must_use]
    pub fn outcome(&self, alpha_first: usize, alpha_retransmit: usize) -> Outcome {
        let alpha_retransmit = alpha_retransmit.min(self.alpha_max());
        self.combine(
            alpha_first.min(self.alpha_max()),
            alpha_retransmit,
            &self.rest(alpha_retransmit),
        )
    }

    /// The redundancy with the fewest cells among those that are late with at most
    /// the probability `late_max`. Among equals, the one with less redundancy.
    /// `None` if even the most is late too often.
    #[must_use]
    pub fn choose(&self, late_max: f64) -> Option<Outcome> {
        let mut best: Option<Outcome> = None;
        for alpha_retransmit in 0..=self.alpha_max() {
            let rest = self.rest(alpha_retransmit);
            for alpha_first in 0..=self.alpha_max() {
                // The first round alone would cost more.
                if best.is_some_and(|best| (self.m + alpha_first) as f64 >= best.cells) {
                    break;
                }
                let outcome = self.combine(alpha_first, alpha_retransmit, &rest);
                let is_cheaper = best.is_none_or(|best| outcome.cells < best.cells - 1e-12);
                if outcome.late <= late_max && is_cheaper {
                    best = Some(outcome);
                }
            }
        }
        best
    }

    /// One round: `missing` cells are wanted, `alpha` more are sent; what `value`
    /// says of the cells that are missing then, on average over those that are
    /// fewer. The second is the probability that nothing arrives.
    fn round(&self, missing: usize, alpha: usize, value: &[f64]) -> (f64, f64) {
        let sent = missing + alpha;
        let some = (1..missing)
            .map(|arrived| self.arrivals.exactly(sent, arrived) * value[missing - arrived])
            .sum();
        (some, self.arrivals.exactly(sent, 0))
    }

    fn rest(&self, alpha: usize) -> Rest {
        let (mut rounds, mut cells) = (vec![0.0; self.m + 1], vec![0.0; self.m + 1]);
        for missing in 1..=self.m {
            let (some, none) = self.round(missing, alpha, &rounds);
            rounds[missing] = (1.0 + some) / (1.0 - none);
            let (some, none) = self.round(missing, alpha, &cells);
            cells[missing] = ((missing + alpha) as f64 + some) / (1.0 - none);
        }
        let mut late = vec![1.0; self.m + 1];
        late[0] = 0.0;
        for _ in 1..self.within_rounds {
            let before = late.clone();
            for missing in 1..=self.m {
                let (some, none) = self.round(missing, alpha, &before);
                late[missing] = some + none * before[missing];
            }
        }
        Rest { rounds, cells, late }
    }

    fn combine(&self, alpha_first: usize, alpha_retransmit: usize, rest: &Rest) -> Outcome {
        let after_first = |value: &[f64]| {
            let (some, none) = self.round(self.m, alpha_first, value);
            some + none * value[self.m]
        };
        Outcome {
            alpha_first,
            alpha_retransmit,
            rounds: 1.0 + after_first(&rest.rounds),
            cells: (self.m + alpha_first) as f64 + after_first(&rest.cells),
            late: after_first(&rest.late),
        }
    }

    /// The probability that the first round is enough.
    #[must_use]
    pub fn first_round_suffices(&self, alpha_first: usize) -> f64 {
        self.arrivals.at_least(self.m + alpha_first.min(self.alpha_max()), self.m)
    }
}

#[cfg(test)]
mod tests;
