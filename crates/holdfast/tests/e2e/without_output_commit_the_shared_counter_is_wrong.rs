//! The control experiment: with output commit switched off (`buffering = "immediate"`), replies
//! leave of which the backup knows nothing. The load must notice that, or the other tests prove
//! nothing. It needs state that clients share and a log that is slower than the clients' path: a
//! plain kill -9 would hide the fault.

use crate::world;
use holdfast_lab::takeover::failure;
use std::time::Duration;

/// Takeovers of which one is noticed at least; about every second one is.
const TRIES: u64 = 12;
const WORDS: &str = "--fault kill9-all --workload shared --connections 8 --slow-log 20ms";

/// A client that was told something unknown to the backup loses its connection; the service goes on
/// all the same.
#[test]
fn without_output_commit_the_shared_counter_is_wrong() {
    let _limit = world::limit(Duration::from_secs(240));
    let words = format!("{WORDS} --buffering immediate");
    let first = world::first_seed();
    let wrong = (first..first + TRIES).any(|seed| {
        let outcome = world::outcome(&words, seed).expect("the group runs without commit too");
        assert!(outcome.takeover.is_some(), "nobody took over: {:?}", outcome.wrong_end);
        assert_eq!(outcome.wrong_end, None);
        failure(&outcome).is_some()
    });
    assert!(wrong, "{TRIES} takeovers without output commit, and nobody noticed: {words}");
}

#[test]
fn with_output_commit_it_is_right() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(&[WORDS], 3);
}

/// The server's replies depend only on what it has read from its clients (FT-TCP's PR).
#[test]
fn where_reads_wait_it_is_right_too() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(&[&format!("{WORDS} --buffering pr")], 1);
}
