//! Handlers run where both members can name the place, and still do to the server's calls what
//! the kernel's would: the replica has the same answers, and gives them itself once it is live.

use crate::harness::{ask, compiled, run_and_promote, wait_for};

/// Each test has a port of its own: they run side by side.
const PORT: u16 = 16_460;

/// Asks a server of `signals.c` the same on the primary, in its log, and once it is live. With so
/// many rounds the log is long enough to count.
fn try_all(port: u16, name: &str, questions: &str) {
    const ROUNDS: usize = 12;
    let Some(program) = compiled("signals.c") else { return };
    let (path, at) = (program.display().to_string(), port.to_string());
    let right: Vec<_> = questions.chars().map(|it| format!("{it} right")).collect();
    let work = || {
        for _ in 0..ROUNDS {
            assert_eq!(ask(port, questions), right);
        }
    };
    let load = || {
        wait_for(port);
        work();
    };
    run_and_promote(&[&path, &at], port, name, load, work);
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_handler_ends_a_wait_for_readiness() {
    try_all(PORT, "signals-waits", "pse");
}

#[test]
fn what_is_ready_is_told_beside_a_handler() {
    try_all(PORT + 1, "signals-ready", "r");
}

#[test]
fn a_handler_runs_with_its_signal_blocked() {
    try_all(PORT + 2, "signals-nested", "n");
}

#[test]
fn what_the_server_blocks_is_handled_when_it_lets_it_come() {
    try_all(PORT + 3, "signals-masks", "mw");
}
