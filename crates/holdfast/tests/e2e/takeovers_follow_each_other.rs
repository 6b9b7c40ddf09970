//! A takeover, the documented repair, and the next takeover: what an earlier life of a member has
//! left in its kernel harms no later one.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

/// Number of takeovers: enough for each member to follow itself twice.
const TAKEOVERS: usize = 5;

/// Time between two heartbeats in ms, so long that a busy machine causes no takeovers.
const HEARTBEAT_MS: u64 = 300;

/// Longest time to connect to a protected redis.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn five_in_a_row_when_servers_are_killed() {
    five_in_a_row(|group, primary| {
        group.signal_server(primary, Signal::KILL).expect("a server");
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn five_in_a_row_when_daemons_are_stopped() {
    five_in_a_row(|group, primary| {
        group.stop_daemon(primary, Signal::TERM).expect("a daemon");
    });
}

#[test]
fn five_in_a_row_when_daemons_and_servers_are_killed() {
    five_in_a_row(|group, primary| {
        let server = group.server_pid(primary).expect("a server");
        group.stop_daemon(primary, Signal::KILL).expect("a daemon");
        // The server may have died with its daemon.
        let _ = std::process::Command::new("kill").args(["-9", &server.to_string()]).output();
    });
}

fn five_in_a_row(end: impl Fn(&mut Group<'_>, Role)) {
    let _limit = world::limit(Duration::from_secs(120));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        for takeover in 1..=TAKEOVERS {
            if takeover > 1 {
                group.repair().expect("both members start and protect again");
            }
            take_over(testbed, group, takeover, &end);
        }
    });
}

/// One takeover under load, after which the survivor serves new clients.
fn take_over(
    testbed: &Testbed,
    group: &mut Group<'_>,
    number: usize,
    end: &impl Fn(&mut Group<'_>, Role),
) {
    let primary = group.wait_primary().expect("a primary");
    let mut old = on_client(testbed, || {
        let redis = Redis::try_connect(service(Program::Redis.port()), PATIENCE);
        let mut redis = redis.expect("a connection before the takeover");
        redis.give_up_after(PATIENCE);
        assert_eq!(redis.ask(&[b"SET", b"kept", b"here"]), "+OK");
        redis
    });
    let load = world::start(testbed, &world::counting(1000, 0, None));
    std::thread::sleep(Duration::from_millis(200));
    end(group, primary);
    world::finish(load, group);
    old.send(&[b"GET", b"kept"]);
    assert_eq!(old.value(), b"here", "takeover {number}: a standing connection");
    world::finish(world::start(testbed, &world::counting(200, 0, None)), group);
    let survivor = group.wait_primary().expect("a survivor");
    assert_ne!(survivor, primary, "takeover {number}: somebody else serves");
    let status = group.status(survivor).expect("the survivor answers");
    assert!(status["last_takeover"].is_object(), "takeover {number}: {status}");
}
