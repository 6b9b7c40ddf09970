//! The control experiment: with output commit switched off, answers leave that
//! the backup knows nothing of. The load must notice, or the other tests prove
//! nothing. It takes state shared between clients and a log that is slower than
//! the clients' path: plain kill -9 hides the fault.

use crate::world;
use holdfast_lab::takeover::failure;
use std::time::Duration;

const WORDS: &str = "--fault kill9-all --workload shared --connections 8 --slow-log 20ms";

#[test]
fn without_output_commit_the_shared_counter_is_wrong() {
    let _limit = world::limit(Duration::from_secs(240));
    let words = format!("{WORDS} --no-commit");
    let first = world::first_seed();
    let wrong = (first..first + 3).any(|seed| {
        let outcome = world::outcome(&words, seed).expect("the group runs without commit too");
        failure(&outcome).is_some()
    });
    assert!(wrong, "three takeovers without output commit, and nobody noticed: {words}");
}

#[test]
fn with_output_commit_it_is_right() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(&[WORDS], 3);
}
