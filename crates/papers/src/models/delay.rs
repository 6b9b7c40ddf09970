//! The delay that an outage adds to a flow (thesis §5.1).

/// Additional delay of a flow whose packets are lost for `down_s` (AD): the
/// doubling timeouts until the first that ends after the outage,
/// `(2^x - 1) T` with the smallest x for which that is at least `down_s`.
#[must_use]
pub fn additional_delay(timeout_s: f64, down_s: f64) -> f64 {
    let mut total = timeout_s;
    let mut next = 2.0 * timeout_s;
    // A flow that is interrupted waits for at least one timeout.
    while total < down_s && next.is_finite() && timeout_s > 0.0 {
        total += next;
        next *= 2.0;
    }
    total
}

/// Unused flow time (UFT): the part of the additional delay that is after the outage.
#[must_use]
pub fn unused_flow_time(timeout_s: f64, down_s: f64) -> f64 {
    additional_delay(timeout_s, down_s) - down_s
}
