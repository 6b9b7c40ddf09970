//! What a daemon has done: the last events, for the verb `events`, for its log, for its disk, and for
//! the hooks.

mod level;
mod progress;

pub use level::{LEVELS, Level};

use crate::config::{Common, Hooks};
use crate::hooks::{Caller, Change};
use crate::remembered::{Keeper, Remembered, file_of};
use crate::status::{PastTakeover, Role, State, Status, rfc3339};
use holdfast_linux::aside::drop_aside;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// Number of events that are kept; older ones are forgotten.
pub const EVENTS_MAX: usize = 1024;
/// Time between two looks of a daemon at its own state, which may change though nothing has come.
const NOTE_EVERY: Duration = Duration::from_millis(100);
/// Longest detail that is kept, in bytes; a longer one is cut.
const DETAIL_BYTES_MAX: usize = 4096;

/// Something worth remembering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, from 1 since the start of the daemon.
    pub number: u64,
    pub at: String,
    #[serde(default)]
    pub level: Level,
    /// One word or two that do not change between releases.
    pub what: String,
    pub detail: String,
    /// The takeover that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Box<PastTakeover>>,
}

/// What a thread of this daemon wants to be noted.
#[derive(Debug)]
pub struct Report {
    pub level: Level,
    pub what: &'static str,
    pub detail: String,
}

/// Number of events of one kind that may follow each other at once.
pub const EVENTS_AT_ONCE: u32 = 64;
/// Time after which one more of them is written: somebody who makes a daemon repeat
/// itself, such as a server that opens and closes its port, fills neither its log nor its
/// list.
pub const EVENT_EVERY: Duration = Duration::from_secs(1);
/// Events that are each a client's, so that there are no more of them than
/// clients.
const NEVER_LEFT_OUT: [&str; 2] = ["connection lost", "listener lost"];

/// The last [`EVENTS_MAX`] events.
#[derive(Debug)]
pub struct Events {
    /// Names of the group and of this daemon's role.
    of: [String; 2],
    /// Another one in each life of a daemon, whose numbers begin anew.
    life: String,
    keeper: Option<Keeper>,
    hooks: Option<Caller>,
    /// What the threads behind these two report, and the end that they get.
    reports: Receiver<Report>,
    tell: Sender<Report>,
    /// When the daemon's state is to be noted again.
    note_at: Instant,
    /// Role, state and reason that were last noted, and when.
    seen: (Role, State, String),
    seen_at: Instant,
    kept: VecDeque<Event>,
    count: u64,
    /// How often each kind, of which there are few, was written.
    kinds: BTreeMap<String, Kind>,
}

/// State of one kind of events.
#[derive(Debug)]
struct Kind {
    /// Number that may be written now, as of `since`.
    room: u32,
    since: Instant,
    /// Number that were left out, and the last one of them.
    left_out: u64,
    last: Option<(Level, String)>,
}

impl Kind {
    /// Whether one more may be written.
    fn takes(&mut self, now: Instant) -> bool {
        let more = now.duration_since(self.since).as_millis() / EVENT_EVERY.as_millis();
        let more = u32::try_from(more).unwrap_or(u32::MAX).min(EVENTS_AT_ONCE);
        self.room = (self.room + more).min(EVENTS_AT_ONCE);
        // Part of a period counts the next time, except for a kind that was long at rest.
        let is_full = self.room == EVENTS_AT_ONCE;
        self.since = if is_full { now } else { self.since + EVENT_EVERY * more };
        let takes = self.room > 0;
        self.room = self.room.saturating_sub(1);
        takes
    }
}

impl Default for Events {
    fn default() -> Self {
        // Without random numbers, two lives begin at two times at least.
        let at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let life = getrandom::u64().unwrap_or(at.as_nanos() as u64);
        let (kept, kinds) = (VecDeque::new(), BTreeMap::new());
        let (tell, reports) = channel();
        Self {
            of: [String::new(), String::new()],
            life: format!("{life:016x}"),
            keeper: None,
            hooks: None,
            reports,
            tell,
            note_at: Instant::now(),
            seen: (Role::None, State::Waiting, String::new()),
            seen_at: Instant::now(),
            kept,
            count: 0,
            kinds,
        }
    }
}

impl Events {
    /// Events of the daemon with this role, which the file wants to be kept, and its hooks called.
    #[must_use]
    pub fn begin(file: &Common<'_>, role: &str) -> Self {
        let of = [file.name, role].map(str::to_owned);
        let mut events = Self { of, ..Self::default() };
        if let Some(dir) = &file.events.events_dir {
            let path = file_of(dir, file.name, role);
            match Keeper::start(path, file.events.events_max_kb << 10, events.tell.clone()) {
                Ok(keeper) => events.keeper = Some(keeper),
                Err(error) => events.add("events", format!("are not kept: {error}")),
            }
        }
        events.call(file.hooks);
        events
    }

    /// Calls these hooks from now on, in place of those before. A call of these that has begun is
    /// waited for elsewhere.
    pub fn call(&mut self, hooks: Option<&Hooks>) {
        if let Some(before) = self.hooks.take() {
            // Where there can be no thread it is waited for here, for half a second at most.
            drop_aside(before);
        }
        match hooks.map(|hooks| Caller::start(hooks.clone(), self.tell.clone())).transpose() {
            Ok(caller) => self.hooks = caller,
            Err(error) => self.add("hook", format!("cannot be called: {error}")),
        }
    }

    /// Does what is due, and tells whether the daemon's state is to be noted now: whoever loops may
    /// ask as often as they like.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.turn(now);
        let is_due = now >= self.note_at;
        if is_due {
            self.note_at = now + NOTE_EVERY;
        }
        is_due
    }

    /// Notes the daemon's state, if it has changed by more than a little progress, and calls the
    /// hooks.
    pub fn note_status(&mut self, status: &Status) {
        self.note_status_at(Instant::now(), status);
    }

    fn note_status_at(&mut self, now: Instant, status: &Status) {
        let (role, state) = (status.role, status.state);
        let (_, _, before) = &self.seen;
        if (role, state) == (self.seen.0, self.seen.1)
            && (status.reason == *before
                || progress::is_small(before, &status.reason, now.duration_since(self.seen_at)))
        {
            return;
        }
        self.seen_at = now;
        let (old_role, old, _) =
            std::mem::replace(&mut self.seen, (role, state, status.reason.clone()));
        let colon = if status.reason.is_empty() { "" } else { ": " };
        let words = format!("{role}, {state}{colon}{}", status.reason);
        self.add_at(state.level(), "state", words);
        if let Some(hooks) = self.hooks.as_ref().filter(|_| (old_role, old) != (role, state)) {
            hooks.call(Change::new(status, old));
        }
    }

    /// Notes a takeover, whose parts `holdfast history` shows.
    pub fn add_takeover(&mut self, past: PastTakeover) {
        self.write(Level::Warn, "takeover", past.to_string(), Some(Box::new(past)));
    }

    /// Remembers an event and writes it to the log, as loudly as its name asks for.
    pub fn add(&mut self, what: &str, detail: impl Into<String>) {
        self.add_at(Level::of(what), what, detail);
    }

    /// Like [`Self::add`], at a level of its own.
    pub fn add_at(&mut self, level: Level, what: &str, detail: impl Into<String>) {
        self.take(Instant::now(), level, what, detail.into());
    }

    /// Writes events that were left out and may be written by now: the last of each
    /// kind, so that the daemon's latest word is there. Call it from time to time.
    pub fn turn(&mut self, now: Instant) {
        while let Ok(Report { level, what, detail }) = self.reports.try_recv() {
            self.weigh(now, level, what, detail);
        }
        let due = |kind: &mut Kind| kind.last.is_some() && kind.takes(now);
        while let Some((what, kind)) =
            self.kinds.iter_mut().find_map(|(what, kind)| due(kind).then(|| (what.clone(), kind)))
        {
            let left_out = std::mem::take(&mut kind.left_out).saturating_sub(1);
            let Some((level, detail)) = kind.last.take() else { return };
            let more = format!(" ({left_out} more of this kind were left out)");
            let more = if left_out > 0 { more } else { String::new() };
            self.write(level, &what, format!("{detail}{more}"), None);
        }
    }

    fn take(&mut self, now: Instant, level: Level, what: &str, detail: String) {
        if NEVER_LEFT_OUT.contains(&what) {
            return self.write(level, what, detail, None);
        }
        self.turn(now);
        self.weigh(now, level, what, detail);
    }

    /// Writes an event, or keeps it back where its kind has had its share.
    fn weigh(&mut self, now: Instant, level: Level, what: &str, detail: String) {
        let fresh = Kind { room: EVENTS_AT_ONCE, since: now, left_out: 0, last: None };
        let kind = self.kinds.entry(what.to_owned()).or_insert(fresh);
        if kind.takes(now) {
            return self.write(level, what, detail, None);
        }
        kind.left_out += 1;
        kind.last = Some((level, detail));
    }

    fn write(
        &mut self,
        level: Level,
        what: &str,
        mut detail: String,
        takeover: Option<Box<PastTakeover>>,
    ) {
        detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
        let [group, role] = &self.of;
        match level {
            Level::Error => tracing::error!(group, role, what, "{detail}"),
            Level::Warn => tracing::warn!(group, role, what, "{detail}"),
            Level::Info => tracing::info!(group, role, what, "{detail}"),
        }
        self.count += 1;
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        let (number, at, what) = (self.count, rfc3339(SystemTime::now()), what.to_owned());
        let event = Event { number, at, level, what, detail, takeover };
        if let Some(keeper) = &self.keeper {
            let line = Remembered { life: self.life.clone(), event: event.clone() };
            // A struct of texts and numbers is always written.
            let mut line = serde_json::to_vec(&line).unwrap_or_default();
            line.push(b'\n');
            keeper.keep(line);
        }
        self.kept.push_back(event);
    }

    /// The events from number `since` on that are still known, as an answer, with the life that
    /// numbers them.
    #[must_use]
    pub fn answer(&self, since: u64) -> Value {
        let events: Vec<&Event> = self.kept.iter().filter(|e| e.number >= since).collect();
        json!({ "events": events, "life": self.life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A join that takes a minute, one of a second, and one that begins anew.
    #[test]
    fn a_join_is_some_lines_and_not_one_for_each_hundredth() {
        for (all_ms, lines) in [(60_000_u64, 10), (1000, 1)] {
            let (begun, mut events) = (Instant::now(), Events::default());
            let mut status = Status::new("g", "a");
            status.state = State::Unprotected;
            for percent in 0..100 {
                let now = begun + Duration::from_millis(all_ms * percent / 100);
                status.reason = format!("b joins: {percent} % of the server is there");
                events.note_status_at(now, &status);
            }
            assert_eq!(details(&events, "state").len(), lines, "{all_ms} ms");
            (status.state, status.reason) = (State::Protected, String::new());
            events.note_status_at(begun + Duration::from_millis(all_ms), &status);
            let said = details(&events, "state");
            assert_eq!((said.len(), said[lines].as_str()), (lines + 1, "no role, protected"));
            assert!(said[0].contains(" 0 % of the server"), "{said:?}");
        }
    }

    fn details(events: &Events, what: &str) -> Vec<String> {
        let of = |event: &&Event| event.what == what;
        events.kept.iter().filter(of).map(|event| event.detail.clone()).collect()
    }

    #[test]
    fn who_makes_a_daemon_repeat_itself_is_written_once_a_second() {
        let (begun, mut events) = (Instant::now(), Events::default());
        let at = |ms: u64| begun + Duration::from_millis(ms);
        // A server that opens and closes its port 15 times a second, for ten minutes.
        for number in 0..9000_u64 {
            let now = at(number * 1000 / 15);
            events.take(now, Level::Info, "state", format!("change {number}"));
        }
        events.take(at(600_000), Level::Warn, "left", "b".to_owned());
        assert_eq!(details(&events, "left"), ["b"], "other kinds are written");
        let written = details(&events, "state").len();
        assert!((600..=600 + EVENTS_AT_ONCE as usize).contains(&written), "{written}");
        events.turn(at(602_000));
        let said = details(&events, "state");
        assert!(said.last().is_some_and(|last| last.starts_with("change 8999 (")), "{said:?}");
        events.turn(at(700_000));
        assert_eq!(details(&events, "state").len(), said.len(), "once");
        // Clients are not left out.
        for _ in 0..300 {
            events.take(at(700_000), Level::Error, "connection lost", String::new());
        }
        assert_eq!(details(&events, "connection lost").len(), 300);
    }
}
