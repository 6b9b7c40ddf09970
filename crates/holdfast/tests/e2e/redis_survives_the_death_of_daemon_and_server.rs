//! The primary's daemon and its server die at the same moment: what the primary had in memory is
//! gone, and only missing heartbeats reveal it.

use crate::world;
use std::time::Duration;

#[test]
fn redis_survives_the_death_of_daemon_and_server() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault kill9-all --workload incr",
            "--fault kill9-all --workload shared --connections 8",
            "--fault kill9-all --workload upload --ipv6",
            "--fault kill9-all --workload pubsub",
        ],
        1,
    );
}
