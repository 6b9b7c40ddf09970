//! A bound for a test: one whose servers hang says where each of their threads stands,
//! ends them, and fails.

use holdfast_linux::process;
use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Longest time for recording a server and following its log, in s: far more than on a
/// busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Servers that were started.
static STARTED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Notes a server that must have ended when the test has.
pub fn note(pid: u32) {
    STARTED.lock().expect("nobody panics with it").push(pid);
}

/// Ends this test program if the guard still lives after [`LIMIT`].
#[must_use]
pub fn limit(name: &str) -> Limit {
    let (alive, gone) = channel::<()>();
    let name = name.to_owned();
    std::thread::spawn(move || {
        if gone.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name}: still running after {} s, given up", LIMIT.as_secs());
            let all = STARTED.lock().expect("nobody panics with it");
            let all: Vec<u32> = all.iter().flat_map(|pid| process::family(*pid)).collect();
            all.iter().for_each(|pid| eprint!("{}", told(*pid)));
            for pid in all {
                // SAFETY: plain numbers.
                unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
            }
            std::process::exit(124);
        }
    });
    Limit { _alive: alive }
}

/// A guard; see [`limit`].
pub struct Limit {
    _alive: Sender<()>,
}

/// Where the threads of a process stand.
fn told(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| {
            let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
            text.trim_end().replace('\n', " < ")
        };
        let status = read("status");
        let state = status.split(" < ").find(|line| line.starts_with("State:")).unwrap_or("gone");
        let tid = task.file_name();
        let _ = writeln!(
            text,
            "  {pid}/{} {}: {state}; system call {}; {}",
            tid.display(),
            read("comm"),
            read("syscall"),
            read("stack"),
        );
    }
    text
}
