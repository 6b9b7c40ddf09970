//! A spread group in virtual time: clients, an edge and its host servers.
//!
//! It runs the state machines of `holdfast-member` and `holdfast-edge` over a model of the
//! data path, and breaks them with faults that a seed draws. The simulator only hosts the
//! machines. They alone decide who is heard, who gets a service's connections, when SYNs
//! are re-injected, and what a host server announces.

mod cache;
mod check;
mod client;
mod edge;
mod faults;
mod looks;
pub(crate) mod model;
mod packet;
mod plan;
mod redirector;
mod server;
mod wires;
mod world;

pub(crate) use packet::mix;
pub use plan::{ClientPlan, Fault, Lie, Limits, Mutation, Plan, ServerPlan, Trick, Ways};

use crate::{Ns, Violation};

/// How far a run got, and how often it met rare events. All fields are counts, except where
/// they name a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Connections that ended normally.
    pub connections: u64,
    /// Replies that clients got.
    pub replies: u64,
    /// Tables that were built.
    pub tables: u64,
    /// SYNs that were re-injected.
    pub resent: u64,
    /// Clients that did not have to retransmit their SYN because of that.
    pub repeats_spared: u64,
    pub syns_repeated: u64,
    /// New connections refused because the table of flows was full.
    pub refused_full: u64,
    pub evicted: u64,
    /// Connections that the edge has learnt without their handshakes.
    pub learnt: u64,
    /// Most memory that the flows in the cache took, in bytes.
    pub kept_most: u64,
    pub drained: u64,
    pub lies: u64,
    /// Host servers of the file for which there was no link.
    pub shut_out: u64,
}

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.replies += other.replies;
        self.tables += other.tables;
        self.resent += other.resent;
        self.repeats_spared += other.repeats_spared;
        self.syns_repeated += other.syns_repeated;
        self.refused_full += other.refused_full;
        self.evicted += other.evicted;
        self.learnt += other.learnt;
        self.kept_most = self.kept_most.max(other.kept_most);
        self.drained += other.drained;
        self.lies += other.lies;
        self.shut_out += other.shut_out;
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub events: u64,
    pub virtual_ns: Ns,
    pub reached: Reached,
    pub violations: Vec<Violation>,
    /// The trace; empty unless the run was traced.
    pub trace: Vec<String>,
}

impl Outcome {
    /// One line with the first violation and the command that reproduces it; `None` without
    /// violations.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let (first, seed) = (self.violations.first()?, self.seed);
        let replay = format!("holdfast-lab simulate --group spread --seed {seed} --trace");
        Some(format!("seed {seed}: {first}; replay: {replay}"))
    }
}

/// Runs a plan; `traced` keeps a readable trace in the outcome.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
