//! What the tests of transit groups share: two edges, strings, and a server that knows nothing of
//! them.

use crate::world;
use holdfast_lab::load::{Report, Run, Spec};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::strings::{Edge, StringPlan, Strings, StringsPlan};
use serde_json::Value;
use std::time::Duration;

/// Builds a testbed by `plan`, with a redis-server on the far side for counting clients.
pub fn with_strings(plan: &StringsPlan, work: impl FnOnce(&mut Strings)) {
    world::binary();
    let mut strings = Strings::build(plan).expect("the testbed stands");
    let recipe = Recipe::prepare(Program::Redis, strings.server(), 0).expect("a directory");
    let _server = recipe.start_plain(strings.server()).expect("the server listens");
    strings.start_daemons().expect("the edges hear each other");
    work(&mut strings);
}

/// A plan with strings of these capacities in Mbit/s, and more settings of the group.
pub fn plan(capacities: &[u64], group: &str) -> StringsPlan {
    let string =
        |mbit: &u64| StringPlan { bits_per_second: mbit * 1_000_000, ..StringPlan::default() };
    StringsPlan {
        strings: capacities.iter().map(string).collect(),
        group: group.to_owned(),
        ..StringsPlan::default()
    }
}

/// Starts a load of counting clients for `duration_ms`.
pub fn counting(strings: &Strings, duration_ms: u64) -> Run {
    start(strings, &world::counting(duration_ms, 0, None))
}

/// Starts a load on the client's host.
pub fn start(strings: &Strings, spec: &Spec) -> Run {
    Run::start(strings.client(), spec).expect("the load starts")
}

/// Waits for a load, and checks that every reply was right.
///
/// # Panics
/// When a reply was wrong or did not come.
pub fn finish(strings: &Strings, run: Run) -> Report {
    let report = run.finish().unwrap_or_else(|error| panic!("{error:#}\n{}", strings.log_tails()));
    let errors: Vec<&String> =
        report.connections.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(report.all_survived(), "{errors:?} {:?}\n{}", report.shared_error, strings.log_tails());
    assert!(report.total(|it| it.replies) > 0);
    report
}

/// Waits until an edge reports that a string is in this state.
pub fn wait_for_state(strings: &Strings, edge: Edge, string: usize, state: &str) {
    world::wait_until(&format!("{state} at {}", edge.name()), || {
        member(strings, edge, string)["state"] == state
    });
}

/// What an edge shows of a string.
pub fn member(strings: &Strings, edge: Edge, string: usize) -> Value {
    strings.show(edge).expect("the edge answers")["members"][string].clone()
}

/// One of an edge's counters.
pub fn count(strings: &Strings, edge: Edge, name: &str) -> u64 {
    strings.counter(edge, name).expect("the edge answers")
}

/// The kinds of an edge's events, in order.
pub fn events(strings: &Strings, edge: Edge) -> Vec<String> {
    let events = strings.events(edge).expect("the edge answers");
    events.iter().filter_map(|event| Some(event["what"].as_str()?.to_owned())).collect()
}

/// Sleeps for `ms`.
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
