//! keepalived and BIRD with BFD by themselves, without Holdfast: they lead every connection to the
//! other edge when one dies. Needs root, and both Debian packages.

use std::process::Command;

fn an_edge_dies(by: &str) {
    let done = Command::new(env!("CARGO_BIN_EXE_holdfast-lab"))
        .args(["bench", "edges", "--variant", "clean", "--runs", "1", "--connections", "20"])
        .args(by.split_whitespace())
        .output()
        .expect("the lab starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{by}: {text}{errors}");
    let moved = ["e1 hit, then [\"e2\"]", "e2 hit, then [\"e1\"]"];
    assert!(moved.iter().any(|it| text.contains(it)), "{by}: {text}");
}

#[test]
fn keepalived_moves_the_address() {
    an_edge_dies("--by keepalived");
}

#[test]
fn bird_withdraws_the_routes() {
    an_edge_dies("--by bgp");
    an_edge_dies("--by bgp --ipv6");
}
