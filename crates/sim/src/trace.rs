//! The trace of a run: readable lines about each event, kept only on request.

use crate::Ns;

/// Most lines kept; a longer trace loses its beginning.
const LINES_MAX: usize = 200_000;

/// The trace; see the module.
#[derive(Debug, Default)]
pub struct Trace {
    wanted: bool,
    lines: std::collections::VecDeque<String>,
}

impl Trace {
    pub fn new(wanted: bool) -> Self {
        Self { wanted, lines: std::collections::VecDeque::new() }
    }

    pub fn add(&mut self, now: Ns, line: impl FnOnce() -> String) {
        if !self.wanted {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>12.6} {}", now as f64 / 1e9, line()));
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
