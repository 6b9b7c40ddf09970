//! A server whose threads or processes race in memory is followed, and goes live, where
//! they run one at a time; and what its threads do with the token keeps nobody waiting.

use crate::harness::{
    Outcome, compiled, consumed, eventually, installed, observe, observe_live, wait_for,
};
use holdfast_wire::shm::{mode, option};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const PORT: u16 = 16_460;
const ONE_AT_A_TIME: u32 = option::FAMILY | option::ONE_AT_A_TIME;
/// Clients at a time, and their questions.
const CLIENTS: usize = 4;
const QUESTIONS: usize = 5;

/// A client of one of the test servers, which answers each letter with a line.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        Self(BufReader::new(stream))
    }

    fn say(&mut self, question: u8) {
        self.0.get_mut().write_all(&[question]).expect("asked");
    }

    /// The next line; `None` at the connection's end.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        let n = self.0.read_line(&mut line).unwrap_or(0);
        (n > 0).then_some(line)
    }

    fn ask(&mut self, question: u8) -> String {
        self.say(question);
        self.hear().expect("an answer")
    }
}

fn ask_all(port: u16, question: u8) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::new(port);
                for _ in 0..QUESTIONS {
                    client.ask(question);
                }
            });
        }
    });
}

/// Records the server under `load`, replays it, and has it go live for `after`. Returns how
/// often two threads ran beside each other on the primary and on the replica.
fn follow(
    program: &Path,
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    after: impl FnOnce(),
) -> [u64; 2] {
    let argv = [program.to_str().expect("a path"), &port.to_string()];
    let (outcome, overlaps) = observe_live(&argv, port, ONE_AT_A_TIME, name, load, after);
    consumed(&outcome);
    overlaps
}

/// What becomes of the same without the token.
fn in_parallel(program: &Path, port: u16, name: &str, load: impl FnOnce() + Send) -> Outcome {
    let argv = [program.to_str().expect("a path"), &port.to_string()];
    observe(&argv, port, option::FAMILY, name, load)
}

/// `a_race_without_a_lock_is_noticed` has the same server without the token.
#[test]
fn threads_that_race_on_a_counter_are_followed() {
    let Some(program) = compiled("race.c") else { return };
    // One question makes four threads, which give way to each other 50,000 times.
    let load = |port| {
        move || {
            wait_for(port);
            let mut client = Client::new(port);
            client.ask(b'?');
            client.ask(b'?');
        }
    };
    let overlaps = follow(&program, PORT, "one-race", load(PORT), load(PORT));
    assert_eq!(overlaps, [0, 0]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn processes_that_share_memory_are_followed() {
    let Some(program) = compiled("shared.c") else { return };
    let load = |port| {
        move || {
            wait_for(port);
            ask_all(port, b'n');
        }
    };
    let overlaps = follow(&program, PORT + 2, "one-shared", load(PORT + 2), load(PORT + 2));
    assert_eq!(overlaps, [0, 0]);
    let o = in_parallel(&program, PORT + 3, "par-shared", load(PORT + 3));
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    let _ = std::fs::remove_file(program);
}

/// A worker ends in the middle of a client's questions, and with it the token is free.
fn lose_a_worker(port: u16, question: u8) {
    let mut client = Client::new(port);
    client.ask(b'n');
    client.say(question);
    assert_eq!(client.hear(), None, "it has died");
    eventually("both workers serve", || {
        let (mut one, mut other) = (Client::new(port), Client::new(port));
        one.ask(b'n');
        other.ask(b'n').len() > 1
    });
}

#[test]
fn a_holder_that_dies_holds_up_nobody() {
    let Some(program) = compiled("shared.c") else { return };
    const OWN: u16 = PORT + 4;
    let load = || {
        wait_for(OWN);
        for question in [b'k', b't', b'k'] {
            lose_a_worker(OWN, question);
        }
        ask_all(OWN, b'n');
    };
    let overlaps = follow(&program, OWN, "one-dies", load, || lose_a_worker(OWN, b'k'));
    assert_eq!(overlaps, [0, 0]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_holder_that_sleeps_in_libc_holds_up_nobody() {
    let Some(program) = compiled("shared.c") else { return };
    const OWN: u16 = PORT + 5;
    let load = || {
        wait_for(OWN);
        let (mut one, mut other) = (Client::new(OWN), Client::new(OWN));
        for _ in 0..3 {
            // Both workers have a client then.
            one.ask(b'n');
            other.ask(b'n');
            one.say(b'f');
            for _ in 0..20 {
                other.ask(b'n');
            }
            other.ask(b'p');
            assert!(one.hear().expect("an answer").ends_with(" 120\n"));
        }
    };
    let overlaps = follow(&program, OWN, "one-sleeps", load, || ask_all(OWN, b'n'));
    assert_eq!(overlaps, [0, 0]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn who_waits_for_the_disk_holds_up_nobody() {
    let Some(program) = compiled("shared.c") else { return };
    const OWN: u16 = PORT + 8;
    let load = || {
        wait_for(OWN);
        ask_all(OWN, b's');
    };
    let overlaps = follow(&program, OWN, "one-syncs", load, || ask_all(OWN, b's'));
    assert_eq!(overlaps, [0, 0]);
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_holder_that_computes_until_another_runs_is_counted() {
    let Some(program) = compiled("shared.c") else { return };
    const OWN: u16 = PORT + 6;
    let load = || {
        wait_for(OWN);
        let (mut one, mut other) = (Client::new(OWN), Client::new(OWN));
        one.ask(b'n');
        other.ask(b'n');
        one.say(b'w');
        other.ask(b'g');
        one.hear().expect("an answer");
        drop((one, other));
        ask_all(OWN, b'n');
    };
    let overlaps = follow(&program, OWN, "one-computes", load, || ask_all(OWN, b'n'));
    assert!(overlaps.iter().all(|n| (1..5).contains(n)), "{overlaps:?}");
    let _ = std::fs::remove_file(program);
}

/// What the server says of itself is counted by its workers without a lock.
#[test]
fn memcached_with_workers_tells_of_itself_under_load() {
    let program = installed("/usr/bin/memcached");
    const OWN: u16 = PORT + 7;
    let number = OWN.to_string();
    let argv = [program, "-u", "root", "-l", "127.0.0.1", "-p", &number, "-t", "4", "-U", "0"];
    let load = || {
        wait_for(OWN);
        std::thread::scope(|scope| {
            for c in 0..8 {
                scope.spawn(move || set_and_get(c));
            }
        });
    };
    let (outcome, overlaps) =
        observe_live(&argv, OWN, ONE_AT_A_TIME, "one-memcached", load, || set_and_get(0));
    consumed(&outcome);
    assert_eq!(overlaps, [0, 0]);
}

fn set_and_get(number: usize) {
    let mut client = Client::new(PORT + 7);
    for i in 0..200 {
        let put = format!("set a{number} 0 0 5\r\nhello\r\nget a{number}\r\n");
        client.0.get_mut().write_all(put.as_bytes()).expect("asked");
        if i % 20 == 0 {
            client.0.get_mut().write_all(b"stats\r\n").expect("asked");
        }
        for word in ["STORED", "VALUE", "hello", "END"] {
            let line = client.hear().expect("an answer");
            assert!(line.starts_with(word), "{line}");
        }
        while i % 20 == 0 && client.hear().expect("an answer") != "END\r\n" {}
    }
}
