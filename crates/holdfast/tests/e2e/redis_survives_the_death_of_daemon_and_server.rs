//! The primary's daemon and its server die at the same moment: what the primary had in memory is
//! gone, and only missing heartbeats reveal it.

use crate::redis_files::redis_cli;
use crate::world;
use holdfast_lab::testbed::Role;
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

/// jemalloc's report names addresses and times that no two processes have alike.
#[test]
fn any_client_may_ask_for_a_report_of_the_memory() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        for _ in 0..20 {
            let report = redis_cli(testbed, &["memory", "malloc-stats"]);
            assert!(report.contains("jemalloc") && report.len() > 10_000, "{report}");
        }
        let load = world::counting(1200, 500, None);
        let load = world::start(testbed, &load);
        std::thread::sleep(Duration::from_millis(600));
        let status = group.status(Role::Backup).expect("the backup answers");
        assert_eq!(status["state"], "protected", "{status}");
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        world::finish(load, group);
        world::speaks(group, Role::Backup);
        let report = redis_cli(testbed, &["memory", "malloc-stats"]);
        assert!(report.contains("jemalloc"), "its survivor tells, too: {report}");
    });
}
