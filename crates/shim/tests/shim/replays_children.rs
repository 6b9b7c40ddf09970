//! What children write, the replica's children write as well; what they say to
//! others is said once. A child that has not ended at the takeover is the
//! survivor's own, under the number that the server knows.

use crate::harness::{ask_at, compiled, run_and_promote, wait_for};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const OUTSIDE: u16 = 16_367;
const PORT: u16 = OUTSIDE + 1;
const ROUNDS: u32 = 10;

fn ask(question: &str) -> String {
    ask_at(PORT, question)
}

/// Counts who comes.
fn outside() -> Arc<AtomicU32> {
    let listener = TcpListener::bind(("127.0.0.1", OUTSIDE)).expect("a free port");
    let came = Arc::new(AtomicU32::new(0));
    let count = came.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming().flatten() {
            count.fetch_add(1, SeqCst);
        }
    });
    came
}

fn ask_all() {
    assert_eq!(ask("w"), "3 0 -1 written\n");
    assert_eq!(ask("k"), "0 1 15\n");
    assert_eq!(ask("t"), "7\n");
    assert_eq!(ask("p"), "5 0 piped\n");
    // EINVAL: the server makes a child without namespaces then.
    assert_eq!(ask("n"), "-1 22\n");
}

#[test]
fn children_write_on_both_members_and_talk_once() {
    let Some(program) = compiled("forks.c") else { return };
    let came = outside();
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        (0..ROUNDS).for_each(|_| ask_all());
        assert_eq!(ask("s"), "started\n");
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "children", load, || {
        assert_eq!(came.load(SeqCst), ROUNDS, "somebody said it twice");
        assert_eq!(ask("f"), "3 0 -1 written\n");
        ask_all();
    });
    let _ = std::fs::remove_file(program);
}
