//! Subscribers: some get messages all the time, and some send and get nothing during the whole
//! outage and are asked only at the very end.

use crate::world;
use std::time::Duration;

#[test]
fn redis_subscribers_hear_every_message_once() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &["--fault kill9 --workload pubsub", "--fault link-cut --workload pubsub --ipv6"],
        1,
    );
}

#[test]
fn mosquitto_delivers_every_message_once_and_in_order() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &["--fault kill9 --workload mqtt", "--fault kill9-all --workload mqtt --ipv6"],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn idle_connections_are_still_there() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &["--fault kill9 --workload idle", "--fault kill9-all --workload idle-subscriber --ipv6"],
        1,
    );
}
