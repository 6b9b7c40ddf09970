//! `top`: the groups of this host, live in a terminal, or one frame of it as text.
//!
//! A thread for each daemon asks it and sends what it says; everything else happens in one loop
//! that draws when there is something new.

mod app;
mod clean;
mod groups;
mod history;
mod look;
mod terminal;
mod theme;
mod view;
mod words;

use anyhow::{Context as _, Result};
use app::{App, Then};
use groups::Place;
use holdfast::status::{exit, rfc3339};
use holdfast_program::TopArgs;
use look::{Away, Looker, News, keep_looking};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event};
use std::io::{ErrorKind, IsTerminal as _, Write as _, stdout};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};
use terminal::{Ending, Screen};
use theme::Theme;

/// Longest time until a key, a signal or an answer is noticed.
const TURN: Duration = Duration::from_millis(100);
/// Columns of a frame that goes to a file or a pipe.
const ONCE_COLUMNS: u16 = 100;
/// Lines of a frame as text; empty ones at its end are left out.
const ONCE_LINES: u16 = 33;

/// Shows the groups; the answer is the exit code.
///
/// # Errors
/// If there is no group or no terminal.
pub fn run(args: &TopArgs) -> Result<u8> {
    let places = groups::find(&args.config, args.role.as_deref())?;
    let app = App::new(&places, Duration::from_secs_f64(args.interval));
    if args.once { once(app, &places) } else { live(app, &places) }
}

/// Prints what is known after one look at each group.
fn once(mut app: App, places: &[Place]) -> Result<u8> {
    for (number, place) in places.iter().enumerate() {
        let news = match &place.socket {
            Ok(socket) => Looker::new(socket).look(),
            Err(error) => Err(no_daemon(error)),
        };
        app.take(number, news, (Instant::now(), SystemTime::now()));
    }
    let columns = match stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size().map_or(ONCE_COLUMNS, |(columns, _)| columns),
        false => ONCE_COLUMNS,
    };
    let frames = app.groups.iter().map(|group| frame_of(group, columns));
    let text = frames.collect::<Result<Vec<_>>>()?.join("\n");
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(app.groups.iter().map(code_of).max().unwrap_or(exit::OK)),
    }
}

/// One group as lines of text.
fn frame_of(group: &app::Watched, columns: u16) -> Result<String> {
    let theme = Theme { has_colour: false };
    let mut terminal = Terminal::new(TestBackend::new(columns, ONCE_LINES))?;
    terminal.draw(|frame| view::draw_once(frame, group, theme))?;
    let buffer = terminal.backend().buffer();
    let lines: Vec<String> = buffer
        .content()
        .chunks(usize::from(columns).max(1))
        .map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>())
        .map(|line| line.trim_end().to_owned())
        .collect();
    Ok(lines.join("\n").trim_end().to_owned() + "\n")
}

/// The exit code that `status` would have.
fn code_of(group: &app::Watched) -> u8 {
    match (&group.away, &group.status) {
        (Some((away, _)), _) => away.code,
        (None, Some(status)) => status.exit_code(),
        (None, None) => exit::UNREACHABLE,
    }
}

/// A file that leads to no daemon is shown like a daemon that does not answer, by its first mistake.
fn no_daemon(error: &str) -> Away {
    let (reason, rest) = error.split_once("\n  remedy: ").unwrap_or((error, ""));
    let remedy = rest.lines().next().unwrap_or("see `holdfast config check FILE`");
    Away { reason: clean::text(reason), remedy: clean::text(remedy), code: exit::USAGE }
}

/// Shows the groups until a key or a signal ends it.
fn live(mut app: App, places: &[Place]) -> Result<u8> {
    let theme = Theme { has_colour: std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()) };
    let ending = Ending::watch()?;
    let news = watch(&mut app, places)?;
    let mut screen = Screen::take()?;
    let shown = show(&mut app, theme, &news, &ending, &mut screen);
    drop(screen);
    ending.obey();
    shown.map(|()| exit::OK)
}

/// Starts looking at every group.
fn watch(app: &mut App, places: &[Place]) -> Result<Receiver<News>> {
    let (to, news) = channel();
    for (number, place) in places.iter().enumerate() {
        match &place.socket {
            Ok(socket) => keep_looking(number, Looker::new(socket), app.interval, to.clone())
                .context("cannot start a thread")?,
            Err(error) => {
                app.take(number, Err(no_daemon(error)), (Instant::now(), SystemTime::now()));
            }
        }
    }
    Ok(news)
}

fn show(
    app: &mut App,
    theme: Theme,
    news: &Receiver<News>,
    ending: &Ending,
    screen: &mut Screen,
) -> Result<()> {
    let mut drawn = String::new();
    let mut is_new = true;
    while !ending.has_come() {
        for (number, found) in news.try_iter() {
            app.take(number, found, (Instant::now(), SystemTime::now()));
            is_new = true;
        }
        let now = rfc3339(SystemTime::now());
        let now = format!("{} UTC", words::clock(&now));
        if is_new || now != drawn {
            screen.terminal.draw(|frame| view::draw(frame, app, theme, &now))?;
            (drawn, is_new) = (now, false);
        }
        if !event::poll(TURN)? {
            continue;
        }
        let then = match event::read()? {
            Event::Key(key) => app.press(key),
            Event::Resize(..) => Then::Go,
            _ => Then::Idle,
        };
        match then {
            Then::Idle => {}
            Then::Go => is_new = true,
            Then::Anew => {
                screen.terminal.clear()?;
                is_new = true;
            }
            Then::Suspend => {
                screen.suspend()?;
                is_new = true;
            }
            Then::Quit => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_file_with_a_mistake_is_shown_with_its_first_remedy() {
        let file = Path::new("/nowhere/x.toml");
        let place = groups::find(&[file.to_owned()], None).expect("it was asked for").remove(0);
        let away = no_daemon(&place.socket.expect_err("there is no file"));
        assert_eq!(away.code, exit::USAGE);
        assert!(away.reason.contains("x.toml: cannot be read"), "{away:?}");
        assert!(away.remedy.starts_with("give the path"), "{away:?}");
        let other = no_daemon("broken\u{1b}[2J");
        assert_eq!(
            (other.reason.as_str(), other.remedy.contains("config check")),
            ("broken�[2J", true)
        );
    }

    #[test]
    fn one_frame_is_plain_text_with_the_code_of_its_state() {
        let place = Place { name: "demo".to_owned(), socket: Ok("/run/a.sock".into()) };
        let mut app = App::new(&[place], Duration::from_secs(1));
        assert_eq!(code_of(&app.groups[0]), exit::UNREACHABLE);
        let status = include_str!("top/recorded/primary-alone.json");
        let status = serde_json::from_str(status).expect("a status");
        let seen = look::Seen { status, events: Vec::new(), is_new_life: true, edge: None };
        app.take(0, Ok(seen), (Instant::now(), SystemTime::now()));
        assert_eq!(code_of(&app.groups[0]), exit::DEGRADED);
        let frame = frame_of(&app.groups[0], 80).expect("text");
        assert!(frame.starts_with(" UNPROTECTED ") && !frame.contains('\u{1b}'), "{frame}");
        assert!(frame.lines().all(|line| line == line.trim_end() && words::width(line) <= 80));
    }
}
