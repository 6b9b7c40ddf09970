//! A whole cluster in virtual time: clients, an edge, a primary and a backup,
//! with the real machines of `holdfast-replica`, `holdfast-cluster` and
//! `holdfast-member`, broken by faults that a seed draws: the simulator is a host of
//! the daemons' machines, and has no order of its own. Checkers that know nothing of
//! the machines watch the packets and the executions.
//!
//! [`simulate`] runs one seed. The same seed always gives the same run.
#![forbid(unsafe_code)]

mod app;
mod beyond;
mod check;
mod client;
mod clock;
mod edge;
mod faults;
mod gate;
mod host;
mod hosting;
mod image;
mod kernel;
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
pub use gate::Counts;
pub use holdfast_chance::Rng;
pub use plan::{
    ClientPlan, ColdPlan, DiskPlan, Fault, How, JoinPlan, Limits, Manners, Mutation, Path, Plan,
    Rebuild, Stage, Step, Trick, Ways, When,
};
pub use sweep::{Case, Uneven};

/// Virtual time and durations, in nanoseconds.
pub type Ns = u64;

/// A duration of the daemons in virtual time.
const fn ns(duration: std::time::Duration) -> Ns {
    duration.as_nanos() as Ns
}

/// How far a run got, and how often it met what is rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Records of the first primary's log.
    pub records: u64,
    /// Messages between the members.
    pub messages: u64,
    /// Reads of the server for which the tap had lost something.
    pub repairs: u64,
    pub gates: Counts,
    /// Packets of clients with bad manners.
    pub hostile: u64,
    /// Answers of such clients to probes.
    pub lies_at_probe: u64,
    /// Segments that the edge copied to nobody, because no kernel could take
    /// them.
    pub implausible: u64,
    /// SYN-ACKs that found no room in the edge's table.
    pub edge_refused: u64,
    /// SYNs that found the listener's queue full.
    pub syns_dropped: u64,
    /// Handshakes that made room for others.
    pub handshakes_ended: u64,
    /// Connections, or segments, for which a member's machine had no room.
    pub refused_full: u64,
    /// Copies that found no room in the tap.
    pub tap_lost: u64,
    /// SYNs that the edge resent.
    pub syns_resent: u64,
    /// Clients that found no room until the end.
    pub shut_out: u64,
    /// Images that were taken, and members that have joined.
    pub images: u64,
    pub joins: u64,
    /// Connections that joiners lacked when they were in step.
    pub left_out: u64,
    /// Servers that a daemon has taken over.
    pub taken_up: u64,
    /// Times that all was kept of a server that spoke alone, that such a server was rebuilt, and
    /// that it was not, or fell again where it had fallen.
    pub kept: u64,
    pub rebuilt: u64,
    pub not_rebuilt: u64,
    /// New images of cold backups.
    pub renewals: u64,
    /// Takeovers of cold backups that found what they had kept damaged.
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
    /// Number of events, and the virtual time that they took.
    pub events: u64,
    pub virtual_ns: Ns,
    /// Replies that clients checked.
    pub replies: u64,
    pub takeovers: u64,
    /// Bytes, including FINs, that the backup got from the primary's kernel.
    pub unread: u64,
    /// Whether both members had lost what the clients were told: the service
    /// then stopped, as it must.
    pub service_ended: bool,
    pub violations: Vec<Violation>,
    /// The trace; empty unless it was asked for.
    pub trace: Vec<String>,
}

/// Lines of a trace that are shown with a failure.
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
