//! What of the file is nobody else's business: values of variables, arguments of programs, passwords.
//! They are masked in the file, and wherever else they turn up.

use crate::config::GroupFile;
use std::path::Path;
use toml::{Table, Value};

const MASK: &str = "***";
/// Shortest value, in bytes, that is looked for in other texts: shorter ones are in every text.
const SCRUBBED_MIN: usize = 4;
/// Shortest part of a value, with a digit in it, that is looked for by itself.
const TOKEN_MIN: usize = 8;
/// Keys whose lists are a program and its arguments.
const COMMANDS: [&str; 2] = ["command", "on_state"];

/// The values that must not be seen.
pub(super) struct Secrets {
    values: Vec<String>,
}

impl Secrets {
    pub fn of(group: &GroupFile) -> Self {
        let mut values = Vec::new();
        // What was written by us can be read.
        let mut file = group.effective().parse::<Table>().unwrap_or_default();
        mask_table(&mut file, &mut values);
        values.retain(|value| value.len() >= SCRUBBED_MIN);
        let tokens: Vec<String> = values.iter().flat_map(|value| tokens(value)).collect();
        values.extend(tokens);
        let escaped: Vec<String> = values.iter().map(|value| escaped(value)).collect();
        values.extend(escaped);
        // One may be a part of another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// The file in force, masked.
    pub fn config(&self, group: &GroupFile) -> String {
        let Ok(mut file) = group.effective().parse::<Table>() else { return String::new() };
        mask_table(&mut file, &mut Vec::new());
        toml::to_string_pretty(&file).unwrap_or_default()
    }

    /// A text without them.
    pub fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = without(&text, value);
            }
        }
        text
    }
}

/// Parts of a value that may be a secret by themselves, such as the end of an address.
fn tokens(value: &str) -> impl Iterator<Item = String> {
    let parts = value.split(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_' | '.'));
    let is_one =
        |part: &&str| part.len() >= TOKEN_MIN && part.contains(|c: char| c.is_ascii_digit());
    parts.filter(is_one).map(str::to_owned)
}

/// As JSON writes it.
fn escaped(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted.trim_matches('"').to_owned()
}

/// The text with the mask in place of `value`, where that is a word of its own.
fn without(text: &str, value: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric();
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(value) {
        let (before, behind) = (&rest[..at], &rest[at + value.len()..]);
        let is_inside = before.chars().next_back().or(out.chars().next_back()).is_some_and(is_part)
            && value.starts_with(is_part)
            || behind.starts_with(is_part) && value.ends_with(is_part);
        out += before;
        out += if is_inside { value } else { MASK };
        rest = behind;
    }
    out + rest
}

fn mask_table(table: &mut Table, found: &mut Vec<String>) {
    for (key, value) in table.iter_mut() {
        match value {
            Value::Table(inner) if key == "env" => {
                inner.iter_mut().for_each(|(_, value)| mask_all(value, found));
            }
            Value::Array(words) if COMMANDS.contains(&key.as_str()) => {
                words.iter_mut().skip(1).for_each(|word| mask_word(word, found));
            }
            Value::Array(all) => all.iter_mut().for_each(|it| mask_value(it, found)),
            other if key.contains("password") && !key.ends_with("_file") => mask_all(other, found),
            other => mask_value(other, found),
        }
    }
}

fn mask_value(value: &mut Value, found: &mut Vec<String>) {
    match value {
        Value::Table(table) => mask_table(table, found),
        Value::Array(all) => all.iter_mut().for_each(|it| mask_value(it, found)),
        Value::String(text) => mask_user(text, found),
        _ => {}
    }
}

fn mask_all(value: &mut Value, found: &mut Vec<String>) {
    if let Value::String(text) = value {
        found.push(std::mem::replace(text, MASK.to_owned()));
    } else {
        *value = Value::from(MASK);
    }
}

/// An argument: the name of an option stays, and a file that is there.
fn mask_word(word: &mut Value, found: &mut Vec<String>) {
    let Value::String(text) = word else { return mask_all(word, found) };
    if text.is_empty() || text.starts_with('/') && Path::new(text.as_str()).exists() {
        return;
    }
    let kept = match (text.strip_prefix("--"), text.strip_prefix('-')) {
        // What stands behind its name is a value, whatever parts them.
        (Some(_), _) => {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
            end + usize::from(text[end..].starts_with('='))
        }
        // A letter, and perhaps its value.
        (None, Some(short)) => 1 + short.chars().next().map_or(0, char::len_utf8),
        (None, None) => 0,
    };
    let value = text.split_off(kept);
    if !value.is_empty() {
        text.push_str(MASK);
        found.push(value.trim().to_owned());
    }
}

/// User and password in front of a host (RFC 3986 §3.2.1).
fn mask_user(text: &mut String, found: &mut Vec<String>) {
    let Some((scheme, rest)) = text.split_once("://") else { return };
    // A password may have a slash that nobody has escaped.
    let Some((user, _)) = rest.rsplit_once('@') else { return };
    found.extend(user.split(':').map(str::to_owned));
    *text = format!("{scheme}://{MASK}{}", &rest[user.len()..]);
}
