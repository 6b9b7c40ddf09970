//! Every workload against the real server that serves it, without Holdfast:
//! what the load calls wrong later must not be wrong here. Needs root, and the
//! Debian packages of the servers.

use std::process::Command;

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast-lab"))
}

fn check(arguments: &str) {
    let done = lab()
        .args(["bench", "check", "--variant", "clean", "--duration-ms", "200"])
        .args(arguments.split_whitespace())
        .output()
        .expect("the lab starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments}: {text}{errors}");
}

#[test]
fn redis_answers_over_ipv4() {
    for workload in
        ["pingpong", "incr", "shared", "echo", "upload", "download", "idle", "churn", "pubsub"]
    {
        check(&format!("--workload {workload}"));
    }
}

#[test]
fn redis_answers_over_ipv6() {
    for workload in ["pingpong", "shared", "churn"] {
        check(&format!("--workload {workload} --ipv6"));
    }
}

#[test]
fn both_http_servers_answer() {
    for server in ["nginx", "lighttpd"] {
        for workload in ["http-close", "http-keepalive"] {
            check(&format!("--workload {workload} --server {server}"));
        }
    }
}

#[test]
fn mosquitto_delivers_once_and_in_order() {
    check("--workload mqtt");
}

#[test]
fn the_death_of_an_unprotected_server_is_seen() {
    let done = lab()
        .args(["bench", "check", "--variant", "clean", "--kill"])
        .output()
        .expect("the lab starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("0 of 4 connections right"), "{text}");
}

#[test]
fn an_emulated_path_with_loss_and_reordering_harms_no_byte() {
    for workload in ["shared", "echo", "churn"] {
        let words =
            ["--workload", workload, "--client-path", "delay 2ms loss 2% reorder 3% seed 5"];
        let done = lab()
            .args(["bench", "check", "--variant", "clean"])
            .args(words)
            .output()
            .expect("the lab starts");
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success(),
            "{workload}: {text}{}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(!text.contains(" 0 retransmits"), "the path lost nothing: {text}");
    }
}
