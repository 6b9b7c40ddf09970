//! Calls by number (libc's `syscall`) are what they are by their functions: refused where those
//! are, so that callers fall back, and answered from the log.

use crate::harness::{ask, compiled, run, wait_for};

const PORT: u16 = 16_455;

#[test]
fn calls_by_number_replay_like_calls_by_name() {
    let Some(program) = compiled("bynumber.c") else { return };
    let path = program.display().to_string();
    run(&[&path, &PORT.to_string()], PORT, "bynumber", || {
        wait_for(PORT);
        for _ in 0..20 {
            let told = ask(PORT, "0123");
            assert_eq!(told[0], "refused -1 1 -1 1");
            assert_eq!(told[1], "descriptors 1 1 1 1 4 four");
            assert!(told[2].starts_with("machine -1 1 1 "), "{}", told[2]);
            assert_eq!(told[3], "signals 0 1 1 1 1");
        }
    });
    let _ = std::fs::remove_file(program);
}
