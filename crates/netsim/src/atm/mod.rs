//! A cell-level simulator of TCP over ATM (TCP Boston §3.1): sources that cut
//! packets into cells, output-buffered switches in a row, one sink.
//!
//! All links have one rate and one clock, so time goes in *slots* of one cell;
//! a slot's moment is computed in integer nanoseconds and carries no rounding
//! from the slot before. A propagation delay is rounded up to whole slots, which
//! is what a switch that serves its inputs once per slot makes of it.
//!
//! What is a model and what is real:
//!
//! * [`aal5`] and [`cell`] are the formats, with the trailer's CRC-32 and the
//!   header's CRC-8. A run carries no bytes: it decides by the cells' numbers
//!   whether a packet is intact, and a test holds that rule to the real format.
//! * Boston is the cell-level protocol, not the machine of `holdfast-boston`: a
//!   segment of m cells is complete when any m of its rows have arrived, only what
//!   is pending is sent again, and cells that the code made good for count as lost
//!   for the window (RFC 9265). The shares of redundancy are that crate's.
//! * Every protocol has the same flow manager, so that what differs between
//!   Vegas and Boston is what happens to cells.
//!
//! [`run`] turns a [`Scenario`] into an [`Outcome`]; the same scenario always
//! gives the same outcome.

pub mod aal5;
pub mod cell;
mod flow;
mod network;
mod outcome;
mod scenario;
mod sink;
mod source;
mod switch;
mod timer;
mod vegas;

#[cfg(test)]
mod tests;

pub use outcome::{FlowOutcome, Outcome, RESPONSE_BIN_NS, Responses};
pub use scenario::{FlowControl, Policy, Protocol, Repair, Scenario, ScenarioError};

/// Runs a scenario.
///
/// # Errors
/// When it asks for what there cannot be.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    Ok(network::Network::new(scenario).run())
}
