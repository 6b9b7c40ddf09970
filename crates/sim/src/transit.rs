//! A transit group in virtual time: senders and receivers, two edges, and the strings
//! (chains of middleboxes) between them.
//!
//! It runs the state machines of `holdfast-member` and `holdfast-edge` over a model of the
//! data path, and breaks them with faults that a seed draws. The simulator only hosts the
//! machines. They alone decide which strings are used, when packets are kept and resent,
//! how long acknowledgements are held, and which window each sender gets.

mod check;
mod edge;
mod ends;
mod faults;
pub(crate) mod model;
mod packet;
mod path;
mod plan;
mod world;

pub use plan::{Fault, Limits, Mutation, Plan, SenderPlan, StringPlan, Ways};

use crate::{Ns, Violation};

/// How far a run got, and how often it met rare events. All fields are counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub connections: u64,
    pub bytes: u64,
    /// Retransmission timeouts of senders.
    pub timeouts: u64,
    pub declared: u64,
    pub moved: u64,
    /// Times that a resend began.
    pub resends: u64,
    /// Packets resent.
    pub resent: u64,
    /// Held acknowledgements that were released.
    pub released: u64,
    /// Held acknowledgements that were lost when a daemon died.
    pub dropped: u64,
    pub capped: u64,
    pub queue_drops: u64,
    /// Heartbeats that were rejected.
    pub rejected: u64,
}

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.bytes += other.bytes;
        self.timeouts += other.timeouts;
        self.declared += other.declared;
        self.moved += other.moved;
        self.resends += other.resends;
        self.resent += other.resent;
        self.released += other.released;
        self.dropped += other.dropped;
        self.capped += other.capped;
        self.queue_drops += other.queue_drops;
        self.rejected += other.rejected;
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub events: u64,
    pub virtual_ns: Ns,
    pub reached: Reached,
    /// Number of acknowledged bytes of each sender.
    pub acked: Vec<u64>,
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
        let replay = format!("holdfast-lab simulate --group transit --seed {seed} --trace");
        Some(format!("seed {seed}: {first}; replay: {replay}"))
    }
}

/// Runs a plan; `traced` keeps a readable trace in the outcome.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
