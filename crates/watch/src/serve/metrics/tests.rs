//! The names against the rules of Prometheus, against docs/METRICS.md, and those that dashboard and
//! alerts use against the code.

use super::*;
use holdfast::status::{Peer, Role, Takeover};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

const METRICS: &str = include_str!("../../../../../docs/METRICS.md");
const DASHBOARD: &str = include_str!("../../../../../contrib/grafana/holdfast.json");
const RULES: &str = include_str!("../../../../../contrib/prometheus/holdfast.rules.yml");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A primary that has survived, and the edge before it.
fn seen() -> [Seen; 2] {
    let mut status = Status::new("demo", "a");
    (status.role, status.state) = (Role::Primary, State::Unprotected);
    status.connections = 12;
    status.peers.push(Peer { name: "edge".to_owned(), connected: true, note: String::new() });
    for (name, value) in
        [("gate.acks_clamped", 3), ("speak.uncloned (copies that failed)", 1), ("spool.bytes", 9)]
    {
        status.counters.insert(name.to_owned(), value);
    }
    status.counters.insert("pulse.late_worst_us".to_owned(), 1500);
    let at = "2026-11-21T00:00:00.500000Z".to_owned();
    status.last_takeover = Some(Takeover { total_us: 2500, at, ..Takeover::default() });
    let mut edge = Status::new("demo", "edge");
    edge.role = Role::Edge;
    edge.counters.insert("edge.grants".to_owned(), 2);
    let all = [status, edge].map(|status| {
        let mut seen = Seen::default();
        seen.take_status(serde_json::to_value(status).unwrap()).unwrap();
        seen
    });
    let [mut one, mut edge] = all;
    edge.take_show(
        json!({ "flows": { "count": 7, "max": 100 }, "cache": { "bytes": 1, "bytes_max": 2 } }),
    );
    let events = json!([
        { "number": 1, "at": "", "what": "state", "detail": "" },
        { "number": 2, "at": "", "what": "connection lost", "detail": "\"x\"\n" },
        { "number": 3, "at": "", "what": "state", "detail": "" },
    ]);
    one.take_events(json!({ "life": "x", "events": events })).unwrap();
    [one, edge]
}

fn scraped() -> String {
    let [one, edge] = seen();
    text(&[&one, &edge])
}

/// What promtool's linter says, and the format's own rules: HELP and TYPE once, before the samples
/// of the family, which are together; names and units.
fn complaints(text: &str) -> Vec<String> {
    const ABBREVIATED: [&str; 8] = ["_s", "_ms", "_us", "_ns", "_sec", "_b", "_kb", "_mb"];
    const NOT_BASE: [&str; 6] =
        ["milliseconds", "microseconds", "minutes", "kilobytes", "megabytes", "percent"];
    let (mut found, mut families, mut current) = (Vec::new(), BTreeSet::new(), String::new());
    let mut kind = "";
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                if !families.insert(name.to_owned()) {
                    found.push(format!("{name} comes twice"));
                }
                current = name.to_owned();
                kind = "";
                if help.len() < 5 {
                    found.push(format!("{name} has no help"));
                }
            }
            ["#", "TYPE", name, its] => {
                kind = its;
                let is_total = name.ends_with("_total");
                if name != current || is_total != (its == "counter") {
                    found.push(format!("{line} after {current}"));
                }
                let is_short =
                    ABBREVIATED.iter().any(|it| name.trim_end_matches("_total").ends_with(it));
                let is_odd = NOT_BASE.iter().any(|it| name.contains(it)) || name.contains("__");
                let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                let is_reserved =
                    ["_count", "_sum", "_bucket", "_info_info"].iter().any(|it| name.ends_with(it));
                if is_short
                    || is_odd
                    || is_reserved
                    || !name.chars().all(good)
                    || !name.starts_with("holdfast_")
                {
                    found.push(format!("{name} is no name"));
                }
            }
            _ => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let value = line.rsplit(' ').next().unwrap_or_default();
                if name != current || kind.is_empty() || value.parse::<f64>().is_err() {
                    found.push(format!("{line}: after {current}"));
                }
            }
        }
    }
    found
}

#[test]
fn a_scrape_keeps_the_rules() {
    let text = scraped();
    assert_eq!(complaints(&text), [""; 0], "{text}");
    for line in [
        "holdfast_up{group=\"demo\",member=\"a\"} 1",
        "holdfast_state{group=\"demo\",member=\"a\",role=\"primary\",state=\"unprotected\"} 1",
        "holdfast_state{group=\"demo\",member=\"a\",role=\"primary\",state=\"protected\"} 0",
        "holdfast_events_total{group=\"demo\",member=\"a\",what=\"state\"} 2",
        "holdfast_gate_acks_clamped_total{group=\"demo\",member=\"a\"} 3",
        "holdfast_speak_uncloned_total{group=\"demo\",member=\"a\"} 1",
        "holdfast_spool_bytes{group=\"demo\",member=\"a\"} 9",
        "holdfast_pulse_late_worst_seconds{group=\"demo\",member=\"a\"} 0.0015",
        "holdfast_last_takeover_total_seconds{group=\"demo\",member=\"a\"} 0.0025",
        "holdfast_last_takeover_timestamp_seconds{group=\"demo\",member=\"a\"} 1795219200.5",
        "holdfast_takeovers_total{group=\"demo\",member=\"a\"} 1",
        "holdfast_flows_max{group=\"demo\",member=\"edge\"} 100",
    ] {
        let found = text.lines().any(|it| it.replace(".0", "") == line.replace(".0", ""));
        assert!(found, "{line}\n{text}");
    }
    // The rules can be broken.
    for (right, wrong) in [
        ("# TYPE holdfast_epoch gauge", "# TYPE holdfast_epoch counter"),
        ("# HELP holdfast_epoch", "# HOLP holdfast_epoch"),
        ("holdfast_lag_bytes", "holdfast_lag_kb"),
    ] {
        assert!(
            text.contains(right) && !complaints(&text.replace(right, wrong)).is_empty(),
            "{wrong}"
        );
    }
    promtool(&["check", "metrics"], &text);
}

/// Has promtool judge a text, where it is installed.
fn promtool(words: &[&str], text: &str) {
    let command = Command::new("promtool")
        .args(words)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = command else { return };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn a_daemon_that_is_silent_is_down_and_nothing_else() {
    let text = text(&[&Seen::default()]);
    assert!(text.contains("holdfast_build_info") && !text.contains("holdfast_up"), "{text}");
}

#[test]
fn hostile_names_and_words_stay_in_their_quotes() {
    let mut status = Status::new("de\"mo\n", "a\\");
    for name in ["", " (x)", "9.x", "a b\n# TYPE x counter", "é.é"] {
        status.counters.insert(name.to_owned(), 1);
    }
    let mut seen = Seen::default();
    seen.take_status(serde_json::to_value(status).unwrap()).unwrap();
    let text = text(&[&seen]);
    assert!(text.contains("holdfast_up{group=\"de\\\"mo\\n\",member=\"a\\\\\"} 1"), "{text}");
    assert!(
        text.lines().all(|line| line.starts_with("# ") || line.starts_with("holdfast_")),
        "{text}"
    );
}

#[test]
fn every_name_is_in_the_document() {
    for (name, help) in FAMILIES {
        let row = METRICS.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let kind = if name.ends_with("_total") { "| counter |" } else { "| gauge |" };
        assert!(row.is_some_and(|row| row.contains(kind)), "{name}: {kind}");
        assert!(help.len() > 10, "{name}");
    }
    let rows = METRICS
        .lines()
        .filter(|line| line.starts_with("| `holdfast_") && !line.contains("goes behind"));
    let rows: Vec<&str> = rows.collect();
    let known =
        |row: &&&str| FAMILIES.iter().any(|(name, _)| row.starts_with(&format!("| `{name}` |")));
    let unknown: Vec<&&str> = rows.iter().filter(|row| !known(row)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // And a scrape has no others, but for those that come from counters.
    let text = scraped();
    let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in named.filter_map(|rest| rest.split(' ').next()) {
        let own = FAMILIES.iter().any(|(known, _)| *known == name);
        let counter = ["gate", "speak", "spool", "pulse", "edge"]
            .iter()
            .any(|it| name.starts_with(&format!("holdfast_{it}_")));
        assert!(own || counter, "{name}");
    }
    for gauge in GAUGES {
        assert!(METRICS.contains(&format!("`{gauge}`")), "{gauge}");
    }
}

/// The metrics that a text uses.
fn used(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.match_indices("holdfast_")
        .map(|(at, _)| text[at..].chars().take_while(|c| is_part(*c)).collect())
        .collect()
}

/// Names of counters that the daemons' sources have, as families.
fn counted() -> BTreeSet<String> {
    let mut all = String::new();
    for folder in ["crates/holdfast/src", "crates/linux/src/bpf", "crates/cluster/src"] {
        gather(&std::path::Path::new(SOURCES).join(folder), &mut all);
    }
    let words = all.split('"').filter(|word| word.len() < 40 && !word.is_empty());
    words.filter_map(family_of).map(|(name, ..)| name.replacen("holdfast_", "", 1)).collect()
}

fn gather(folder: &std::path::Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        match entry.path() {
            path if path.is_dir() => gather(&path, all),
            path if path.extension().is_some_and(|it| it == "rs") => {
                *all += &std::fs::read_to_string(path).expect("a source");
            }
            _ => {}
        }
    }
}

#[test]
fn dashboard_and_alerts_use_what_there_is() {
    let counted = counted();
    let prefixes = [
        "gate", "log", "tap", "tapdrop", "edge", "host", "transit", "beats", "pulse", "loop",
        "spool", "lease", "speak", "witness",
    ];
    let is_known = |name: &str| {
        let own = name.strip_prefix("holdfast_").unwrap_or_default();
        let of_counter = prefixes.iter().filter_map(|it| own.strip_prefix(it)?.strip_prefix('_'));
        FAMILIES.iter().any(|(known, _)| *known == name)
            || of_counter.into_iter().any(|rest| counted.contains(rest))
            || counted.contains(own)
    };
    assert!(is_known("holdfast_edge_grants_total") && is_known("holdfast_epoch"));
    assert!(!is_known("holdfast_edge_xyzzy_total") && !is_known("holdfast_epochs"));
    let names = [used(DASHBOARD), used(RULES)];
    assert!(names.iter().all(|names| names.len() > 8), "{names:?}");
    let unknown: Vec<&String> = names.iter().flatten().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_dashboard_is_one() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|it| it >= 36));
    assert_eq!(dashboard["uid"], "holdfast");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        let title = panel["title"].as_str().unwrap_or_default();
        assert!(title.len() > 3, "{panel}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect(key);
        assert!(place("x") + place("w") <= 24 && place("h") > 0, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(places.insert((x, y)), "{title} lies on another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(
            targets.iter().all(|it| it["expr"].as_str().is_some_and(|it| it.contains("holdfast_"))),
            "{title}"
        );
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(variables.iter().any(|it| it["name"] == "datasource"));
}

#[test]
fn every_alert_says_what_to_do() {
    let alerts = RULES.matches("- alert: ").count();
    assert!(alerts >= 8, "{alerts}");
    for part in ["expr: ", "severity: ", "summary: ", "description: "] {
        assert_eq!(RULES.matches(part).count(), alerts, "{part}");
    }
    let file = std::env::temp_dir().join(format!("holdfast-rules-{}.yml", std::process::id()));
    std::fs::write(&file, RULES).unwrap();
    promtool(&["check", "rules", &file.display().to_string()], "");
    std::fs::remove_file(file).unwrap();
}
