//! Ports that a stranger holds are named by `check`, which leaves a running group alone;
//! a daemon that cannot start says the real reason first, with its exit code, and leaves
//! nothing behind.

use crate::status_is_true_on_every_host::{HOSTS, patient};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use holdfast_wire::segment::Mode;
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// What `check` reports of ports: verdicts with their lines.
fn ports(group: &Group<'_>, role: Role) -> Vec<(String, String)> {
    let checked = group.verb(role, &["check", "--json"]).expect("a verb").stdout;
    let report: Value = serde_json::from_slice(&checked).expect("JSON");
    let findings = report["findings"].as_array().expect("findings").iter();
    let word = |it: &Value, name: &str| it[name].as_str().unwrap_or_default().to_owned();
    let of_ports = findings.filter(|it| it["name"] == "port");
    of_ports.map(|it| (word(it, "verdict"), word(it, "found"))).collect()
}

/// Starts a process that listens by TCP and UDP until it is ended.
fn stranger(testbed: &Testbed, role: Role, address: &str, port: u16) -> Child {
    let script = format!(
        "import socket, sys\na = ('{address}', {port})\ns = socket.create_server(a)\n\
         u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.bind(a)\n\
         print('ready', flush=True)\nsys.stdin.read()"
    );
    let mut python = testbed.host(role).command("python3");
    python.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3 starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    child
}

/// Runs a daemon that ends at once.
fn run(testbed: &Testbed, role: Role, words: &[&str]) -> Output {
    let mut timeout = testbed.host(role).command("timeout");
    timeout.arg("15").arg(world::binary()).arg("run").args(words);
    timeout.stdin(Stdio::null()).output().expect("it runs")
}

fn shown(testbed: &Testbed, role: Role, words: &[&str]) -> String {
    let mut command: Command = testbed.host(role).command(words[0]);
    let done = command.args(&words[1..]).output().expect("it runs");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn a_start_that_cannot_be_is_explained() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        for role in HOSTS {
            let found = ports(group, role);
            assert!(!found.is_empty(), "{role:?}");
            assert!(found.iter().all(|(verdict, _)| verdict == "ok"), "{role:?}: {found:?}");
        }
        another_group_is_told(testbed);
        group.ensure_protected().expect("a look harms nobody");

        // Strangers hold the backup's service port, and its own.
        let file = group.config().display().to_string();
        let stopped = group.verb(Role::Backup, &["down", "--stop"]).expect("a verb");
        assert!(stopped.status.success(), "{stopped:?}");
        let mut at_service = stranger(testbed, Role::Backup, "0.0.0.0", 6379);
        let mut at_address = stranger(testbed, Role::Backup, addresses::BACKUP, 7701);
        let found = ports(group, Role::Backup);
        let taken = |part: &str| {
            let is = |(verdict, line): &&(String, String)| verdict == "fail" && line.contains(part);
            found.iter().find(is).unwrap_or_else(|| panic!("{part} in {found:?}"))
        };
        assert!(taken("services = 10.9.0.100:6379").1.contains("(python3)"), "{found:?}");
        assert!(taken("address = 10.9.0.3:7701").1.contains("(python3)"), "{found:?}");
        let refused = run(testbed, Role::Backup, &["--config", &file, "--role", "b"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot listen at 10.9.0.3:7701"), "{said}");
        assert!(!said.contains("no heartbeats"), "{said}");
        // The strangers' input ends when they are waited for.
        at_service.wait().and_then(|_| at_address.wait()).expect("their ends");

        leaves_no_mount(testbed, group, &file);
    });
}

/// Its folder is another one, so that no lock keeps it from starting.
#[test]
fn a_second_daemon_of_a_member_touches_nothing() {
    let _limit = world::limit(Duration::from_secs(120));
    for segment in [None, Some(Mode::Flood)] {
        let options = GroupOptions { segment, ..GroupOptions::default() };
        world::with_redis_and(&options, |testbed, group| {
            second_is_refused(testbed, Role::Primary, "a", "p0");
            second_is_refused(testbed, Role::Backup, "b", "b0");
            group.ensure_protected().expect("it was refused");
        });
    }
}

fn second_is_refused(testbed: &Testbed, role: Role, name: &str, interface: &str) {
    let host = testbed.host(role);
    let first = std::fs::read_to_string(host.outside().join("holdfast.toml")).expect("a file");
    let own = |line: &str| match line.starts_with("run_dir = ") {
        true => format!("run_dir = \"{}/second\"\n", host.inside().display()),
        false => format!("{line}\n"),
    };
    let second: String = first.lines().map(own).collect();
    assert_ne!(second, first);
    std::fs::write(host.outside().join("second.toml"), second).expect("a file");
    // Programs have numbers: others in their place would have others.
    let found = || {
        let filters = |way| shown(testbed, role, &["tc", "filter", "show", "dev", interface, way]);
        [
            filters("ingress"),
            filters("egress"),
            shown(testbed, role, &["grep", "bpf", "/proc/mounts"]),
        ]
    };
    let before = found();
    assert!(before.iter().any(|it| it.contains(" id ")), "{before:?}");
    let file = host.inside().join("second.toml").display().to_string();
    let refused = run(testbed, role, &["--config", &file, "--role", name]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("a daemon runs already at 10.9.0."), "{said}");
    assert!(said.contains("remedy: `holdfast down --stop`"), "{said}");
    assert_eq!(found(), before);
    assert!(!host.outside().join("second").exists(), "it has made nothing");
}

/// Its file names the interfaces of the group that runs, and serves something else.
fn another_group_is_told(testbed: &Testbed) {
    for (role, name) in [(Role::Edge, "edge"), (Role::Primary, "a"), (Role::Backup, "b")] {
        let host = testbed.host(role);
        let own = std::fs::read_to_string(host.outside().join("holdfast.toml")).expect("a file");
        // With the same folder it would be the same group, served otherwise.
        let other = own.replace(":6379", ":6380").replace("run_dir = \"", "run_dir = \"/run/other");
        std::fs::write(host.outside().join("other.toml"), other).expect("a file");
        let file = host.inside().join("other.toml").display().to_string();
        let mut check = host.command("timeout");
        check.arg("15").arg(world::binary()).args(["check", "--config", &file, "--role"]);
        let done = check.arg(name).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stdout);
        let whose = "belongs to another group, that of 10.9.0.100:6379, [fd";
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(whose) && said.contains("or end that one with"), "{said}");
        std::fs::remove_file(host.outside().join("other.toml")).expect("it was written");
    }
}

/// Checks an edge whose file names an interface that does not exist.
fn leaves_no_mount(testbed: &Testbed, group: &Group<'_>, file: &str) {
    let stopped = group.verb(Role::Edge, &["down", "--stop"]).expect("a verb");
    assert!(stopped.status.success(), "{stopped:?}");
    let edge = testbed.host(Role::Edge);
    let right = std::fs::read_to_string(edge.outside().join("holdfast.toml")).expect("a file");
    let wrong = right.replace("clients = [\"ec\"]", "clients = [\"nothere\"]");
    assert_ne!(wrong, right);
    std::fs::write(edge.outside().join("wrong.toml"), wrong).expect("a file");
    let wrong = file.replace("holdfast.toml", "wrong.toml");
    let refused = run(testbed, Role::Edge, &["--config", &wrong, "--role", "edge"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("nothere"), "{said}");
    let mounts = shown(testbed, Role::Edge, &["grep", "bpf", "/proc/mounts"]);
    assert!(!mounts.contains("bpf-edge"), "{said}\n{mounts}");
    let words = ["tc", "filter", "show", "dev", "ep", "ingress"];
    let filters = shown(testbed, Role::Edge, &words);
    assert!(filters.is_empty(), "{filters}");
}
