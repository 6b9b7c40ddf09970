//! All mistakes in a scenario file, each with its file, line and column, in the form in which
//! `holdfast config check` tells those of its files.

use super::error::FileError;
use super::file::File;
use serde::Deserialize as _;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

/// Similarity (Jaro-Winkler) from which a word is suggested.
const SUGGESTION_MIN: f64 = 0.75;

/// Most mistakes that are told at once.
pub const MISTAKES_MAX: usize = 50;

/// Words of earlier releases: a key that the table has today, the former word, and what to write.
const FORMER: [(&str, &str, &str); 12] = [
    (
        "recover",
        "recovery",
        "write `[recover]`, with a `policy`; `law = \"printed\"` is the thesis' machine",
    ),
    ("regulate", "rate_control", "write `[regulate]`; `law = \"printed\"` is the thesis' law"),
    (
        "policy",
        "segments",
        "write `policy`: \"head\" for 1, \"head+tail\" for 2, \"all\" for a whole window",
    ),
    ("policy", "syn_only", "write `policy = \"syn\"`"),
    ("memory_mb", "bytes_max", "write `memory_mb`, a number of MiB"),
    ("pace_mbit", "pace", "write `pace_mbit`, a number of Mbit/s"),
    ("heartbeat_ms", "heartbeat", "write `heartbeat_ms`, a number of ms"),
    ("tail_delay_ms", "tail_delay", "write `tail_delay_ms`, a number of ms"),
    ("interval_ms", "interval", "write `interval_ms`, a number of ms"),
    ("rtt_ms", "rtt", "write `rtt_ms`, a number of ms"),
    ("utilization_percent", "utilization", "write `utilization_percent`, a number"),
    ("window_min_bytes", "window_min", "write `window_min_bytes`, a number"),
];

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line and column, from 1 on; `None`: the file as a whole.
    pub at: Option<(usize, usize)>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

/// All mistakes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    /// The file.
    pub path: PathBuf,
    /// Its mistakes, in their order.
    pub all: Vec<Mistake>,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, Mistake { at, message, remedy }) in self.all.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match at {
                Some((line, column)) => write!(f, "{path}:{line}:{column}: {message}")?,
                None => write!(f, "{path}: {message}")?,
            }
            write!(f, "\n  remedy: {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// A file's text, in which places are found.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// A file's text.
    pub fn new(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The file; what a mistake has been found in is taken out, to find the others.
    ///
    /// # Errors
    /// All that is no scenario.
    pub fn file(&self) -> Result<File, Mistakes> {
        let tree = DeTable::parse(&self.text)
            .map_err(|error| self.mistakes(vec![self.explained(&error)]))?
            .into_inner();
        let mut rest = tree;
        let (mut found, mut removed) = (Vec::new(), Vec::new());
        loop {
            let whole = Spanned::new(0..self.text.len(), rest.clone());
            let error = match File::deserialize(Deserializer::from(whole)) {
                Ok(file) if found.is_empty() => return Ok(file),
                Ok(_) => break,
                Err(error) => error,
            };
            let span = error.span().unwrap_or(0..0);
            // What has been taken out is missing, but not in the file.
            if !missing(&error).is_some_and(|key| removed.iter().any(|it| it == key)) {
                found.push((span.start, self.explained(&error)));
            }
            match remove(&mut rest, &span) {
                Some(key) if found.len() < MISTAKES_MAX => removed.push(key),
                _ => break,
            }
        }
        found.sort_by_key(|it| it.0);
        Err(self.mistakes(found.into_iter().map(|it| it.1).collect()))
    }

    /// A mistake at a place such as `flow.0.segments` or, if that is not given, at what would hold
    /// it.
    pub fn mistake(&self, place: &str, error: &FileError) -> Mistake {
        let at = self.find(place).map(|at| position(&self.text, at));
        Mistake { at, message: error.to_string(), remedy: error.remedy() }
    }

    /// A mistake in one of a sweep's values.
    pub fn mistake_in_sweep(
        &self,
        name: &str,
        index: usize,
        written: &str,
        error: &toml::de::Error,
    ) -> Mistake {
        Mistake { at: self.find_swept(name, index), ..explained(error, written) }
    }

    /// Where a value of the sweep stands, as line and column.
    pub fn find_swept(&self, name: &str, index: usize) -> Option<(usize, usize)> {
        let tree = DeTable::parse(&self.text).ok()?.into_inner();
        let DeValue::Table(sweep) = tree.get("sweep")?.get_ref() else { return None };
        let values = sweep.get(name)?;
        let value = match values.get_ref() {
            DeValue::Array(array) => array.get(index).unwrap_or(values),
            _ => values,
        };
        Some(position(&self.text, value.span().start))
    }

    /// Mistakes of this file.
    pub fn mistakes(&self, all: Vec<Mistake>) -> Mistakes {
        Mistakes { path: self.path.clone(), all }
    }

    /// Where a value stands, or what would hold it: its offset in bytes.
    fn find(&self, place: &str) -> Option<usize> {
        let tree = DeTable::parse(&self.text).ok()?.into_inner();
        let mut parts = place.split('.').filter(|part| !part.is_empty());
        let mut at = tree.get(parts.next()?)?;
        for part in parts {
            let next = match at.get_ref() {
                DeValue::Table(table) => table.get(part),
                DeValue::Array(array) => part.parse::<usize>().ok().and_then(|it| array.get(it)),
                _ => None,
            };
            let Some(next) = next else { break };
            at = next;
        }
        Some(at.span().start)
    }

    /// An error of the TOML reader, at its place.
    fn explained(&self, error: &toml::de::Error) -> Mistake {
        let span = error.span();
        let written = span.clone().and_then(|span| self.text.get(span)).unwrap_or_default();
        let at = span.map(|span| position(&self.text, span.start));
        Mistake { at, ..explained(error, written) }
    }
}

/// An error of the TOML reader in our words, with what was probably meant, without its place.
fn explained(error: &toml::de::Error, written: &str) -> Mistake {
    let said = error.message();
    let quoted: Vec<&str> = said.split('`').skip(1).step_by(2).collect();
    let (key, known) = quoted.split_first().map_or(("", &[][..]), |(key, known)| (*key, known));
    let (message, remedy) = if said.starts_with("unknown field") {
        let former =
            FORMER.iter().find(|it| it.1 == key && known.contains(&it.0)).map(|it| it.2.to_owned());
        let list = || format!("the keys there are: {}", known.join(", "));
        let remedy = former.or_else(|| suggestion(key, known)).unwrap_or_else(list);
        (format!("unknown key `{key}`"), remedy)
    } else if said.starts_with("missing field") {
        (format!("`{key}` is missing"), example(key))
    } else if let Some((message, remedy)) = said.split_once("; ") {
        // A time, a rate or a queue, which say so themselves.
        (message.to_owned(), remedy.to_owned())
    } else if let Some(wanted) = said.split_once(", expected ").map(|it| it.1) {
        (
            format!("{} is not {}", first_line(written), kind(wanted)),
            format!("write {}", kind(wanted)),
        )
    } else if said.contains("LossTable") {
        let remedy =
            "write a share such as 0.01, or { to_bad = 0.01, to_good = 0.2, loss_bad = 0.5 }";
        ("this is no loss".to_owned(), remedy.to_owned())
    } else {
        let message = said.lines().collect::<Vec<_>>().join(", ");
        (message, "docs/SCENARIOS.md has a whole file".to_owned())
    };
    Mistake { at: None, message, remedy }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What the TOML reader expects, in our words.
fn kind(expected: &str) -> &'static str {
    match expected {
        "a string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list in brackets",
        "f64" | "f32" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a whole number, of 0 or more",
        it if it.starts_with("an array of length 4") => "a list of four",
        it if it.starts_with("struct") => "a table",
        _ => "what is allowed here",
    }
}

/// How a missing key looks.
fn example(key: &str) -> String {
    let line = match key {
        "flow" => "[[flow]]",
        "segments" => "segments = 3000",
        "delay" => "delay = \"40ms\"",
        "from" => "from = \"S\"",
        "to" => "to = \"D\"",
        "strings" => {
            "strings = [\"100mbit\", \"100mbit\"] in a [dumbbell], [[\"N1\"], [\"N2\"]] in a [[switch]]"
        }
        "delays" => "delays = [\"40ms\", \"1ms\", \"1ms\", \"8ms\"]",
        "rate" => "rate = \"100mbit\"",
        "until" => "until = \"8s\"",
        "capacity" => "capacity = \"100mbit\"",
        "rtt_ms" => "rtt_ms = 100",
        other => return format!("add `{other}`"),
    };
    format!("add, for example: {line}")
}

/// The word that was probably meant.
pub fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    let scored = known.iter().map(|known| (strsim::jaro_winkler(word, known), *known));
    let near = scored.filter(|(score, _)| *score >= SUGGESTION_MIN);
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("did you mean `{}`?", best.1))
}

/// The key that a table lacks, if that is the error.
fn missing(error: &toml::de::Error) -> Option<&str> {
    error.message().strip_prefix("missing field `")?.strip_suffix('`')
}

/// Takes out the smallest entry that a span is in, and returns its key; that of an element of a
/// list is empty.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let is_in = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let mut own = None;
    for (key, value) in table.iter_mut() {
        let inner = match value.get_mut() {
            _ if is_in(key.span()) => None,
            DeValue::Table(inner) => remove(inner, span),
            DeValue::Array(array) => remove_from(array, span),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
        if is_in(key.span()) || is_in(value.span()) {
            own = Some(key.clone());
            break;
        }
    }
    let key = own?;
    table.remove(&key).map(|_| key.get_ref().to_string())
}

/// Takes an entry out of the tables of a list or, where one lacks a key, the whole table.
fn remove_from(array: &mut DeArray<'_>, span: &Range<usize>) -> Option<String> {
    let inner = array.iter_mut().find_map(|it| match it.get_mut() {
        DeValue::Table(inner) => remove(inner, span),
        _ => None,
    });
    inner.or_else(|| {
        let before = array.len();
        let all = std::mem::replace(array, DeArray::new());
        *array = all.into_iter().filter(|it| it.span() != *span).collect();
        (array.len() < before).then(String::new)
    })
}

/// Line and column of an offset, from 1 on; columns count characters.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before.iter().rposition(|it| *it == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|it| **it == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}
