//! Servers with several threads: memcached with one worker and with four, and
//! Python's HTTP server, which has a thread for each connection. Every byte of
//! every client is checked.

use crate::world;
use std::time::Duration;

#[test]
fn memcached_with_one_worker_survives() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault kill9 --workload memcached --server memcached-1",
            "--fault kill9-all --workload memcached-shared --server memcached-1 --connections 8",
        ],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn memcached_with_four_workers_survives() {
    let _limit = world::limit(Duration::from_secs(300));
    world::all_survive(
        &[
            "--fault kill9 --workload memcached-shared --server memcached-4 --connections 8",
            "--fault kill9-all --workload memcached --server memcached-4 --connections 8",
            "--fault kill9 --fence-before-ms 30 --workload memcached-shared --server memcached-4",
        ],
        1,
    );
}

#[test]
fn a_thread_for_each_connection_survives() {
    let _limit = world::limit(Duration::from_secs(300));
    world::all_survive(
        &[
            "--fault kill9 --workload http-download --connections 2 --server python",
            "--fault kill9-all --workload http-keepalive --server python",
            "--fault kill9 --workload http-close --server python --ipv6",
        ],
        1,
    );
}
