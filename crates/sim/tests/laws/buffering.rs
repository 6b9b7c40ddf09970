//! FT-TCP's buffering modes (docs/REPLICATION.md, 31) give up laws, each its own and no
//! other: whoever speaks, whatever windows were promised and every limit stay as they are.

use holdfast_sim::{Plan, simulate};
use holdfast_wire::buffering::Buffering;
use std::collections::BTreeSet;

/// Beyond the seeds of other tests.
const SEEDS: std::ops::Range<u64> = 300_000..300_120;

/// The laws that any run breaks, faults and all, and how many takeovers there were.
fn broken(buffering: Buffering) -> (BTreeSet<&'static str>, u64) {
    let (mut laws, mut takeovers) = (BTreeSet::new(), 0);
    for seed in SEEDS {
        let outcome = simulate(Plan { buffering, ..Plan::draw(seed) }, false);
        laws.extend(outcome.violations.iter().map(|violation| violation.law));
        takeovers += outcome.takeovers;
    }
    (laws, takeovers)
}

/// What is broken lies between what must be seen and what may be.
fn gives_up(buffering: Buffering, must: &[&'static str], may: &[&'static str]) {
    let (laws, takeovers) = broken(buffering);
    assert!(takeovers > 10, "{buffering:?}: {takeovers} takeovers");
    assert!(must.iter().all(|law| laws.contains(law)), "{buffering:?}: {laws:?}");
    let allowed = |law: &&&str| must.contains(law) || may.contains(law);
    let others: Vec<_> = laws.iter().filter(|law| !allowed(law)).collect();
    assert!(others.is_empty(), "{buffering:?}: {others:?}");
}

#[test]
fn output_commit_gives_up_nothing() {
    gives_up(Buffering::Commit, &[], &[]);
}

/// The simulated servers have one thread, and no locks.
#[test]
fn prs_gives_up_nothing_where_threads_do_not_race_for_locks() {
    gives_up(Buffering::Prs, &[], &[]);
}

#[test]
fn pr_gives_up_output_that_depends_on_more_than_reads() {
    gives_up(Buffering::Pr, &["L2"], &["L5", "one client"]);
}

#[test]
fn immediate_gives_up_acknowledgements_too() {
    gives_up(Buffering::Immediate, &["L1", "L2"], &["L5", "one client", "liveness"]);
}
