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
mod look;
mod member;
mod packet;
mod pipe;
mod plan;
mod queue;
mod server;
mod sweep;
mod trace;
mod world;

pub use check::Violation;
pub use holdfast_chance::Rng;
pub use plan::{ClientPlan, DiskPlan, Fault, Mutation, Path, Plan, Ways, When};
pub use sweep::{Case, Uneven};

/// Virtual time and durations, in nanoseconds.
pub type Ns = u64;

/// A duration of the daemons in virtual time.
const fn ns(duration: std::time::Duration) -> Ns {
    duration.as_nanos() as Ns
}

/// Where a run got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Records of the first primary's log.
    pub records: u64,
    /// Messages between the members.
    pub messages: u64,
    /// Reads of the server of which the tap had lost something.
    pub repairs: u64,
}

/// What a run led to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    /// The case, of a sweep.
    pub case: Option<Case>,
    pub reached: Reached,
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
        let (seed, case) = (self.seed, self.case.map(|case| format!(" --case {case}")));
        let case = case.unwrap_or_default();
        let replay = format!("holdfast-lab simulate --seed {seed}{case} --trace");
        Some(format!("seed {seed}{case}: {first}; replay: {replay}"))
    }
}

/// The end of a run's trace, for a reader who has just been told of a failure.
#[must_use]
pub fn trace_tail(plan: Plan) -> String {
    let trace = simulate(plan, true).trace;
    trace[trace.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a plan; `traced` keeps a readable account of it.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
