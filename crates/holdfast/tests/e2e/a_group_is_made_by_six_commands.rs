//! Three hosts that have the program and nothing else become a protected group by `init` on one and
//! `join` on the two others: nobody writes a file, or looks a value up. Each has a key of its own
//! then, unless one for all was wanted.

use crate::client::{Redis, on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::Signal;
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::Duration;

const COMMAND: &str = "/usr/bin/redis-server --bind * --protected-mode no --save ''";

/// A verb that runs on a host until that ends.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// The next JSON object that it prints.
    fn next(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it prints text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"))
    }

    /// The next object about this event.
    fn event(&mut self, event: &str) -> serde_json::Value {
        loop {
            let object = self.next();
            assert_eq!(object["schema"], "holdfast.init/1");
            if object["event"] == event {
                return object;
            }
        }
    }
}

/// The folder of a host's file and key.
fn folder(testbed: &Testbed, role: Role) -> PathBuf {
    testbed.host(role).inside().join("etc")
}

/// Gives a host places of its own for what daemons keep.
fn alone(testbed: &Testbed, role: Role) {
    let script =
        "mkdir -p /run/holdfast; mount -t tmpfs run /run/holdfast; mount -t tmpfs lib /var/lib";
    let done = testbed.host(role).command("sh").args(["-ec", script]).output().expect("sh");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn command(testbed: &Testbed, role: Role, words: &[&str]) -> std::process::Command {
    let mut command = testbed.host(role).command(world::binary());
    let folder = folder(testbed, role);
    command.args(words).args(["--json", "--directory"]).arg(folder).stdin(Stdio::null());
    command
}

fn start(testbed: &Testbed, role: Role, words: &[&str]) -> Running {
    let mut command = command(testbed, role, words);
    let log = std::fs::File::create(testbed.host(role).outside().join("said")).expect("a log");
    let child = command.arg("--run").stdout(Stdio::piped()).stderr(log).spawn();
    let mut child = child.expect("holdfast starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe"));
    Running { child, lines }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes the group, and returns its daemons. The file has the public keys that its hosts tell, if
/// they tell any.
fn make(testbed: &Testbed, more: &[&str]) -> [Running; 3] {
    let hosts = [Role::Edge, Role::Primary, Role::Backup];
    hosts.into_iter().for_each(|role| alone(testbed, role));
    let words = ["init", "demo", "--service", "10.9.0.100:6379", "--command", COMMAND];
    let words = [&words[..], &["--user", "nobody"], more].concat();
    let mut init = start(testbed, Role::Edge, &words);
    let waiting = init.event("waiting");
    let line = waiting["command"].as_str().expect("a command").to_owned();
    let join: Vec<&str> = line.split(' ').skip(1).collect();
    assert_eq!(join[1], "10.9.0.1:7709", "the address in the members' network");
    refuse_wrong_codes(testbed, &join, &mut init);
    let mut members = [Role::Primary, Role::Backup].map(|role| start(testbed, role, &join));
    let written = members.each_mut().map(|it| it.event("written"));
    assert_ne!(written[0]["role"], written[1]["role"]);
    let made = init.event("written");
    assert_eq!((&made["group"], &made["unconfirmed"]), (&"demo".into(), &serde_json::json!([])));
    assert_eq!(made["members"].as_array().map(Vec::len), Some(2));
    let text = std::fs::read_to_string(testbed.host(Role::Edge).outside().join("etc/demo.toml"));
    let text = text.expect("a file");
    for told in written.iter().chain([&made]) {
        match told["public_key"].as_str() {
            Some(public) => assert!(text.contains(&format!("[\"{public}\"]")), "{told}: {text}"),
            None => assert!(!text.contains("public_keys"), "{text}"),
        }
    }
    let [one, other] = members;
    [init, one, other]
}

/// A typing mistake is seen before anything is sent, and another code opens nothing.
fn refuse_wrong_codes(testbed: &Testbed, join: &[&str], init: &mut Running) {
    let [verb, address, code] = join else { panic!("{join:?}") };
    let typo = code.replacen(code.chars().next().expect("a letter"), "", 1);
    let done = command(testbed, Role::Primary, &[verb, address, &typo]).output().expect("it runs");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    let other = "0000-0000-0000-0000-0000-0000-0000";
    let done = command(testbed, Role::Primary, &[verb, address, other]).output().expect("it runs");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    assert!(said(&done).contains("10.9.0.1:7709 does not know this code"), "{}", said(&done));
    assert_eq!(init.event("wrong-code")["host"], "10.9.0.2");
    assert!(!folder(testbed, Role::Primary).exists(), "nothing is written");
}

fn wait_protected(testbed: &Testbed, role: Role) -> Output {
    let mut command = testbed.host(role).command(world::binary());
    let file = folder(testbed, role).join("demo.toml");
    command.args(["status", "--wait", "protected", "--timeout", "30", "--config"]).arg(file);
    command.output().expect("status runs")
}

/// The same file on all hosts, a key for root alone, and a service that outlives a host. The key is
/// another one on each host, unless `shared`.
fn is_protected(testbed: &Testbed, shared: bool) {
    let hosts = [Role::Edge, Role::Primary, Role::Backup];
    for role in hosts {
        let done = wait_protected(testbed, role);
        let log = std::fs::read_to_string(testbed.host(role).outside().join("said"));
        let shown = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{shown}{}{}", said(&done), log.unwrap_or_default());
    }
    let read = |role: Role, name: &str| {
        let path = testbed.host(role).outside().join("etc").join(name);
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        (std::fs::read(&path).expect("it can be read"), mode)
    };
    let files = hosts.map(|role| read(role, "demo.toml"));
    assert!(files.iter().all(|file| *file == files[0]));
    let keys = hosts.map(|role| read(role, "demo.key"));
    assert!(keys.iter().all(|key| key.1 == 0o600));
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        assert_eq!(keys[one] == keys[other], shared, "{one} and {other}");
    }
    let mut redis = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
    assert_eq!(redis.ask(&[b"SET", b"kept", b"here"]), "+OK");
    let is_primary = |role: &Role| {
        let mut command = testbed.host(*role).command(world::binary());
        let file = folder(testbed, *role).join("demo.toml");
        let shown = command.args(["status", "--json", "--config"]).arg(file).output();
        let shown = shown.expect("status runs").stdout;
        let status: serde_json::Value = serde_json::from_slice(&shown).expect("an object");
        status["role"] == "primary"
    };
    let primary = [Role::Primary, Role::Backup].into_iter().find(is_primary).expect("a primary");
    testbed.host(primary).signal_all(Signal::KILL).expect("its processes");
    redis.send(&[b"GET", b"kept"]);
    assert_eq!(redis.value(), b"here");
}

#[test]
fn two_members_and_their_witness() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let _daemons = make(&testbed, &[]);
    is_protected(&testbed, false);
}

#[test]
fn two_members_and_their_witness_with_one_key_for_all() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let _daemons = make(&testbed, &["--shared-key"]);
    is_protected(&testbed, true);
}

#[test]
fn two_members_behind_their_edge() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let _daemons = make(&testbed, &["--edge"]);
    is_protected(&testbed, false);
}

/// What does not fit is said on both hosts, and nobody has written anything.
#[test]
fn a_host_that_does_not_fit_is_told_why() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let words = ["init", "demo", "--service", "10.9.0.100:6379", "--timeout", "5", "--command"];
    let mut init =
        start(&testbed, Role::Edge, &[&words[..], &["/usr/bin/no-such-server"]].concat());
    let line = init.event("waiting")["command"].as_str().expect("a command").to_owned();
    let join: Vec<&str> = line.split(' ').skip(1).collect();
    // Another group of this host has the service, too.
    let etc = testbed.host(Role::Primary).outside().join("etc");
    std::fs::create_dir_all(&etc).expect("a folder");
    let other = include_str!("../../../../docs/example-segment.toml");
    std::fs::write(etc.join("web.toml"), other).expect("a file");
    let done = command(&testbed, Role::Primary, &join).output().expect("it runs");
    let told = "`/usr/bin/no-such-server` is no program of this host";
    assert!(done.status.code() == Some(1) && said(&done).contains(told), "{}", said(&done));
    let left = init.event("left");
    let has = |words: &str| left["text"].as_str().is_some_and(|text| text.contains(words));
    assert!(has(told) && has("web.toml of") && has("has this service"), "{left}");
    assert!(said(&done).contains("has this service"), "{}", said(&done));
    std::fs::remove_file(etc.join("web.toml")).expect("it is there");
    // The same machine twice: a copy with the hardware address of the first.
    let done = command(&testbed, Role::Edge, &join).output().expect("it runs");
    assert!(said(&done).contains("this is the host where init runs"), "{}", said(&done));
    let status = init.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(4), "nobody came in time");
    for role in [Role::Edge, Role::Primary] {
        let there = std::fs::read_dir(testbed.host(role).outside().join("etc"));
        assert_eq!(there.into_iter().flatten().count(), 0, "{}", role.name());
    }
}
