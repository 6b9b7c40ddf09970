//! A server that serves by its own child processes cannot be protected yet: that is reported at
//! once and by name, and clients are served as without Holdfast.

use crate::{client, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{DOCUMENT_BYTES, Program, Recipe, listens};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Server whose child takes every client, answers, and dies with the connection open.
const PREFORK: &str = "
import os, socket
s = socket.create_server(('', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    child = os.fork()
    if child == 0:
        c, _ = s.accept()
        c.recv(100)
        c.sendall(b'hello')
        os._exit(0)
    os.waitpid(child, 0)
";

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() }
}

/// nginx with `directives` at the start of its configuration.
fn nginx(testbed: &Testbed, directives: &str) -> Recipe {
    let mut recipe = None;
    for role in [Role::Primary, Role::Backup] {
        let host = testbed.host(role);
        recipe = Some(Recipe::prepare(Program::Nginx, host, DOCUMENT_BYTES[0]).expect("a place"));
        let path = host.outside().join("server/server.conf");
        let text = std::fs::read_to_string(&path).expect("a configuration");
        let text = text.replace("daemon off;\nmaster_process off;", directives);
        std::fs::write(&path, text).expect("another");
    }
    recipe.expect("both members")
}

/// Waits for the primary to be in a state, and returns the reason.
fn reason_for(group: &Group<'_>, state: &str) -> String {
    let status = || group.status(Role::Primary).unwrap_or_default();
    world::wait_until(state, || status()["state"] == state);
    status()["reason"].as_str().unwrap_or_default().to_owned()
}

/// Checks that no host calls the group protected.
fn nobody_says_protected(group: &Group<'_>) {
    for role in [Role::Primary, Role::Backup, Role::Edge] {
        let status = group.status(role).unwrap_or_default();
        assert_ne!(status["state"], "protected", "{}: {status}", role.name());
    }
}

#[test]
fn nginx_with_workers_is_named_and_serves() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = nginx(&testbed, "daemon off;\nworker_processes 2;");
    let group = Group::launch(&testbed, &recipe, &options()).expect("daemons");
    let holder = testbed.host(Role::Primary).holder();
    world::wait_until("a listening server", || listens(holder, Program::Nginx.port()));
    std::thread::sleep(Duration::from_secs(1));
    nobody_says_protected(&group);
    let reason = reason_for(&group, "unprotected");
    for word in ["nginx", "child", "master_process off"] {
        assert!(reason.contains(word), "{reason}");
    }
    let file = format!("{}", DOCUMENT_BYTES[0]);
    for _ in 0..4 {
        let text = client::on_client(&testbed, || {
            let mut stream = client::ask_and_shut(client::service(8080), &file);
            let mut text = Vec::new();
            stream.read_to_end(&mut text).expect("an end");
            text
        });
        assert!(text.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&text));
    }
    nobody_says_protected(&group);
    let config = group.config().display().to_string();
    let mut check = testbed.host(Role::Primary).command(world::binary());
    let told = check.args(["config", "check", &config]).output().expect("holdfast starts");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("FAIL") && told.contains("master_process off"), "{told}");
}

#[test]
fn a_server_that_leaves_for_the_background_is_told_so() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = nginx(&testbed, "master_process off;");
    let group = Group::launch(&testbed, &recipe, &options()).expect("daemons");
    let reason = reason_for(&group, "ended");
    assert!(reason.contains("background"), "{reason}");
    let holder = testbed.host(Role::Primary).holder();
    world::wait_until("what ran on to end", || !listens(holder, Program::Nginx.port()));
    // The reason is still reported long after the start.
    std::thread::sleep(Duration::from_secs(4));
    assert!(reason_for(&group, "ended").contains("background"));
}

#[test]
fn a_child_that_dies_with_its_client_ends_the_connection() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Python, testbed.host(role), 0);
    let mut recipe = prepare(Role::Primary).expect("a directory");
    prepare(Role::Backup).expect("a directory");
    recipe.command = ["/usr/bin/python3", "-c", PREFORK].map(str::to_owned).to_vec();
    let group = Group::launch(&testbed, &recipe, &options()).expect("daemons");
    let holder = testbed.host(Role::Primary).holder();
    world::wait_until("a listening server", || listens(holder, Program::Python.port()));
    for _ in 0..3 {
        let text = client::on_client(&testbed, || {
            let mut stream = TcpStream::connect(client::service(8080)).expect("a connection");
            stream.set_read_timeout(Some(world::WAIT_LIMIT)).expect("a timeout");
            stream.write_all(b"ask").expect("the server takes it");
            let mut text = Vec::new();
            stream.read_to_end(&mut text).expect("an end");
            text
        });
        assert_eq!(text, b"hello");
    }
    // Meanwhile its backup may try to join, and be refused.
    world::wait_until("a reason that names call and program", || {
        let reason = reason_for(&group, "unprotected");
        reason.contains("python") && reason.contains("accept")
    });
    nobody_says_protected(&group);
}

#[test]
fn a_child_that_writes_a_file_concerns_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&options(), |testbed, group| {
        let saved = client::on_client(testbed, || {
            let mut redis = client::Redis::connect(client::service(Program::Redis.port()));
            assert_eq!(redis.ask(&[b"SET", b"k", b"v"]), "+OK");
            assert_eq!(redis.ask(&[b"BGSAVE"]), "+Background saving started");
            std::thread::sleep(Duration::from_millis(500));
            redis.ask(&[b"SET", b"k", b"w"])
        });
        assert_eq!(saved, "+OK");
        let dump = testbed.host(Role::Primary).outside().join("server/dump.rdb");
        world::wait_until("the file", || dump.exists());
        group.ensure_protected().expect("still protected");
    });
}
