//! What is wrong with a configuration, where, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

/// Line and column, counted from 1; 0 means the file as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// The position of byte `offset` of `text`; columns count characters.
    #[must_use]
    pub fn of(text: &str, offset: usize) -> Self {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        Self {
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
        }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub path: PathBuf,
    pub at: Position,
    pub message: String,
    pub remedy: String,
}

impl ConfigError {
    /// Its place and what is wrong there.
    #[must_use]
    pub fn placed(&self) -> String {
        let path = self.path.display();
        let Position { line, column } = self.at;
        match line {
            0 => format!("{path}: {}", self.message),
            _ => format!("{path}:{line}:{column}: {}", self.message),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  remedy: {}", self.placed(), self.remedy)
    }
}

/// All mistakes that were found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Gathers mistakes while a file is checked.
pub(super) struct Findings<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub found: Vec<ConfigError>,
    /// Place of `key_file`.
    pub key_file_at: Position,
}

impl Findings<'_> {
    pub fn add(
        &mut self,
        span: std::ops::Range<usize>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.found.push(ConfigError {
            path: self.path.to_owned(),
            at: Position::of(self.text, span.start),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds what is wrong with the group's keys as a whole: its place is that of `key_file`.
    pub fn add_at_key(&mut self, message: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(ConfigError {
            path: self.path.to_owned(),
            at: self.key_file_at,
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds two sections that agree in what must differ. `names` says what they
    /// are and which two.
    pub fn add_twins(
        &mut self,
        span: &std::ops::Range<usize>,
        [kind, one, other]: [&str; 3],
        same: &[(&str, bool)],
        remedy: &str,
    ) {
        for (what, _) in same.iter().filter(|(_, same)| *same) {
            let message = format!("{kind} `{one}` and `{other}` have the same {what}");
            self.add(span.clone(), message, remedy);
        }
    }
}
