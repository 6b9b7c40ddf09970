//! The program in `command` need not be the server itself: a script may become it. A program into
//! which the shim cannot be loaded is not called protected, and one that replaces itself while it
//! serves is still watched.

use crate::client::connected;
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::process::Command;
use std::time::Duration;

/// Redis started by another command, which is made from the usual one.
fn by(testbed: &Testbed, command: impl Fn(&str) -> Vec<String>) -> Recipe {
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0);
    let mut recipe = prepare(Role::Primary).expect("a directory");
    prepare(Role::Backup).expect("a directory");
    let quoted: Vec<String> = recipe.command.iter().map(|word| format!("'{word}'")).collect();
    recipe.command = command(&quoted.join(" "));
    recipe
}

#[test]
fn a_script_may_start_the_server() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let script = |server: &str| {
        let text = format!("name=$(hostname); exec env NAME=\"$name\" nice -n 1 {server}");
        ["/bin/sh", "-c", &text].map(str::to_owned).to_vec()
    };
    let recipe = by(&testbed, script);
    let group = Group::start(&testbed, &recipe, &GroupOptions::default()).expect("a group");
    let load = world::start(&testbed, &world::counting(2500, 0, None));
    std::thread::sleep(Duration::from_millis(700));
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
    let report = world::finish(load, &group);
    assert!(report.total(|it| it.replies) > 0);
    let status = group.status(Role::Backup).expect("the daemon answers");
    assert_eq!(status["role"], "primary", "{status}");
}

/// A server that becomes another program when its first client has said something: one that keeps
/// its listener, and does nothing.
const BECOMES_SLEEP: &str = r"
import os, socket, sys
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('::', int(sys.argv[1]))); s.listen(16); s.set_inheritable(True)
s.accept()[0].recv(1)
os.execv('/bin/sleep', ['sleep', '1000'])
";

#[test]
fn a_server_that_became_another_program_and_hangs_is_named() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let port = Program::Redis.port().to_string();
    let command = ["/usr/bin/python3", "-c", BECOMES_SLEEP, &port].map(str::to_owned);
    let recipe = by(&testbed, |_| command.to_vec());
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    let group = Group::start(&testbed, &recipe, &options).expect("a group");
    connected(&testbed, world::WAIT_LIMIT).send(&[b"x"]);
    let _waits = connected(&testbed, world::WAIT_LIMIT);
    world::wait_until("the reason", || {
        let status = group.status(Role::Primary).unwrap_or_default();
        let reason = status["reason"].as_str().unwrap_or_default().to_owned();
        status["state"] == "waiting" && reason.contains("the server does nothing: 1 of its clients")
    });
}

#[test]
fn a_static_program_is_not_called_protected() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    for role in [Role::Primary, Role::Backup] {
        let source = testbed.host(role).outside().join("static.c");
        std::fs::write(&source, "int pause(void); int main(void) { return pause(); }\n")
            .expect("a file");
        let program = testbed.host(role).outside().join("static");
        let cc = Command::new("cc").arg("-static").arg("-o").arg(program).arg(source).status();
        assert!(cc.expect("a C compiler").success());
    }
    let path = testbed.host(Role::Primary).inside().join("static").display().to_string();
    let recipe = by(&testbed, |_| vec![path.clone()]);
    let group = Group::launch(&testbed, &recipe, &GroupOptions::default()).expect("daemons");
    // Nor does it listen; and between two attempts to join it says why they fail.
    world::wait_until("the reason", || {
        let status = group.status(Role::Primary).unwrap_or_default();
        assert_ne!(status["state"], "protected");
        status["reason"].as_str().is_some_and(|reason| reason.contains("without the shim"))
    });
}
