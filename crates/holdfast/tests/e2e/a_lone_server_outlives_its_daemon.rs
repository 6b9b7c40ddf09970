//! Once a server speaks alone, no death of ours touches it: its daemon may be
//! killed and started again, and clients see nothing of it. A server that is idle
//! learns it too.

use crate::{client, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() }
}

/// Kills the daemon of the member that serves alone, and asks its server on.
fn survives(testbed: &Testbed, group: &mut Group<'_>, alone: Role, fault: impl FnOnce() + Send) {
    client::on_client(testbed, || {
        let mut redis = client::Redis::connect(client::service(Program::Redis.port()));
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":1");
        fault();
        world::wait_until("a member alone", || {
            let status = group.status(alone).unwrap_or_default();
            status["role"] == "primary" && status["state"] == "unprotected"
        });
        // Nobody has asked it anything since.
        std::thread::sleep(Duration::from_secs(1));
        let server = group.server_pid(alone).expect("a server");
        for life in 0..3 {
            group.stop_daemon(alone, Signal::KILL).expect("its end");
            assert!(!world::has_ended(server));
            for n in 2..20 {
                assert_eq!(redis.ask(&[b"INCR", b"n"]), format!(":{}", 18 * life + n));
            }
            client::Redis::connect(client::service(Program::Redis.port()));
            group.start_daemon(alone).expect("another");
            world::wait_until("the next daemon", || {
                let status = group.status(alone).unwrap_or_default();
                let says = status["reason"].as_str().unwrap_or_default();
                status["state"] == "unprotected"
                    && says.contains("outlived")
                    && status["connections"].as_u64() >= Some(1)
            });
        }
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":56");
        // Who stops it means it.
        group.stop_daemon(alone, Signal::TERM).expect("its end");
        assert!(world::has_ended(server));
    });
}

#[test]
fn a_primary_without_backup() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let backup = group.daemon_pid(Role::Backup).expect("a daemon");
        survives(testbed, group, Role::Primary, || world::signal(backup, "KILL"));
    });
}

#[test]
fn a_survivor_of_a_takeover() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        survives(testbed, group, Role::Backup, || world::signal(server, "KILL"));
    });
}

#[test]
fn a_protected_server_dies_with_its_daemon() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&options(), |_, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(group.daemon_pid(Role::Primary).expect("a daemon"), "KILL");
        world::wait_until("the server's end", || world::has_ended(server));
    });
}
