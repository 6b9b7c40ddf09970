//! Screens of what real daemons have said: `recorded/` holds the answers of a pair of lighttpd that
//! a run of `holdfast-lab life` had its faults with.

use super::super::app::App;
use super::super::groups::Place;
use super::super::look::{Away, Seen};
use super::*;
use holdfast::admin::Event;
use holdfast::status::{State, Status, exit};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::{Duration, Instant, SystemTime};

const PRIMARY: &str = include_str!("../recorded/primary.json");
const ALONE: &str = include_str!("../recorded/primary-alone.json");
const BACKUP: &str = include_str!("../recorded/backup.json");
const EDGE: &str = include_str!("../recorded/edge.json");
const EDGE_SHOW: &str = include_str!("../recorded/edge-show.json");
const EVENTS: &str = include_str!("../recorded/events.jsonl");
const COLOUR: Theme = Theme { has_colour: true };
const PLAIN: Theme = Theme { has_colour: false };
const NOW: &str = "12:25:30 UTC";

fn seen(status: &str, edge: Option<&str>) -> Seen {
    let events: Vec<Event> =
        EVENTS.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let status = serde_json::from_str(status).expect("a status");
    let edge = edge.map(|text| serde_json::from_str(text).expect("what an edge serves"));
    Seen { status, events, is_new_life: true, edge }
}

/// The program, with one group for each of these answers.
fn app(told: Vec<Result<Seen, Away>>) -> App {
    let place = Place { name: "demo".to_owned(), socket: Ok("/run/holdfast/a.sock".into()) };
    let mut app = App::new(&vec![place; told.len()], Duration::from_secs(1));
    for (number, seen) in told.into_iter().enumerate() {
        app.take(number, seen, (Instant::now(), SystemTime::UNIX_EPOCH));
    }
    app
}

fn of_one(status: &str) -> App {
    app(vec![Ok(seen(status, None))])
}

fn screen(app: &App, (columns, lines): (u16, u16), theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a screen");
    terminal.draw(|frame| draw(frame, app, theme, NOW)).expect("it is drawn");
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let columns = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
    buffer.content().chunks(columns).map(line).collect()
}

fn text(app: &App, size: (u16, u16)) -> String {
    lines(&screen(app, size, COLOUR)).join("\n")
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_small_terminal_shows_the_state_its_reason_hosts_lag_takeover_and_events() {
    let shown = text(&of_one(ALONE), (80, 24));
    has(&shown, &[" UNPROTECTED ", "this host: primary a", "epoch 10"]);
    has(&shown, &["reason  b joins: 0 % of the server is there", "remedy  wait"]);
    has(&shown, &["edge          edge     heard", "waiting: joins a: 0 %"]);
    has(&shown, &["connections   4", "lag           0 B"]);
    has(
        &shown,
        &["last takeover 2026-11-29 12:24:49", "the primary's server died", "detect 96 µs"],
    );
    has(&shown, &["─ events ─", "q  quit"]);
}

#[test]
fn a_large_one_shows_each_phase_of_a_takeover_in_a_row_of_its_own() {
    let shown = text(&of_one(PRIMARY), (160, 50));
    has(&shown, &[" PROTECTED ", "the primary may die", "fence    331 µs", "kick     221 µs", "█"]);
    has(&shown, &["connections  4  (up to 4)", "joined        a after 314 ms"]);
}

#[test]
fn an_edge_shows_what_it_serves() {
    let shown = text(&app(vec![Ok(seen(EDGE, Some(EDGE_SHOW)))]), (110, 30));
    has(&shown, &["hosts for 10.9.0.100:8080, [fd09::100]:8080 · 29 of 65.5k flows"]);
    has(&shown, &["a             primary  heard", "current; UNPROTECTED: b joins: 93 %"]);
    has(&shown, &["this host: edge   epoch 12", "flows         4"]);
}

#[test]
fn a_backup_knows_who_the_primary_is() {
    has(&text(&of_one(BACKUP), (80, 24)), &["this host: backup a", "b             primary  heard"]);
}

#[test]
fn a_daemon_that_is_away_is_said_beside_what_it_said_last() {
    let away = || Away {
        reason: "no daemon answers at /run/holdfast/a.sock".to_owned(),
        remedy: "start it".to_owned(),
        code: exit::UNREACHABLE,
    };
    let mut app = of_one(PRIMARY);
    app.take(0, Err(away()), (Instant::now(), SystemTime::UNIX_EPOCH));
    let shown = text(&app, (80, 24));
    has(&shown, &[" NO ANSWER ", "since 00:00:00", "remedy  start it", " demo! "]);
    has(&shown, &["said last, at 12:25:16: protected", "last takeover"]);
    assert!(!shown.contains(" PROTECTED "), "nobody may take it for the state of now: {shown}");
    let never = text(&self::app(vec![Err(away())]), (80, 24));
    has(&never, &[" NO ANSWER ", "no daemon answers"]);
    assert!(!never.contains("protected"), "{never}");
}

#[test]
fn nothing_is_told_by_colour_alone() {
    for status in [PRIMARY, ALONE, BACKUP, EDGE] {
        for size in [(80, 24), (160, 50)] {
            let app = of_one(status);
            let (colour, plain) = (screen(&app, size, COLOUR), screen(&app, size, PLAIN));
            assert_eq!(lines(&colour), lines(&plain));
            let reset = |cell: &ratatui::buffer::Cell| {
                let reset = ratatui::style::Color::Reset;
                cell.fg == reset && cell.bg == reset
            };
            assert!(plain.content().iter().all(reset), "colours in spite of NO_COLOR");
            assert!(!colour.content().iter().all(reset));
        }
    }
}

#[test]
fn no_size_and_no_state_breaks_a_screen() {
    let mut worst: Status = serde_json::from_str(PRIMARY).expect("a status");
    let long = "漢字 and words that go on and on ".repeat(50);
    (worst.state, worst.reason, worst.remedy) = (State::Diverged, long.clone(), long.clone());
    (worst.rebuild, worst.at_risk, worst.overlaps) = (long.clone(), u64::MAX, u64::MAX);
    worst.peers = vec![worst.peers[0].clone(); 70];
    worst.peers[3].name = long;
    (worst.connections, worst.lag.bytes, worst.at) = (u64::MAX, u64::MAX, "?".to_owned());
    if let Some(takeover) = &mut worst.last_takeover {
        (takeover.phases_us.detect, takeover.phases_us.drain) = (u64::MAX, u64::MAX);
    }
    let worst = serde_json::to_string(&worst).expect("JSON");
    for status in [&worst, ALONE] {
        let mut app = of_one(status);
        for key in ['x', '?', 'e', 'p'] {
            app.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
            for columns in (1..200).step_by(23) {
                for rows in (1..70).step_by(11) {
                    screen(&app, (columns, rows), COLOUR);
                }
            }
        }
    }
    has(&text(&of_one(ALONE), (30, 10)), &["too small"]);
}

#[test]
fn many_hosts_leave_room_for_the_rest() {
    let mut status: Status = serde_json::from_str(EDGE).expect("a status");
    status.peers = (0..250).map(|_| status.peers[0].clone()).collect();
    let status = serde_json::to_string(&status).expect("JSON");
    for size in [(80, 24), (160, 50)] {
        let shown = text(&of_one(&status), size);
        has(&shown, &["… and 2", "last takeover", "─ events ─", "forwarded"]);
    }
}

#[test]
fn all_events_are_read_to_their_ends() {
    let mut app = of_one(PRIMARY);
    app.press(KeyEvent::new(KeyCode::Char('e'), KeyModifiers::NONE));
    let shown = text(&app, (60, 20));
    has(&shown, &["2026-11-29", "primary, UNPROTECTED: the", "answer: nobody could take"]);
    assert!(!shown.contains('…'), "{shown}");
    let last = "primary, waiting: edge";
    has(&shown, &[last]);
    for _ in 0..3 {
        app.press(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
    }
    assert!(!text(&app, (60, 20)).contains(last), "scrolled back");
}

#[test]
fn the_chosen_group_is_always_named() {
    let mut app = app((0..30).map(|_| Ok(seen(ALONE, None))).collect());
    for (number, group) in app.groups.iter_mut().enumerate() {
        group.name = format!("group-{number}");
    }
    for number in 0..30 {
        has(&text(&app, (80, 24)), &[&format!(" group-{number}! ")]);
        app.press(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    }
}

#[test]
fn curves_have_gaps_where_nobody_answered_and_show_small_numbers() {
    let mut app = of_one(PRIMARY);
    let mut status: Status = serde_json::from_str(PRIMARY).expect("a status");
    for connections in [1, 1000, 0] {
        status.connections = connections;
        let told = Seen { status: status.clone(), ..seen(PRIMARY, None) };
        app.take(0, Ok(told), (Instant::now(), SystemTime::UNIX_EPOCH));
    }
    let away = Away { reason: String::new(), remedy: String::new(), code: exit::UNREACHABLE };
    app.take(0, Err(away), (Instant::now(), SystemTime::UNIX_EPOCH));
    let curve =
        text(&app, (80, 24)).lines().find(|it| it.starts_with("connections")).map(str::to_owned);
    assert!(curve.as_ref().is_some_and(|it| it.ends_with("▂▂█▁ ")), "{curve:?}");
}
