//! The TOML reader's errors in our words, with what was probably meant.

use super::error::{ConfigError, Position};
use std::ops::Range;
use std::path::Path;

/// Similarity (Jaro-Winkler) from which a key is suggested.
const SUGGESTION_MIN: f64 = 0.75;
/// Remedy where the text is no TOML.
const SYNTAX: &str = "a value is a number, true, false, a \"text\" or a [list], and each key has one; \
    `holdfast config example` prints a whole file";

/// What the TOML reader says of a value that is no text, where a word is wanted.
const NO_WORD: &str = "wanted string or table";
/// A word that no setting has.
const UNKNOWN: &str = "\"?\"";

/// The text with a word that no setting has in place of a value that is none: the reader's error about
/// that lists the words.
pub(super) fn asking(text: &str, error: &toml::de::Error) -> Option<String> {
    let span = error.span().filter(|_| error.message().starts_with(NO_WORD))?;
    let (before, after) = (text.get(..span.start)?, text.get(span.end..)?);
    Some(format!("{before}{UNKNOWN}{after}"))
}

/// Turns an error of the TOML reader into one of ours, with a suggestion. `asked`: its error about the
/// text of [`asking`].
pub(super) fn explain(
    path: &Path,
    text: &str,
    error: &toml::de::Error,
    asked: Option<&toml::de::Error>,
) -> ConfigError {
    let message = error.message();
    let span = error.span().unwrap_or(0..0);
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (key, known) = quoted.split_first().map_or(("", &[][..]), |(key, known)| (*key, known));
    let (message, remedy) = if message.starts_with("unknown field") {
        let list = || format!("the keys there are: {}", known.join(", "));
        (format!("unknown key `{key}`"), suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("unknown variant") {
        let list = || format!("one of: {}", known.join(", "));
        let all: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
        let what = format!("{}`{key}` is none of {}", of_key(text, span.start), all.join(", "));
        (what, suggestion(key, known).unwrap_or_else(list))
    } else if let Some(told) = no_word(text, &span, message, asked) {
        told
    } else if message.starts_with("missing field") {
        (format!("`{key}` is missing"), example(key))
    } else if let Some(told) = wrong_type(text, &span, message) {
        told
    } else if message.starts_with("duplicate key") {
        let key = text.get(span.clone()).unwrap_or_default();
        let remedy = "remove one of the two; tables of which there are several have two brackets: \
                      [[member]]";
        (format!("duplicate key: `{key}` is there already"), remedy.to_owned())
    } else {
        (message.lines().collect::<Vec<_>>().join("; "), SYNTAX.to_owned())
    };
    ConfigError { path: path.to_owned(), at: Position::of(text, span.start), message, remedy }
}

/// A value that is no word, where a key takes one of some words.
fn no_word(
    text: &str,
    span: &Range<usize>,
    message: &str,
    asked: Option<&toml::de::Error>,
) -> Option<(String, String)> {
    message.starts_with(NO_WORD).then_some(())?;
    let asked = asked.map(toml::de::Error::message).filter(|it| it.starts_with("unknown variant"));
    let words: Vec<&str> = asked?.split('`').skip(3).step_by(2).collect();
    let (key, value) = (key_at(text, span.start), text.get(span.clone())?);
    let remedy = format!("write {key} = \"{}\", or another one of them", words.first()?);
    let all: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    Some((format!("{}{value} is none of {}", of_key(text, span.start), all.join(", ")), remedy))
}

/// A value of a type that its key does not take.
fn wrong_type(text: &str, span: &Range<usize>, message: &str) -> Option<(String, String)> {
    let of = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "))?;
    let (found, wanted) = of.rsplit_once(", expected ")?;
    let value = text.get(span.clone()).unwrap_or_default();
    let (kind, inner) = found.split_once(['`', '"']).unwrap_or((found, ""));
    let inner = inner.trim_end_matches(['`', '"']);
    let found = match kind.trim() {
        "integer" | "floating point" => format!("the number {inner}"),
        "boolean" => inner.to_owned(),
        "string" => format!("the text \"{inner}\""),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        other => other.to_owned(),
    };
    let key = key_at(text, span.start);
    let is_number = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let (wanted, remedy) = if wanted.contains("sequence") {
        let list = match kind.trim() {
            "map" => format!("write its head with two brackets: [[{key}]]"),
            "string" => format!("write a list: {}", listed(value)),
            _ => "write a list: [\"...\", \"...\"]".to_owned(),
        };
        ("a list", list)
    } else if matches!(wanted, "u8" | "u16" | "u32" | "u64" | "usize") {
        let written = Some(inner).filter(is_number);
        let number = written.unwrap_or(if key == "heartbeat_ms" { "20" } else { "100" });
        let how = if written.is_some() { "it without quotes" } else { "a whole number" };
        ("a whole number that is not negative", format!("write {how}: {key} = {number}"))
    } else if wanted.contains("boolean") {
        ("true or false", format!("write it without quotes: {key} = true, or {key} = false"))
    } else if wanted.contains("struct") || wanted.contains("map") {
        ("a table", format!("write [{key}] on a line of its own, and its keys below that"))
    } else if wanted.contains("string") {
        let word = if inner.is_empty() { "..." } else { inner };
        ("a text", format!("write it in quotes: {key} = \"{word}\""))
    } else {
        return None;
    };
    Some((format!("{}{found} is not {wanted}", of_key(text, span.start)), remedy))
}

/// The key whose value stands at a place of a file: the last one before it, or the name of its
/// table.
fn key_at(text: &str, at: usize) -> &str {
    let all_before = text.get(..at).unwrap_or_default();
    let line_start = all_before.rfind('\n').map_or(0, |end| end + 1);
    let before = &all_before[line_start..];
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match before.rfind('=') {
        Some(end) => before[..end].trim_end().rsplit(|c| !is_of_key(c)).next().unwrap_or_default(),
        // A table's head, or a line in a list.
        None => {
            let line = text[line_start..].lines().next().unwrap_or_default();
            match line.trim().strip_prefix('[') {
                Some(head) => head.trim_matches(['[', ']']),
                None => {
                    let all = all_before.lines().rev().filter_map(|line| line.split_once('='));
                    all.map(|(key, _)| key.trim()).next().unwrap_or_default()
                }
            }
        }
    }
}

/// The key at a place, as the begin of a sentence; empty where there is none.
fn of_key(text: &str, at: usize) -> String {
    match key_at(text, at) {
        "" => String::new(),
        key => format!("{key}: "),
    }
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
