//! What is known of one daemon: its last answers, and what they add up to.

use super::history::{History, now_ms};
use anyhow::{Result, bail};
use holdfast::admin::Event;
use holdfast::status::{Status, Takeover};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Age at which an answer is no more the state of the daemon.
pub const STALE_AFTER: Duration = Duration::from_secs(3);
/// Most events and takeovers that the page shows.
const EVENTS_SHOWN_MAX: usize = 60;
const TAKEOVERS_MAX: usize = 6;
/// Most kinds of events that are counted one by one; the daemon knows some forty.
const KINDS_MAX: usize = 128;

/// The last answers of one daemon.
#[derive(Debug, Default)]
pub struct Seen {
    status: Option<Status>,
    show: Option<Value>,
    heard: Option<Instant>,
    /// The life of the daemon that numbers its events.
    life: Option<String>,
    next_event: u64,
    events: VecDeque<Event>,
    counts: BTreeMap<String, u64>,
    /// The last takeovers, the newest last, and how many there were.
    takeovers: VecDeque<Takeover>,
    takeover_count: u64,
    pub history: History,
}

impl Seen {
    /// Takes the answer to `status`.
    ///
    /// # Errors
    /// If it is none.
    pub fn take_status(&mut self, answer: Value) -> Result<()> {
        let status: Status = serde_json::from_value(answer)?;
        if let Some(last) = &status.last_takeover
            && self.takeovers.back() != Some(last)
        {
            if self.takeovers.len() == TAKEOVERS_MAX {
                self.takeovers.pop_front();
            }
            self.takeovers.push_back(last.clone());
            self.takeover_count += 1;
        }
        self.history.add(&status);
        self.status = Some(status);
        self.heard = Some(Instant::now());
        Ok(())
    }

    /// Takes the answer to `show`, which only edges have.
    pub fn take_show(&mut self, answer: Value) {
        self.show = answer["error"].is_null().then_some(answer);
    }

    /// Takes the answer to `events` since [`Self::next_event`].
    ///
    /// # Errors
    /// If it is none, or one of another life of the daemon.
    pub fn take_events(&mut self, mut answer: Value) -> Result<()> {
        let life = answer["life"].as_str().map(str::to_owned);
        if self.life.is_some() && self.life != life {
            bail!("the daemon has begun anew");
        }
        self.life = life;
        let events: Vec<Event> = serde_json::from_value(answer["events"].take())?;
        for event in events {
            self.next_event = event.number + 1;
            if self.counts.len() < KINDS_MAX || self.counts.contains_key(&event.what) {
                *self.counts.entry(event.what.clone()).or_default() += 1;
            }
            if self.events.len() == EVENTS_SHOWN_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Number of the first event that is not known yet.
    pub fn next_event(&self) -> u64 {
        self.next_event
    }

    /// Whether the daemon is an edge, which can show what it serves.
    pub fn can_show(&self) -> bool {
        self.status.as_ref().is_some_and(|it| it.role == holdfast::status::Role::Edge)
    }

    /// Time since the last answer.
    pub fn age(&self) -> Option<Duration> {
        self.heard.map(|at| at.elapsed())
    }

    /// The last status, however old.
    pub fn last(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// The status, if it is one of now.
    pub fn fresh(&self) -> Option<&Status> {
        self.status.as_ref().filter(|_| self.age().is_some_and(|age| age < STALE_AFTER))
    }

    pub fn show(&self) -> Option<&Value> {
        self.show.as_ref()
    }

    /// Events of each kind, of this life of the daemon as far as it is known.
    pub fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    pub fn takeover_count(&self) -> u64 {
        self.takeover_count
    }

    /// All that the page needs again and again.
    pub fn answer(&self) -> Value {
        let age = self.age().map(|age| age.as_millis() as u64);
        json!({
            "now": now_ms(),
            "age_ms": age,
            "stale_after_ms": STALE_AFTER.as_millis() as u64,
            "status": self.status,
            "show": self.show,
            "takeovers": self.takeovers,
            "events": self.events,
        })
    }
}
