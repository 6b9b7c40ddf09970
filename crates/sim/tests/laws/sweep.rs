//! A short run is broken right after every record of the primary's log, and after
//! every message between the members, in every way that a sweep knows.

use holdfast_sim::{Case, Outcome, Plan, When, simulate, trace_tail};

/// Runs that are broken after every record.
const BY_RECORD: u64 = 16;
/// Number of seeds among those that are also broken after every message.
const BY_MESSAGE: u64 = 8;

fn run(plan: Plan) -> Outcome {
    let outcome = simulate(plan.clone(), false);
    if let Some(line) = outcome.failure() {
        panic!("{}\n{line}", trace_tail(plan));
    }
    outcome
}

#[test]
fn no_boundary_breaks_a_law() {
    let (mut runs, mut takeovers, mut repairs, mut unread) = (0, 0, 0, 0);
    for seed in 0..BY_RECORD {
        let calm = run(Plan::short(seed));
        assert_eq!(calm.takeovers, 0, "seed {seed}");
        let reached = calm.reached;
        assert!(reached.records > 20 && reached.messages > 20, "seed {seed} exercises too little");
        let messages = if seed < BY_MESSAGE { reached.messages } else { 0 };
        let records = (1..=reached.records).map(When::Record);
        for case in records.chain((1..=messages).map(When::Message)).flat_map(Case::all) {
            let outcome = run(Plan::swept(seed, case));
            runs += 1;
            takeovers += outcome.takeovers;
            repairs += outcome.reached.repairs;
            unread += outcome.unread;
        }
    }
    println!(
        "{runs} runs, {takeovers} takeovers, {repairs} repairs, {unread} bytes fetched unread"
    );
    assert!(takeovers * 3 > runs && repairs * 2 > runs && unread > runs, "too little is exercised");
}
