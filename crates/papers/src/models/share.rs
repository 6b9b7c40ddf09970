//! Sharing a bottleneck (thesis chapter 6).

/// Eq (9) without the bound of eq (10): the window after an interval in which `received_bytes`
/// arrived of the `capacity_bytes` that could have.
#[must_use]
pub fn next_window_bytes(
    window_bytes: f64,
    weight: f64,
    rtt_per_interval: f64,
    utilization: f64,
    capacity_bytes: f64,
    received_bytes: f64,
    flows: f64,
) -> f64 {
    let error = utilization * capacity_bytes - received_bytes;
    window_bytes + weight * rtt_per_interval * error / flows
}

/// Jain's index: 1 if all have the same, 1/n if one has all.
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|it| it * it).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}
