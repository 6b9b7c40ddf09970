//! What is drawn. A screen is made of sections, each a heading and lines; they stand below each
//! other on a small terminal and in two columns on a large one.

mod banner;
mod events;
mod graphs;
mod help;
mod hosts;
mod takeover;

use super::app::{App, Screen, Watched};
use super::theme::Theme;
use super::words::{fill, seconds, short, width, wrap};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

/// The smallest terminal on which anything is drawn.
const SMALLEST: (u16, u16) = (40, 8);
/// From this size on there are two columns.
const WIDE: (u16, u16) = (110, 34);
/// Lines of the curves where they stand in a column of their own.
const TALL_CURVE: u16 = 5;
/// Lines that are kept for events.
const EVENTS_MIN: u16 = 4;

/// A part of the screen.
struct Section {
    title: String,
    lines: Vec<Line<'static>>,
}

impl Section {
    fn height(&self) -> u16 {
        u16::try_from(self.lines.len() + 1).unwrap_or(u16::MAX)
    }

    fn draw(&self, frame: &mut Frame<'_>, area: Rect, theme: Theme) {
        let [head, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        frame.render_widget(heading(&self.title, area.width, theme), head);
        frame.render_widget(Paragraph::new(self.lines.clone()), body);
    }
}

/// Draws everything; `now` is the time of day.
pub fn draw(frame: &mut Frame<'_>, app: &App, theme: Theme, now: &str) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        let text =
            format!("{}×{} is too small: {width}×{height} at least", area.width, area.height);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(area);
    frame.render_widget(head_line(app, top.width, theme, now), top);
    frame.render_widget(keys(app.screen, theme), bottom);
    match (app.screen, app.current()) {
        (Screen::Help, _) => frame.render_widget(Paragraph::new(help::lines(theme)), body),
        (Screen::Events, Some(group)) => {
            let title = format!("all events of {} that its daemon here keeps", group.name);
            let room = (body.width, body.height.saturating_sub(1));
            let lines = events::wrapped(group, app.scrolled, room, theme);
            Section { title, lines }.draw(frame, body, theme);
        }
        (Screen::Overview, Some(group)) => overview(frame, body, group, theme),
        (_, None) => frame.render_widget(Paragraph::new("no group"), body),
    }
}

/// Draws one group without what only a terminal needs, for `--once`.
pub fn draw_once(frame: &mut Frame<'_>, group: &Watched, theme: Theme) {
    overview(frame, frame.area(), group, theme);
}

fn overview(frame: &mut Frame<'_>, area: Rect, group: &Watched, theme: Theme) {
    let banner = banner::lines(group, area.width, theme);
    let height = u16::try_from(banner.len()).unwrap_or(u16::MAX);
    let [top, rest] =
        Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(banner), top);
    let is_wide = area.width >= WIDE.0 && area.height >= WIDE.1;
    let events_area = if is_wide {
        two_columns(frame, rest, group, theme)
    } else {
        one_column(frame, rest, group, theme)
    };
    let room = events_area.height.saturating_sub(1);
    let lines = events::newest(group, (events_area.width, room), theme);
    Section { title: "events".to_owned(), lines }.draw(frame, events_area, theme);
}

/// Draws all but the events, and answers what is left for them.
fn one_column(frame: &mut Frame<'_>, area: Rect, group: &Watched, theme: Theme) -> Rect {
    let mut left = area;
    let mut put = |section: &Section| {
        let height = section.height().min(left.height);
        let [here, below] =
            Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(left);
        section.draw(frame, here, theme);
        left = below;
        left.height
    };
    if group.status.is_some() {
        put(&hosts::section(group, (area.width, area.height / 3), theme));
        let room = put(&graphs::section(group, area.width, theme));
        let takeover = takeover::bar(group, area.width, theme);
        // Where there is no room for both, what happens now comes first.
        if let Some(takeover) = takeover.filter(|it| it.height() + EVENTS_MIN <= room) {
            put(&takeover);
        }
    }
    left
}

fn two_columns(frame: &mut Frame<'_>, area: Rect, group: &Watched, theme: Theme) -> Rect {
    if group.status.is_none() {
        return area;
    }
    let half = area.width / 2;
    let hosts = hosts::section(group, (half - 1, area.height / 3), theme);
    let takeover = takeover::rows(group, half - 1, theme);
    let needed = hosts.height() + takeover.as_ref().map_or(0, |it| it.height() + 1);
    let height = needed.max(3 * (TALL_CURVE + 1)).min(area.height.saturating_sub(EVENTS_MIN));
    let [above, below] =
        Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    let [left, _, right] = Layout::horizontal([
        Constraint::Length(half - 1),
        Constraint::Length(2),
        Constraint::Min(0),
    ])
    .areas(above);
    let [hosts_area, takeover_area] =
        Layout::vertical([Constraint::Length(hosts.height() + 1), Constraint::Min(0)]).areas(left);
    hosts.draw(frame, hosts_area, theme);
    if let Some(takeover) = takeover {
        takeover.draw(frame, takeover_area, theme);
    }
    graphs::draw_tall(frame, right, group, theme);
    below
}

/// The first line: the groups, and when this is.
fn head_line(app: &App, columns: u16, theme: Theme, now: &str) -> Line<'static> {
    let paused = if app.is_paused() { "PAUSED  " } else { "" };
    let when = format!("{paused}{now}  every {}", seconds(app.interval));
    let room = usize::from(columns).saturating_sub(width(&when) + 2);
    let mut spans = vec![Span::styled("holdfast top ", theme.title())];
    let mut taken = width("holdfast top ");
    // The chosen one is always among those that fit.
    let groups = app.shown();
    let first = first_shown(groups, app.chosen, room.saturating_sub(taken));
    for (number, group) in groups.iter().enumerate().skip(first) {
        let name = tab(group);
        if taken + width(&name) > room {
            break;
        }
        taken += width(&name);
        let style = if number == app.chosen { theme.chosen() } else { Style::new() };
        spans.push(Span::styled(name, style));
    }
    let gap = usize::from(columns).saturating_sub(taken + width(&when));
    spans.push(Span::raw(" ".repeat(gap)));
    let style = if app.is_paused() { theme.alarm() } else { theme.quiet() };
    spans.push(Span::styled(when, style));
    Line::from(spans)
}

/// A group's name, with a mark where it is not protected: also those that are not shown are seen.
fn tab(group: &Watched) -> String {
    use holdfast::status::State;
    let is_fine = group.status.as_ref().is_some_and(|it| it.state == State::Protected);
    let mark = if is_fine && group.away.is_none() { "" } else { "!" };
    format!(" {}{mark} ", short(&group.name, 20))
}

fn first_shown(groups: &[Watched], chosen: usize, room: usize) -> usize {
    let mut taken = 0;
    let before = groups.iter().take(chosen + 1).rev().take_while(|group| {
        taken += width(&tab(group));
        taken <= room
    });
    (chosen + 1).saturating_sub(before.count().max(1))
}

fn keys(screen: Screen, theme: Theme) -> Line<'static> {
    let keys: &[(&str, &str)] = match screen {
        Screen::Overview => {
            &[("q", "quit"), ("?", "help"), ("Tab", "next group"), ("p", "pause"), ("e", "events")]
        }
        Screen::Events => &[("q", "quit"), ("Esc", "back"), ("↑↓", "scroll"), ("p", "pause")],
        Screen::Help => &[("q", "quit"), ("Esc", "back")],
    };
    let spans = keys.iter().flat_map(|(key, what)| {
        [Span::styled(format!(" {key} "), theme.chosen()), Span::raw(format!(" {what}  "))]
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// A section's first line: its title, and a rule to the edge.
fn heading(title: &str, columns: u16, theme: Theme) -> Line<'static> {
    let columns = usize::from(columns);
    let title = short(title, columns.saturating_sub(4));
    let rule = "─".repeat(columns.saturating_sub(width(&title) + 3));
    Line::from(vec![
        Span::styled("─ ".to_owned(), theme.quiet()),
        Span::styled(title, theme.title()),
        Span::styled(format!(" {rule}"), theme.quiet()),
    ])
}

/// Lines of a text behind a word that stands out, with all further ones below its begin.
fn under(
    label: &str,
    text: &str,
    columns: u16,
    theme: Theme,
    lines_max: usize,
) -> Vec<Line<'static>> {
    const INDENT: usize = 8;
    let room = usize::from(columns).saturating_sub(INDENT);
    let lines = wrap(text, room, lines_max);
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    let line = |(label, text): (&str, String)| {
        Line::from(vec![Span::styled(fill(label, INDENT), theme.title()), Span::raw(text)])
    };
    labels.zip(lines).map(line).collect()
}

#[cfg(test)]
mod tests;
