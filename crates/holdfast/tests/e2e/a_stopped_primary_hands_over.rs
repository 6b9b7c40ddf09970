//! SIGTERM of a protected primary is a planned switchover: its connections go on at the other
//! member, both report why, and a plain server may use the host again. SIGHUP ends nothing.

use crate::world;
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use std::time::Duration;

/// Time between two heartbeats in ms, so long that a busy machine causes no takeover.
const HEARTBEAT_MS: u64 = 300;

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() }
}

fn with_redis_mut(work: impl FnOnce(&holdfast_lab::testbed::Testbed, &mut Group<'_>)) {
    use holdfast_lab::testbed::{Plan, server::Program};
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), work);
}

#[test]
fn no_client_notices_and_everybody_knows_why() {
    let _limit = world::limit(Duration::from_secs(60));
    with_redis_mut(|testbed, group| {
        // A Ctrl-C at the daemon's terminal does not reach the server, which has its own process
        // group.
        let server = group.server_pid(Role::Primary).expect("a server");
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).expect("it runs");
        let pgrp = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2));
        assert_eq!(pgrp, Some(server.to_string().as_str()), "{stat}");
        let load = world::start(testbed, &world::counting(1000, 0, None));
        std::thread::sleep(Duration::from_millis(300));
        group.stop_daemon(Role::Primary, Signal::TERM).expect("it ends");
        world::finish(load, group);
        let status = group.status(Role::Backup).expect("the survivor answers");
        assert_eq!(status["last_takeover"]["cause"], "the primary was stopped", "{status}");
        let promoted = group.events(Role::Backup).into_iter().any(|(_, what)| what == "promote");
        assert!(promoted, "an event tells of it");
        let log = testbed.host(Role::Primary).outside().join("daemon.log");
        let log = std::fs::read_to_string(log).expect("its log");
        assert!(log.contains("handing over") && log.contains("handed over"), "{log}");
        let survivor = testbed.host(Role::Backup).outside().join("daemon.log");
        let survivor = std::fs::read_to_string(survivor).expect("its log");
        assert!(survivor.contains(" WARN state: primary, UNPROTECTED"), "{survivor}");
        assert!(survivor.contains(" INFO state: backup, protected\n"), "no reason: {survivor}");
        assert!(!survivor.contains("the primary's server died"), "it was stopped: {survivor}");
        let look =
            "ip addr show dev p0; tc filter show dev p0 egress; tc filter show dev p0 ingress";
        let left = testbed.host(Role::Primary).command("sh").args(["-c", look]).output();
        let left = String::from_utf8_lossy(&left.expect("sh starts").stdout).into_owned();
        assert!(!left.contains("10.9.0.100") && !left.contains("bpf"), "{left}");
        // The daemon comes back as a member whose server cannot be joined yet.
        group.start_daemon(Role::Primary).expect("it starts again");
        world::finish(world::start(testbed, &world::counting(300, 0, None)), group);
    });
}

#[test]
fn a_hang_up_ends_no_daemon() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&options(), |testbed, group| {
        let hosts = [Role::Edge, Role::Primary, Role::Backup];
        let before = hosts.map(|role| group.daemon_pid(role).expect("a daemon"));
        let load = world::start(testbed, &world::counting(500, 0, None));
        for role in hosts {
            group.signal_daemon(role, Signal::HUP).expect("a daemon");
            group.signal_daemon(role, Signal::HUP).expect("a daemon");
        }
        world::finish(load, group);
        assert_eq!(hosts.map(|role| group.daemon_pid(role).expect("a daemon")), before);
        group.ensure_protected().expect("nobody took over");
        let log = group.log_tails();
        assert!(log.matches("reload: nothing has changed").count() >= hosts.len(), "{log}");
    });
}
