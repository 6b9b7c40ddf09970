//! The papers behind Holdfast, computed again: the figures of the HALR and PFRC
//! thesis and of TCP Boston, each beside what its paper says; the closed forms
//! they are held to; scenarios of the reader's own; what local recovery would keep
//! of a recorded trace; and TCP Boston's planner.
//!
//! Nothing here needs a network or root: packets and cells live in
//! `holdfast-netsim`. [`Verb`] is this crate's part of `holdfast-lab`.
#![forbid(unsafe_code)]

mod cli;
pub mod figures;
pub mod memory;
pub mod models;
mod plan;
pub mod scenario;

pub use cli::{Verb, is_mistake, run};
