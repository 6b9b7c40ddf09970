//! An etcd of three members decides between the members of a pair without an edge: with TLS,
//! certificates, a user and its password. Whatever becomes of etcd, no client notices before
//! something else fails, too.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::config::ArbiterKind;
use holdfast_lab::testbed::etcd::EtcdCluster;
use holdfast_lab::testbed::ours::{Group, GroupOptions, MEMBERS, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_wire::segment::Mode;
use std::time::{Duration, Instant};

/// Longest time in which etcd elects another leader, with the settings that it has by itself: an
/// election that nobody wins is begun again.
const ELECTION_MAX: Duration = Duration::from_secs(4);

fn with_pair(work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    let options = GroupOptions {
        segment: Some(Mode::Flood),
        arbiter: ArbiterKind::Etcd,
        ..GroupOptions::default()
    };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, work);
}

fn etcd<'g>(group: &'g Group<'_>) -> &'g EtcdCluster {
    group.etcd().expect("an etcd")
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn whatever_dies_no_client_notices_with_etcd() {
    let _limit = world::limit(Duration::from_secs(180));
    world::all_survive(
        &[
            "--segment flood --arbiter etcd --fault kill9 --workload echo",
            "--segment flood --arbiter etcd --fault kill9-all --workload upload --ipv6",
            "--segment flood --arbiter etcd --fault freeze --workload pingpong",
            "--segment flood --arbiter etcd --fault channel-cut --workload shared",
        ],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_pair_with_etcd_heals_again_and_again() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        let load = world::start(testbed, &world::counting(5000, 0, None));
        for _ in 1..=2 {
            world::each_dies_and_joins(group);
        }
        world::finish(load, group);
        let primary = group.wait_primary().expect("a primary");
        group.ensure_protected().expect("a pair");
        assert_eq!(group.current().expect("a primary"), primary);
    });
}

/// Without etcd a pair goes on, and says so; when it is back, all is well.
#[test]
fn without_etcd_a_pair_goes_on_and_says_so() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        etcd(group).signal(None, Signal::STOP).expect("it runs");
        for role in MEMBERS {
            world::wait_until("the word of it", || {
                let status = group.status(role).unwrap_or_default();
                let says = status["reason"].as_str().unwrap_or_default();
                status["state"] == "unprotected" && says.contains("etcd at https://10.9.0.1:2379")
            });
        }
        world::finish(world::start(testbed, &world::counting(1500, 0, None)), group);
        etcd(group).signal(None, Signal::CONT).expect("it stands still");
        world::heals(group, "etcd answers again");
        let load = world::start(testbed, &world::counting(1000, 0, None));
        group.signal_server(Role::Primary, Signal::KILL).expect("a server");
        world::finish(load, group);
        world::speaks(group, Role::Backup);
    });
}

/// etcd loses its leader, and the server dies in the same moment: its clients wait for the
/// election, and get every byte.
#[test]
fn etcds_leader_dies_in_the_middle_of_a_takeover() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        let mut old = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        assert_eq!(old.ask(&[b"SET", b"kept", b"here"]), "+OK");
        let leader = etcd(group).leader(testbed.host(Role::Edge)).expect("a leader");
        etcd(group).signal(Some(leader), Signal::KILL).expect("it runs");
        group.signal_server(Role::Primary, Signal::KILL).expect("a server");
        let begun = Instant::now();
        old.send(&[b"GET", b"kept"]);
        assert_eq!(old.value(), b"here", "{}", group.log_tails());
        let stall = begun.elapsed();
        assert!(stall < ELECTION_MAX, "{stall:?}");
        world::speaks(group, Role::Backup);
        world::finish(world::start(testbed, &world::counting(500, 0, None)), group);
    });
}

/// Both members are started again, and begin where the record is; one that was copied, or started a
/// second time while it runs, does not get it.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn both_members_of_a_pair_with_etcd_start_again() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(|testbed, group| {
        group.repair().expect("it protects again");
        let load = world::start(testbed, &world::counting(1000, 0, None));
        let primary = group.wait_primary().expect("a primary");
        group.signal_server(primary, Signal::KILL).expect("a server");
        world::finish(load, group);
        world::speaks(group, primary.other());
    });
}
