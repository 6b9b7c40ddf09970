//! A packet-level simulator: links with queues, losses and outages, balancing
//! switches with the edge's machines, and TCP endpoints of [`crate::tcp`].
//!
//! A [`Scenario`] is data; [`run`] turns it into an [`Outcome`]. The same
//! scenario always gives the same outcome.

mod data_path;
pub mod dumbbell;
mod engine;
pub mod link;
pub mod loss;
pub mod outcome;
pub mod packet;
mod route;
pub mod scenario;
mod switch;
pub mod wheel;

#[cfg(test)]
mod tests;

pub use engine::Network;
pub use outcome::{Outcome, Tap};
pub use scenario::{Scenario, ScenarioError};

/// Runs a scenario.
///
/// # Errors
/// When the scenario names something that it does not define.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    Ok(Network::new(scenario)?.run())
}
