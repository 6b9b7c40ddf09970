//! Once a server speaks alone, the death of a daemon does not touch it: its daemon may be killed
//! and started again, and clients notice nothing. An idle server learns that it is alone, too.

use crate::{client, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_wire::segment::Mode;
use std::time::Duration;

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() }
}

/// Kills the daemon of the member that serves alone, and checks that its server goes on answering.
fn survives(testbed: &Testbed, group: &mut Group<'_>, alone: Role, fault: impl FnOnce() + Send) {
    client::on_client(testbed, || {
        let mut redis = client::Redis::connect(client::service(Program::Redis.port()));
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":1");
        fault();
        world::wait_until("a member alone", || {
            let status = group.status(alone).unwrap_or_default();
            status["role"] == "primary" && status["state"] == "unprotected"
        });
        // The server has had no request since.
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
                    && (says.contains("outlived") || says.contains("could not join"))
                    && status["connections"].as_u64() >= Some(1)
            });
        }
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":56");
        let load = world::start(testbed, &world::counting(3000, 0, None));
        // The other member joins it, and takes over with the connection that has seen everything.
        if group.status(alone.other()).is_err() {
            group.restart(alone.other()).expect("a daemon");
        }
        if let Err(error) = group.wait_protected() {
            panic!("{error:#}\n{}", group.log_tails());
        }
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":57");
        world::signal(server, "KILL");
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":58", "{}", group.log_tails());
        world::finish(load, group);
        if let Err(error) = group.wait_protected() {
            panic!("{error:#}\n{}", group.log_tails());
        }
        world::speaks(group, alone.other());
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
fn a_survivor_of_a_pair_without_an_edge() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { segment: Some(Mode::Flood), heartbeat_ms: Some(100), ..options() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        survives(testbed, group, Role::Backup, || world::signal(server, "KILL"));
    });
}

/// A folder that is full is told while nothing depends on it, and what is advised ends no server.
#[test]
fn a_run_dir_without_room_is_told_and_ends_nobody() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    let host = testbed.host(Role::Primary);
    let on_host = |words: &[&str]| {
        let done = host.command(words[0]).args(&words[1..]).status();
        assert!(done.is_ok_and(|done| done.success()), "{words:?}");
    };
    let run_dir = host.inside().join("run");
    let place = run_dir.to_str().expect("a plain path");
    on_host(&["mkdir", "-p", place]);
    on_host(&["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", place]);
    let mut group = Group::start(&testbed, &recipe, &options()).expect("the group protects");
    let fill = format!("head -c 60000 /dev/zero > {place}/fill; true");
    on_host(&["sh", "-c", &fill]);
    let told = |group: &Group<'_>| {
        let status = group.status(Role::Primary).unwrap_or_default();
        let word = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
        (word("reason"), word("remedy"))
    };
    let says = |group: &Group<'_>| {
        let (reason, remedy) = told(group);
        reason.contains("No space left") && remedy.starts_with("make room")
    };
    world::wait_until("the word of it", || says(&group));
    assert!(told(&group).1.contains("nor say `holdfast down`"), "{:?}", told(&group));

    group.kill_member(Role::Backup).expect("they die");
    world::wait_until("a member alone", || says(&group) && told(&group).0.contains("alone"));
    std::thread::sleep(Duration::from_secs(1));
    let server = group.server_pid(Role::Primary).expect("a server");
    group.stop_daemon(Role::Primary, Signal::KILL).expect("its end");
    on_host(&["rm", &format!("{place}/fill")]);
    group.start_daemon(Role::Primary).expect("another");
    world::wait_until("the next daemon", || told(&group).0.contains("outlived"));
    assert!(!world::has_ended(server), "{}", group.log_tails());
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

/// The daemon dies while another member is joining: the next daemon takes the server up, and the
/// joiner joins it.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_server_that_is_being_joined() {
    // The image takes a second and a half to copy.
    const BYTES: usize = 300 << 20;
    const VALUE: usize = 1 << 20;
    let _limit = world::limit(Duration::from_secs(120));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let mut redis = client::connected(testbed, Duration::from_secs(10));
        let value = vec![b'v'; VALUE];
        for n in 0..BYTES / VALUE {
            let name = n.to_string();
            assert_eq!(redis.ask(&[b"SET", name.as_bytes(), &value]), "+OK");
        }
        let primary = group.wait_primary().expect("a primary");
        group.stop_daemon(primary.other(), Signal::KILL).expect("its end");
        world::wait_until("a server alone", || {
            group.status(primary).is_ok_and(|it| it["state"] == "unprotected")
        });
        for n in 1..=2 {
            group.start_daemon(primary.other()).expect("a daemon");
            world::wait_until("a join that is under way", || {
                let said = group.status(primary).unwrap_or_default();
                said["reason"].as_str().is_some_and(|reason| reason.contains('%'))
            });
            group.stop_daemon(primary, Signal::KILL).expect("its end");
            assert_eq!(redis.ask(&[b"INCR", b"n"]), format!(":{n}"), "nobody serves it");
            group.start_daemon(primary).expect("a daemon");
            if n == 1 {
                // Both daemons of that join are gone.
                group.stop_daemon(primary.other(), Signal::KILL).expect("its end");
            }
        }
        if let Err(error) = group.wait_protected() {
            panic!("{error:#}\n{}", group.log_tails());
        }
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":3");
        if let Err(error) = group.signal_server(primary, Signal::KILL) {
            panic!("{error:#}\n{}", group.log_tails());
        }
        assert_eq!(redis.ask(&[b"INCR", b"n"]), ":4", "{}", group.log_tails());
    });
}
