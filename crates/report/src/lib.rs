//! The parts of reports, for the papers' figures and for the benches: plots, medians with their
//! extremes, units as people write them, work on all cores, and a progress bar.
#![forbid(unsafe_code)]

pub mod layout;
pub mod parallel;
pub mod plot;
mod progress;
mod stats;
pub mod units;

pub use progress::progress;
pub use stats::{Interval, Mean, Stalls, Summary, jain};
