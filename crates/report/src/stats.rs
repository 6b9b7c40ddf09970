//! Medians with their extremes, the form in which benches report numbers.

use serde::Serialize;

/// Median and extremes of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Median of the values.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Computes the numbers of some values; without values all are 0.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self {
            median: quantile(&sorted, 0.5),
            min: sorted.first().copied().unwrap_or(0.0),
            max: sorted.last().copied().unwrap_or(0.0),
        }
    }
}

/// Jain's index of shares: 1 if all are the same, 1/n if one of n has everything (Jain, Chiu and Hawe,
/// DEC-TR-301, 1984). Without shares, or if nobody has anything, it is 0.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|it| it * it).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// A median, and the interval in which the true median lies in 95 of 100 cases: between two of the
/// values, chosen by the binomial distribution of how many lie below the median. With fewer than 6
/// values these are the extremes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Median of the values.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of values.
    pub count: usize,
}

impl Interval {
    /// Computes the numbers of some values; without values all are 0.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        let count = sorted.len();
        // The rank is the largest below which the true median lies in 2.5 % of cases.
        let (mut rank, mut weight, mut below) = (0, 0.5_f64.powi(count as i32), 0.0);
        for k in 0..count / 2 {
            below += weight;
            if below > 0.025 {
                break;
            }
            rank = k;
            weight *= (count - k) as f64 / (k + 1) as f64;
        }
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        Self {
            median: quantile(&sorted, 0.5),
            low: at(rank),
            high: at(count.saturating_sub(1 + rank)),
            count,
        }
    }
}

/// A mean, with its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mean {
    /// Mean of the values.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval; 0 with one value.
    pub plus_minus: f64,
}

impl Mean {
    /// Computes the numbers of some values; without values both are 0.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
        Self { mean, plus_minus: student(values.len()) * deviation / count.sqrt() }
    }
}

/// Factor of a 95 % confidence interval of the mean of `values` values (Student's t, two-sided).
fn student(values: usize) -> f64 {
    const T: [f64; 11] = [0.0, 0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26];
    match values {
        0..=10 => T[values],
        11..=20 => 2.20,
        21..=60 => 2.06,
        _ => 1.96,
    }
}

/// Quantiles of stalls, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stalls {
    /// Shortest stall.
    pub min: f64,
    /// Median stall.
    pub p50: f64,
    /// 99th percentile; with fewer than 100 values the longest stall.
    pub p99: f64,
    /// Longest stall.
    pub max: f64,
}

impl Stalls {
    /// Computes the quantiles of times in ns.
    pub fn of_ns(values: &[u64]) -> Self {
        let ms: Vec<f64> = values.iter().map(|ns| *ns as f64 / 1e6).collect();
        let sorted = sorted(&ms);
        Self {
            min: sorted.first().copied().unwrap_or(0.0),
            p50: quantile(&sorted, 0.5),
            p99: quantile(&sorted, 0.99),
            max: sorted.last().copied().unwrap_or(0.0),
        }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Smallest value that at least the share `q` of all values does not exceed.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_that_are_the_same_are_fair() {
        assert_eq!((jain(&[3.0, 3.0]), jain(&[6.0, 0.0]), jain(&[])), (1.0, 0.5, 0.0));
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let summary = Summary::of(&[3.0, 1.0, 2.0]);
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 1.0, 3.0));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Interval::of(&[]), Interval::default());
        let fifteen: Vec<f64> = (1..=15).map(f64::from).collect();
        let interval = Interval::of(&fifteen);
        // The tables of order statistics have the 4th and the 12th of 15.
        assert_eq!((interval.low, interval.median, interval.high), (4.0, 8.0, 12.0));
        let stalls = Stalls::of_ns(&(1..=200).map(|ms| ms * 1_000_000).collect::<Vec<_>>());
        assert_eq!((stalls.min, stalls.p50), (1.0, 100.0));
        assert_eq!((stalls.p99, stalls.max), (198.0, 200.0));
    }

    #[test]
    fn a_mean_has_an_interval_if_there_are_values() {
        assert_eq!(Mean::of(&[]), Mean::default());
        assert_eq!(Mean::of(&[3.0]), Mean { mean: 3.0, plus_minus: 0.0 });
        let two = Mean::of(&[1.0, 3.0]);
        // Half of t with one degree of freedom times the standard deviation, by the root of 2.
        assert!((two.mean - 2.0).abs() < 1e-9 && (two.plus_minus - 12.71).abs() < 1e-9, "{two:?}");
    }
}
