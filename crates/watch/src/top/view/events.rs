//! Events: the newest ones in a few lines, or all of them with all that they say.

use super::super::app::Watched;
use super::super::theme::Theme;
use super::super::words::{clock, day, fill, short, wrap};
use holdfast::admin::Event;
use ratatui::text::{Line, Span};

const DAY: usize = 11;
const TIME: usize = 10;
const WHAT: usize = 14;
/// Lines that one event may take.
const LINES_MAX: usize = 8;

/// The newest events that fit into so many columns and lines, one line each, oldest first.
pub fn newest(group: &Watched, (columns, lines): (u16, u16), theme: Theme) -> Vec<Line<'static>> {
    let skipped = group.events.len().saturating_sub(usize::from(lines));
    let room = usize::from(columns).saturating_sub(TIME + WHAT);
    let events = group.events.iter().skip(skipped);
    events
        .map(|event| line(clock(&event.at), &event.what, short(&event.detail, room), theme))
        .collect()
}

/// Events before the `scrolled` newest ones, with all that they say, as many as fit.
pub fn wrapped(
    group: &Watched,
    scrolled: usize,
    (columns, lines): (u16, u16),
    theme: Theme,
) -> Vec<Line<'static>> {
    let room = usize::from(columns).saturating_sub(DAY + TIME + WHAT);
    let mut shown: Vec<Line<'static>> = Vec::new();
    for event in group.events.iter().rev().skip(scrolled) {
        let block = block(event, room, theme);
        if shown.len() + block.len() > usize::from(lines) {
            break;
        }
        shown.splice(0..0, block);
    }
    shown
}

fn block(event: &Event, room: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut texts = wrap(&event.detail, room, LINES_MAX).into_iter();
    let first = line(clock(&event.at), &event.what, texts.next().unwrap_or_default(), theme);
    let lines = std::iter::once(first).chain(texts.map(|text| line("", "", text, theme)));
    let days = std::iter::once(day(&event.at)).chain(std::iter::repeat(""));
    let dated = lines.zip(days).map(|(mut line, day)| {
        line.spans.insert(0, Span::styled(fill(day, DAY), theme.quiet()));
        line
    });
    dated.collect()
}

fn line(at: &str, what: &str, detail: String, theme: Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled(fill(at, TIME), theme.quiet()),
        Span::styled(fill(what, WHAT), theme.title()),
        Span::raw(detail),
    ])
}
