//! A member that compares its server's files again and again, because it may not join, still
//! answers questions.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_linux::priority;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a file of the server, so many that reading takes a while.
const FILE_BYTES: u64 = 200 << 20;
/// Longest time for an answer of a member that joins, which builds a server in one go.
const JOINING_MAX: Duration = Duration::from_secs(1);
/// Time for which the member is asked, in which it compares several times.
const ASKED_FOR: Duration = Duration::from_secs(6);
/// Real-time priority of the daemons, at which the asking thread runs, too, so that they take turns.
const PRIORITY: i32 = 10;

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn beside_a_lone_survivor() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(|role| {
        let recipe = Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a directory");
        let file = File::create(testbed.host(role).outside().join("server/large"));
        file.and_then(|file| file.set_len(FILE_BYTES)).expect("a large file");
        recipe
    });
    // Redis only notes the name, since it writes no such file.
    recipe.command.extend(["--appendfilename", "large"].map(str::to_owned));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    let mut group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    group.stop_daemon(Role::Primary, Signal::TERM).expect("a daemon");
    group.start_daemon(Role::Primary).expect("a daemon");
    world::wait_until("the member to be told", || {
        let status = group.status(Role::Primary).unwrap_or_default();
        status["reason"].as_str().is_some_and(|reason| reason.contains("join"))
    });
    let socket = testbed.host(Role::Primary).outside().join("run/a.sock");
    // Time that this test waits for a processor does not count for the daemon.
    let slowest = std::thread::spawn(move || {
        priority::set_realtime(PRIORITY).expect("a priority; run the tests as root");
        ask_for_a_while(&socket)
    });
    let slowest = slowest.join().expect("answers");
    assert!(slowest < JOINING_MAX, "an answer took {slowest:?}");
}

/// Time of the slowest answer.
fn ask_for_a_while(socket: &Path) -> Duration {
    let (until, mut slowest) = (Instant::now() + ASKED_FOR, Duration::ZERO);
    while Instant::now() < until {
        let asked = Instant::now();
        let mut stream = UnixStream::connect(socket).expect("an admin socket");
        stream.write_all(b"{\"cmd\":\"status\"}\n").expect("a question");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        slowest = slowest.max(asked.elapsed());
        assert!(answer.contains("\"state\""), "{answer}");
        std::thread::sleep(Duration::from_millis(5));
    }
    slowest
}
