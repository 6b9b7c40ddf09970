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
