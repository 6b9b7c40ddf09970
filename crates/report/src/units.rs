//! The units of `tc`, as used on command lines and in scenario files.

/// Splits `12.5ms` into its number and its unit.
#[must_use]
pub fn split(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    number.parse().ok().filter(|n: &f64| n.is_finite()).map(|n| (n, unit))
}

/// Reads a share such as `1%`.
#[must_use]
pub fn share(word: &str) -> Option<f64> {
    let (number, _) = split(word).filter(|(number, unit)| *unit == "%" && *number <= 100.0)?;
    Some(number / 100.0)
}

/// Number of nanoseconds in a unit of time.
#[must_use]
pub fn nanoseconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        _ => return None,
    })
}

/// Number of bits per second in a unit of rate.
#[must_use]
pub fn bits_per_second(unit: &str) -> Option<f64> {
    Some(match unit {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return None,
    })
}
