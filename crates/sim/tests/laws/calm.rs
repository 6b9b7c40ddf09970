//! What tests of one behaviour of a pair begin with.

use holdfast_sim::{DiskPlan, JoinPlan, Limits, Outcome, Path, Plan, simulate, trace_tail};

pub const MS: u64 = 1_000_000;

/// Clients that go on for so long, of whom none is away, and nothing that breaks.
pub fn calm(seed: u64, load_ms: u64) -> Plan {
    let plan = Plan::draw(seed);
    let mut clients = plan.clients.clone();
    for client in &mut clients {
        (client.looks_away, client.vanishes_at, client.vanishes_in) = (None, None, None);
    }
    Plan {
        clients,
        faults: Vec::new(),
        cold: None,
        unattached: false,
        load_until: load_ms * MS,
        disk: DiskPlan::default(),
        joins: JoinPlan { image_bytes: 10_000 << (seed % 8), ..JoinPlan::SMOOTH },
        path: Path { delay: plan.path.delay.min(5 * MS), ..plan.path },
        limits: Limits::WIDE,
        ..plan
    }
}

/// # Panics
/// If a law is broken.
pub fn run(plan: &Plan) -> Outcome {
    let outcome = simulate(plan.clone(), false);
    if let Some(first) = outcome.violations.first() {
        panic!("{}\n{plan}\n{first}", trace_tail(plan.clone()));
    }
    outcome
}
