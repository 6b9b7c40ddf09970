//! Calls that bypass libc are noticed, named, and end protection; the server
//! itself and the programs that it runs go on undisturbed.

use crate::harness::{Outcome, compiled, observe, wait_for};
use holdfast_wire::shm::{mode, option};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// Sends each line and expects the answer "1" to it.
fn talk(port: u16, lines: &[&str]) {
    wait_for(port);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connection");
    let mut answers = BufReader::new(stream.try_clone().expect("second handle"));
    for line in lines {
        stream.write_all(format!("{line}\n").as_bytes()).expect("line sent");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("answer");
        assert_eq!(answer, "1\n", "{line}");
    }
}

fn escapes(name: &str, port: u16, options: u32, lines: &[&str]) -> Option<Outcome> {
    let program = compiled("escapes.c")?;
    let (path, number) = (program.display().to_string(), port.to_string());
    let outcome = observe(&[&path, &number], port, options, name, || talk(port, lines));
    let _ = std::fs::remove_file(program);
    Some(outcome)
}

fn assert_replays(o: &Outcome) {
    assert_eq!(o.primary, (mode::RECORD, String::new()), "{}", o.said);
    assert_eq!((o.replica.0, o.left), (mode::REPLAY, 0), "{}\n{}", o.replica.1, o.said);
}

fn assert_broken(o: &Outcome, what: &str) {
    assert_eq!(o.primary.0, mode::BROKEN, "{}", o.said);
    let reason = &o.primary.1;
    assert!(reason.contains(what) && reason.contains("bypasses libc"), "{reason}");
    assert!(reason.contains("the program+0x"), "{reason}");
    assert_eq!(o.said.matches(what).count(), 2, "once by each member:\n{}", o.said);
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
}

#[test]
fn what_tells_the_server_nothing_passes() {
    let lines = ["plain", "child", "mask", "plain", "child"];
    let Some(o) = escapes("plain", 16390, 0, &lines) else { return };
    assert_replays(&o);
}

#[test]
fn an_inline_call_is_named_and_answered() {
    let Some(o) = escapes("inline", 16391, 0, &["plain", "inline", "inline", "plain"]) else {
        return;
    };
    assert_broken(&o, "system call 110 at 0x");
}

#[test]
fn a_thread_is_watched_too() {
    let Some(o) = escapes("thread", 16392, 0, &["plain", "thread", "inline"]) else { return };
    assert_broken(&o, "system call 110 at 0x");
}

#[test]
fn the_counter_is_not_watched_by_default() {
    let Some(o) = escapes("tsc", 16393, 0, &["plain", "rdtsc", "plain"]) else { return };
    assert_replays(&o);
}

#[test]
fn the_counter_is_watched_on_demand() {
    let trap = option::TRAP_TSC;
    let Some(o) = escapes("trap", 16394, trap, &["plain", "child", "rdtsc", "rdtsc"]) else {
        return;
    };
    assert_broken(&o, "time stamp counter at 0x");
}
