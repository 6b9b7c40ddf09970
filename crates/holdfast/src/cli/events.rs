//! `holdfast events` and `holdfast history`: what a daemon remembers, and what its earlier lives have
//! left on this host.

use super::args::{EventsArgs, HistoryArgs};
use super::group::{Daemon, load_of_daemon};
use super::watch::{LOOK_PERIOD, ask};
use super::{Failure, print, when};
use crate::admin::{Event, Request};
use crate::config::GroupFile;
use crate::remembered::{self, Remembered};
use crate::status::{PastTakeover, counted, exit};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;

/// The schema of what `history --json` prints.
const HISTORY_SCHEMA: &str = "holdfast.history/1";

pub(super) fn events(args: &EventsArgs) -> Result<u8, Failure> {
    let (file, role) = load_of_daemon(&args.group)?;
    let daemon = Daemon::of(&file, &role);
    let mut follower = Follower::default();
    let known = known(&file, &role, &mut follower)?;
    let mut lives = Lives::default();
    for one in &known {
        if !show(one, args, &mut lives)? {
            return Ok(exit::OK);
        }
    }
    if !args.follow {
        return Ok(exit::OK);
    }
    loop {
        sleep(LOOK_PERIOD);
        match ask(&daemon, Request::Events { since: follower.next }) {
            Ok(answer) => {
                for one in follower.take(answer)? {
                    if !show(&one, args, &mut lives)? {
                        return Ok(exit::OK);
                    }
                }
            }
            // A daemon that is restarted is followed again.
            Err(gone) if gone.code == exit::UNREACHABLE => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// All events that this host has of a role, oldest first: those on its disk, and those that its
/// daemon has.
///
/// # Errors
/// If there is neither a daemon nor a file.
pub(super) fn known(
    file: &GroupFile,
    role: &str,
    follower: &mut Follower,
) -> Result<Vec<Remembered>, Failure> {
    let kept = kept_in(file, role);
    let mut found = match kept.as_ref().map(|path| (path, remembered::read(path))) {
        // Who may look is told what the daemon has; who may not, is told so by that.
        Some((path, Err(denied))) if denied.kind() == ErrorKind::PermissionDenied => {
            let _nobody_reads = writeln!(
                io::stderr(),
                "holdfast: without the events of earlier lives, which root may read ({})",
                path.display()
            );
            remembered::Found::default()
        }
        Some((_, read)) => read?,
        None => remembered::Found::default(),
    };
    if found.unread > 0 {
        let lines = match found.unread {
            1 => "1 line of the kept events is none".to_owned(),
            n => format!("{n} lines of the kept events are none"),
        };
        let _nobody_reads = writeln!(io::stderr(), "holdfast: {lines}");
    }
    let told = match ask(&Daemon::of(file, role), Request::Events { since: 0 }) {
        Ok(answer) => follower.take(answer)?,
        Err(failure) if failure.code == exit::UNREACHABLE && !found.events.is_empty() => {
            let _nobody_reads =
                writeln!(io::stderr(), "holdfast: no daemon answers; these events are kept ones");
            Vec::new()
        }
        Err(failure) => return Err(failure),
    };
    let key = |it: &Remembered| (it.life.clone(), it.event.number);
    let on_disk: BTreeSet<_> = found.events.iter().map(key).collect();
    found.events.extend(told.into_iter().filter(|it| !on_disk.contains(&key(it))));
    Ok(found.events)
}

/// Where the events of a role are kept, if they are.
fn kept_in(file: &GroupFile, role: &str) -> Option<PathBuf> {
    let common = file.common();
    let dir: &Path = common.events.events_dir.as_deref()?;
    Some(remembered::file_of(dir, common.name, role))
}

/// The lives whose events were shown.
#[derive(Default)]
struct Lives {
    last: Option<String>,
}

/// Prints an event, if it is wanted; false if nobody reads any more.
fn show(one: &Remembered, args: &EventsArgs, lives: &mut Lives) -> Result<bool, Failure> {
    if !is_wanted(&one.event, args) {
        return Ok(true);
    }
    let line = line_of(one, args.json)?;
    let is_new = lives.last.as_ref().is_some_and(|last| *last != one.life);
    lives.last = Some(one.life.clone());
    let mark = match is_new && !args.json {
        true => format!("-- another life of this daemon, {}\n", printable(&one.life)),
        false => String::new(),
    };
    print(&format!("{mark}{line}\n"))
}

fn is_wanted(event: &Event, args: &EventsArgs) -> bool {
    let is_since =
        args.since.is_none_or(|since| when::rfc3339(&event.at).is_none_or(|at| at >= since));
    is_since
        && (args.what.is_empty() || args.what.contains(&event.what))
        && args.level.is_none_or(|level| event.level >= level)
}

fn line_of(one: &Remembered, json: bool) -> Result<String, Failure> {
    let Event { at, what, detail, .. } = &one.event;
    Ok(match json {
        true => serde_json::to_string(one)?,
        false => printable(&format!("{at}  {what}  {detail}")),
    })
}

/// A text without what a terminal would obey: the files may be anybody's.
fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(plain).collect()
}

/// How far a daemon's events are known.
#[derive(Default)]
pub(super) struct Follower {
    /// Number of the next one.
    next: u64,
    /// The daemon's life that numbers them, as its answers say; one of an older release says none.
    life: Option<String>,
}

impl Follower {
    /// The events that are new. Those of another life of the daemon are counted anew: then there is
    /// none here, and the next question is for all of them.
    fn take(&mut self, mut answer: Value) -> Result<Vec<Remembered>, Failure> {
        let life = answer["life"].as_str().unwrap_or_default().to_owned();
        if self.life.as_ref().is_some_and(|known| *known != life) {
            (self.next, self.life) = (0, Some(life));
            return Ok(Vec::new());
        }
        let events: Vec<Event> = serde_json::from_value(answer["events"].take())?;
        self.next = events.last().map_or(self.next, |last| last.number + 1);
        self.life = Some(life.clone());
        Ok(events.into_iter().map(|event| Remembered { life: life.clone(), event }).collect())
    }
}

pub(super) fn history(args: &HistoryArgs) -> Result<u8, Failure> {
    let (file, role) = load_of_daemon(&args.group)?;
    let all = takeovers(known(&file, &role, &mut Follower::default())?);
    if all.is_empty() && !args.json {
        let _nobody_reads = writeln!(io::stderr(), "holdfast: this host remembers no takeover");
    }
    for past in &all {
        let line = if args.json { json_of(past).to_string() + "\n" } else { told(past) };
        if !print(&line)? {
            break;
        }
    }
    Ok(exit::OK)
}

/// The takeovers among events, each once: an edge that was started again hears of the last one
/// again.
pub(super) fn takeovers(events: Vec<Remembered>) -> Vec<PastTakeover> {
    let mut seen = BTreeSet::new();
    let all = events.into_iter().filter_map(|it| it.event.takeover);
    all.filter(|it| seen.insert((it.takeover.at.clone(), it.to.clone()))).map(|it| *it).collect()
}

pub(super) fn json_of(past: &PastTakeover) -> Value {
    let mut value = json!({ "schema": HISTORY_SCHEMA });
    if let (Some(into), Ok(Value::Object(fields))) =
        (value.as_object_mut(), serde_json::to_value(past))
    {
        into.extend(fields);
    }
    value
}

fn told(past: &PastTakeover) -> String {
    let PastTakeover { kind, from, to, epoch, lost, takeover } = past;
    let ms = |us: u64| format!("{:.1}", us as f64 / 1000.0);
    let parts: Vec<String> =
        takeover.phases_us.named().iter().map(|(name, us)| format!("{name} {}", ms(*us))).collect();
    let lost = lost.map_or_else(|| "?".to_owned(), |lost| lost.to_string());
    printable(&format!(
        "{}  {kind}  {from} -> {to}  epoch {epoch}  {} ms  {}, {lost} lost  {}\n    ms: {}\n",
        takeover.at,
        ms(takeover.total_us),
        counted(takeover.connections, "connection"),
        takeover.cause,
        parts.join("   ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Events, Level};
    use crate::status::Takeover;
    use clap::Parser as _;

    fn told_by(follower: &mut Follower, events: &Events) -> Vec<String> {
        let new = follower.take(events.answer(follower.next)).expect("events");
        new.into_iter().map(|one| one.event.what).collect()
    }

    #[test]
    fn a_daemon_that_was_restarted_is_followed_from_its_first_event() {
        let (mut follower, mut first) = (Follower::default(), Events::default());
        for what in ["started", "joined", "left"] {
            first.add(what, "");
        }
        assert_eq!(told_by(&mut follower, &first), ["started", "joined", "left"]);
        assert!(told_by(&mut follower, &first).is_empty());
        // As many events as the last life had: their numbers alone would tell nothing.
        let mut second = Events::default();
        for what in ["started", "joined", "switch"] {
            second.add(what, "");
        }
        assert!(told_by(&mut follower, &second).is_empty());
        assert_eq!(told_by(&mut follower, &second), ["started", "joined", "switch"]);
        second.add("left", "");
        assert_eq!(told_by(&mut follower, &second), ["left"]);
    }

    fn args(words: &[&str]) -> EventsArgs {
        let words = ["holdfast", "events", "--config", "x"].iter().chain(words);
        match super::super::args::Cli::parse_from(words).verb {
            super::super::args::Verb::Events(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_is_asked_for_is_shown() {
        let event = |what: &str, level, at: &str| Event {
            what: what.to_owned(),
            level,
            at: at.to_owned(),
            ..Event::default()
        };
        let old = event("left", Level::Warn, "2026-01-01T00:00:00.000000Z");
        let new = event("joined", Level::Info, "2026-02-01T00:00:00.000000Z");
        let shown = |words: &[&str]| {
            let args = args(words);
            [&old, &new].map(|event| is_wanted(event, &args))
        };
        assert_eq!(shown(&[]), [true, true]);
        assert_eq!(shown(&["--since", "2026-01-15T00:00:00Z"]), [false, true]);
        assert_eq!(shown(&["--what", "left"]), [true, false]);
        assert_eq!(shown(&["--what", "left", "--what", "joined"]), [true, true]);
        assert_eq!(shown(&["--level", "warn"]), [true, false]);
        assert_eq!(shown(&["--level", "error"]), [false, false]);
    }

    #[test]
    fn a_takeover_that_is_told_twice_is_one() {
        let takeover = Takeover { at: "then".to_owned(), total_us: 1234, ..Takeover::default() };
        let past = PastTakeover { to: "b".to_owned(), takeover, ..PastTakeover::default() };
        let event = Event { takeover: Some(Box::new(past.clone())), ..Event::default() };
        let one = |life: &str| Remembered { life: life.to_owned(), event: event.clone() };
        assert_eq!(takeovers(vec![one("1"), one("2")]), std::slice::from_ref(&past));
        assert_eq!(json_of(&past)["schema"], HISTORY_SCHEMA);
        assert!(
            told(&past).contains("-> b  epoch 0  1.2 ms  0 connections, ? lost"),
            "{}",
            told(&past)
        );
    }

    #[test]
    fn no_text_of_a_file_commands_a_terminal() {
        let event = Event { detail: "\u{1b}[2Jx".to_owned(), ..Event::default() };
        let line = line_of(&Remembered { life: String::new(), event }, false).unwrap();
        assert!(line.ends_with("\u{fffd}[2Jx"), "{line:?}");
    }
}
