//! A group serves from its first member on: the other one joins when it comes.

use crate::client::connected;
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::{Duration, Instant};

/// Longest time for a request.
const PATIENCE: Duration = Duration::from_secs(20);
const ALONE_AFTER_S: u64 = 2;

/// Runs only the edge and one member.
fn with_one<T>(first: Role, work: impl FnOnce(&Testbed, &mut Group<'_>) -> T) -> T {
    world::with_one(first, &options(), |_| {}, work)
}

fn options() -> GroupOptions {
    GroupOptions {
        heartbeat_ms: Some(300),
        alone_after_s: Some(ALONE_AFTER_S),
        ..GroupOptions::default()
    }
}

/// Checks that the member serves, and says that it is unprotected.
fn serves_alone(group: &Group<'_>, role: Role, within: Duration) {
    let start = Instant::now();
    loop {
        let status = group.status(role).unwrap_or_default();
        let is = |key: &str, value: &str| status[key].as_str() == Some(value);
        if is("role", "primary") && is("state", "unprotected") {
            let reason = status["reason"].as_str().unwrap_or("");
            assert!(reason.contains("no backup has come; running alone"), "{status}");
            return;
        }
        assert!(start.elapsed() < within, "{status}\n{}", group.log_tails());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The group starts with `first`, even if the file prefers the other member.
fn starts_with(first: Role) {
    let _limit = world::limit(Duration::from_secs(90));
    with_one(first, |testbed, group| {
        serves_alone(group, first, Duration::from_secs(30));
        let mut old = connected(testbed, PATIENCE);
        assert_eq!(old.ask(&[b"SET", b"kept", b"1"]), "+OK");
        group.start_daemon(first.other()).expect("a daemon");
        group.wait_protected().unwrap_or_else(|e| panic!("{e:#}\n{}", group.log_tails()));
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":2");
        group.kill_member(first).expect("it dies");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":3", "{}", group.log_tails());
        world::speaks(group, first.other());
    });
}

#[test]
fn the_preferred_member_serves_until_its_backup_comes() {
    starts_with(Role::Primary);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn the_other_member_serves_where_the_preferred_one_does_not_come() {
    starts_with(Role::Backup);
}

/// The member that was current and has lost its server serves again; the other one does not, since
/// the current member's server may be running.
#[test]
fn after_all_have_ended_only_who_was_current_serves_alone() {
    let _limit = world::limit(Duration::from_secs(90));
    with_one(Role::Primary, |testbed, group| {
        serves_alone(group, Role::Primary, Duration::from_secs(30));
        for role in [Role::Primary, Role::Edge] {
            group.stop_daemon(role, Signal::TERM).expect("it ends");
        }
        for role in [Role::Edge, Role::Backup] {
            group.start_daemon(role).expect("a daemon");
        }
        std::thread::sleep(Duration::from_secs(3 + 2 * ALONE_AFTER_S));
        let status = group.status(Role::Backup).expect("it answers");
        assert_eq!(status["state"], "waiting", "{status}");
        group.stop_daemon(Role::Backup, Signal::TERM).expect("it ends");
        group.start_daemon(Role::Primary).expect("a daemon");
        serves_alone(group, Role::Primary, Duration::from_secs(30));
        let mut new = connected(testbed, PATIENCE);
        assert_eq!(new.ask(&[b"PING"]), "+PONG");
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_member_that_does_not_fit_is_named_once_and_while_it_is_there() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let hosts = [Role::Primary, Role::Backup].map(|role| testbed.host(role));
    let [recipe, _] =
        hosts.map(|host| Recipe::prepare(Program::Mosquitto, host, 0).expect("a directory"));
    let theirs = testbed.host(Role::Backup).outside().join("server/server.conf");
    let right = std::fs::read_to_string(&theirs).expect("a config");
    std::fs::write(&theirs, right + "max_keepalive 60\n").expect("another config");
    let mut group = Group::prepare(&testbed, &recipe, &options()).expect("folders");
    for role in [Role::Edge, Role::Primary] {
        group.start_daemon(role).expect("a daemon");
    }
    serves_alone(&group, Role::Primary, Duration::from_secs(30));
    group.start_daemon(Role::Backup).expect("a daemon");
    let says = |group: &Group<'_>, text: &str| {
        let status = group.status(Role::Primary).unwrap_or_default();
        status["reason"].as_str().is_some_and(|reason| reason.contains(text))
    };
    world::wait_until("its name", || says(&group, "b cannot join: a and b differ"));
    // It tries every two seconds.
    std::thread::sleep(Duration::from_secs(6));
    let told = group.details(Role::Primary, "cannot join");
    assert_eq!(told.len(), 1, "{told:?}");
    group.stop_daemon(Role::Backup, Signal::TERM).expect("it ends");
    world::wait_until("nobody", || says(&group, "no backup has come"));
    assert!(!says(&group, "cannot join"));
}

fn down(group: &mut Group<'_>, role: Role) {
    group.stop_daemon(role, Signal::TERM).expect("it ends");
    let done = group.verb(role, &["down"]).expect("a verb");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

/// Docs/STATUS.md, "A member that never comes back".
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_member_that_never_comes_back_is_given_up_by_hand() {
    let _limit = world::limit(Duration::from_secs(90));
    with_one(Role::Backup, |testbed, group| {
        serves_alone(group, Role::Backup, Duration::from_secs(30));
        group.stop_daemon(Role::Backup, Signal::TERM).expect("it ends");
        down(group, Role::Edge);
        for role in [Role::Edge, Role::Primary] {
            group.start_daemon(role).expect("a daemon");
        }
        let remedy = |group: &Group<'_>| {
            let status = group.status(Role::Edge).unwrap_or_default();
            status["remedy"].as_str().unwrap_or_default().to_owned()
        };
        world::wait_until("the way out", || remedy(group).contains("never comes back"));
        for role in [Role::Primary, Role::Edge] {
            down(group, role);
        }
        let state = testbed.disk(Role::Edge).join("edge.state");
        std::fs::remove_file(state).expect("the edge's memory");
        for role in [Role::Edge, Role::Primary] {
            group.start_daemon(role).expect("a daemon");
        }
        serves_alone(group, Role::Primary, Duration::from_secs(30));
        assert_eq!(connected(testbed, PATIENCE).ask(&[b"PING"]), "+PONG");
    });
}
