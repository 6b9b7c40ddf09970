//! Bulk data in both directions: the client compares every byte that it gets with a pattern, and
//! asks for length and pieces of what it has stored.

use crate::world;
use std::time::Duration;

#[test]
fn downloads_lose_no_byte() {
    let _limit = world::limit(Duration::from_secs(300));
    world::all_survive(
        &[
            "--fault kill9-all --workload download --ipv6",
            "--fault link-cut --workload http-download --connections 2 --server lighttpd",
        ],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn downloads_whose_server_alone_dies_lose_no_byte() {
    let _limit = world::limit(Duration::from_secs(300));
    world::all_survive(
        &[
            "--fault kill9 --workload download",
            "--fault kill9 --workload http-download --connections 2 --server nginx",
        ],
        1,
    );
}

#[test]
fn uploads_lose_no_byte() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &["--fault kill9 --workload upload", "--fault kill9-all --workload upload --ipv6"],
        1,
    );
}
