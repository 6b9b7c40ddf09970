//! The group's state, in the largest letters that a terminal has: a word on a coloured ground, with
//! the reason and what to do.

use super::super::app::Watched;
use super::super::theme::Theme;
use super::super::words::clock;
use super::under;
use holdfast::status::{State, Status, counted, rfc3339};
use ratatui::text::{Line, Span};

/// Lines that a reason, or a remedy, may take.
const TEXT_LINES_MAX: usize = 3;
/// The event of a change of state.
const STATE: &str = "state";

pub fn lines(group: &Watched, columns: u16, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some((away, since)) = &group.away {
        let at = rfc3339(*since);
        let word = Span::styled(" NO ANSWER ".to_owned(), theme.alarm());
        let when = format!("  since {}, asked again and again", clock(&at));
        lines.push(Line::from(vec![word, Span::raw(when)]));
        lines.extend(under("reason", &away.reason, columns, theme, TEXT_LINES_MAX));
        lines.extend(under("remedy", &away.remedy, columns, theme, TEXT_LINES_MAX));
    }
    let Some(status) = &group.status else {
        if group.away.is_none() {
            lines.push(Line::from("asking the daemon …"));
        }
        return lines;
    };
    if group.away.is_some() {
        // A state that may have ended long ago has no ground, and no line of its own meaning.
        let Status { state, at, .. } = status;
        let old = format!("what follows is what it said last, at {}: {state}", clock(at));
        lines.push(Line::styled(old, theme.quiet()));
        return lines;
    }
    lines.push(state_line(group, status, theme));
    if status.state == State::Protected && status.reason.is_empty() {
        lines.push(Line::styled(meaning(status), theme.quiet()));
    }
    lines.extend(under("reason", &status.reason, columns, theme, TEXT_LINES_MAX));
    lines.extend(under("remedy", &status.remedy, columns, theme, TEXT_LINES_MAX));
    lines.extend(under("note", &notes(status), columns, theme, TEXT_LINES_MAX));
    lines
}

fn state_line(group: &Watched, status: &Status, theme: Theme) -> Line<'static> {
    let word = format!(" {} ", status.state.to_string().to_uppercase());
    let since = group.events.iter().rev().find(|event| event.what == STATE);
    let since = since.map_or(String::new(), |event| format!("  since {}", clock(&event.at)));
    let Status { group, role, member, epoch, .. } = status;
    // The one edge, and the witness, are called by what they are.
    let who = if role.to_string() == *member { member.clone() } else { format!("{role} {member}") };
    Line::from(vec![
        Span::styled(word, theme.state(status.state)),
        Span::styled(format!("  {group}"), theme.title()),
        Span::raw(format!("  this host: {who}   epoch {epoch}{since}")),
    ])
}

/// What `protected` means where nothing else is to be said.
fn meaning(status: &Status) -> &'static str {
    match status.mode.as_str() {
        "" => "everything that this daemon looks after is as it should be",
        "cold" => "the backup keeps all that it needs to build the server: the primary may die",
        _ => "the backup holds everything: the primary may die",
    }
}

/// What else is unusual.
fn notes(status: &Status) -> String {
    let mut notes = Vec::new();
    if status.at_risk > 0 {
        notes.push(format!("a takeover now would end {}", counted(status.at_risk, "connection")));
    }
    if status.arbiter.contains(':') {
        notes.push(status.arbiter.clone());
    }
    if !status.rebuild.is_empty() {
        notes.push(format!("rebuilt in place: {}", status.rebuild));
    }
    if !["", "commit"].contains(&status.buffering.as_str()) {
        notes.push(format!("buffering {}: answers may be lost", status.buffering));
    }
    if status.one_at_a_time {
        notes.push("threads run one at a time".to_owned());
    }
    if status.overlaps > 0 {
        notes.push(format!("{} overlaps: the replica may differ from there", status.overlaps));
    }
    notes.join("; ")
}
