//! Threads that race in memory survive with `run = "one-at-a-time"`, and by themselves once a
//! replica has differed: memcached with four workers, whose `stats` it counts without a lock,
//! loses no session and no byte.

use crate::{client, world};
use holdfast_lab::testbed::config::ServerRun;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const CLIENTS: usize = 8;
/// Turns of each client between two times that it asks for `stats`.
const TURNS: u64 = 20;
/// Turns of all clients together before the takeover, and after it.
const PART: u64 = 2000;

struct Session(BufReader<TcpStream>);

impl Session {
    fn new() -> Self {
        let to = client::service(Program::Memcached4.port());
        let stream = TcpStream::connect(to).expect("a connection");
        stream.set_read_timeout(Some(world::WAIT_LIMIT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, question: &str) -> String {
        self.0.get_mut().write_all(question.as_bytes()).expect("the server takes it");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// One turn of client `own`: its own counter, the one for all, and a value.
    fn turn(&mut self, own: usize, n: u64) {
        assert_eq!(self.ask(&format!("incr own{own} 1\r\n")), n.to_string());
        assert!(self.ask("incr shared 1\r\n").parse::<u64>().is_ok());
        let value = format!("v{}", n * 7919 + own as u64);
        let set = format!("set k{own} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(self.ask(&set), "STORED");
        assert_eq!(self.ask(&format!("get k{own}\r\n")), format!("VALUE k{own} 0 {}", value.len()));
        assert_eq!((self.line(), self.line()), (value, "END".to_owned()));
        if n.is_multiple_of(TURNS) {
            assert!(self.ask("stats\r\n").starts_with("STAT pid "));
            while self.line() != "END" {}
        }
    }
}

/// Ends the clients' work, also when what happens meanwhile fails: the scope waits for them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Clients work until `ends`; `middle` happens meanwhile.
fn under_load(testbed: &Testbed, middle: impl FnOnce(&dyn Fn(u64)) + Send) {
    let (turns, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    client::on_client(testbed, || {
        std::thread::scope(|scope| {
            let mut first = Session::new();
            assert_eq!(first.ask("set shared 0 0 1\r\n0\r\n"), "STORED");
            for own in 0..CLIENTS {
                assert_eq!(first.ask(&format!("set own{own} 0 0 1\r\n0\r\n")), "STORED");
            }
            let _ends = Ends(&ends);
            for own in 0..CLIENTS {
                let (turns, ends) = (&turns, &ends);
                scope.spawn(move || {
                    let mut session = Session::new();
                    for n in 1.. {
                        session.turn(own, n);
                        turns.fetch_add(1, SeqCst);
                        if ends.load(SeqCst) {
                            break;
                        }
                    }
                });
            }
            let wait = |so_many: u64| {
                let until = turns.load(SeqCst) + so_many;
                world::wait_until("turns of the clients", || turns.load(SeqCst) >= until);
            };
            middle(&wait);
        });
        let counted = Session::new().ask("incr shared 0\r\n");
        assert_eq!(counted, turns.load(SeqCst).to_string());
    });
}

/// Runs `with` in a group of memcached.
fn in_group(run: ServerRun, with: impl FnOnce(&Testbed, &mut Group<'_>)) {
    world::binary();
    let _limit = world::limit(Duration::from_secs(300));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut recipe = None;
    for role in [Role::Primary, Role::Backup] {
        recipe = Recipe::prepare(Program::Memcached4, testbed.host(role), 0).ok();
    }
    let recipe = recipe.expect("a place");
    let options = GroupOptions { run, heartbeat_ms: Some(200), ..Default::default() };
    let mut group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    with(&testbed, &mut group);
}

fn survives(kill: impl FnOnce(&mut Group<'_>) + Send) {
    in_group(ServerRun::OneAtATime, |testbed, group| {
        under_load(testbed, |wait| {
            wait(PART);
            group.ensure_protected().expect("a pair under load");
            let overlaps = |role| group.status(role).expect("a status")["overlaps"].as_u64();
            assert_eq!([Role::Primary, Role::Backup].map(overlaps), [Some(0); 2]);
            kill(group);
            world::wait_until("the takeover", || {
                group.status(Role::Backup).is_ok_and(|status| status["role"] == "primary")
            });
            wait(PART);
        });
    });
}

fn both_say(group: &Group<'_>, key: &str, value: &serde_json::Value) -> bool {
    let says = |role| group.status(role).is_ok_and(|status| status[key] == *value);
    says(Role::Primary) && says(Role::Backup)
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn sessions_survive_the_death_of_the_server() {
    survives(|group| {
        let pid = group.server_pid(Role::Primary).expect("a server");
        world::signal(pid, "KILL");
    });
}

#[test]
fn sessions_survive_the_death_of_server_and_daemon() {
    survives(|group| group.kill_member(Role::Primary).expect("they die"));
}

/// A survivor's threads run as they like until somebody joins, and take turns then.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_survivors_threads_take_turns_again() {
    in_group(ServerRun::OneAtATime, |testbed, group| {
        under_load(testbed, |wait| {
            for _ in 0..2 {
                wait(PART);
                world::each_dies_and_joins(group);
            }
            wait(PART);
            group.ensure_protected().expect("a pair under load");
            assert!(both_say(group, "one_at_a_time", &true.into()));
        });
    });
}

/// Nobody has said that its threads race: the first replica differs, the next one does not, nor
/// those of the survivors.
#[test]
fn a_replica_that_differs_makes_them_take_turns() {
    in_group(ServerRun::Auto, |testbed, group| {
        under_load(testbed, |wait| {
            // When threads first race into a difference is chance: on a busy machine they
            // seldom run at the same time.
            world::wait_long("a difference", || {
                let now = group.status(Role::Primary);
                now.is_ok_and(|status| status["one_at_a_time"] == true)
            });
            world::wait_until("another replica", || {
                both_say(group, "one_at_a_time", &true.into())
                    && both_say(group, "state", &"protected".into())
            });
            for victim in [Role::Primary, Role::Backup, Role::Primary] {
                wait(PART);
                group.ensure_protected().expect("a pair under load");
                let pid = group.server_pid(victim).expect("a server");
                world::signal(pid, "KILL");
                world::wait_until("the takeover", || group.primary() == Some(victim.other()));
                wait(PART);
                world::wait_until("the join", || {
                    both_say(group, "state", &"protected".into())
                        && both_say(group, "one_at_a_time", &true.into())
                });
            }
        });
    });
}
