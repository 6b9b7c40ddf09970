//! A whole cluster in virtual time: clients, an edge, a primary and a backup,
//! with the real machines of `holdfast-replica`, `holdfast-cluster` and
//! `holdfast-member`, broken by faults that a seed draws: the simulator is a host of
//! the daemons' machines, and has no order of its own. Checkers that know nothing of
//! the machines watch the packets and the executions.
//!
//! [`simulate`] runs one seed. The same seed always gives the same run.
#![forbid(unsafe_code)]

mod app;
mod check;
mod client;
mod edge;
mod faults;
mod gate;
mod host;
mod hosting;
mod kernel;
mod member;
pub mod models;
mod packet;
mod pipe;
mod plan;
mod queue;
mod server;
mod trace;
mod world;

pub use check::Violation;
pub use holdfast_chance::Rng;
pub use plan::{ClientPlan, DiskPlan, Fault, Mutation, Path, Plan, Ways, When};

/// Virtual time and durations, in nanoseconds.
pub type Ns = u64;

/// A duration of the daemons in virtual time.
const fn ns(duration: std::time::Duration) -> Ns {
    duration.as_nanos() as Ns
}

/// What a run led to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    /// Events that happened, and how much virtual time they took.
    pub events: u64,
    pub virtual_ns: Ns,
    /// Replies that clients checked.
    pub replies: u64,
    pub takeovers: u64,
    /// Bytes, FINs among them, that the backup got from the primary's kernel.
    pub unread: u64,
    /// Both members had lost what the clients were told: the service stopped,
    /// as it must.
    pub service_ended: bool,
    pub violations: Vec<Violation>,
    /// Empty unless it was asked for.
    pub trace: Vec<String>,
}

/// Lines of a trace that a failure is shown with.
const TAIL_LINES: usize = 60;

impl Outcome {
    /// One line that says what was broken and how to see it again; `None` if
    /// nothing was.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let first = self.violations.first()?;
        let seed = self.seed;
        Some(format!("seed {seed}: {first}; replay: holdfast-lab simulate --seed {seed} --trace"))
    }
}

/// The end of a seed's trace, for a reader who has just been told of a failure.
#[must_use]
pub fn trace_tail(seed: u64) -> String {
    let trace = simulate(Plan::draw(seed), true).trace;
    trace[trace.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a plan; `traced` keeps a readable account of it.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
