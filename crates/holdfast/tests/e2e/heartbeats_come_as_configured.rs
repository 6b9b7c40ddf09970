//! `heartbeat_ms` determines how long a cut link goes unnoticed.

use crate::world;
use holdfast_lab::takeover::{FaultKind, fault_steps};
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::ours::GroupOptions;
use std::time::Duration;

/// Most cuts for each setting.
const TRIES: usize = 3;

#[test]
fn heartbeats_come_as_configured() {
    let _limit = world::limit(Duration::from_secs(120));
    // Three heartbeats are missed, the first of which may have been sent just before the cut.
    for (heartbeat_ms, earliest_ms, latest_ms) in [(20, 35, 150), (100, 180, 600)] {
        // A machine that stands still meanwhile is only ever later.
        let mut seen = Vec::new();
        while seen.len() < TRIES && seen.last().is_none_or(|last| *last >= latest_ms) {
            seen.push(noticed_after_ms(heartbeat_ms));
        }
        let told = format!("heartbeat_ms = {heartbeat_ms}: noticed after {seen:?} ms");
        assert!(seen.iter().all(|it| *it >= earliest_ms), "{told}");
        assert!(seen.iter().any(|it| *it < latest_ms), "{told}");
    }
}

/// Time after which the pair notices a cut link.
fn noticed_after_ms(heartbeat_ms: u64) -> u64 {
    let options = GroupOptions { heartbeat_ms: Some(heartbeat_ms), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let cut = fault_steps(FaultKind::LinkCut, testbed, group, 0).expect("a link");
        world::finish(world::start(testbed, &world::counting(1500, 300, Some(cut))), group);
        let status = group.status(Role::Backup).expect("the survivor answers");
        let takeover = &status["last_takeover"];
        // Edge and backup miss the same heartbeats; either may notice first.
        let causes = ["the primary is silent", "the edge does not hear the primary"];
        assert!(causes.iter().any(|cause| takeover["cause"] == *cause), "{status}");
        takeover["phases_us"]["detect"].as_u64().expect("a number") / 1000
    })
}
