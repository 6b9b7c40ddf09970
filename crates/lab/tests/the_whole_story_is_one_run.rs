//! The demonstration's whole story, as it is told: every act on the same hosts with the same
//! connections, and a page that says so. Needs root.

use std::process::Command;

#[test]
#[ignore = "the end-to-end tests try the same hosts for less than a minute; `make soak` runs all"]
fn every_connection_lives_from_the_first_act_to_the_last() {
    let page = std::env::temp_dir().join(format!("holdfast-whole-{}.html", std::process::id()));
    let done = Command::new(env!("CARGO_BIN_EXE_holdfast-lab"))
        .args(["demo", "--all", "--output"])
        .arg(&page)
        .output()
        .expect("the lab starts");
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    let _it_may_not_be_there = std::fs::remove_file(&page);
    assert!(done.status.success(), "{told}{errors}");
    assert!(told.contains("19 of 19 connections lived through all 5 acts"), "{told}");
    for act in 1..=5 {
        assert!(text.contains(&format!("<h2>Act {act}: ")), "act {act}");
    }
}
