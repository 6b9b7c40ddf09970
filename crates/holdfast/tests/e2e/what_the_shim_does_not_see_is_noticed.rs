//! A server writes to a client in a way that its shim does not see, so its replica has not written
//! that and could not take over. It is not called protected for long.

use crate::client::{on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Server that answers each line, and one that says `raw` without its shim.
const SERVER: &str = r#"
import ctypes, socket
libc = ctypes.CDLL(None)
listener = socket.create_server(("::", 6379), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    client, _ = listener.accept()
    while line := client.recv(100):
        if line == b"raw\n":
            libc.dprintf(client.fileno(), b"done\n")
        else:
            client.sendall(b"done\n")
"#;

fn ask(client: &mut TcpStream, line: &str) {
    client.write_all(line.as_bytes()).expect("it is sent");
    let mut answer = [0; 5];
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"done\n");
}

#[test]
fn what_the_shim_does_not_see_is_noticed() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0);
    let mut recipe = prepare(Role::Primary).expect("a directory");
    prepare(Role::Backup).expect("a directory");
    recipe.command = ["python3", "-u", "-c", SERVER].map(str::to_owned).to_vec();
    let group = Group::start(&testbed, &recipe, &GroupOptions::default()).expect("a group");
    let status = || group.status(Role::Primary).unwrap_or_default();
    let at = service(Program::Redis.port());
    let mut client = on_client(&testbed, || TcpStream::connect(at).expect("a connection"));
    client.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
    (0..20).for_each(|_| ask(&mut client, "a\n"));
    assert_eq!(status()["state"], "protected");
    ask(&mut client, "raw\n");
    world::wait_until("the truth", || {
        let status = status();
        let reason = status["reason"].as_str().unwrap_or_default();
        status["state"] == "unprotected" && reason.contains("dprintf")
    });
    ask(&mut client, "a\n");
}
