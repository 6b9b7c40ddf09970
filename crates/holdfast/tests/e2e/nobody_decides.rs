//! Pairs without an edge and without a third party: nobody decides (`none`), or a command that
//! switches the other host off. What is proved is taken over; what is only silent is not.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::config::ArbiterKind;
use holdfast_lab::testbed::ours::{Group, GroupOptions, MEMBERS, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_wire::segment::Mode;
use std::time::Duration;

const WORD: [&str; 2] = ["takeover", "--i-have-powered-it-off"];

fn with_pair(arbiter: ArbiterKind, work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    let segment = Some(Mode::Flood);
    let options = GroupOptions { segment, arbiter, ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, work);
}

fn waits_for(group: &Group<'_>, role: Role, words: &str) {
    world::wait_until(words, || {
        let status = group.status(role).unwrap_or_default();
        let says = |field: &str| status[field].as_str().unwrap_or_default().contains(words);
        says("reason") || says("remedy")
    });
}

fn signal_host(testbed: &Testbed, role: Role, signal: Signal) {
    testbed.host(role).signal_all(signal).expect("its processes");
}

fn says_no(group: &Group<'_>, role: Role, why: &str) {
    let done = group.verb(role, &WORD).expect("the verb runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains(why), "{said}");
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn what_is_proved_is_taken_over_by_itself() {
    let _limit = world::limit(Duration::from_secs(120));
    world::all_survive(
        &[
            "--segment flood --arbiter none --fault kill9 --workload echo",
            "--segment flood --arbiter none --fault kill9 --workload download --ipv6",
            "--segment flood --arbiter none --fault service-cut --workload pingpong",
            "--segment flood --arbiter none --fault channel-cut --workload shared",
            "--segment flood --arbiter none --fault backup-kill --workload upload",
        ],
        1,
    );
}

/// A host that stands still: nobody knows that it does. An operator does.
#[test]
fn a_silent_death_waits_for_an_operators_word() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(ArbiterKind::None, |testbed, group| {
        let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        assert_eq!(redis.ask(&[b"SET", b"kept", b"here"]), "+OK");
        says_no(group, Role::Backup, "the other member is heard");
        let load = world::start(testbed, &world::counting(8000, 0, None));
        std::thread::sleep(Duration::from_millis(500));
        signal_host(testbed, Role::Primary, Signal::STOP);
        waits_for(group, Role::Backup, "does not prove that its host is off");
        waits_for(group, Role::Backup, "takeover --i-have-powered-it-off");
        std::thread::sleep(Duration::from_secs(1));
        let status = group.status(Role::Backup).expect("it answers");
        assert_eq!(status["role"], "backup", "{status}");
        signal_host(testbed, Role::Primary, Signal::KILL);
        let done = group.verb(Role::Backup, &WORD).expect("the verb runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}\n{}", group.log_tails());
        redis.send(&[b"GET", b"kept"]);
        assert_eq!(redis.value(), b"here", "{}", group.log_tails());
        group.restart(Role::Primary).expect("a daemon");
        world::heals(group, "the other one joins");
        world::finish(load, group);
        world::speaks(group, Role::Backup);
        says_no(group, Role::Backup, "the other member is heard");
    });
}

/// Daemon and server die at once: the daemon that is started in their place shows that they are gone.
#[test]
fn another_life_of_the_primary_is_a_proof() {
    let _limit = world::limit(Duration::from_secs(60));
    with_pair(ArbiterKind::None, |testbed, group| {
        let load = world::start(testbed, &world::counting(3000, 0, None));
        group.kill_member(Role::Primary).expect("the member");
        waits_for(group, Role::Backup, "does not prove that its host is off");
        group.start_daemon(Role::Primary).expect("a daemon");
        world::speaks(group, Role::Backup);
        world::heals(group, "the other one joins");
        world::finish(load, group);
    });
}

/// Both are started again, as after a power failure: the pair is there again, and one of them alone
/// begins nothing.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn both_are_started_again() {
    let _limit = world::limit(Duration::from_secs(90));
    with_pair(ArbiterKind::None, |testbed, group| {
        for role in MEMBERS {
            signal_host(testbed, role, Signal::KILL);
        }
        group.restart(Role::Primary).expect("a daemon");
        waits_for(group, Role::Primary, "the other member is not heard");
        group.restart(Role::Backup).expect("a daemon");
        world::heals(group, "both are there again");
        world::finish(world::start(testbed, &world::counting(500, 0, None)), group);
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_host_that_stands_still_is_switched_off() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(ArbiterKind::Command, |testbed, group| {
        let load = world::start(testbed, &world::counting(8000, 0, None));
        std::thread::sleep(Duration::from_millis(500));
        signal_host(testbed, Role::Primary, Signal::STOP);
        world::speaks(group, Role::Backup);
        assert_eq!(group.power().expect("a switch").counts(), (1, 1));
        assert_eq!(testbed.host(Role::Primary).processes().expect("its processes"), [0; 0]);
        group.restart(Role::Primary).expect("a daemon");
        world::heals(group, "it joins");
        world::finish(load, group);
        world::speaks(group, Role::Backup);
    });
}

/// A command that fails proves nothing, is named, and is run again.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_host_that_could_not_be_switched_off_is_not_replaced() {
    let _limit = world::limit(Duration::from_secs(120));
    with_pair(ArbiterKind::Command, |testbed, group| {
        let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        assert_eq!(redis.ask(&[b"SET", b"kept", b"here"]), "+OK");
        group.power().expect("a switch").breaks(true);
        signal_host(testbed, Role::Primary, Signal::STOP);
        waits_for(group, Role::Backup, "it does not answer");
        let status = group.status(Role::Backup).expect("it answers");
        assert_eq!(status["role"], "backup", "{status}");
        group.power().expect("a switch").breaks(false);
        redis.send(&[b"GET", b"kept"]);
        assert_eq!(redis.value(), b"here", "{}", group.log_tails());
        let (asked, switched) = group.power().expect("a switch").counts();
        assert!(asked > 1 && switched == 1, "{asked} {switched}");
        world::speaks(group, Role::Backup);
    });
}

/// A gateway is no proof, which `status` always says.
#[test]
fn with_a_gateway_the_backup_takes_over_and_status_says_unsafe() {
    let _limit = world::limit(Duration::from_secs(90));
    with_pair(ArbiterKind::Gateway, |testbed, group| {
        for role in MEMBERS {
            let says = group.status(role).expect("it answers")["arbiter"].to_string();
            assert!(says.contains("UNSAFE"), "{says}");
        }
        let load = world::start(testbed, &world::counting(4000, 0, None));
        std::thread::sleep(Duration::from_millis(500));
        signal_host(testbed, Role::Primary, Signal::STOP);
        world::speaks(group, Role::Backup);
        signal_host(testbed, Role::Primary, Signal::KILL);
        group.restart(Role::Primary).expect("a daemon");
        world::heals(group, "it joins");
        world::finish(load, group);
    });
}
