//! When clients have ended and time has passed, what is shown is true, and what they
//! took is given back.

use holdfast_sim::{DiskPlan, Fault, Plan, When, simulate, trace_tail};

const MS: u64 = 1_000_000;
/// Time longer than a slot is kept.
const LONG: u64 = 66_000 * MS;
/// Time longer than an edge that was restarted may go unnoticed, and what is shown
/// then may be behind.
const SHORT: u64 = 4_000 * MS;

/// Runs `plan`; a failure shows everything needed to run it again.
fn run(plan: Plan) {
    let why = simulate(plan.clone(), false).violations;
    if !why.is_empty() {
        let (seed, rest) = (plan.seed, plan.rest);
        let shown = format!("seed {seed}, rest {rest}, {:?}, {:?}", plan.disk, plan.faults);
        panic!("{}\n{shown}: {why:?}", trace_tail(plan));
    }
}

#[test]
fn everything_is_given_back() {
    for seed in 0..100 {
        run(Plan { rest: LONG, ..Plan::draw(seed) });
    }
}

#[test]
fn everything_is_given_back_though_nothing_breaks() {
    // A tuple's next life may begin while an ACK of the one before is owed.
    for seed in 0..60 {
        run(Plan { rest: LONG, faults: Vec::new(), ..Plan::draw(seed) });
    }
}

/// Nobody tells the server that a tuple's earlier lives have ended, and it may go on
/// for weeks.
#[test]
fn a_server_that_speaks_alone_gives_everything_back() {
    for seed in 0..40 {
        let faults = vec![(When::At(150 * MS), Fault::HostDies { member: 1 })];
        let mut plan = Plan { rest: LONG, faults, ..Plan::draw(seed) };
        plan.clients.iter_mut().for_each(|client| client.reuse_port = true);
        run(plan);
    }
}

#[test]
fn what_is_shown_is_true() {
    for seed in 0..200 {
        run(Plan { rest: SHORT, ..Plan::draw(seed) });
    }
}

#[test]
fn what_is_shown_is_true_after_the_edge_was_started_with_an_older_disk() {
    // A backup's report about an epoch that the edge no longer knows means nothing.
    for seed in 0..60 {
        let disk = DiskPlan { fails_permille: 0, rolls_back: true };
        let faults = vec![(When::At(400 * MS), Fault::EdgeHost { lasts: 20 * MS })];
        run(Plan { rest: SHORT, disk, faults, ..Plan::draw(seed) });
    }
}
