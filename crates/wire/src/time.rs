//! Time as the machines see it: a number that comes in as an argument (law L7).

/// Nanoseconds since an origin that the caller chooses and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `self + duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Self) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, as TCP timestamps count them.
    #[must_use]
    pub fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// A duration of `ms` milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
}

/// What a promoted server's clock must add to its host's clock, which shows `own`, to
/// continue from `last`, the last value in the log (decision 18); both in ns. A
/// real-time clock that is ahead already is right, and may be read.
#[must_use]
pub const fn added(last: i64, own: i64, is_realtime: bool) -> i64 {
    let added = last - own;
    if is_realtime && added < 0 { 0 } else { added }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_clock_goes_on_and_a_right_time_of_day_stays() {
        assert_eq!([added(70, 20, false), added(20, 70, false)], [50, -50]);
        assert_eq!([added(70, 20, true), added(20, 70, true)], [50, 0]);
    }

    #[test]
    fn durations_are_added_and_measured_and_never_wrap() {
        let (early, late) = (Nanos::from_ms(3), Nanos::from_ms(1500));
        assert_eq!(early.plus(late), Nanos(1_503_000_000));
        assert_eq!((late.since(early), early.since(late)), (Nanos(1_497_000_000), Nanos(0)));
        assert_eq!(Nanos(u64::MAX).plus(Nanos(1)), Nanos(u64::MAX));
        assert_eq!((Nanos(2_999_999).as_ms(), Nanos(7_000_000).as_ms()), (2, 7));
    }
}
