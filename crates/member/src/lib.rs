//! What daemons are, wherever they run: the wire's daemons (`crates/holdfast`) take
//! all of them from here, and the simulated ones of a pair (`crates/sim`) do so, too.

pub mod backup;
#[cfg(test)]
mod bench;
pub mod edge;
pub mod host;
pub mod host_server;
pub mod pairing;
pub mod primary;
pub mod request;
pub mod shown;
pub mod spread;
pub mod standing;
pub mod timing;
pub mod transit;

use holdfast_cluster::Nanos;
use std::time::Duration;

/// A constant of [`timing`] as the machines count time.
pub(crate) const fn nanos(duration: Duration) -> Nanos {
    Nanos(duration.as_nanos() as u64)
}

/// Hundredths of an image that are there, while it is not over.
fn percent(done: u64, all: u64) -> u8 {
    (100 * done).checked_div(all).unwrap_or(0).min(99) as u8
}
