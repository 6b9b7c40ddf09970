//! What keys do, and what the words mean.

use super::super::theme::Theme;
use super::super::words::fill;
use holdfast::status::State;
use ratatui::text::{Line, Span};

const KEYS: [(&str, &str); 7] = [
    ("q, Esc, Ctrl-C", "quit; Esc leads back from another screen first"),
    ("Tab, arrows", "next and previous group; ! marks those that are not protected"),
    ("p, space", "hold what is shown; what happens meanwhile is shown afterwards"),
    ("e", "all events with all that they say; arrows and pages scroll"),
    ("?", "this page"),
    ("Ctrl-L", "draw everything anew"),
    ("Ctrl-Z", "stop, until the shell's `fg`"),
];

const STATES: [(State, &str); 7] = [
    (State::Protected, "the backup holds everything: the primary may die"),
    (State::Unprotected, "clients are served; nobody could take over"),
    (State::Waiting, "clients are not served, or not yet"),
    (State::Diverged, "the replica computed something else; it never takes over"),
    (State::Hung, "the replica makes no progress"),
    (State::Fenced, "this member may not speak: another one does"),
    (State::Ended, "the server has ended"),
];

pub fn lines(theme: Theme) -> Vec<Line<'static>> {
    let key = |(keys, what): &(&str, &'static str)| {
        Line::from(vec![Span::styled(fill(keys, 17), theme.title()), Span::raw(*what)])
    };
    let state = |(state, what): &(State, &'static str)| {
        let word = format!(" {} ", state.to_string().to_uppercase());
        let gap = " ".repeat(17_usize.saturating_sub(word.len()));
        Line::from(vec![Span::styled(word, theme.state(*state)), Span::raw(gap), Span::raw(*what)])
    };
    let about = "lag: bytes of the log that the backup has not confirmed. Times are UTC.";
    let mut lines: Vec<Line<'static>> = KEYS.iter().map(key).collect();
    lines.push(Line::default());
    lines.extend(STATES.iter().map(state));
    lines.push(Line::default());
    lines.push(Line::from(about));
    lines.push(Line::from(
        "docs/STATUS.md says what each state proves; docs/OPERATE.md what to do.",
    ));
    lines
}
