//! What is possible: the least redundancy that keeps a deadline.

use serde::Serialize;
use std::time::Duration;

/// What a workload costs on a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Packets that are protected together: those within the budget.
    pub group: usize,
    /// Rows sent beyond them on average; a fraction is a mix of two numbers.
    pub extra: f64,
    /// Bytes sent beyond those of the packets, per byte: 0.3 is 30 %.
    pub overhead: f64,
    /// Share of packets that is later than the budget.
    pub late: f64,
    /// For a lone packet that is better cut into cells: their number, and how many more are sent.
    pub cells: Option<(usize, usize)>,
    /// What to do, as a sentence.
    pub why: String,
}

/// The row for packets of `bytes` bytes, `rate_per_s` of them per second, on a path that loses
/// the share `loss` of its datagrams with a round trip of `rtt`, if at most the share `eps` may
/// come more than `budget` later than the path's own delay.
#[must_use]
pub fn row(loss: f64, rtt: Duration, rate_per_s: f64, bytes: usize, budget: Duration, eps: f64) -> Row {
    let _ = (loss, rtt, rate_per_s, bytes, budget, eps);
    Row::default()
}
