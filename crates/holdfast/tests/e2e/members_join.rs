//! A group heals: a member that is started again joins the server that has run on, and
//! takes it over with all its connections when the other one dies.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

/// Long enough that a busy machine makes no takeovers of its own.
const HEARTBEAT_MS: u64 = 300;
/// A request waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each member joins, and is the primary of the other one, more than once.
const FAILOVERS: usize = 4;

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() }
}

/// A connection that has left something in the server.
fn connect(testbed: &Testbed) -> Redis {
    on_client(testbed, || {
        let redis = Redis::try_connect(service(Program::Redis.port()), PATIENCE);
        let mut redis = redis.expect("a connection");
        redis.give_up_after(PATIENCE);
        assert_eq!(redis.ask(&[b"SET", b"kept", b"0"]), "+OK");
        redis
    })
}

fn other(role: Role) -> Role {
    if role == Role::Primary { Role::Backup } else { Role::Primary }
}

/// Daemon and server of a member die.
fn kill(group: &mut Group<'_>, role: Role) {
    let server = group.server_pid(role).expect("a server");
    group.stop_daemon(role, Signal::KILL).expect("a daemon");
    // It may have died with its daemon.
    let _ = std::process::Command::new("kill").args(["-9", &server.to_string()]).output();
}

#[test]
fn a_backup_that_died_joins_again_and_takes_over() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let mut old = connect(testbed);
        let primary = group.primary().expect("a primary");
        let backup = other(primary);
        kill(group, backup);
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "served alone");
        group.start_daemon(backup).expect("a daemon");
        group
            .wait_protected()
            .map_err(|e| format!("{e:#}\n{}", group.log_tails()))
            .expect("it joins");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":2");
        kill(group, primary);
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":3", "a connection from before the join");
        world::finish(world::start(testbed, &world::counting(200, 0, None)), group);
    });
}

#[test]
fn a_chain_of_failovers_keeps_every_connection() {
    let _limit = world::limit(Duration::from_secs(120));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let mut old = connect(testbed);
        let load = world::start(testbed, &world::counting(20_000, 0, None));
        for failover in 1..=FAILOVERS {
            let primary = group.primary().expect("a primary");
            kill(group, primary);
            let is = old.ask(&[b"INCR", b"kept"]);
            assert_eq!(is, format!(":{failover}"), "failover {failover}: the first connection");
            group.start_daemon(primary).expect("a daemon");
            group
                .wait_protected()
                .map_err(|e| format!("{e:#}\n{}", group.log_tails()))
                .expect("it joins");
        }
        world::finish(load, group);
    });
}
