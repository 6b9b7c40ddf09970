//! What `docs/SERVERS.md` says of a server is so: its own client and sessions that stay
//! live through takeovers and joins, or the group says why it does not protect it.
//! `HOLDFAST_MATRIX=full` tries the whole table, as far as it is installed.

use crate::world;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Fast ones that `scripts/setup` installs.
const SAMPLE: [&str; 2] = ["mosquitto", "python-asyncio"];

/// Servers of the page that work or are refused: name, verdict, and takeovers and joins.
fn promised() -> Vec<(String, String, String)> {
    let page = include_str!("../../../../docs/SERVERS.md");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cell = |line: &str, number| line.split(" | ").nth(number).unwrap_or_default().to_owned();
    let rows = rows.map(|line| (cell(line, 0).replace("| ", ""), cell(line, 2), cell(line, 3)));
    rows.filter(|(_, verdict, _)| ["works", "refused"].iter().any(|it| verdict.starts_with(it)))
        .collect()
}

#[test]
fn a_server_of_the_table_works_or_is_refused() {
    let _limit = world::limit(Duration::from_secs(180));
    let promised = promised();
    let is_asked = |name: &str| world::is_full() || SAMPLE.contains(&name);
    let asked: Vec<_> = promised.iter().filter(|(name, ..)| is_asked(name)).collect();
    assert!(asked.len() >= SAMPLE.len(), "{promised:?}");
    let takeovers = if world::is_full() { "5" } else { "1" };
    let done = Command::new(world::lab())
        .args(["servers", "--json", "--heartbeat-ms", "100", "--takeovers", takeovers])
        .args(asked.iter().map(|(name, ..)| name))
        .output()
        .expect("the laboratory starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    let report: Value = serde_json::from_slice(&done.stdout).expect(&errors);
    let found = report["servers"].as_array().expect("servers");
    assert_eq!(found.len(), asked.len());
    for ((name, page, counts), found) in asked.iter().zip(found) {
        let verdict = found["verdict"].as_str().unwrap_or_default();
        let is_there = verdict != "not-installed";
        assert!(is_there || !SAMPLE.contains(&name.as_str()), "{found}");
        // `works-with` is `works` with a setting.
        let word = verdict.split('-').next().unwrap_or_default();
        assert!(!is_there || page.starts_with(word), "the page says {page}: {found}");
        let is_joined = found["joins"].as_u64() > Some(0);
        assert!(
            !is_there || is_joined != counts.ends_with(", 0"),
            "the page says {counts}: {found}"
        );
    }
    assert_eq!(done.status.code(), Some(0));
}
