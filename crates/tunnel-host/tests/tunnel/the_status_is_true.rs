//! What `status` says when the peer is there, is not there, and has gone.

use crate::bed::{A, B, Bed, OUTSIDE, at, wait};
use rustix::process::Signal;
use std::time::Duration;

#[test]
fn of_a_peer_that_is_there_and_one_that_has_gone() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    assert!(bed.status(A).is_none(), "exit code 4: nobody answers");
    bed.start(A);
    let alone = bed.status(A).expect("an answer");
    assert_eq!(alone["state"], "waiting");
    let reason = alone["reason"].as_str().expect("a reason");
    assert!(reason.contains("does not answer"), "{reason}");
    bed.start(B);
    bed.wait_up();
    let status = bed.status(A).expect("an answer");
    assert_eq!(status["schema"], "holdfast.tunnel-status/1");
    assert_eq!(status["peer"]["key"], bed.public_key(B));
    assert_eq!(status["peer"]["address"], at(OUTSIDE[B]));
    assert!(status["session"]["cipher"].is_string());
    assert!(status["peer"]["heard_s"].as_f64().is_some_and(|it| it < 2.0));
    let shown = bed.verb(A, &["status", "--config", &bed.path(A, "toml")]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.starts_with("tunnel a   up   mode tun   interface t0\n"), "{text}");

    // An idle tunnel says nothing by itself, and still knows.
    bed.ip(B, &["link", "set", "w0", "down"]);
    let gone = bed.status(A).expect("an answer");
    assert_eq!(gone["state"], "waiting");
    bed.ip(B, &["link", "set", "w0", "up"]);
    wait("the peer again", Duration::from_secs(10), || bed.is_up(A));
    rustix::process::kill_process(bed.pid(B), Signal::STOP).expect("it runs");
    let stopped = bed.status(A).expect("an answer");
    assert_eq!(stopped["state"], "waiting");
    let reason = stopped["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("nothing of the peer was heard for "), "{reason}");
    rustix::process::kill_process(bed.pid(B), Signal::CONT).expect("it runs");
    wait("the peer again", Duration::from_secs(10), || bed.is_up(A));
}

#[test]
fn of_ends_whose_keys_do_not_fit() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    // B expects somebody else.
    let stranger = bed.folder.join("c.key").to_string_lossy().into_owned();
    let made = bed.verb(B, &["key", "gen", &stranger]);
    let key = String::from_utf8(made.stdout).expect("text");
    let file = std::fs::read_to_string(bed.path(B, "toml")).expect("a file");
    let changed = file.replace(bed.public_key(A), key.trim());
    std::fs::write(bed.path(B, "toml"), changed).expect("a file");
    bed.start(A);
    bed.start(B);
    let reason = |bed: &Bed| bed.status(B).expect("an answer")["reason"].clone();
    wait("handshakes that do not fit", Duration::from_secs(10), || {
        reason(&bed) == "handshakes come that do not fit the keys"
    });
    assert_eq!(bed.status(A).expect("an answer")["state"], "waiting");
}

#[test]
fn a_trial_tells_how_messages_and_bulk_fare() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    let svg = bed.folder.join("trial.svg").to_string_lossy().into_owned();
    let file = bed.path(A, "toml");
    let words = ["test", "--config", &file, "--seconds", "2", "--output", &svg, "--json"];
    let done = bed.verb(A, &words);
    assert!(done.status.success(), "{done:?}");
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(found["schema"], "holdfast.tunnel-test/1");
    let number = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key} in {found}"));
    assert!(number("messages_sent") > 350.0 && number("messages_answered") > 340.0, "{found}");
    assert!((0.01..100.0).contains(&number("rtt_p50_ms")), "{found}");
    assert!(number("bulk_bits_per_s") > 1e6, "{found}");
    assert!(number("bulk_bytes_per_byte") > 0.9, "{found}");
    assert!(std::fs::read_to_string(&svg).expect("a picture").starts_with("<svg"));
    assert!(bed.is_up(A));
}
