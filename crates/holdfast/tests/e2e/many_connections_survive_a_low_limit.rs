//! Services are started with a limit of 1024 open files. A server that raises its own limit accepts
//! more connections, and a takeover carries all of them over.

use crate::world;
use holdfast_lab::load::{Group as LoadGroup, Workload};
use holdfast_lab::testbed::ours::GroupOptions;
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role};
use std::time::Duration;

/// Number of connections: more than the limit, which the server raises by itself; with
/// `HOLDFAST_MATRIX=full` as many as redis accepts.
fn connections() -> usize {
    if world::is_full() { 9_990 } else { 1500 }
}

#[test]
fn more_connections_than_open_files_were_allowed() {
    let _limit = world::limit(Duration::from_secs(90));
    let connections = connections();
    let options = GroupOptions {
        heartbeat_ms: Some(200),
        open_files_soft: Some(1024),
        ..GroupOptions::default()
    };
    world::with_redis_on(&Plan::default(), &options, |testbed, group| {
        let port = Program::Redis.port();
        let mut load = world::counting(6000, 0, None);
        load.groups = vec![
            LoadGroup::usual(Workload::Incr, 4, port),
            LoadGroup::usual(Workload::Idle, connections, port),
        ];
        let load = world::start(testbed, &load);
        world::wait_until("all connections", || {
            let status = group.status(Role::Primary).unwrap_or_default();
            status["connections"].as_u64().unwrap_or(0) >= connections as u64
        });
        let server = group.server_pid(Role::Primary).expect("a server");
        let limits = std::fs::read_to_string(format!("/proc/{server}/limits")).expect("limits");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
        let soft = line.split_whitespace().nth(3).expect("a number");
        // This is the limit that redis sets for its 10,000 clients.
        assert_eq!(soft, "10032", "{line}");
        world::signal(server, "KILL");
        world::finish(load, group);
        let status = group.status(Role::Backup).expect("the daemon answers");
        assert_eq!(status["role"], "primary", "{status}");
    });
}
