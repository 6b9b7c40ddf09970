//! A whole cluster in virtual time: clients, an edge, a primary and a backup.
//!
//! It runs the real state machines of `holdfast-replica`, `holdfast-cluster` and
//! `holdfast-member`, and breaks them with faults that a seed draws. The simulator only
//! hosts the daemons' machines: it makes none of their decisions. Checkers that know
//! nothing of the machines watch the packets and the executions.
//!
//! [`simulate`] runs one seed. The same seed always gives the same run.
#![forbid(unsafe_code)]

mod app;
mod beyond;
mod check;
mod client;
mod clock;
mod direct;
mod edge;
mod faults;
mod gate;
mod host;
mod hosting;
mod image;
mod kernel;
pub mod lease;
mod look;
mod member;
pub mod models;
mod packet;
mod pipe;
mod plan;
mod pulse;
mod queue;
mod server;
pub mod spread;
mod sweep;
mod trace;
pub mod transit;
mod world;

pub use check::Violation;
pub use clock::ClockPlan;
pub use direct::DirectPlan;
pub use gate::Counts;
pub use holdfast_chance::Rng;
pub use plan::{
    ClientPlan, ColdPlan, DiskPlan, Fault, How, JoinPlan, Limits, Manners, Mutation, Path, Plan,
    Rebuild, Stage, Step, Trick, Ways, When,
};
pub use sweep::{Case, Uneven};

/// Virtual time and durations, in nanoseconds.
pub type Ns = u64;

/// Converts a duration into virtual time.
const fn ns(duration: std::time::Duration) -> Ns {
    duration.as_nanos() as Ns
}

/// How far a run got, and how often it met rare events. All fields are counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Records of the first primary's log.
    pub records: u64,
    /// Messages between the members.
    pub messages: u64,
    /// Reads of the server whose bytes the tap had lost, so that the primary sent them.
    pub repairs: u64,
    /// Answers of the backup to the server itself that said something new.
    pub directs: u64,
    pub gates: Counts,
    /// Packets of hostile clients.
    pub hostile: u64,
    /// Answers of hostile clients to probes.
    pub lies_at_probe: u64,
    /// Segments that the edge did not copy, because no kernel would accept them.
    pub implausible: u64,
    /// SYN-ACKs refused because the edge's table was full.
    pub edge_refused: u64,
    /// SYNs dropped because the listener's queue was full.
    pub syns_dropped: u64,
    /// Handshakes that were ended to make room for others.
    pub handshakes_ended: u64,
    /// Connections, or segments, for which a member's machine had no room.
    pub refused_full: u64,
    /// Copies dropped because the tap's socket was full.
    pub tap_lost: u64,
    /// SYNs that the edge resent.
    pub syns_resent: u64,
    /// Clients that were refused at a limit until the end of the run.
    pub shut_out: u64,
    /// Images taken.
    pub images: u64,
    /// Members that have joined.
    pub joins: u64,
    /// Connections that joiners lacked when they came into step.
    pub left_out: u64,
    /// Servers that a daemon has taken over.
    pub taken_up: u64,
    /// Times that a daemon had everything needed to rebuild a server that ran alone.
    pub kept: u64,
    /// Times that rebuilding such a server began.
    pub rebuilt: u64,
    /// Times that it failed, or the server fell again at the same place.
    pub not_rebuilt: u64,
    /// New images of cold backups.
    pub renewals: u64,
    /// Takeovers of cold backups that found their image or log damaged.
    pub unbuilt: u64,
}

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.messages += other.messages;
        self.repairs += other.repairs;
        self.gates += other.gates;
        self.hostile += other.hostile;
        self.lies_at_probe += other.lies_at_probe;
        self.implausible += other.implausible;
        self.edge_refused += other.edge_refused;
        self.syns_dropped += other.syns_dropped;
        self.handshakes_ended += other.handshakes_ended;
        self.refused_full += other.refused_full;
        self.tap_lost += other.tap_lost;
        self.syns_resent += other.syns_resent;
        self.shut_out += other.shut_out;
        self.images += other.images;
        self.joins += other.joins;
        self.left_out += other.left_out;
        self.taken_up += other.taken_up;
        self.kept += other.kept;
        self.rebuilt += other.rebuilt;
        self.not_rebuilt += other.not_rebuilt;
        self.unbuilt += other.unbuilt;
        self.renewals += other.renewals;
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    /// The case of a sweep.
    pub case: Option<Case>,
    pub reached: Reached,
    /// Number of events.
    pub events: u64,
    /// Virtual time at the end.
    pub virtual_ns: Ns,
    /// Number of replies that clients checked.
    pub replies: u64,
    pub takeovers: u64,
    /// Input bytes, and FINs, that the backup got from the primary's kernel.
    pub unread: u64,
    /// Whether neither member had the state that the clients had seen: the service then
    /// stopped, as it must.
    pub service_ended: bool,
    pub violations: Vec<Violation>,
    /// The trace; empty unless the run was traced.
    pub trace: Vec<String>,
}

/// Number of trace lines shown with a failure: about a screen.
const TAIL_LINES: usize = 60;

impl Outcome {
    /// One line with the first violation and the command that reproduces it; `None` without
    /// violations.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let first = self.violations.first()?;
        let (seed, case) = (self.seed, self.case.map(|case| format!(" --case {case}")));
        let case = case.unwrap_or_default();
        let replay = format!("holdfast-lab simulate --seed {seed}{case} --trace");
        Some(format!("seed {seed}{case}: {first}; replay: {replay}"))
    }
}

/// The last lines of a run's trace, to be shown with its failure. Runs the plan again.
#[must_use]
pub fn trace_tail(plan: Plan) -> String {
    let trace = simulate(plan, true).trace;
    trace[trace.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a plan; `traced` keeps a readable trace in the outcome.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
