//! What the dead primary was talking to is gone for the survivor: however the
//! server waits for it, it is told at once, and reads ECONNRESET.

use crate::harness::{compiled, run_and_promote, wait_for};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const UPSTREAM: u16 = 16_373;
const PORT: u16 = UPSTREAM + 1;

fn ask(question: &str) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", PORT)).expect("connected");
    client.write_all(question.as_bytes()).expect("asked");
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).expect("answered");
    line
}

/// Says one byte to everybody, and keeps them waiting for the next one.
fn upstream() {
    let listener = TcpListener::bind(("127.0.0.1", UPSTREAM)).expect("a free port");
    std::thread::spawn(move || {
        let mut clients = Vec::new();
        for client in listener.incoming().flatten() {
            let mut client: TcpStream = client;
            let _ = client.write_all(b"x");
            clients.push(client);
        }
    });
}

#[test]
fn whoever_waits_for_a_dead_upstream_is_told_at_once() {
    let Some(program) = compiled("proxy.c") else { return };
    upstream();
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        assert_eq!(ask("o"), "6\n");
        // The harness wants a log of some length.
        for _ in 0..50 {
            wait_for(PORT);
        }
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "upstreams", load, || {
        let start = Instant::now();
        let reset = libc::ECONNRESET;
        let (polled, waited) = (libc::POLLIN | libc::POLLERR | libc::POLLHUP, libc::EPOLLRDHUP);
        let waited = i32::from(polled) | waited;
        let resets = [reset; 6].map(|n| n.to_string()).join(" ");
        assert_eq!(ask("r"), format!("1 {polled:x} 1 1 1 {waited:x} {resets}\n"));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(ask("c"), "0 1 x\n", "the same socket, connected anew");
    });
    let _ = std::fs::remove_file(program);
}
