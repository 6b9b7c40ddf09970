//! Servers with threads: recorded under load of several clients at once, which
//! check what they get, replayed, and promoted.

use crate::harness::{
    compiled, installed, observe, run_and_promote, run_in_a_takeover, scratch, wait_for,
};
use holdfast_wire::shm::mode;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

const CLIENTS: usize = 6;

/// A client that speaks in lines.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        Self { stream: BufReader::new(stream) }
    }

    fn say(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).expect("sent");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, text: &str) -> String {
        self.say(text);
        self.line()
    }

    /// The value of a memcached key.
    fn get(&mut self, key: &str) -> Option<String> {
        let head = self.ask(&format!("get {key}\r\n"));
        if head == "END" {
            return None;
        }
        let value = self.line();
        assert_eq!(head, format!("VALUE {key} 0 {}", value.len()));
        assert_eq!(self.line(), "END");
        Some(value)
    }
}

/// Private counters, values that are read back, and one counter for all, of
/// which each client sees other numbers. With `stats`, also what the server says
/// of itself while it works.
fn memcached_load(port: u16, rounds: usize, stats: bool) {
    wait_for(port);
    assert_eq!(Client::new(port).ask("set shared 0 0 1\r\n0\r\n"), "STORED");
    let seen = Mutex::new(vec![false; CLIENTS * rounds + 1]);
    std::thread::scope(|s| {
        for c in 0..CLIENTS {
            let seen = &seen;
            s.spawn(move || {
                let mut client = Client::new(port);
                assert_eq!(client.ask(&format!("set own{c} 0 0 1\r\n0\r\n")), "STORED");
                for i in 1..=rounds {
                    assert_eq!(client.ask(&format!("incr own{c} 1\r\n")), i.to_string());
                    let number: usize = client.ask("incr shared 1\r\n").parse().expect("a number");
                    assert!(!std::mem::replace(&mut seen.lock().expect("seen")[number], true));
                    let (key, value) = (format!("k{c}-{}", i % 50), format!("v{}", i * 7919 + c));
                    let set = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                    assert_eq!(client.ask(&set), "STORED");
                    assert_eq!(client.get(&key), Some(value));
                    if stats && i % 100 == 0 {
                        client.say("stats\r\n");
                        while client.line() != "END" {}
                    }
                }
            });
        }
    });
    assert_eq!(Client::new(port).get("shared"), Some((CLIENTS * rounds).to_string()));
}

/// A promoted replica has all that its clients were told.
fn memcached_remembers(port: u16, rounds: usize) {
    let mut client = Client::new(port);
    assert_eq!(client.get("shared"), Some((CLIENTS * rounds).to_string()));
    for c in 0..CLIENTS {
        assert_eq!(client.get(&format!("own{c}")), Some(rounds.to_string()));
        let last = format!("v{}", rounds * 7919 + c);
        assert_eq!(client.get(&format!("k{c}-{}", rounds % 50)), Some(last));
    }
    let more: Vec<_> = (0..CLIENTS)
        .map(|_| std::thread::spawn(move || Client::new(port).ask("incr shared 1\r\n")))
        .collect();
    for client in more {
        client.join().expect("an answer");
    }
    assert_eq!(client.get("shared"), Some((CLIENTS * rounds + CLIENTS).to_string()));
}

fn memcached(port: u16, workers: &str, rounds: usize) {
    let program = installed("/usr/bin/memcached");
    let number = port.to_string();
    let argv = [program, "-u", "root", "-l", "127.0.0.1", "-p", &number, "-t", workers, "-U", "0"];
    let name = format!("memcached-{workers}");
    // Among several workers it tells of their buffers without a lock.
    let load = || memcached_load(port, rounds, workers == "1");
    run_and_promote(&argv, port, &name, load, || memcached_remembers(port, rounds));
}

#[test]
fn memcached_with_one_worker_goes_live() {
    memcached(16420, "1", 500);
}

#[test]
fn memcached_with_four_workers_goes_live() {
    memcached(16421, "4", 500);
}

/// A whole answer to one request for a file.
fn download(port: u16, path: &str) -> (String, Vec<u8>) {
    let mut client = Client::new(port);
    client.say(&format!("GET /{path} HTTP/1.0\r\n\r\n"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(client.stream.read_line(&mut head).expect("a head"), 0, "{head}");
    }
    let mut body = Vec::new();
    client.stream.read_to_end(&mut body).expect("a body");
    (head, body)
}

fn python_load(port: u16, rounds: usize) {
    let large = "0123456789abcdef".repeat(16384).into_bytes();
    std::thread::scope(|s| {
        for _ in 0..CLIENTS {
            s.spawn(|| {
                for i in 0..rounds {
                    let (head, body) = download(port, ["1k.bin", "256k.bin", ""][i % 3]);
                    assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
                    match i % 3 {
                        0 => assert!(body == [b'x'; 1024]),
                        1 => assert!(body == large),
                        _ => assert!(String::from_utf8_lossy(&body).contains("256k.bin")),
                    }
                    assert!(download(port, "none").0.starts_with("HTTP/1.0 404"));
                }
            });
        }
    });
}

#[test]
fn a_python_thread_for_each_connection_goes_live() {
    let program = installed("/usr/bin/python3");
    let (port, dir) = (16422, scratch("python-threads"));
    let (root, number) = (dir.display().to_string(), port.to_string());
    let argv = [program, "-m", "http.server", &number, "--bind", "127.0.0.1", "--directory", &root];
    let load = || {
        wait_for(port);
        python_load(port, 60);
    };
    run_and_promote(&argv, port, "python-threads", load, || python_load(port, 6));
    let _ = std::fs::remove_dir_all(dir);
}

/// Requests of one client, and what must be in each answer.
fn meet(port: u16, from: usize, requests: usize) {
    let mut client = Client::new(port);
    for n in from + 1..=from + requests {
        let answer = client.ask("go\n");
        let rounds = n * 40;
        let start = format!("{rounds} rounds {rounds} serial 1 first {} ended 9, digest ", n * 2);
        assert!(answer.starts_with(&start), "{answer}");
    }
}

#[test]
fn threads_that_meet_in_every_way_go_live() {
    let Some(program) = compiled("threads.c") else { return };
    let path = program.display().to_string();
    let load = || {
        wait_for(16423);
        meet(16423, 0, 10);
    };
    run_and_promote(&[&path, "16423"], 16423, "threads", load, || meet(16423, 10, 3));
    let _ = std::fs::remove_file(program);
}

/// A cold backup's replica has all of its log to run in a takeover. Its threads wait for each
/// other while one opens a file, whose number must be free then.
#[test]
fn threads_that_open_files_in_turn_run_all_of_their_log_in_a_takeover() {
    let Some(program) = compiled("opens.c") else { return };
    let (port, path) = (16428, program.display().to_string());
    let load = || {
        wait_for(port);
        let mut client = Client::new(port);
        (0..20).for_each(|_| drop(client.ask("go\n")));
    };
    run_in_a_takeover(&[&path, &port.to_string()], port, "opens", load);
    let _ = std::fs::remove_file(program);
}

#[test]
fn clocks_read_thousands_of_times_are_the_same_for_the_replica() {
    let Some(program) = compiled("clocks.c") else { return };
    let (port, path) = (16426, program.display().to_string());
    let load = || {
        wait_for(port);
        let mut client = Client::new(port);
        (0..200).for_each(|_| drop(client.ask("?\n")));
    };
    let argv = [path.as_str(), &port.to_string()];
    run_and_promote(&argv, port, "clocks", load, || drop(Client::new(port).ask("?\n")));
    let _ = std::fs::remove_file(program);
}

#[test]
fn what_a_thread_saw_before_it_slept_is_the_same_for_the_replica() {
    let Some(program) = compiled("sleeps.c") else { return };
    let (port, path) = (16427, program.display().to_string());
    let argv = [path.as_str(), &port.to_string()];
    // The thread sleeps when it is counted, and is awake when it is told to look again.
    let count = |from, to: usize| {
        let mut client = Client::new(port);
        for n in from..to {
            (0..10).for_each(|_| assert_eq!(client.ask("?\n"), n.to_string()));
            assert_eq!(client.ask("look\n"), n.to_string());
            std::thread::sleep(Duration::from_millis(250));
            assert_eq!(client.ask("count\n"), (n + 1).to_string());
            std::thread::sleep(Duration::from_millis(400));
        }
    };
    let load = || {
        wait_for(port);
        count(0, 5);
    };
    run_and_promote(&argv, port, "sleeps", load, || count(5, 6));
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_race_without_a_lock_is_noticed() {
    let Some(program) = compiled("race.c") else { return };
    let path = program.display().to_string();
    let o = observe(&[&path, "16424"], 16424, 0, "race", || {
        wait_for(16424);
        let mut client = Client::new(16424);
        for _ in 0..20 {
            client.ask("count\n");
        }
    });
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    assert!(o.replica.1.contains("writes other bytes"), "{}", o.replica.1);
    let _ = std::fs::remove_file(program);
}
