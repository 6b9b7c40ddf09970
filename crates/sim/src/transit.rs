//! A transit group in virtual time: senders and receivers, two edges and the strings
//! between them, with the machines of `holdfast-member` and `holdfast-edge` over a data
//! path of maps, broken by faults that a seed draws. The simulator is the machines'
//! host, and has no order of its own: which strings are used, when packets are kept and
//! go out again, how long acknowledgements are held and which window everybody has is
//! theirs to say.

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

/// How often a run met what is rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub connections: u64,
    pub bytes: u64,
    /// Number of senders' timers that expired.
    pub timeouts: u64,
    pub declared: u64,
    pub moved: u64,
    /// How often packets were resent, and how many.
    pub resends: u64,
    pub resent: u64,
    /// Acknowledgements that were held and went on, and those that died with a daemon.
    pub released: u64,
    pub dropped: u64,
    pub capped: u64,
    pub queue_drops: u64,
    /// Number of heartbeats that were not believed.
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
    /// Acknowledged bytes of each sender.
    pub acked: Vec<u64>,
    pub violations: Vec<Violation>,
    /// The trace; empty unless it was asked for.
    pub trace: Vec<String>,
}

impl Outcome {
    /// One line that says what was broken and how to see it again; `None` if nothing was.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let (first, seed) = (self.violations.first()?, self.seed);
        let replay = format!("holdfast-lab simulate --group transit --seed {seed} --trace");
        Some(format!("seed {seed}: {first}; replay: {replay}"))
    }
}

/// Runs a plan; `traced` keeps a readable account of it.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
