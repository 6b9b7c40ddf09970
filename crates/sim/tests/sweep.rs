//! A short run is broken right after every record of the primary's log, and after
//! every message between the members, in every way that a sweep knows.

use holdfast_sim::{Case, Outcome, Plan, When, simulate, trace_tail};

/// Runs that are broken after every record.
const BY_RECORD: u64 = 4;
/// Runs that are broken after every message.
const BY_MESSAGE: u64 = 2;

fn run(plan: Plan) -> Outcome {
    let outcome = simulate(plan.clone(), false);
    if let Some(line) = outcome.failure() {
        panic!("{}\n{line}", trace_tail(plan));
    }
    outcome
}

#[test]
fn no_boundary_breaks_a_law() {
    let (mut runs, mut takeovers, mut unread, mut repairs) = (0, 0, 0, 0);
    let from: u64 = std::env::var("XFROM").map_or(0, |t| t.parse().unwrap());
    let count: u64 = std::env::var("XN").map_or(BY_RECORD, |t| t.parse().unwrap());
    for seed in from..from + count {
        let calm = run(Plan::short(seed)).reached;
        assert!(calm.records > 20 && calm.messages > 20, "seed {seed} exercises too little");
        println!("{calm:?}");
        let records = (1..=calm.records).map(When::Record);
        let messages = if seed < BY_MESSAGE { calm.messages } else { 0 };
        let messages = (1..=messages).map(When::Message);
        for case in records.chain(messages).flat_map(Case::all) {
            let outcome = run(Plan::swept(seed, case));
            runs += 1;
            takeovers += outcome.takeovers;
            unread += outcome.unread;
            repairs += outcome.reached.repairs;
        }
    }
    println!(
        "{runs} runs, {takeovers} takeovers, {repairs} repairs, {unread} bytes fetched unread"
    );
    assert!(takeovers * 3 > runs && repairs > runs && unread > runs, "they exercise too little");
}
