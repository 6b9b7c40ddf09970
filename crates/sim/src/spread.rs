//! A spread group in virtual time: clients, an edge and its host servers, with the
//! machines of `holdfast-member` and `holdfast-edge` over a data path of maps, broken by
//! faults that a seed draws. The simulator is the machines' host, and has no order of
//! its own: who is heard, who gets a service's connections, when SYNs come in anew, and
//! what a host server announces is theirs to say.

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

/// How often a run met what is rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Connections that ended as they should, and replies that clients got.
    pub connections: u64,
    pub replies: u64,
    /// Number of tables that were made.
    pub tables: u64,
    /// SYNs that were re-injected, and clients that need not repeat theirs
    /// because of that.
    pub resent: u64,
    pub repeats_spared: u64,
    pub syns_repeated: u64,
    /// Counts of refusals at the limits.
    pub refused_full: u64,
    pub evicted: u64,
    /// Connections that the edge has learnt without their handshakes.
    pub learnt: u64,
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
    /// The trace; empty unless it was asked for.
    pub trace: Vec<String>,
}

impl Outcome {
    /// One line that says what was broken and how to see it again; `None` if nothing was.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let (first, seed) = (self.violations.first()?, self.seed);
        let replay = format!("holdfast-lab simulate --group spread --seed {seed} --trace");
        Some(format!("seed {seed}: {first}; replay: {replay}"))
    }
}

/// Runs a plan; `traced` keeps a readable account of it.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
