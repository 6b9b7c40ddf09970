//! Two members on a switch that floods nothing: one of them holds the service's hardware address, and
//! brings clients' frames to the other one.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::load::Spec;
use holdfast_lab::testbed::ours::switch::THIRD_PORT;
use holdfast_lab::testbed::ours::{Group, GroupOptions, MEMBERS, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use holdfast_wire::segment::Mode;
use std::time::Duration;

fn with_pair(mode: Mode, work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    let options = GroupOptions { segment: Some(mode), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, work);
}

#[test]
fn in_a_chain_no_client_notices() {
    let _limit = world::limit(Duration::from_secs(180));
    world::all_survive(
        &[
            "--segment chain --fault kill9 --workload echo",
            "--segment chain --fault kill9 --workload churn --ipv6",
            "--segment chain --fault freeze --workload upload",
            "--segment chain --fault freeze --workload download --ipv6",
            "--segment chain --fault backup-kill --workload shared",
            "--segment chain --fault backup-kill --workload echo --ipv6",
            "--segment chain --fault backup-cut --workload pingpong",
            "--segment chain --fault tap-cut --workload incr",
            "--segment chain --fault service-cut --workload pingpong --ipv6",
            "--segment chain --fault channel-cut --workload echo",
        ],
        1,
    );
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn with_copies_by_the_primary_no_client_notices() {
    let _limit = world::limit(Duration::from_secs(120));
    world::all_survive(
        &[
            "--segment clone --fault kill9 --workload echo",
            "--segment clone --fault kill9 --workload churn --ipv6",
            "--segment clone --fault freeze --workload upload",
            "--segment clone --fault freeze --workload download --ipv6",
            "--segment clone --fault backup-kill --workload shared",
            "--segment clone --fault channel-cut --workload echo",
        ],
        1,
    );
}

/// Each member dies twice, joins, and takes over from the other one. Clients of either family count
/// meanwhile.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn it_heals_again_and_again() {
    let _limit = world::limit(Duration::from_secs(240));
    for mode in [Mode::Chain, Mode::Clone] {
        for address in [addresses::SERVICE_V4, addresses::SERVICE_V6] {
            with_pair(mode, |testbed, group| {
                let address = address.parse().expect("an address");
                let spec = world::counting(6000, 0, None);
                let load = world::start(testbed, &Spec { address, ..spec });
                for _ in 0..2 {
                    world::each_dies_and_joins(group);
                }
                world::finish(load, group);
            });
        }
    }
}

/// The backup's kernel goes on handing on while its daemon is dead, and the primary does without it
/// when the host is gone; both are counted.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn what_goes_by_way_of_the_other_member_is_counted() {
    let _limit = world::limit(Duration::from_secs(60));
    for (mode, by, name) in
        [(Mode::Chain, Role::Backup, "handed_on"), (Mode::Clone, Role::Primary, "cloned")]
    {
        with_pair(mode, |testbed, group| {
            let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
            assert_eq!(redis.ask(&[b"SET", b"a", b"b"]), "+OK");
            world::wait_until("its count", || {
                let status = group.status(by).unwrap_or_default();
                status["counters"][format!("speak.{name}")].as_u64().is_some_and(|n| n > 3)
            });
            let load = world::start(testbed, &world::counting(1500, 0, None));
            group.stop_daemon(Role::Backup, Signal::TERM).expect("it ends");
            world::finish(load, group);
            world::speaks(group, Role::Primary);
            group.start_daemon(Role::Backup).expect("a daemon");
            world::heals(group, "it is back");
        });
    }
}

/// What a switch learns from somebody else is moved back; what it was told for good is named.
#[test]
fn somebody_else_who_has_the_address_is_named() {
    let _limit = world::limit(Duration::from_secs(120));
    for mode in [Mode::Chain, Mode::Clone] {
        with_pair(mode, |testbed, group| {
            let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
            group.learn(THIRD_PORT, false).expect("a port");
            assert_eq!(redis.ask(&[b"SET", b"a", b"b"]), "+OK");
            world::heals(group, "it was moved back");
            group.learn(THIRD_PORT, true).expect("a port");
            for role in MEMBERS {
                let mac = group.service_mac().expect("an address");
                world::wait_until("its word", || {
                    let status = group.status(role).unwrap_or_default();
                    let says = status["reason"].as_str().unwrap_or_default();
                    status["state"] == "unprotected" && says.contains(&mac)
                });
            }
            redis.send(&[b"GET", b"a"]);
            group.forget(THIRD_PORT).expect("a port");
            assert_eq!(redis.value(), b"b", "{}", group.log_tails());
            world::heals(group, "the switch learns again");
        });
    }
}
