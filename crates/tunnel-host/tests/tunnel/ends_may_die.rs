//! Ends that are stopped, started again and killed: what is left hinders nobody, and the other one
//! goes on with the new one.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, SOON, wait};
use crate::traffic::{ping, tcp};
use rustix::process::Signal;

#[test]
fn either_end_may_be_started_again() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    for end in [A, B, A] {
        assert_eq!(bed.stop(end, Signal::TERM), Some(0));
        assert!(!bed.has_interface(end, "t0"), "its interface is gone");
        let other = bed.status(1 - end).expect("an answer");
        assert_eq!(other["state"], "waiting");
        assert_eq!(other["reason"], "the peer said that it ends");
        bed.start(end);
        bed.wait_up();
        assert_eq!(ping(&bed, INSIDE[B], 10, 56), 10);
        tcp(&bed, INSIDE[B], 1 << 20);
    }
    // B itself was started in between.
    assert_eq!(bed.status(B).expect("an answer")["security"]["peer_restarts"], 1);
}

#[test]
fn kill_9_leaves_nothing_in_the_way() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    for end in [A, B] {
        assert_eq!(bed.stop(end, Signal::KILL), None);
        assert!(!bed.has_interface(end, "t0"), "the kernel has removed it");
        let other = bed.status(1 - end).expect("an answer");
        assert_eq!(other["state"], "waiting", "it was asked, and did not answer");
        bed.start(end);
        bed.wait_up();
        assert_eq!(ping(&bed, INSIDE[B], 10, 56), 10);
    }
}

#[test]
fn a_second_one_is_refused_while_the_first_one_runs() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    let second = bed.verb(A, &["up", "--config", &bed.path(A, "toml")]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("runs already (pid ") && said.contains("remedy: "), "{said}");
    assert_eq!(ping(&bed, INSIDE[B], 5, 56), 5, "the first one goes on");
    bed.stop(A, Signal::INT);
    wait("no socket", SOON, || !bed.folder.join("run/tunnel-a.sock").exists());
    assert!(bed.folder.join("run/tunnel-b.sock").exists());
}

#[test]
fn it_keeps_no_rights() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    let status = std::fs::read_to_string(format!("/proc/{}/status", bed.pid(A).as_raw_nonzero()));
    let status = status.expect("it runs");
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.expect("a line").trim().to_owned()
    };
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!([value("NoNewPrivs:"), value("Seccomp:")], ["1", "2"]);
}
