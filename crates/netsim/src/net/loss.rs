//! Which packets a wire loses, for simulated links and for the lab's link emulator.

use crate::Rng;

/// The process by which packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossModel {
    /// No packet is lost.
    #[default]
    Never,
    /// Each packet is lost with this probability, independently.
    Bernoulli(f64),
    /// Packets are lost in bursts: a wire is good or bad, and changes with these probabilities at
    /// each packet (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// Probability of a change from good to bad.
        to_bad: f64,
        /// Probability of a change from bad to good.
        to_good: f64,
        /// Share of packets lost while good.
        loss_good: f64,
        /// Share of packets lost while bad.
        loss_bad: f64,
    },
}

impl LossModel {
    /// The share of packets that is lost in the long run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Never => 0.0,
            Self::Bernoulli(loss) => loss,
            Self::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                let bad = to_bad / (to_bad + to_good).max(f64::MIN_POSITIVE);
                loss_good * (1.0 - bad) + loss_bad * bad
            }
        }
    }
}

/// The state of a wire's losses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    model: LossModel,
    bad: bool,
}

impl Loss {
    /// The losses of a wire that is good at first.
    #[must_use]
    pub fn new(model: LossModel) -> Self {
        Self { model, bad: false }
    }

    /// Whether the next packet is lost.
    #[inline]
    pub fn loses(&mut self, rng: &mut Rng) -> bool {
        match self.model {
            LossModel::Never => false,
            LossModel::Bernoulli(loss) => rng.chance(loss),
            LossModel::GilbertElliott { to_bad, to_good, loss_good, loss_bad } => {
                if rng.chance(if self.bad { to_good } else { to_bad }) {
                    self.bad = !self.bad;
                }
                rng.chance(if self.bad { loss_bad } else { loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_lost_is_the_one_asked_for_and_bursts_are_bursts() {
        let bursty =
            LossModel::GilbertElliott { to_bad: 0.01, to_good: 0.2, loss_good: 0.0, loss_bad: 0.8 };
        for model in [LossModel::Never, LossModel::Bernoulli(0.05), bursty] {
            let (mut loss, mut rng) = (Loss::new(model), Rng::new(1, 2));
            let lost: Vec<bool> = (0..200_000).map(|_| loss.loses(&mut rng)).collect();
            let share = lost.iter().filter(|it| **it).count() as f64 / lost.len() as f64;
            assert!((share - model.mean()).abs() < 0.003, "{model:?}: {share}");
            let pairs = lost.windows(2).filter(|it| it[0] && it[1]).count() as f64;
            let after_a_loss = pairs / (share * lost.len() as f64).max(1.0);
            assert_eq!(after_a_loss > 0.5, model == bursty, "{model:?}: {after_a_loss}");
        }
    }
}
