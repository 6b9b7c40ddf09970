//! Two members, a router that knows nothing of the service, and a witness on a third host: every
//! takeover works as with an edge, and what the witness does not know nobody does.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::switch::THIRD_PORT;
use holdfast_lab::testbed::ours::{Group, GroupOptions, MEMBERS, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, interface};
use holdfast_wire::segment::Mode;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn options() -> GroupOptions {
    GroupOptions { segment: Some(Mode::Flood), ..GroupOptions::default() }
}

fn with_pair(work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), work);
}

#[test]
fn whatever_dies_no_client_notices() {
    let _limit = world::limit(Duration::from_secs(120));
    world::all_survive(
        &[
            "--segment flood --fault kill9 --workload echo",
            "--segment flood --fault kill9 --workload churn --ipv6",
            "--segment flood --fault kill9-all --workload upload",
            "--segment flood --fault kill9-all --workload download --ipv6",
            "--segment flood --fault daemon-kill --workload pubsub",
            "--segment flood --fault backup-kill --workload shared",
            "--segment flood --fault replica-slow --workload pingpong",
        ],
        1,
    );
}

#[test]
fn whatever_is_cut_or_stands_still_one_member_speaks() {
    let _limit = world::limit(Duration::from_secs(120));
    world::all_survive(
        &[
            "--segment flood --fault freeze --workload incr",
            "--segment flood --fault link-cut --workload download",
            "--segment flood --fault service-cut --workload pingpong --ipv6",
            "--segment flood --fault channel-cut --workload echo",
            "--segment flood --fault one-way-cut --workload shared",
            "--segment flood --fault false-alarm --workload upload",
            "--segment flood --fault backup-freeze --workload pingpong",
            "--segment flood --fault backup-cut --workload download --ipv6",
            "--segment flood --fault tap-cut --workload echo",
        ],
        1,
    );
}

/// Each member dies twice, joins, and takes over from the other one.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn it_heals_again_and_again() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        let mut old = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        let load = world::start(testbed, &world::counting(6000, 0, None));
        for round in 1..=2 {
            world::each_dies_and_joins(group);
            assert_eq!(old.ask(&[b"INCR", b"rounds"]), format!(":{round}"));
        }
        world::finish(load, group);
        let primary = group.wait_primary().expect("a primary");
        assert_eq!(group.current().expect("the witness answers"), primary);
    });
}

/// Whoever holds a connection from before hears that nobody knows it, though another member might
/// speak at any time without this one's knowledge.
#[test]
fn clients_of_a_life_that_is_over_are_told_so() {
    let _limit = world::limit(Duration::from_secs(90));
    with_pair(|testbed, group| {
        let mut old = on_client(testbed, || TcpStream::connect(service(Program::Redis.port())));
        let old = old.as_mut().expect("a connection");
        old.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let mut answer = [0; 7];
        old.write_all(b"PING\r\n").and_then(|()| old.read_exact(&mut answer)).expect("an answer");
        for role in MEMBERS {
            group.kill_member(role).expect("they die");
        }
        for role in MEMBERS {
            group.start_daemon(role).expect("a daemon");
        }
        world::heals(group, "a new life");
        let begun = Instant::now();
        let told = old.write_all(b"PING\r\n").and_then(|()| old.read_exact(&mut answer));
        let told = told.map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionReset), "{}", group.log_tails());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        let primary = group.wait_primary().expect("a primary");
        let counted = || world::counter(group, primary, "gate.late_resets") > 0;
        world::wait_until("it to be counted", counted);
    });
}

/// A pair goes on without its witness, and says that nobody could take over; a second fault stops
/// the service until the witness is back.
#[test]
fn without_its_witness_a_pair_goes_on_and_says_so() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        world::keeps_only(group.daemon_pid(Role::Edge).expect("a witness"), &[]);
        group.stop_daemon(Role::Edge, Signal::KILL).expect("the witness ends");
        for role in MEMBERS {
            world::wait_until("the word of it", || {
                let status = group.status(role).unwrap_or_default();
                let says = status["reason"].as_str().unwrap_or_default();
                status["state"] == "unprotected" && says.contains("the witness at 10.9.0.1:7702")
            });
        }
        world::finish(world::start(testbed, &world::counting(1500, 0, None)), group);
        let mut old = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        assert_eq!(old.ask(&[b"SET", b"kept", b"here"]), "+OK");
        group.signal_server(Role::Primary, Signal::KILL).expect("a server");
        std::thread::sleep(Duration::from_secs(1));
        let status = group.status(Role::Backup).expect("it answers");
        assert_eq!(
            (&status["role"], &status["state"]),
            (&"backup".into(), &"waiting".into()),
            "{status}"
        );
        group.start_daemon(Role::Edge).expect("a witness");
        old.send(&[b"GET", b"kept"]);
        assert_eq!(old.value(), b"here", "{}", group.log_tails());
        world::speaks(group, Role::Backup);
    });
}

/// The witness's host is started again with a disk of its own: the members tell it what they know.
#[test]
fn a_witness_that_has_lost_its_disk_learns_from_the_members() {
    let _limit = world::limit(Duration::from_secs(60));
    with_pair(|testbed, group| {
        group.stop_daemon(Role::Edge, Signal::KILL).expect("the witness ends");
        std::fs::remove_dir_all(testbed.disk(Role::Edge).join("witness")).expect("its disk");
        group.start_daemon(Role::Edge).expect("a witness");
        world::heals(group, "the witness knows again");
        let load = world::start(testbed, &world::counting(1000, 0, None));
        group.signal_server(Role::Primary, Signal::KILL).expect("a server");
        world::finish(load, group);
        world::speaks(group, Role::Backup);
    });
}

/// A switchover is planned: nobody waits for a lease.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_switchover_there_and_back() {
    let _limit = world::limit(Duration::from_secs(60));
    with_pair(|testbed, group| {
        let load = world::start(testbed, &world::counting(4000, 0, None));
        for role in MEMBERS {
            let done = group.verb(role, &["switchover"]).expect("the verb runs");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{}: {said}\n{}", role.name(), group.log_tails());
        }
        world::finish(load, group);
        world::speaks(group, Role::Primary);
        world::wait_until("it counts none of the other one's", || {
            group.status(Role::Backup).is_ok_and(|status| status["connections"] == 0)
        });
    });
}

/// Where the switch knows the service's hardware address, only one member sees what clients send, or
/// none: they bring it to each other, and say what is wrong. Who takes over has the switch learn it
/// anew.
#[test]
fn a_switch_that_knows_the_address_is_named_and_done_without() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        assert_eq!(redis.ask(&[b"SET", b"a", b"b"]), "+OK");
        let mac = group.service_mac().expect("an address");
        let (to_primary, to_backup) = (interface::EDGE_PRIMARY, interface::EDGE_BACKUP);
        let counts = [("cloned", Role::Primary), ("handed_on", Role::Backup)];
        for (port, (name, by)) in
            [to_primary, to_backup, THIRD_PORT].into_iter().zip([counts[0], counts[1], counts[0]])
        {
            group.learn(port, false).expect("a port");
            redis.send(&[b"GET", b"a"]);
            assert_eq!(redis.value(), b"b", "{port}: {}", group.log_tails());
            for role in MEMBERS {
                world::wait_until("its word", || {
                    let status = group.status(role).unwrap_or_default();
                    let says = status["reason"].as_str().unwrap_or_default();
                    status["state"] == "unprotected" && says.contains(&mac)
                });
            }
            let status = group.status(by).expect("it answers");
            assert_ne!(status["counters"][format!("speak.{name}")], 0, "{port}: {status}");
            world::speaks(group, Role::Primary);
            group.forget(if port == THIRD_PORT { to_primary } else { port }).expect("a port");
            world::heals(group, "the switch floods again");
        }
        group.learn(to_primary, false).expect("a port");
        world::wait_until("help", || {
            let status = group.status(Role::Primary).unwrap_or_default();
            status["state"] == "unprotected"
        });
        group.signal_server(Role::Primary, Signal::KILL).expect("a server");
        redis.send(&[b"GET", b"a"]);
        assert_eq!(redis.value(), b"b", "{}", group.log_tails());
        world::speaks(group, Role::Backup);
    });
}

/// A witness that could write nothing says so before somebody takes over, and a switchover is
/// refused meanwhile.
#[test]
fn a_witness_that_cannot_write_is_no_witness() {
    let _limit = world::limit(Duration::from_secs(60));
    with_pair(|testbed, group| {
        let folder = testbed.disk(Role::Edge).join("witness");
        let away = folder.with_extension("away");
        std::fs::rename(&folder, &away).expect("a folder");
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            world::wait_until("its word", || {
                let status = group.status(role).unwrap_or_default();
                let says = status["remedy"].as_str().unwrap_or_default();
                status["state"] == "unprotected" && says.contains("the disk of arbiter.state_dir")
            });
        }
        let done = group.verb(Role::Primary, &["switchover"]).expect("the verb runs");
        assert!(!done.status.success());
        world::finish(world::start(testbed, &world::counting(500, 0, None)), group);
        std::fs::rename(&away, &folder).expect("a folder");
        world::heals(group, "it can write again");
    });
}

/// The member that served last is gone for good: what was kept is removed, and a new host in its
/// place begins with the other one.
#[test]
fn a_group_begins_anew_without_what_was_kept() {
    let _limit = world::limit(Duration::from_secs(60));
    with_pair(|testbed, group| {
        group.kill_member(Role::Primary).expect("the member");
        for role in [Role::Backup, Role::Edge] {
            group.stop_daemon(role, Signal::TERM).expect("it ends");
        }
        for role in [Role::Primary, Role::Backup, Role::Edge] {
            std::fs::remove_dir_all(testbed.disk(role).join("witness")).expect("what it kept");
        }
        for role in [Role::Edge, Role::Backup, Role::Primary] {
            group.start_daemon(role).expect("a daemon");
        }
        world::heals(group, "two new members and a new witness");
        world::finish(world::start(testbed, &world::counting(200, 0, None)), group);
    });
}

/// A member that is cut off by its own interface names that, and does not say that it has just heard
/// whom it cannot hear: its channel stays open for seconds.
#[test]
fn who_is_cut_off_by_its_own_interface_says_so() {
    let _limit = world::limit(Duration::from_secs(90));
    with_pair(|testbed, group| {
        let other_end = |state: &str| {
            let line = format!("link set {} {state}\n", interface::EDGE_PRIMARY);
            testbed.host(Role::Edge).ip(&line).expect("the switch's port");
        };
        other_end("down");
        let cut_at = Instant::now();
        let told = || group.status(Role::Primary).unwrap_or_default();
        let no_carrier = format!("{} is down: nobody is at its other end; ", interface::PRIMARY);
        world::wait_until("the reason", || {
            let status = told();
            let begins = |reason: &str| reason.starts_with(&no_carrier);
            status["state"] == "waiting" && status["reason"].as_str().is_some_and(begins)
        });
        let cut_for = cut_at.elapsed();
        let status = told();
        assert!(status["remedy"].as_str().is_some_and(|it| it.contains("cable")), "{status}");
        let members = status["members"].as_array().expect("a list");
        let other = members.iter().find(|it| it["name"] == "b").expect("the other member");
        let heard_ms_ago = other["heard_ms_ago"].as_u64().expect("a time");
        assert!(u128::from(heard_ms_ago) + 1 >= cut_for.as_millis(), "{cut_for:?}: {other}");
        other_end("up");
        world::heals(group, "the wire is back");

        let primary = group.wait_primary().expect("a primary");
        let (name, host) = match primary {
            Role::Primary => (interface::PRIMARY, testbed.host(Role::Primary)),
            _ => (interface::BACKUP, testbed.host(Role::Backup)),
        };
        host.ip(&format!("link set {name} down\n")).expect("ip runs");
        world::wait_until("its interface", || {
            let status = group.status(primary).unwrap_or_default();
            let begin = format!("{name} is down; ");
            status["reason"].as_str().is_some_and(|reason| reason.starts_with(&begin))
        });
    });
}
