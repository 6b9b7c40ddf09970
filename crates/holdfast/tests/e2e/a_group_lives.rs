//! The life of a group: loads, faults, joins, repairs, restarts and hostile clients, drawn
//! from a seed. After each step every client that should live has lived, byte for
//! byte, every host's `status` is true, and nothing has grown. A violation prints
//! the line that replays it. A minute of it here; two hours where everything is tried.

use crate::world;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_group_lives() {
    let minutes: u64 = if world::is_full() { 120 } else { 1 };
    let _limit = world::limit(Duration::from_secs(90 + 60 * minutes));
    let done = Command::new(world::lab())
        .args(["life", "--minutes", &minutes.to_string()])
        .args(["--seed", &world::first_seed().to_string()])
        .output()
        .expect("the laboratory starts");
    let said = String::from_utf8_lossy(&done.stdout);
    let complaints = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}{complaints}");
    assert!(said.contains(" 0 violations"), "{said}");
}

/// Pause of a group after each step, in s: machines fail more rarely.
const REST_S: u64 = 90;

/// In an hour of faults, each followed by a pause, a group that heals is protected nearly always.
/// Runs only if everything is to be tried.
#[test]
fn a_group_that_heals_is_protected_nearly_always() {
    if !world::is_full() {
        return;
    }
    let _limit = world::limit(Duration::from_secs(90 * 60));
    let done = Command::new(world::lab())
        .args(["life", "--json", "--minutes", "60", "--rest-s", &REST_S.to_string()])
        .args(["--seed", &world::first_seed().to_string()])
        .output()
        .expect("the laboratory starts");
    let complaints = String::from_utf8_lossy(&done.stderr);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("a report");
    assert!(done.status.success(), "{report}{complaints}");
    let share = report["protected_percent"].as_f64().expect("a share");
    assert!(share >= 95.0, "protected {share} % of the time: {report}");
}
