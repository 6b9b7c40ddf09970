//! Frozen, cut off, killed one by one, slow, or declared dead by mistake: in the end the right
//! member speaks, the other one is silent, and no client loses a byte.

use crate::world;
use holdfast_lab::load::Action;
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use std::time::Duration;

#[test]
fn a_primary_that_comes_back_to_life_stays_silent() {
    let _limit = world::limit(Duration::from_secs(180));
    world::all_survive(
        &[
            "--fault freeze --workload shared",
            "--fault freeze --workload download --ipv6",
            "--fault false-alarm --workload shared --ipv6",
            "--fault false-alarm --workload upload",
        ],
        1,
    );
}

#[test]
fn either_daemon_may_die_alone() {
    let _limit = world::limit(Duration::from_secs(180));
    world::all_survive(
        &[
            "--fault daemon-kill --workload shared --connections 8",
            "--fault daemon-kill --workload download --ipv6",
            "--fault backup-kill --workload incr --ipv6",
            "--fault replica-kill --workload upload",
            "--fault edge-daemon-kill --workload churn",
        ],
        1,
    );
}

#[test]
fn a_backup_that_stands_still_does_not_hold_its_primary() {
    let _limit = world::limit(Duration::from_secs(180));
    world::all_survive(
        &[
            "--fault backup-freeze --workload shared",
            "--fault backup-freeze --workload upload --ipv6",
            "--fault backup-cut --workload download",
            "--fault replica-slow --workload incr",
        ],
        1,
    );
}

#[test]
fn any_wire_may_break() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault channel-cut --workload shared",
            "--fault one-way-cut --workload incr",
            "--fault service-cut --workload download --ipv6",
            "--fault tap-cut --workload upload",
            "--fault deaf --workload shared",
        ],
        1,
    );
}

/// The backup is lost, the primary serves alone, the backup is started again, and the primary is
/// killed: it is better to be silent than to give wrong answers.
#[test]
fn a_backup_that_missed_something_never_speaks() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_uncopied_redis(&GroupOptions::default(), |testbed, group| {
        let backup = group.daemon_pid(Role::Backup).expect("a backup");
        let load = world::counting(600, 200, Some(vec![(0, Action::Kill(backup))]));
        world::finish(world::start(testbed, &load), group);
        group.restart(Role::Backup).expect("the backup starts again");
        world::wait_until("the backup to be told", || {
            says(group, Role::Primary, "reason").contains("could not join")
        });
        assert_eq!(says(group, Role::Primary, "state"), "unprotected");
        assert!(says(group, Role::Primary, "reason").contains("appendonly"), "the file is named");
        // A daemon with little left to do uses little time.
        let daemon = group.daemon_pid(Role::Primary).expect("the primary's daemon");
        let before_ms = world::cpu_ms(daemon);
        std::thread::sleep(Duration::from_secs(2));
        let spent_ms = world::cpu_ms(daemon) - before_ms;
        assert!(spent_ms < 300, "{spent_ms} ms of 2 s");
        let primary = group.daemon_pid(Role::Primary).expect("a primary");
        world::signal(primary, "KILL");
        world::wait_until("the edge to say so", || {
            says(group, Role::Edge, "reason").contains("does not answer")
        });
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(says(group, Role::Backup, "state"), "waiting");
        assert_eq!(says(group, Role::Backup, "role"), "backup");
    });
}

/// A text in a host's status; empty if there is none.
fn says(group: &Group<'_>, role: Role, name: &str) -> String {
    let status = group.status(role).unwrap_or_default();
    status[name].as_str().unwrap_or_default().to_owned()
}

/// A supervisor knows nothing of takeovers: it restarts what has died with the config that it has.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn an_old_primary_that_is_started_again_is_a_backup() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        let daemon = group.daemon_pid(Role::Primary).expect("a daemon");
        let server = group.server_pid(Role::Primary).expect("a server");
        let dies = vec![(0, Action::Kill(daemon)), (0, Action::Kill(server))];
        let load = world::start(testbed, &world::counting(2500, 200, Some(dies)));
        group.restart(Role::Primary).expect("the old primary starts again");
        group.wait_protected().expect("it joins");
        world::finish(load, group);
        assert_eq!(says(group, Role::Primary, "role"), "backup");
        assert_eq!(says(group, Role::Backup, "role"), "primary");
        world::finish(world::start(testbed, &world::counting(300, 0, None)), group);
    });
}

/// The edge's host is rebooted: programs and maps are gone, and only what is on its disk is left.
#[test]
fn an_edge_that_has_forgotten_everything_is_opened_by_its_member() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        let load = world::start(testbed, &world::counting(2500, 0, None));
        std::thread::sleep(Duration::from_millis(400));
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        world::signal(edge, "KILL");
        testbed.forget_edge_programs().expect("the programs go");
        group.restart(Role::Edge).expect("the edge's daemon starts again");
        group.wait_protected().expect("the pair is protected again");
        world::finish(load, group);
        let server = group.server_pid(Role::Primary).expect("a server");
        let load = world::counting(600, 200, Some(vec![(0, Action::Kill(server))]));
        world::finish(world::start(testbed, &load), group);
        let status = group.status(Role::Backup).expect("the survivor answers");
        assert!(status["last_takeover"].is_object(), "{status}");
    });
}

/// The members' own channel leads through the edge's host, too, and does not outlive its reboot,
/// which silences all: the primary stays.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn an_edge_that_is_rebooted_with_the_members_wire_replaces_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        let primary = group.wait_primary().expect("a primary");
        let load = world::start(testbed, &world::counting(8000, 0, None));
        std::thread::sleep(Duration::from_millis(300));
        let edge = testbed.host(Role::Edge);
        world::signal(group.daemon_pid(Role::Edge).expect("the edge's daemon"), "KILL");
        testbed.forget_edge_programs().expect("the programs go");
        edge.ip("link set br0 down\nlink set ec down\n").expect("ip runs");
        std::thread::sleep(Duration::from_millis(4000));
        edge.ip("link set br0 up\nlink set ec up\n").expect("ip runs");
        std::thread::sleep(Duration::from_millis(400));
        group.restart(Role::Edge).expect("the edge's daemon starts again");
        world::heals(group, "the backup joins");
        assert_eq!(group.primary(), Some(primary), "{}", group.log_tails());
        world::finish(load, group);
    });
}
