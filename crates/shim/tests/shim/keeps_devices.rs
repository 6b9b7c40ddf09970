//! What a server keeps open of its machine answers from the log, and from the survivor's machine
//! after a takeover.

use crate::harness::{ask, compiled, run_and_promote, wait_for};

const PORT: u16 = 16_453;

#[track_caller]
fn asks(question: &str, answers: [&str; 4]) {
    let told = ask(PORT, question);
    for (told, expected) in told.iter().zip(answers) {
        assert!(told.starts_with(expected), "{question}: {told}, not {expected}");
    }
    assert_eq!(told.len(), answers.len());
}

#[test]
fn devices_that_were_open_at_a_takeover_are_the_survivors() {
    let Some(program) = compiled("devices.c") else { return };
    let path = program.display().to_string();
    let all_answer = || asks("urps", ["16 of 16", "16 of 16", "full", "full"]);
    let load = || {
        wait_for(PORT);
        for _ in 0..20 {
            all_answer();
            asks("ccee", ["created", "created", "1 events", "0 events"]);
        }
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "devices", load, || {
        all_answer();
        asks("ecee", ["0 events", "created", "1 events", "0 events"]);
    });
    let _ = std::fs::remove_file(program);
}
