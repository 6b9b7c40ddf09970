//! docs/STATUS.md against the code: everything that a daemon can say is there. The
//! names are taken from the code itself, so that a new one without a line in the
//! document fails.

use super::{Member, PastTakeover, Peer, Role, State, Status, Takeover, exit};
use crate::admin::{Event, Request};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const STATUS: &str = include_str!("../../../../docs/STATUS.md");
/// Sources that make objects of `holdfast.edge/1`.
const EDGES: [&str; 5] = [
    include_str!("../daemon/edge/report.rs"),
    include_str!("../daemon/spread/report.rs"),
    include_str!("../daemon/transit/report.rs"),
    include_str!("../daemon/recover.rs"),
    include_str!("../daemon/regulate.rs"),
];

/// The part under a heading of the document.
fn section(heading: &str) -> &'static str {
    let (_, after) = STATUS.split_once(&format!("\n## {heading}\n")).expect(heading);
    after.split("\n## ").next().unwrap_or_default()
}

/// Whether code in the text (between backticks) contains the word.
fn names(text: &str, word: &str) -> bool {
    let code = text.split('`').skip(1).step_by(2);
    let is_part = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.' || c == '/');
    code.flat_map(|code| code.split(is_part)).any(|part| part == word)
}

/// The names that serde would have accepted instead of the given one.
fn expected<T: DeserializeOwned>(wrong: Value) -> Vec<String> {
    let error = serde_json::from_value::<T>(wrong).err().expect("refused").to_string();
    let (_, names) = error.split_once("expected").expect("it says what it takes");
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The keys of an object, and of the objects in it.
fn keys(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| [vec![key.as_str()], keys(value)].concat()).collect()
        }
        Value::Array(all) => all.iter().flat_map(keys).collect(),
        _ => Vec::new(),
    }
}

/// The words that the part lacks.
fn missing<'a>(part: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    words.into_iter().filter(|word| !names(part, word)).collect()
}

#[test]
fn every_field_and_value_of_the_status_is_explained() {
    let mut status = Status::new("demo", "a");
    status.peers.push(Peer { name: "b".to_owned(), connected: true, note: String::new() });
    status.members.push(Member::default());
    status.last_takeover = Some(Takeover::default());
    let status = serde_json::to_value(&status).expect("a status");
    let part = section("`holdfast.status/1`");
    assert_eq!(missing(part, keys(&status)), [""; 0]);
    let roles = expected::<Role>(json!("?"));
    assert_eq!((roles.len(), missing(part, roles.iter().map(String::as_str))), (6, vec![]));
    let states = expected::<State>(json!("?"));
    assert_eq!(states.len(), 7);
    assert_eq!(missing(section("States"), states.iter().map(String::as_str)), [""; 0]);
    let codes = section("Exit codes");
    for code in exit::OK..=exit::FENCED {
        assert!(codes.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn every_request_is_explained() {
    let part = section("The admin socket");
    let commands = expected::<Request>(json!({ "cmd": "?" }));
    assert!(commands.len() >= 7, "{commands:?}");
    for command in &commands {
        let row = part.lines().find(|line| line.contains(&format!("\"cmd\":\"{command}\"")));
        assert!(row.is_some(), "{command}");
        // A request without other fields says so differently.
        let wrong = json!({ "cmd": command, "?": 0 });
        let fields = match serde_json::from_value::<Request>(wrong.clone()) {
            Ok(_) => Vec::new(),
            Err(_) => expected::<Request>(wrong),
        };
        assert_eq!(missing(part, fields.iter().map(String::as_str)), [""; 0], "{command}");
    }
    let event = Event { takeover: Some(Box::new(PastTakeover::default())), ..Event::default() };
    let event = serde_json::to_value(event).expect("an event");
    assert_eq!(missing(part, keys(&event)), [""; 0]);
}

#[test]
fn every_field_of_an_edge_is_explained() {
    let part = section("`holdfast.edge/1`");
    for source in EDGES {
        let words = source.split('"').collect::<Vec<_>>();
        let is_key = |pair: &&[&str]| {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            pair[1].starts_with(": ") && !pair[0].is_empty() && pair[0].chars().all(is_name)
        };
        let keys: Vec<&str> = words.windows(2).filter(is_key).map(|pair| pair[0]).collect();
        assert!(keys.len() >= 4, "{keys:?}");
        assert_eq!(missing(part, keys), [""; 0]);
    }
}
