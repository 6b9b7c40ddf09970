//! `holdfast down` leaves the three hosts as they were before the first start,
//! whether the daemons were stopped or killed.

use crate::client::{Redis, on_client, service};
use crate::{transit, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::strings::{Edge, Strings};
use holdfast_lab::testbed::{Host, Plan, Role, Testbed};
use holdfast_wire::segment::Mode;
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;

/// The hosts that have a daemon.
const HOSTS: [Role; 3] = [Role::Primary, Role::Backup, Role::Edge];

/// Time between two heartbeats in ms, so long that a busy machine causes no takeover.
const HEARTBEAT_MS: u64 = 300;

#[test]
fn after_an_orderly_end() {
    all_is_as_before(|group, testbed| {
        for role in HOSTS {
            group.stop_daemon(role, Signal::TERM).expect("a daemon");
        }
        for role in [Role::Primary, Role::Backup] {
            let left = shape(testbed.host(role));
            assert!(!left.contains("10.9.0.100"), "the {}: {left}", role.name());
            assert!(!left.contains("clsact"), "the {}: {left}", role.name());
        }
    });
}

#[test]
fn after_kill_9() {
    all_is_as_before(|group, testbed| {
        for role in HOSTS {
            group.stop_daemon(role, Signal::KILL).expect("a daemon");
        }
        // From another mount namespace the verb does not see the pins, and says so.
        let edge = testbed.host(Role::Edge);
        let mut capture = Command::new("ip");
        capture.args(["netns", "exec", edge.namespace()]).arg(world::binary()).arg("capture");
        capture.arg("--config").arg(edge.outside().join("holdfast.toml"));
        capture.args(["--role", "edge", "-o", "/dev/null", "--seconds", "1"]);
        let refused = capture.output().expect("ip runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(4), "{said}");
        assert!(said.contains("`ip netns exec` has given"), "{said}");
        assert!(said.contains("nsenter -t PID -m -n"), "{said}");
    });
}

#[test]
fn of_a_pair_without_an_edge() {
    for signal in [Signal::TERM, Signal::KILL] {
        let options = GroupOptions { segment: Some(Mode::Flood), ..options() };
        all_is_as_before_with(&options, |group, _| {
            for role in HOSTS {
                group.stop_daemon(role, signal).expect("a daemon");
            }
        });
    }
}

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() }
}

fn all_is_as_before(end: impl Fn(&mut Group<'_>, &Testbed)) {
    all_is_as_before_with(&options(), end);
}

fn all_is_as_before_with(options: &GroupOptions, end: impl Fn(&mut Group<'_>, &Testbed)) {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let recipes = [Role::Primary, Role::Backup].map(recipe);
    let before = HOSTS.map(|role| shape(testbed.host(role)));
    let mut group = Group::start(&testbed, &recipes[0], options).expect("the group protects");
    let refused = group.verb(Role::Backup, &["down"]).expect("the verb runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "a daemon runs: {said}");
    assert!(said.contains("runs on this host") && said.contains("--stop"), "{said}");

    end(&mut group, &testbed);
    for (role, before) in HOSTS.into_iter().zip(&before) {
        let first = down(&group, role, &["down", "--json"]);
        is_as_before(testbed.host(role), before, &first.to_string());
        let again = down(&group, role, &["down", "--json"]);
        assert_eq!(again["removed"], Value::Array(Vec::new()), "{again}");
    }
    drop(group);

    // A plain server listens at the service address, as before Holdfast was used.
    testbed.own_service_addresses(Role::Primary).expect("an address by hand");
    let plain = recipes[0].start_plain(testbed.host(Role::Primary)).expect("a plain server");
    on_client(&testbed, || drop(Redis::connect(service(Program::Redis.port()))));
    drop(plain);
}

#[test]
fn a_daemon_that_runs_is_stopped_if_asked_for() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let answer = down(group, Role::Primary, &["down", "--stop", "--json"]);
        assert_eq!(answer["stopped"], true, "{answer}");
        assert_eq!(answer["schema"], "holdfast.down/1", "{answer}");
        assert!(group.status(Role::Primary).is_err(), "it runs no more");
        // The member has handed over, so the service goes on without it.
        on_client(testbed, || drop(Redis::connect(service(Program::Redis.port()))));
        let edge = down(group, Role::Edge, &["down", "--stop", "--json"]);
        let kinds: Vec<&str> = edge["removed"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["kind"].as_str())
            .collect();
        assert!(kinds.contains(&"filter") && kinds.contains(&"mount"), "{edge}");
    });
}

/// A server that speaks alone outlives its daemon, and no file tells any more which process it was.
#[test]
fn of_a_server_that_no_file_names() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        group.stop_daemon(Role::Backup, Signal::KILL).expect("a daemon");
        world::wait_until("a member alone", || {
            group.status(Role::Primary).unwrap_or_default()["state"] == "unprotected"
        });
        // A lone server learns that it is alone within one of its turns.
        std::thread::sleep(Duration::from_secs(1));
        let noted = testbed.host(Role::Primary).outside().join("run/a.server");
        assert!(noted.exists());
        group.stop_daemon(Role::Primary, Signal::KILL).expect("a daemon");
        std::fs::write(&noted, "\0garbage").expect("a damaged file");
        assert!(!world::has_ended(server));
        let answer = down(group, Role::Primary, &["down", "--json"]);
        assert!(answer.to_string().contains("\"process\""), "{answer}");
        world::wait_until("the server's end", || world::has_ended(server));
    });
}

/// A SIGHUP ends none of the daemons either.
#[test]
fn of_a_spread_group() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let before = HOSTS.map(|role| shape(testbed.host(role)));
    let mut group = SpreadGroup::start(&testbed, &HOSTS[..2], &SpreadOptions::default())
        .expect("the group stands");
    for role in HOSTS {
        group.signal(role, "HUP").expect("a daemon");
    }
    world::wait_until("the signals to be noted", || {
        group.logs().matches("reload: nothing has changed").count() >= 3
    });
    for role in HOSTS {
        assert!(group.status(role).is_ok(), "{}", group.logs());
        group.kill(role).expect("killed");
    }
    for (role, before) in HOSTS.into_iter().zip(&before) {
        let done = group.verb(role, &["down", "--json"]).expect("the verb runs");
        let said = String::from_utf8_lossy(if done.status.success() {
            &done.stdout
        } else {
            &done.stderr
        });
        assert!(
            done.status.success() && said.contains("\"filter\""),
            "the {}: {said}",
            role.name()
        );
        is_as_before(testbed.host(role), before, &said);
    }
}

#[test]
fn of_strings() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let mut strings = Strings::build(&transit::plan(&[100, 100], "")).expect("the testbed stands");
    let before = Edge::BOTH.map(|edge| shape(strings.edge(edge)));
    strings.start_daemons().expect("the edges hear each other");
    for edge in Edge::BOTH {
        let daemon = strings.daemon_pid(edge).expect("a daemon");
        world::keeps_only(daemon, &world::OF_PACKETS);
        world::signal(daemon, "HUP");
        assert!(strings.show(edge).is_ok(), "a hang-up ends nothing");
        strings.kill_daemon(edge).expect("killed");
    }
    for (edge, before) in Edge::BOTH.into_iter().zip(&before) {
        let said = strings.ask(edge, &["down", "--json"]).expect("the verb succeeds");
        assert!(said.contains("\"filter\""), "{said}");
        is_as_before(strings.edge(edge), before, &said);
    }
}

/// Changes words of the file on a host whose daemon runs no more.
fn change(host: &Host, file: &str, words: &[(&str, &str)]) {
    let path = host.outside().join(file);
    let mut text = std::fs::read_to_string(&path).expect("a file");
    for (from, to) in words {
        assert!(text.contains(from), "{from}: {text}");
        text = text.replace(from, to);
    }
    std::fs::write(path, text).expect("written");
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn after_the_files_of_a_pair_have_changed() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        for role in HOSTS {
            group.stop_daemon(role, Signal::KILL).expect("a daemon");
        }
        let service = ("10.9.0.100", "10.9.0.101");
        let places = [(Role::Primary, "p0"), (Role::Backup, "b0"), (Role::Edge, "ec")];
        for (role, interface) in places {
            let (old, new) = (format!("\"{interface}\""), format!("\"{interface}9\""));
            let host = testbed.host(role);
            change(host, "holdfast.toml", &[service, (&old, &new)]);
            let answer = down(group, role, &["down", "--json"]);
            let left = shape(host);
            assert!(!left.contains("clsact"), "the {}: {left} {answer}", role.name());
            let has_address = left.contains("10.9.0.100/32");
            assert!(!has_address, "the {}: {left} {answer}", role.name());
        }
    });
}

/// A daemon that starts with a changed file removes what only the earlier one named: nobody would
/// find it later.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn after_daemons_have_started_with_changed_files() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    let renamed = ("10.9.0.100", "10.9.0.101");
    let moved = |host: &Host| {
        let left = shape(host);
        left.contains("10.9.0.101/32") && !left.contains("10.9.0.100/32")
    };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        // The edge first, or the backup takes over.
        let all = [Role::Edge, Role::Primary, Role::Backup];
        for role in all {
            group.stop_daemon(role, Signal::KILL).expect("a daemon");
            change(testbed.host(role), "holdfast.toml", &[renamed]);
        }
        for role in all {
            group.start_daemon(role).expect("a daemon");
        }
        // Whoever serves then.
        let is_gone = || !shape(testbed.host(Role::Primary)).contains("10.9.0.100/32");
        let members = [Role::Primary, Role::Backup];
        world::wait_for_group(group, "the address to go", || {
            is_gone() && members.iter().any(|role| moved(testbed.host(*role)))
        });
    });
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group = SpreadGroup::start(&testbed, &HOSTS[..2], &SpreadOptions::default())
        .expect("the group stands");
    let host = testbed.host(Role::Primary);
    group.kill(Role::Primary).expect("killed");
    change(host, "spread.toml", &[renamed]);
    group.launch(Role::Primary).expect("another");
    world::wait_until("the address to go", || moved(host));
    // Its interface has another name for the file: the programs are at the old one.
    group.kill(Role::Primary).expect("killed");
    host.ip("link add p9 type veth peer name p8\nlink set p9 up\nlink set p8 up\n")
        .expect("ip runs");
    change(host, "spread.toml", &[("\"p0\"", "\"p9\"")]);
    group.launch(Role::Primary).expect("another");
    let filters = |interface: &str| {
        let mut tc = host.command("tc");
        let shown = tc.args(["filter", "show", "dev", interface, "ingress"]).output();
        String::from_utf8_lossy(&shown.expect("tc runs").stdout).contains("host_ingress")
    };
    world::wait_until("the programs to move", || filters("p9") && !filters("p0"));
}

#[test]
fn after_the_files_of_other_groups_have_changed() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group = SpreadGroup::start(&testbed, &HOSTS[..2], &SpreadOptions::default())
        .expect("the group stands");
    for (role, interface) in [(Role::Primary, "p0"), (Role::Edge, "ec")] {
        group.kill(role).expect("killed");
        let (old, new) = (format!("\"{interface}\""), format!("\"{interface}9\""));
        let host = testbed.host(role);
        change(host, "spread.toml", &[("10.9.0.100", "10.9.0.101"), (&old, &new)]);
        let done = group.verb(role, &["down", "--json"]).expect("the verb runs");
        let left = shape(host);
        assert!(done.status.success() && !left.contains("clsact"), "{done:?} {left}");
        assert!(!left.contains("10.9.0.100/32"), "{left}");
    }
    let mut strings = Strings::build(&transit::plan(&[100, 100], "")).expect("the testbed stands");
    strings.start_daemons().expect("the edges hear each other");
    strings.kill_daemon(Edge::Near).expect("killed");
    let near = strings.edge(Edge::Near);
    change(near, "holdfast.toml", &[("\"nc\"", "\"nc9\""), ("\"n1\"", "\"n9\"")]);
    let said = strings.ask(Edge::Near, &["down", "--json"]).expect("the verb succeeds");
    let left = shape(near);
    assert!(!left.contains("clsact"), "{left} {said}");
}

fn is_as_before(host: &Host, before: &str, removed: &str) {
    // What was killed takes a moment to end on a busy machine.
    let mut now = shape(host);
    for _ in 0..50 {
        if now == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        now = shape(host);
    }
    let new: Vec<&str> = now.lines().filter(|line| !before.contains(line)).collect();
    let lost: Vec<&str> = before.lines().filter(|line| !now.contains(line)).collect();
    assert!(now == before, "{}: new {new:#?}, lost {lost:#?}; {removed}", host.name());
}

/// Runs the verb on a host, and returns its answer; it must succeed.
fn down(group: &Group<'_>, role: Role, words: &[&str]) -> Value {
    let done: Output = group.verb(role, words).expect("the verb runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "the {}: {said}\n{}", role.name(), group.log_tails());
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// Everything of a host that daemons change: filters, addresses, mounts, files, processes. Lock
/// files stay: who removed one could let two daemons hold it.
fn shape(host: &Host) -> String {
    // Of the processes only the programs, without those of this script and those that a host
    // without an init has not reaped.
    let script = "tc qdisc show; for d in $(ls /sys/class/net); do \
        tc filter show dev $d ingress 2>&1; tc filter show dev $d egress 2>&1; done; \
        ip -o addr | sed 's/ *valid_lft.*//; s/ tentative//'; grep $0/run /proc/mounts; \
        ls -A $0/run 2>/dev/null | grep -v '\\.lock$'; \
        ps -eo stat=,comm= | awk '$1 !~ /^Z/ && $2 !~ /^(sh|ps|awk|sort)$/ {print $2}' | sort";
    let shown = || {
        let done = host.command("sh").args(["-c", script]).arg(host.inside()).output();
        String::from_utf8_lossy(&done.expect("sh starts").stdout).into_owned()
    };
    // A killed server takes a moment to end.
    let mut last = shown();
    for _ in 0..50 {
        let now = shown();
        if now == last && !now.contains("redis-server") {
            return now;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    last
}
