//! What is shown, and what keys do: no terminal and no clock in here.

use super::groups::Place;
use super::history::History;
use super::look::{Away, EdgeSeen, Seen};
use holdfast::admin::Event;
use holdfast::status::Status;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Number of events of each daemon that are kept, as many as it keeps itself.
const EVENTS_MAX: usize = holdfast::admin::EVENTS_MAX;
/// Lines by which a page turns.
const PAGE: usize = 10;

/// One daemon that is watched.
#[derive(Clone, Debug)]
pub struct Watched {
    pub name: String,
    /// Its last answer, however old.
    pub status: Option<Status>,
    pub edge: Option<EdgeSeen>,
    /// Oldest first.
    pub events: VecDeque<Event>,
    pub history: History,
    /// Why there is no newer answer, and since when.
    pub away: Option<(Away, SystemTime)>,
}

impl Watched {
    fn new(place: &Place) -> Self {
        Self {
            name: place.name.clone(),
            status: None,
            edge: None,
            events: VecDeque::new(),
            history: History::default(),
            away: None,
        }
    }

    fn take(&mut self, news: Result<Seen, Away>, now: Instant, at: SystemTime) {
        match news {
            Ok(seen) => self.take_seen(seen, now),
            Err(away) => {
                self.history.skip();
                let since = self.away.take().map_or(at, |(_, since)| since);
                self.away = Some((away, since));
            }
        }
    }

    fn take_seen(&mut self, seen: Seen, now: Instant) {
        self.away = None;
        self.history.take(&seen.status, now);
        if seen.is_new_life {
            self.events.clear();
        }
        self.events.extend(seen.events);
        self.events.drain(..self.events.len().saturating_sub(EVENTS_MAX));
        (self.status, self.edge) = (Some(seen.status), seen.edge);
    }
}

/// Which screen is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    #[default]
    Overview,
    Events,
    Help,
}

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Go,
    /// Nothing has changed.
    Idle,
    /// Draw everything, also what seems to stand there already.
    Anew,
    /// Stand still, as a shell's job.
    Suspend,
    Quit,
}

/// The state of the program.
#[derive(Clone, Debug)]
pub struct App {
    pub groups: Vec<Watched>,
    /// Number of the group that is shown.
    pub chosen: usize,
    pub screen: Screen,
    /// Number of events that are newer than the last line of their screen.
    pub scrolled: usize,
    /// Time between two looks.
    pub interval: Duration,
    /// What stands still on the screen, while news go on in `groups`.
    frozen: Option<Vec<Watched>>,
}

impl App {
    #[must_use]
    pub fn new(places: &[Place], interval: Duration) -> Self {
        Self {
            groups: places.iter().map(Watched::new).collect(),
            chosen: 0,
            screen: Screen::Overview,
            scrolled: 0,
            interval,
            frozen: None,
        }
    }

    /// Takes what a look at group `number` has found at a moment that both clocks name.
    pub fn take(
        &mut self,
        number: usize,
        news: Result<Seen, Away>,
        (now, at): (Instant, SystemTime),
    ) {
        if let Some(group) = self.groups.get_mut(number) {
            group.take(news, now, at);
        }
    }

    /// The groups as they are to be shown.
    #[must_use]
    pub fn shown(&self) -> &[Watched] {
        self.frozen.as_deref().unwrap_or(&self.groups)
    }

    /// The group that was chosen; `None` only if there is none at all.
    #[must_use]
    pub fn current(&self) -> Option<&Watched> {
        self.shown().get(self.chosen)
    }

    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyEvent) -> Then {
        if key.kind == KeyEventKind::Release {
            return Then::Idle;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Then::Quit,
                KeyCode::Char('z') => Then::Suspend,
                KeyCode::Char('l') => Then::Anew,
                _ => Then::Idle,
            };
        }
        match (self.screen, key.code) {
            (_, KeyCode::Char('q')) | (Screen::Overview, KeyCode::Esc) => return Then::Quit,
            (_, KeyCode::Esc) => self.screen = Screen::Overview,
            (_, KeyCode::Char('?' | 'h')) => self.toggle(Screen::Help),
            (_, KeyCode::Char('e')) => self.toggle(Screen::Events),
            (_, KeyCode::Char('p' | ' ')) => self.pause(),
            (Screen::Events, KeyCode::Up | KeyCode::Char('k')) => self.scroll_back(1),
            (Screen::Events, KeyCode::Down | KeyCode::Char('j')) => self.scroll_on(1),
            (Screen::Events, KeyCode::PageUp) => self.scroll_back(PAGE),
            (Screen::Events, KeyCode::PageDown) => self.scroll_on(PAGE),
            (Screen::Events, KeyCode::Home) => self.scroll_back(EVENTS_MAX),
            (Screen::Events, KeyCode::End) => self.scrolled = 0,
            (_, KeyCode::Tab | KeyCode::Right | KeyCode::Down) => self.choose_next(1),
            (_, KeyCode::BackTab | KeyCode::Left | KeyCode::Up) => {
                self.choose_next(self.groups.len().saturating_sub(1));
            }
            _ => return Then::Idle,
        }
        Then::Go
    }

    fn toggle(&mut self, screen: Screen) {
        self.screen = if self.screen == screen { Screen::Overview } else { screen };
        self.scrolled = 0;
    }

    fn pause(&mut self) {
        self.frozen = if self.is_paused() { None } else { Some(self.groups.clone()) };
    }

    fn choose_next(&mut self, step: usize) {
        self.chosen = (self.chosen + step) % self.groups.len().max(1);
        self.scrolled = 0;
    }

    fn scroll_back(&mut self, by: usize) {
        let count = self.current().map_or(0, |group| group.events.len());
        self.scrolled = (self.scrolled + by).min(count.saturating_sub(1));
    }

    fn scroll_on(&mut self, by: usize) {
        self.scrolled = self.scrolled.saturating_sub(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast::admin::Level;

    fn app(groups: usize) -> App {
        let place = |number| Place { name: format!("g{number}"), socket: Ok("/run/x".into()) };
        App::new(&(0..groups).map(place).collect::<Vec<_>>(), Duration::from_secs(1))
    }

    fn press(app: &mut App, code: KeyCode) -> Then {
        app.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn event(number: u64) -> Event {
        let [at, what, detail] = ["2026-11-29T12:00:00.0Z", "state", "x"].map(str::to_owned);
        Event { number, at, level: Level::Info, what, detail, takeover: None }
    }

    fn seen(events: impl Iterator<Item = u64>, is_new_life: bool) -> Seen {
        let events = events.map(event).collect();
        Seen { status: Status::new("g0", "a"), events, is_new_life, edge: None }
    }

    fn now() -> (Instant, SystemTime) {
        (Instant::now(), SystemTime::now())
    }

    #[test]
    fn groups_are_chosen_in_turn() {
        let mut app = app(3);
        for (code, chosen) in [
            (KeyCode::Tab, 1),
            (KeyCode::Right, 2),
            (KeyCode::Down, 0),
            (KeyCode::Left, 2),
            (KeyCode::BackTab, 1),
            (KeyCode::Up, 0),
        ] {
            assert_eq!((press(&mut app, code), app.chosen), (Then::Go, chosen), "{code:?}");
        }
        let mut none = self::app(0);
        assert_eq!(press(&mut none, KeyCode::Tab), Then::Go);
        assert!(none.current().is_none());
    }

    #[test]
    fn escape_leads_back_and_then_out() {
        let mut app = app(1);
        assert_eq!(press(&mut app, KeyCode::Char('?')), Then::Go);
        assert_eq!(app.screen, Screen::Help);
        assert_eq!(press(&mut app, KeyCode::Char('e')), Then::Go);
        assert_eq!(app.screen, Screen::Events);
        assert_eq!(press(&mut app, KeyCode::Esc), Then::Go);
        assert_eq!(app.screen, Screen::Overview);
        assert_eq!(press(&mut app, KeyCode::Char('x')), Then::Idle);
        assert_eq!(press(&mut app, KeyCode::Esc), Then::Quit);
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(app.press(control('c')), Then::Quit);
        assert_eq!(app.press(control('z')), Then::Suspend);
        assert_eq!(app.press(control('q')), Then::Idle);
    }

    #[test]
    fn a_pause_shows_what_was_and_loses_nothing() {
        let mut app = app(1);
        app.take(0, Ok(seen(1..=2, true)), now());
        press(&mut app, KeyCode::Char('p'));
        app.take(0, Ok(seen(3..=4, false)), now());
        assert!(app.is_paused());
        assert_eq!(app.current().unwrap().events.len(), 2);
        press(&mut app, KeyCode::Char('p'));
        assert_eq!(app.current().unwrap().events.len(), 4);
    }

    #[test]
    fn a_daemon_that_went_away_is_shown_as_it_was_and_when() {
        let mut app = app(1);
        let away = || Away { reason: "gone".to_owned(), remedy: String::new(), code: 4 };
        app.take(0, Ok(seen(1..=2, true)), now());
        let first = now();
        app.take(0, Err(away()), first);
        app.take(0, Err(away()), now());
        let group = app.current().unwrap();
        assert_eq!(group.away.as_ref().map(|(_, since)| *since), Some(first.1));
        assert!(group.status.is_some() && group.events.len() == 2);
        app.take(0, Ok(seen(1..=1, true)), now());
        let group = app.current().unwrap();
        assert!(group.away.is_none() && group.events.len() == 1, "another life's events");
        app.take(7, Err(away()), now());
    }

    #[test]
    fn events_are_scrolled_to_their_ends_and_limited() {
        let mut app = app(1);
        app.take(0, Ok(seen(1..=EVENTS_MAX as u64 + 30, true)), now());
        assert_eq!(app.current().unwrap().events.front().map(|it| it.number), Some(31));
        press(&mut app, KeyCode::Char('e'));
        press(&mut app, KeyCode::PageUp);
        press(&mut app, KeyCode::Down);
        assert_eq!(app.scrolled, PAGE - 1);
        press(&mut app, KeyCode::Home);
        assert_eq!(app.scrolled, EVENTS_MAX - 1);
        press(&mut app, KeyCode::End);
        press(&mut app, KeyCode::Down);
        assert_eq!(app.scrolled, 0);
    }
}
