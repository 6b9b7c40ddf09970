//! A server whose config file differs between the hosts: both members report the difference and the
//! remedy, no server is started, and the pair forms by itself once the files are the same.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe, listens};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

/// Exit code of `holdfast status` for a degraded state.
const DEGRADED: i32 = 1;

/// Time in which a backup tries again twice.
const TRIES: Duration = Duration::from_secs(6);

#[test]
fn members_of_different_worlds_refuse_to_pair() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let hosts = [Role::Primary, Role::Backup].map(|role| testbed.host(role));
    let [recipe, _] =
        hosts.map(|host| Recipe::prepare(Program::Mosquitto, host, 0).expect("a directory"));
    let [ours, theirs] = hosts.map(|host| host.outside().join("server/server.conf"));
    let right = std::fs::read_to_string(&ours).expect("a config");
    std::fs::write(&theirs, right.clone() + "max_keepalive 60\n").expect("another config");

    let mut group =
        Group::launch(&testbed, &recipe, &GroupOptions::default()).expect("the daemons start");
    for role in [Role::Primary, Role::Backup] {
        let says = |field: &str, text: &str| {
            group.status(role).is_ok_and(|s| s[field].as_str().is_some_and(|it| it.contains(text)))
        };
        world::wait_until("a refusal", || says("reason", "server.conf"));
        assert!(says("state", "waiting") && says("reason", "config file /"));
        assert!(says("remedy", "copy the files from one host to the other"));
        assert!(!says("reason", "library") && !says("reason", "argument"));
        assert_eq!(exit_code(&testbed, role), Some(DEGRADED));
        assert!(!listens(testbed.host(role).holder(), Program::Mosquitto.port()));
    }
    // The answer stands while the backup tries again, and is told once.
    std::thread::sleep(TRIES);
    let told = group.details(Role::Backup, "state");
    let [.., last] = &told[..] else { panic!("no event tells the backup's state") };
    assert!(last.contains("server.conf"), "{told:?}");
    let refusals = told.iter().filter(|told| told.contains("server.conf")).count();
    assert_eq!(refusals, 1, "{told:?}");

    std::fs::write(&theirs, right).expect("the same config");
    group.wait_protected().unwrap_or_else(|e| panic!("{e:#}\n{}", group.log_tails()));
    // The primary may report it a moment earlier.
    world::wait_until("the backup's word", || exit_code(&testbed, Role::Backup) == Some(0));
}

/// Exit code of `holdfast status` on a member's host.
fn exit_code(testbed: &Testbed, role: Role) -> Option<i32> {
    let host = testbed.host(role);
    let config = host.inside().join("holdfast.toml");
    let name = if role == Role::Primary { "a" } else { "b" };
    let mut status = host.command(world::binary());
    status.arg("status").arg("--config").arg(config).args(["--role", name]);
    status.output().expect("holdfast starts").status.code()
}
