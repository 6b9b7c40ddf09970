//! One connection with one outstanding request, and nothing else that would wake anybody: in this
//! case a lost packet is noticed last.

use crate::world;
use std::time::Duration;

#[test]
fn a_lone_request_survives_kill_9_of_the_server() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault kill9 --workload pingpong --connections 1",
            "--fault kill9 --workload pingpong --connections 1 --ipv6",
            "--fault kill9 --workload pingpong --connections 1 --fence-before-ms 30",
        ],
        1,
    );
}
