//! What a daemon has done: the last events, for the verb `events` and for its log.

use crate::status::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};
use tracing::Level;

/// Number of events that are kept; older ones are forgotten.
pub const EVENTS_MAX: usize = 1024;

/// Something worth remembering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, from 1 since the start of the daemon.
    pub number: u64,
    pub at: String,
    /// One word or two that do not change between releases.
    pub what: String,
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
    /// Another one in each life of a daemon, whose numbers begin anew.
    life: String,
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
        Self { life: format!("{life:016x}"), kept, count: 0, kinds }
    }
}

impl Events {
    /// Remembers an event and writes it to the log, as loudly as its name asks for.
    pub fn add(&mut self, what: &str, detail: impl Into<String>) {
        self.add_at(level_of(what), what, detail);
    }

    /// Like [`Self::add`], at a level of its own.
    pub fn add_at(&mut self, level: Level, what: &str, detail: impl Into<String>) {
        self.take(Instant::now(), level, what, detail.into());
    }

    /// Writes events that were left out and may be written by now: the last of each
    /// kind, so that the daemon's latest word is there. Call it from time to time.
    pub fn turn(&mut self, now: Instant) {
        let due = |kind: &mut Kind| kind.last.is_some() && kind.takes(now);
        while let Some((what, kind)) =
            self.kinds.iter_mut().find_map(|(what, kind)| due(kind).then(|| (what.clone(), kind)))
        {
            let left_out = std::mem::take(&mut kind.left_out).saturating_sub(1);
            let Some((level, detail)) = kind.last.take() else { return };
            let more = format!(" ({left_out} more of this kind were left out)");
            let more = if left_out > 0 { more } else { String::new() };
            self.write(level, &what, format!("{detail}{more}"));
        }
    }

    fn take(&mut self, now: Instant, level: Level, what: &str, detail: String) {
        if NEVER_LEFT_OUT.contains(&what) {
            return self.write(level, what, detail);
        }
        self.turn(now);
        let fresh = Kind { room: EVENTS_AT_ONCE, since: now, left_out: 0, last: None };
        let kind = self.kinds.entry(what.to_owned()).or_insert(fresh);
        if kind.takes(now) {
            return self.write(level, what, detail);
        }
        kind.left_out += 1;
        kind.last = Some((level, detail));
    }

    fn write(&mut self, level: Level, what: &str, detail: String) {
        match level {
            Level::ERROR => tracing::error!("{what}: {detail}"),
            Level::WARN => tracing::warn!("{what}: {detail}"),
            _ => tracing::info!("{what}: {detail}"),
        }
        self.count += 1;
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        let at = rfc3339(SystemTime::now());
        self.kept.push_back(Event { number: self.count, at, what: what.to_owned(), detail });
    }

    /// The events from number `since` on that are still known, as an answer, with the life that
    /// numbers them.
    #[must_use]
    pub fn answer(&self, since: u64) -> Value {
        let events: Vec<&Event> = self.kept.iter().filter(|e| e.number >= since).collect();
        json!({ "events": events, "life": self.life })
    }
}

/// Level of an event in the log: what clients have lost is an error, what was
/// refused or may need a person is a warning.
fn level_of(what: &str) -> Level {
    match what {
        "connection lost" | "listener lost" => Level::ERROR,
        "address" | "backup refused" | "declare" | "fenced" | "left" | "lingers" | "mended"
        | "polling" | "promote" | "refused" | "silent" | "torn" | "turned away" => Level::WARN,
        _ => Level::INFO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            events.take(now, Level::INFO, "state", format!("change {number}"));
        }
        events.take(at(600_000), Level::WARN, "left", "b".to_owned());
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
            events.take(at(700_000), Level::ERROR, "connection lost", String::new());
        }
        assert_eq!(details(&events, "connection lost").len(), 300);
    }
}
