//! The units of `tc`, on command lines and in scenario files alike.

/// How many nanoseconds a unit of time has.
pub(crate) fn nanoseconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        _ => return None,
    })
}

/// How many bits per second a unit of rate has.
pub(crate) fn bits_per_second(unit: &str) -> Option<f64> {
    Some(match unit {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return None,
    })
}
