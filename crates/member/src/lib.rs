//! What the daemons of a pair are, wherever they run: the wire's daemons
//! (`crates/holdfast`) and the simulated ones (`crates/sim`) take it from here.

pub mod backup;
pub mod edge;
pub mod host;
pub mod pairing;
pub mod primary;
pub mod request;
pub mod standing;
pub mod timing;

use holdfast_cluster::Nanos;
use std::time::Duration;

/// A constant of [`timing`] as the machines count time.
pub(crate) const fn nanos(duration: Duration) -> Nanos {
    Nanos(duration.as_nanos() as u64)
}
