//! What is wrong with a tunnel's file, where, and what to do about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Similarity (Jaro-Winkler) from which a word is suggested.
const SUGGESTION_MIN: f64 = 0.75;
/// Remedy where the text is no TOML.
const SYNTAX: &str = "a value is a number, a \"text\" or a [list], and each key has one; \
                      docs/TUNNEL.md has a whole file";

/// One mistake. Line and column count from 1; line 0 is the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub path: PathBuf,
    pub line: usize,
    pub column: usize,
    pub message: String,
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.line {
            0 => write!(f, "{path}: {}", self.message)?,
            line => write!(f, "{path}:{line}:{}: {}", self.column, self.message)?,
        }
        write!(f, "\n  remedy: {}", self.remedy)
    }
}

/// All mistakes that were found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&each.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Gathers mistakes while a file is checked.
pub(super) struct Findings<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub found: Vec<ConfigError>,
}

impl Findings<'_> {
    pub fn add(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (line, column) = place(self.text, span.start);
        let (message, remedy) = (message.into(), remedy.into());
        self.found.push(ConfigError { path: self.path.to_owned(), line, column, message, remedy });
    }

    /// About the file as a whole.
    pub fn add_of_file(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(of_file(self.path, message, remedy));
    }
}

/// A mistake of the file as a whole.
pub(super) fn of_file(
    path: &Path,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    let (message, remedy) = (message.into(), remedy.into());
    ConfigError { path: path.to_owned(), line: 0, column: 0, message, remedy }
}

/// The TOML reader's error in our words, with what was probably meant.
pub(super) fn explain(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let (line, column) = place(text, span.start);
    let message = error.message();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (key, known) = quoted.split_first().map_or(("", &[][..]), |(key, known)| (*key, known));
    let (message, remedy) = if message.starts_with("unknown field") {
        let list = || format!("the keys there are: {}", known.join(", "));
        (format!("unknown key `{key}`"), suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("unknown variant") {
        let list = || format!("one of: {}", known.join(", "));
        let all: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
        let what = format!("`{key}` is none of {}", all.join(", "));
        (what, suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("missing field") {
        (format!("`{key}` is missing"), example(key))
    } else {
        (message.lines().collect::<Vec<_>>().join("; "), SYNTAX.to_owned())
    };
    ConfigError { path: path.to_owned(), line, column, message, remedy }
}

/// The word that was probably meant.
pub(super) fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    let scored = known.iter().map(|it| (strsim::jaro_winkler(word, it), *it));
    let likely = scored.filter(|(score, _)| *score >= SUGGESTION_MIN);
    let best = likely.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("did you mean `{}`?", best.1))
}

/// How a missing key looks.
fn example(key: &str) -> String {
    let line = match key {
        "tunnel" => "[tunnel]",
        "peer" => "[peer]",
        "key" => {
            "key = \"…\": in [tunnel] this end's key file (holdfast tunnel key gen FILE), in \
                  [peer] what `holdfast tunnel key pub FILE` prints there"
        }
        "mode" => "mode = \"tun\"",
        other => return format!("add `{other}`"),
    };
    format!("add, for example: {line}")
}

/// Line and column of a byte; columns count characters.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}
