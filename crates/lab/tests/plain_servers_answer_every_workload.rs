//! Every workload against the real server that serves it, without Holdfast, or behind HAProxy:
//! what the load calls wrong later must not be wrong here. Needs root, and the
//! Debian packages of the servers.

use std::process::Command;

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast-lab"))
}

fn check(arguments: &str) {
    check_in("clean", arguments);
}

fn check_in(variant: &str, arguments: &str) {
    let done = lab()
        .args(["bench", "check", "--variant", variant, "--duration-ms", "200"])
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
fn servers_answer_behind_haproxy() {
    for words in ["churn", "upload --ipv6", "http-keepalive --server nginx"] {
        check_in("haproxy", &format!("--workload {words}"));
    }
    check_in("haproxy-eager", "--workload echo");
}

#[test]
fn haproxy_serves_new_connections_after_a_death_and_keeps_no_old_one() {
    let done = lab()
        .args(["bench", "deaths", "--runs", "1", "--deaths", "kill9", "--json"])
        .output()
        .expect("the lab starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect(&errors);
    let ended = |variant: &str| {
        let rows = report["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["variant"] == variant).expect("a row");
        assert_eq!((&row["clients"], &row["unserved"]), (&4.into(), &0.into()), "{row}");
        row["ended"].as_u64()
    };
    // Eager, it had half of the clients at each server.
    assert_eq!(["haproxy", "haproxy-eager", "ours"].map(ended), [Some(4), Some(2), Some(0)]);
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
