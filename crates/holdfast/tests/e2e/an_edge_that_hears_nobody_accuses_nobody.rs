//! The edge's own path to both members fails for a moment. The pair stays, the clients are served,
//! and nobody is replaced.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed, addresses};
use std::time::Duration;

/// Time between two heartbeats in ms: the failure lasts five, longer than the silence that is
/// allowed to one member.
const HEARTBEAT_MS: u64 = 60;
const GLITCH: Duration = Duration::from_millis(300);
const GLITCHES: usize = 4;

#[test]
fn an_edge_that_hears_nobody_accuses_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let load = world::start(testbed, &world::counting(3000, 0, None));
        for glitch in 1..=GLITCHES {
            std::thread::sleep(GLITCH);
            deafen(testbed, "add");
            std::thread::sleep(GLITCH);
            deafen(testbed, "del");
            assert_eq!(epoch(group), 1, "replaced in glitch {glitch}: {:?}", events(group));
        }
        world::finish(load, group);
        let status = group.status(Role::Backup).expect("the backup answers");
        assert!(status["last_takeover"].is_null(), "{status}");
        assert_eq!(epoch(group), 1, "replaced after the last glitch: {:?}", events(group));
    });
}

/// Discards what the edge itself sends to the members; packets that it forwards for clients do not
/// use these routes.
fn deafen(testbed: &Testbed, verb: &str) {
    // Both routes change at once: a member that alone does not hear the edge is not reached by
    // clients either.
    let all = [addresses::PRIMARY, addresses::BACKUP];
    let lines = all.map(|member| format!("route {verb} blackhole {member}/32\n")).concat();
    testbed.host(Role::Edge).ip(&lines).expect("two routes");
}

fn epoch(group: &Group<'_>) -> u64 {
    let status = group.status(Role::Edge).expect("the edge answers");
    status["epoch"].as_u64().expect("an epoch")
}

fn events(group: &Group<'_>) -> Vec<(String, String)> {
    group.events(Role::Edge)
}
