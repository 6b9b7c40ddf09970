//! A progress bar for a long piece of work.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

/// A progress bar on stderr, which is invisible if that is no terminal.
#[must_use]
pub fn progress(what: &'static str, steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps).with_message(what);
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {eta} left");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
