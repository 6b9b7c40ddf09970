//! Responses that end with their connection, with faults at all times between the server's last
//! write and the last ACK: a client must get every byte and then the end, and never a reset.

use crate::world;
use std::time::Duration;

#[test]
fn responses_that_end_with_the_connection_are_whole() {
    let _limit = world::limit(Duration::from_secs(300));
    world::all_survive(
        &[
            "--fault kill9 --workload http-close --server nginx --connections 8",
            "--fault kill9 --workload http-close --server lighttpd --connections 8",
            "--fault link-cut --workload http-close --server nginx --connections 8 --ipv6",
        ],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn connections_that_come_and_go_are_served() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault kill9 --workload churn --connections 8",
            "--fault kill9-all --workload churn --connections 8 --ipv6",
        ],
        1,
    );
}
