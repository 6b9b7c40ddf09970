//! The primary's link is cut. The primary lives on without answering anybody, and must not be heard
//! again.

use crate::world;
use std::time::Duration;

#[test]
fn connections_survive_a_cut_link() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault link-cut --workload incr",
            "--fault link-cut --workload shared --connections 8",
            "--fault link-cut --workload echo --ipv6",
            "--fault link-cut --workload upload",
        ],
        1,
    );
}
