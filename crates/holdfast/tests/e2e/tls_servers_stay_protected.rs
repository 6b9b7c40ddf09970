//! A server with TLS uses its own memory addresses in computations; they are the same on both
//! members. Its sessions survive a takeover, byte by byte.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Bytes of a value: more than one TLS record, and not more than a line may have.
const VALUE_BYTES: usize = 50_000;

/// Creates a self-signed certificate and its key, the same on both members.
fn certificate(testbed: &Testbed) {
    let [primary, backup] = [Role::Primary, Role::Backup].map(|r| testbed.host(r).outside());
    let text = |name: &str| primary.join(name).display().to_string();
    let done = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"])
        .args(["-keyout", &text("tls.key"), "-out", &text("tls.pem")])
        .stderr(Stdio::null())
        .status();
    assert!(done.expect("openssl starts").success());
    for name in ["tls.key", "tls.pem"] {
        std::fs::copy(primary.join(name), backup.join(name)).expect("a copy");
        for side in [primary, backup] {
            let done = Command::new("chmod").arg("644").arg(side.join(name)).status();
            assert!(done.expect("chmod starts").success());
        }
    }
}

/// A redis-server that speaks only TLS.
fn recipe(testbed: &Testbed) -> Recipe {
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0);
    let mut recipe = prepare(Role::Primary).expect("a directory");
    prepare(Role::Backup).expect("a directory");
    let at = recipe.command.iter().position(|word| word == "--port").expect("a port");
    recipe.command[at] = "--tls-port".to_owned();
    let inside = testbed.host(Role::Primary).inside();
    let file = |name: &str| inside.join(name).display().to_string();
    let words = ["--port", "0", "--tls-auth-clients", "no", "--tls-cert-file"];
    recipe.command.extend(words.map(str::to_owned));
    recipe.command.extend([file("tls.pem"), "--tls-key-file".to_owned(), file("tls.key")]);
    recipe
}

/// A TLS session of OpenSSL's client, through its standard input and output.
struct Session {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Session {
    fn open(testbed: &Testbed) -> Self {
        let at = format!("{}:{}", addresses::SERVICE_V4, Program::Redis.port());
        let mut child = testbed
            .host(Role::Client)
            .network_command("openssl")
            .args(["s_client", "-quiet", "-connect", &at])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, to, from }
    }

    fn ask(&mut self, command: &str) -> String {
        self.to.write_all(command.as_bytes()).and_then(|()| self.to.flush()).expect("a session");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    fn count(&mut self, numbers: std::ops::RangeInclusive<u32>) {
        for n in numbers {
            assert_eq!(self.ask("INCR n\r\n"), format!(":{n}"));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_session_survives_byte_by_byte() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    certificate(&testbed);
    let options = GroupOptions { heartbeat_ms: Some(100), ..GroupOptions::default() };
    let group = Group::start(&testbed, &recipe(&testbed), &options).expect("the group protects");
    let mut session = Session::open(&testbed);
    let value: String = (0..VALUE_BYTES).map(|i| char::from(b'a' + (i % 23) as u8)).collect();
    assert_eq!(session.ask(&format!("SET v {value}\r\n")), "+OK");
    session.count(1..=50);
    group.ensure_protected().expect("still protected");
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
    session.count(51..=100);
    let mut answer = vec![0; VALUE_BYTES + 2];
    assert_eq!(session.ask("GET v\r\n"), format!("${VALUE_BYTES}"));
    session.from.read_exact(&mut answer).expect("all of it");
    assert_eq!(answer, format!("{value}\r\n").into_bytes());
    let mut second = Session::open(&testbed);
    assert_eq!(second.ask("INCR n\r\n"), ":101");
    let status = group.status(Role::Backup).expect("the daemon answers");
    assert_eq!(status["role"], "primary", "{status}");
}
