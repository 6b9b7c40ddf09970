//! The machines of the daemons, wherever they run: the daemons on the wire
//! (`crates/holdfast`) take all of them from here, and so do the simulated ones of a
//! pair (`crates/sim`).

pub mod backup;
#[cfg(test)]
mod bench;
pub mod edge;
pub mod host;
pub mod host_server;
pub mod own_edge;
pub mod pairing;
pub mod primary;
pub mod request;
pub mod segment;
pub mod shown;
pub mod spread;
pub mod standing;
pub mod timing;
pub mod transit;
pub mod words;

use holdfast_cluster::Nanos;
use std::time::Duration;

/// A constant of [`timing`], as the machines count time.
pub(crate) const fn nanos(duration: Duration) -> Nanos {
    Nanos(duration.as_nanos() as u64)
}

/// Percentage of an image that has arrived, while it is not complete.
fn percent(done: u64, all: u64) -> u8 {
    (100 * done).checked_div(all).unwrap_or(0).min(99) as u8
}
