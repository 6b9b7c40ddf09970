//! The TOML reader's errors in our words, with what was probably meant.

use super::error::{ConfigError, Position};
use std::path::Path;

/// Similarity (Jaro-Winkler) from which a key is suggested.
const SUGGESTION_MIN: f64 = 0.75;

/// Turns an error of the TOML reader into one of ours, with a suggestion.
pub(super) fn explain(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message();
    let span = error.span().unwrap_or(0..0);
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (key, known) = quoted.split_first().map_or(("", &[][..]), |(key, known)| (*key, known));
    let (message, remedy) = if message.starts_with("unknown field") {
        let list = || format!("the keys there are: {}", known.join(", "));
        (format!("unknown key `{key}`"), suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("unknown variant") {
        let list = || format!("one of: {}", known.join(", "));
        (message.to_owned(), suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("missing field") {
        (format!("`{key}` is missing"), example(key))
    } else if message.starts_with("invalid type: string") && message.ends_with("a sequence") {
        let list = listed(text.get(span.clone()).unwrap_or_default());
        (message.to_owned(), format!("write a list: {list}"))
    } else {
        (
            message.lines().collect::<Vec<_>>().join("; "),
            "see `holdfast config example` for a whole file".to_owned(),
        )
    };
    ConfigError { path: path.to_owned(), at: Position::of(text, span.start), message, remedy }
}

/// The words of a text, as a list of them; where it has quotes of its own, how one looks.
fn listed(text: &str) -> String {
    let words = text.trim_matches('"');
    if words.contains(['"', '\'', '\\', '\n']) {
        return "[\"...\", \"...\"]".to_owned();
    }
    let words: Vec<String> = words.split_whitespace().map(|word| format!("\"{word}\"")).collect();
    format!("[{}]", words.join(", "))
}

pub(super) fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), *candidate))
        .filter(|(score, _)| *score >= SUGGESTION_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

/// How a missing key looks.
pub(super) fn example(key: &str) -> String {
    let line = match key {
        "group" => "[group]",
        "edge" => "[edge]",
        "member" => "[[member]]",
        "server" => "[server]",
        "host" => "[[host]]",
        "addresses" => "addresses = [\"10.9.0.100\"]",
        "name" => "name = \"a\"",
        "key_file" => "key_file = \"/etc/holdfast/demo.key\"",
        "services" => "services = [\"10.9.0.100:6379\"]",
        "listen" => "listen = \"10.9.0.1:7700\"",
        "clients" => "clients = [\"eth0\"]",
        "address" => "address = \"10.9.0.2:7701\"",
        "interface" => "interface = \"eth0\"",
        "edge_port" => "edge_port = \"eth1\"",
        "mac" => "mac = \"02:00:00:00:00:0a\"",
        "command" => "command = [\"/usr/bin/redis-server\", \"--save\", \"\"]",
        other => return format!("add `{other}`"),
    };
    format!("add, for example: {line}")
}
