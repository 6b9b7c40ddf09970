//! Packets in virtual time: [`net`] simulates links, queues, losses, outages and
//! the edge's machines between TCP endpoints of [`tcp`]; [`atm`] simulates TCP
//! over ATM cell by cell.
//!
//! A run knows nothing of a cluster: what becomes of a pair of members is the
//! business of `holdfast-sim`. The same scenario always gives the same outcome.
#![forbid(unsafe_code)]

pub mod atm;
pub mod net;
pub mod tcp;

pub use holdfast_chance::Rng;
pub use holdfast_edge::Ns;
