//! Reading the file again while a daemon runs (`holdfast reload`, SIGHUP): it says what has changed,
//! takes over what it can, and ends nothing.
//!
//! An edge, a host server, an edge of strings and a witness begin anew with the changed file, in the
//! same process: their data path is in the kernel and goes on meanwhile, as when their daemon is
//! restarted. A member keeps its server, and takes over the few settings that do not concern it.

mod changes;

pub use changes::{Change, Reader};

use super::{Asked, asked, rights, service_manager};
use crate::admin::{Events, Level, refusal};
use crate::config::GroupFile;
use crate::config::spread::SpreadConfig;
use crate::key::Keyring;
use crate::poll::Signals;
use anyhow::Result;
use changes::{NEEDS_DOWN, NEEDS_KEY, NEEDS_RIGHTS, NEEDS_STEPS, changes, is_of_keys};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The schema of an answer.
pub const SCHEMA: &str = "holdfast.reload/1";
/// Time after which a daemon that could not begin tries it again.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// How a daemon that can begin anew ends.
#[derive(Debug)]
pub enum Ended {
    /// A signal has ended it.
    Stopped,
    /// It is to begin anew with this file, because these settings have changed; and what it has
    /// noted until now.
    Anew(Box<GroupFile>, String, Box<Events>),
}

/// What a daemon does about its file.
#[derive(Debug)]
pub struct Plan {
    /// The changed file, without what cannot be taken over.
    pub file: GroupFile,
    pub changes: Vec<Change>,
    /// What the host shares with others by that file.
    pub keyring: Keyring,
    /// Whether several edges choose by a key that is another one now.
    chooses_anew: bool,
}

impl Plan {
    /// Reads the file of `running` again, for the daemon with this role.
    ///
    /// # Errors
    /// Why nothing can be taken over: what is wrong with the file, with its remedy.
    pub fn read(
        running: &GroupFile,
        key: &Keyring,
        (role, reader): (&str, Reader<'_>),
    ) -> std::result::Result<Self, String> {
        let file = GroupFile::load(running.path()).map_err(|error| error.to_string())?;
        if std::mem::discriminant(&file) != std::mem::discriminant(running) {
            return Err(format!("the group is of another kind now\n  remedy: {NEEDS_DOWN}"));
        }
        file.role(Some(role)).map_err(|error| format!("{error}\n  remedy: {NEEDS_DOWN}"))?;
        let keyring = file.keyring(role).map_err(|error| error.to_string())?;
        let mut changes = changes(running, &file, reader);
        for change in changes.iter_mut().filter(|change| rights::lacks(&change.setting)) {
            change.needs = change.needs.or(Some(NEEDS_RIGHTS));
        }
        if !keyring.is_same(key) {
            let not_shown = || "(not shown)".to_owned();
            let (setting, before, now) = ("key".to_owned(), not_shown(), not_shown());
            let is_of_kind = key.is_in_pairs() == keyring.is_in_pairs();
            let needs = if is_of_kind { NEEDS_KEY } else { NEEDS_STEPS };
            let needs = key.would_lose(&keyring).map(|_| needs);
            changes.push(Change { setting, before, now, needs });
        }
        let is_among_edges = |it: &SpreadConfig| it.edges.len() > 1 && it.edge(role).is_some();
        let chooses = matches!(&file, GroupFile::Spread(file) if is_among_edges(file));
        let chooses_anew = chooses && key.own() != keyring.own();
        let mut plan = Self { file, changes, keyring, chooses_anew };
        plan.keep_back(running);
        Ok(plan)
    }

    /// Takes back what cannot be taken over, or everything, where one thing keeps the daemon from
    /// beginning anew.
    fn keep_back(&mut self, running: &GroupFile) {
        let blocks = |change: &&Change| {
            [NEEDS_DOWN, NEEDS_KEY, NEEDS_STEPS].map(Some).contains(&change.needs)
        };
        if let Some(why) = self.changes.iter().find(blocks).and_then(|change| change.needs) {
            self.changes.iter_mut().for_each(|change| change.needs = change.needs.or(Some(why)));
        }
        self.file.keep_pace_and_size(running);
    }

    /// Whether there is something that can be taken over.
    #[must_use]
    pub fn applies(&self) -> bool {
        self.changes.iter().any(|change| change.needs.is_none())
    }

    /// Whether keys are taken over.
    #[must_use]
    pub fn takes_keys(&self) -> bool {
        self.changes.iter().any(|it| is_of_keys(&it.setting) && it.needs.is_none())
    }

    /// Whether a daemon that can begin anew has to for what it takes over: keys need no new
    /// beginning, and channels stay open.
    #[must_use]
    pub fn begins_anew(&self) -> bool {
        self.chooses_anew
            || self.changes.iter().any(|it| !is_of_keys(&it.setting) && it.needs.is_none())
    }

    /// Whether a setting that begins so is taken over.
    #[must_use]
    pub fn takes_of(&self, start: &str) -> bool {
        self.changes.iter().any(|it| it.setting.starts_with(start) && it.needs.is_none())
    }

    /// The names of what is taken over, and of what is not, for the event.
    #[must_use]
    pub fn words(&self) -> String {
        let named = |taken: bool| {
            let of = self.changes.iter().filter(|change| change.needs.is_none() == taken);
            of.map(|change| change.setting.as_str()).collect::<Vec<_>>().join(", ")
        };
        match (named(true), named(false)) {
            (taken, left) if taken.is_empty() && left.is_empty() => {
                "nothing has changed".to_owned()
            }
            (taken, left) if left.is_empty() => format!("takes over {taken}"),
            (taken, left) if taken.is_empty() => format!("waits for more than a reload: {left}"),
            (taken, left) => format!("takes over {taken}; waits for more than a reload: {left}"),
        }
    }

    /// What the verb is answered.
    #[must_use]
    pub fn answer(&self, role: &str) -> Value {
        let (applied, pending): (Vec<&Change>, Vec<&Change>) =
            self.changes.iter().partition(|change| change.needs.is_none());
        json!({
            "schema": SCHEMA,
            "group": self.file.name(),
            "role": role,
            "file": self.file.path(),
            "applied": applied,
            "pending": pending,
        })
    }
}

/// One life of a daemon that can begin anew.
#[derive(Debug)]
pub struct Life<'a> {
    pub file: &'a GroupFile,
    pub role: &'a str,
    /// What the one before has ended for.
    told: Option<String>,
    /// What the one before has noted, if both keep events alike and call the same hooks.
    events: Option<Events>,
    has_begun: bool,
}

impl Life<'_> {
    /// The events of this life, which go on where those before have ended.
    #[must_use]
    pub fn events(&mut self) -> Events {
        let begin = || Events::begin(&self.file.common(), self.role);
        self.events.take().unwrap_or_else(begin)
    }

    /// Notes that this life has begun, with these keys: from now on the file before is not needed.
    /// Nothing that can fail may follow it.
    pub fn begin(
        &mut self,
        (reader, key): (Reader<'static>, &Keyring),
        events: &mut Events,
    ) -> Reloads {
        let file = self.file.clone();
        if let Some(words) = self.told.take() {
            events.add("reload", words);
        }
        self.has_begun = true;
        Reloads::new(file, key.clone(), self.role, reader)
    }
}

/// A daemon's file, and what it is to begin anew with.
#[derive(Debug)]
pub struct Reloads {
    file: GroupFile,
    /// Shared with all that speaks for the daemon.
    key: Keyring,
    role: String,
    reader: Reader<'static>,
    /// The file to begin anew with, what has changed, and since when it is asked for.
    next: Option<(Box<GroupFile>, String, Instant)>,
}

impl Reloads {
    /// Of a daemon that runs with this file and key.
    #[must_use]
    pub fn new(file: GroupFile, key: Keyring, role: &str, reader: Reader<'static>) -> Self {
        Self { file, key, role: role.to_owned(), reader, next: None }
    }

    /// Reads the file again for somebody who asks, or (`dry_run`) only says what that would do.
    pub fn handle(&mut self, dry_run: bool, events: &mut Events) -> Value {
        let plan = match Plan::read(&self.file, &self.key, (&self.role, self.reader)) {
            Ok(plan) => plan,
            Err(why) => {
                events.add_at(Level::Warn, "reload", format!("goes on as before: {why}"));
                return refusal(&why);
            }
        };
        if !dry_run {
            events.add("reload", plan.words());
            if plan.takes_keys() && !plan.begins_anew() {
                self.key.take_over(&plan.keyring);
                let answer = plan.answer(&self.role);
                self.file.take_keys(&plan.file);
                return answer;
            }
            if plan.applies() {
                let words = format!("has begun anew: {}", plan.words());
                let answer = plan.answer(&self.role);
                self.next = Some((Box::new(plan.file), words, Instant::now()));
                return answer;
            }
        }
        plan.answer(&self.role)
    }

    /// Does what the signals that have come ask for; `goes_on` says what does not need the daemon.
    /// Returns how it ends, if it does.
    pub(super) fn heed(
        &mut self,
        asked: Option<Asked>,
        goes_on: &str,
        events: &mut Events,
    ) -> Option<Ended> {
        match asked? {
            Asked::End(signal) => {
                tracing::info!("signal {signal}: ending; {goes_on}");
                Some(Ended::Stopped)
            }
            Asked::Reload => {
                self.handle(false, events);
                None
            }
        }
    }

    /// For how long the daemon has been asked to begin anew.
    #[must_use]
    pub fn waits_for(&self) -> Option<Duration> {
        self.next.as_ref().map(|(_, _, since)| since.elapsed())
    }

    /// How the daemon ends, if it is to begin anew; its events go over.
    pub fn take(&mut self, events: &mut Events) -> Option<Ended> {
        let (file, words, _) = self.next.take()?;
        Some(Ended::Anew(file, words, Box::new(std::mem::take(events))))
    }
}

/// Runs a daemon again and again, each time with the file that it was told to read. One that
/// cannot begin with a changed file begins once more with the one before, and tries that until it
/// can: what has changed on this host since its first start may keep it from both for a while.
///
/// # Errors
/// Whatever ends the daemon; never what keeps one from beginning anew.
pub fn run_each(
    file: &GroupFile,
    role: &str,
    mut run: impl FnMut(&mut Life<'_>) -> Result<Ended>,
) -> Result<()> {
    let signals = Signals::block()?;
    let (mut file, mut before) = (file.clone(), None);
    let (mut told, mut events, mut has_ever_begun) = (None, None, false);
    loop {
        service_manager::pet();
        let (words, noted) = (told.take(), events.take());
        let mut life = Life { file: &file, role, told: words, events: noted, has_begun: false };
        let ended = run(&mut life);
        let has_begun = life.has_begun;
        has_ever_begun |= has_begun;
        match ended {
            Ok(Ended::Stopped) => return Ok(()),
            Ok(Ended::Anew(next, words, noted)) => {
                events = Some(*noted).filter(|_| note_alike(&file, &next));
                before = Some(std::mem::replace(&mut file, *next));
                told = Some(words);
            }
            Err(error) if has_begun || !has_ever_begun => return Err(error),
            Err(error) => {
                told = Some(goes_back(&error));
                match before.take() {
                    Some(earlier) => file = earlier,
                    None if has_ended(&signals) => return Ok(()),
                    None => {}
                }
            }
        }
    }
}

/// Whether daemons with these files keep events and call hooks alike.
fn note_alike(one: &GroupFile, other: &GroupFile) -> bool {
    let of = |file: &GroupFile| (file.common().events.clone(), file.common().hooks.cloned());
    of(one) == of(other)
}

/// Says why a daemon cannot begin anew.
pub fn goes_back(error: &anyhow::Error) -> String {
    let words = format!("goes on as before: it cannot begin with the file: {error:#}");
    tracing::error!("reload: {words}");
    words
}

/// Waits until a daemon that could not begin tries it again; whether a signal ends it instead.
pub fn has_ended(signals: &Signals) -> bool {
    std::thread::sleep(TRY_EVERY);
    matches!(asked(signals, true), Some(Asked::End(_)))
}
