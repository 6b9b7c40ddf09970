//! A server without a shim, or whose shim breaks: the pair is at its end, and the
//! clients are served.

use holdfast_sim::{Fault, Plan, When, simulate};

const MS: u64 = 1_000_000;
/// Seeds of each case.
const SEEDS: u64 = 30;

fn all_are_served(change: impl Fn(&mut Plan)) {
    let mut replies = 0;
    for seed in 0..SEEDS {
        let mut plan = Plan::draw(seed);
        plan.faults.clear();
        change(&mut plan);
        let outcome = simulate(plan, false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        replies += outcome.replies;
    }
    assert!(replies > SEEDS, "nobody is answered");
}

#[test]
fn a_server_to_which_no_shim_attaches_goes_on_alone() {
    all_are_served(|plan| plan.unattached = true);
}

#[test]
fn a_server_whose_shim_breaks_goes_on_alone_or_is_taken_over() {
    all_are_served(|plan| {
        plan.faults = vec![(When::At(300 * MS), Fault::ShimBreaks { member: 0 })];
    });
}
