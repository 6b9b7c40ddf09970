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
