//! Converts between the kernel's monotonic clock and the machines' time (ns since an origin).

use holdfast_cluster::Nanos;
use std::time::{Duration, Instant};

/// A clock of the time since an origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that stood at zero at `origin`.
    #[must_use]
    pub fn new(origin: Instant) -> Self {
        Self(origin)
    }

    /// Nanoseconds from the origin to now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.nanos(Instant::now())
    }

    /// Nanoseconds from the origin to `at`; 0 if that was before.
    #[must_use]
    pub fn nanos(&self, at: Instant) -> Nanos {
        Nanos(at.saturating_duration_since(self.0).as_nanos() as u64)
    }

    /// The instant of a machine's time.
    #[must_use]
    pub fn instant(&self, at: Nanos) -> Instant {
        self.0 + Duration::from_nanos(at.0)
    }
}
