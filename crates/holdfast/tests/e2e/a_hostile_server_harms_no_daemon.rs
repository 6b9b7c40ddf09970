//! A server is taken over by somebody: while clients talk to it, it writes over the memory that it
//! shares with its daemon, on both members. The daemons live, answer, stay small and go on hearing
//! each other, the group says that it is not protected any more and why, and its edge serves on.
//! `HOLDFAST_HOSTILE=N` tries N seeds, `HOLDFAST_SEED=S` begins with seed S.

use crate::client::in_namespace;
use crate::more_families::with_server;
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed, addresses};
use holdfast_linux::process::resident_bytes;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 7707;
/// Seeds in the test.
const SEEDS: u64 = 3;
/// How long the daemons are looked at while they are attacked.
const LOOK: Duration = Duration::from_secs(1);
/// Most memory of a daemon beyond what it had: its ring, what is on its way, and a second ring.
const GROWTH_MAX: u64 = 256 << 20;
/// Longest time that a daemon takes to answer on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const DAEMONS: [Role; 3] = [Role::Primary, Role::Backup, Role::Edge];

fn connect(testbed: &Testbed) -> TcpStream {
    let at = format!("{}:{PORT}", addresses::SERVICE_V4);
    let namespace = testbed.host(Role::Client).namespace();
    let stream = in_namespace(namespace, || TcpStream::connect(at).expect("a connection"));
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
    stream
}

fn ask(stream: &mut TcpStream, line: &str) -> std::io::Result<()> {
    stream.write_all(line.as_bytes())?;
    let mut answer = vec![0; line.len()];
    stream.read_exact(&mut answer)
}

/// What the group's daemons say while their server attacks them.
fn is_borne(group: &Group<'_>, before: &[(u32, u64)], seed: u64) {
    let until = Instant::now() + LOOK;
    while Instant::now() < until {
        for (role, (pid, bytes)) in DAEMONS.into_iter().zip(before) {
            let begun = Instant::now();
            let status = group.status(role);
            assert!(status.is_ok(), "seed {seed}: {role:?} answers: {status:?}");
            assert!(begun.elapsed() < ANSWER_MAX, "seed {seed}: {role:?} answers late");
            assert_eq!(group.daemon_pid(role).ok(), Some(*pid), "seed {seed}: {role:?} lives");
            let grown = resident_bytes(*pid).unwrap_or(u64::MAX).saturating_sub(*bytes);
            assert!(grown < GROWTH_MAX, "seed {seed}: {role:?} has grown by {grown} bytes");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn attacked(seed: u64) {
    let command = ["{}/server", addresses::SERVICE_V4, &PORT.to_string()];
    let prepare = |_: &Testbed, _: Role, folder: &Path| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/hostile_server.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-o"]).arg(folder.join("server")).arg(source);
        assert!(compiler.status().expect("a compiler").success());
    };
    let options = GroupOptions::default();
    let program = ("{}/server", PORT, "nobody");
    with_server(&command, program, &options, prepare, |testbed, group| {
        let mut clients: Vec<TcpStream> = (0..4).map(|_| connect(testbed)).collect();
        clients.iter_mut().for_each(|client| ask(client, "hello\n").expect("an answer"));
        let of = |role| {
            let pid = group.daemon_pid(role).expect("a daemon");
            (pid, resident_bytes(pid).expect("its memory"))
        };
        let before = DAEMONS.map(of);
        let _answered = ask(&mut clients[0], &format!("attack {seed} {}\n", seed % 3));
        // They may hear nothing any more: the server is not worth trusting.
        for client in &mut clients {
            client.set_read_timeout(Some(Duration::from_millis(200))).expect("a limit");
            let _heard = ask(client, "hello\n");
        }
        is_borne(group, &before, seed);
        if seed % 3 == 2 {
            // Only its table of connections: what is wrong there is judged at a takeover.
            return;
        }
        world::wait_until("the truth", || {
            [Role::Primary, Role::Backup].into_iter().all(|role| {
                let status = group.status(role).unwrap_or_default();
                let reason = status["reason"].as_str().unwrap_or_default();
                status["state"] != "protected" && !reason.is_empty()
            })
        });
    });
}

#[test]
fn a_hostile_server_harms_no_daemon() {
    let _limit = world::limit(Duration::from_secs(60));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = world::first_seed();
    let seeds = number("HOLDFAST_HOSTILE").unwrap_or(SEEDS);
    (first..first + seeds).for_each(attacked);
}
