//! The whole story, for `--all`: one load of clients, whose connections live from the first act to
//! the last, on one way with everything on it: two edges with strings between them, the edge of a
//! pair, primary and backup.

mod acts;
mod lanes;
mod page;
mod seen;

pub use lanes::document;
pub use page::page;

use super::death::Death;
use super::screen::Screen;
use super::story::Event;
use super::words::{self, Headline};
use crate::bench::service::address;
use crate::command::wait_for;
use crate::emu::EmuSpec;
use crate::load::{Group as LoadGroup, Report, Run, Snapshot, Spec, Workload};
use crate::testbed::Role;
use crate::testbed::journey::Journey;
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::{Program, Recipe};
use crate::testbed::strings::{StringPlan, StringsPlan};
use acts::Bed;
use anyhow::{Context as _, Result, anyhow};
use seen::Seen;
use std::ops::Range;
use std::time::Duration;

/// Rate of each of the two strings, Mbit/s, and packets that may wait in front of each: a little more
/// than what passes in a round trip.
const STRING_MBIT: u64 = 30;
const QUEUE_PACKETS: u32 = 150;

/// Round trip between the clients and everything else, in ms: windows that are to be shared need
/// one.
const ROUND_TRIP_MS: u64 = 50;

/// Heartbeat of the strings' edges, in ms.
const HEARTBEAT_MS: u64 = 20;

/// Connections that download, the first ones of the load, what each gets at a time, and how often:
/// two strings suffice for all of them, and one does not.
const DOWNLOADS: usize = 12;
const DOWNLOAD_BYTES: u64 = 32 << 10;
const DOWNLOAD_EVERY_US: u64 = 75_000;
const DEMAND_MBIT: u64 = DOWNLOADS as u64 * DOWNLOAD_BYTES * 8 / DOWNLOAD_EVERY_US;
/// Downloads that a client may owe itself: what a full string delays is caught up with.
const DOWNLOAD_DEPTH: usize = 4;

/// What the uploading client sends at a time: it fits into what TCP sends at first.
const UPLOAD_BYTES: u64 = 8 << 10;

/// Longest time until all connections work.
const READY_MAX: Duration = Duration::from_secs(60);

/// An act, and what its clients saw.
pub struct Act {
    pub title: &'static str,
    /// A few words for the drawing.
    pub short: &'static str,
    /// When it began and ended, by CLOCK_MONOTONIC, in ns.
    pub span_ns: Range<u64>,
    /// Longest time that any connection waited for bytes, in ms.
    pub pause_ms: f64,
    /// What happened, in a few sentences.
    pub story: String,
    /// What is compared, without Holdfast's part and with it.
    pub rows: Vec<(&'static str, String, String)>,
    /// What went wrong, if anything.
    pub failure: Option<String>,
}

/// The whole run.
pub struct Whole {
    /// What each connection does, in the order of the report's.
    pub names: Vec<String>,
    pub acts: Vec<Act>,
    /// What the load said, ten times a second.
    pub seen: Vec<Snapshot>,
    /// What was done and what broke, since the demonstration's start.
    pub events: Vec<Event>,
    /// When the demonstration began, by CLOCK_MONOTONIC, in ns.
    pub started_ns: u64,
    pub report: Report,
}

impl Whole {
    /// A moment by CLOCK_MONOTONIC, in s since the demonstration's start.
    fn second(&self, at_ns: u64) -> f64 {
        (at_ns as f64 - self.started_ns as f64) / 1e9
    }

    /// Number of connections that lived, and got every byte right.
    pub fn lived(&self) -> usize {
        self.report.connections.iter().filter(|it| it.survived()).count()
    }

    /// What went wrong, if anything: an act's failure, a wrong or missing byte, or a connection that
    /// is not the one that the first act began with.
    pub fn failure(&self) -> Option<String> {
        let of_act = self.acts.iter().find_map(|act| act.failure.clone());
        let of_one = || self.report.connections.iter().find_map(|it| it.error.clone());
        let again = self.report.connections.iter().filter(|it| it.connects != 1).count();
        let made_again = || (again > 0).then(|| format!("{again} connections were made again"));
        of_act.or_else(of_one).or_else(|| self.report.shared_error.clone()).or_else(made_again)
    }

    /// The result in large words, beside that of the death without Holdfast.
    pub fn headline(&self, bare: &Death) -> Headline {
        let acts = self.acts.len();
        Headline {
            with: (self.lived(), self.names.len()),
            words: format!("connections lived, through all {acts} acts of one run"),
            without: (bare.lived(), bare.report.connections.len()),
        }
    }

    /// The run in a sentence.
    pub fn summary(&self) -> String {
        format!(
            "{} of {} connections lived through all {} acts, the same from the first second to the last. \
             {} replies and {:.0} MB were checked{}.",
            self.lived(),
            self.names.len(),
            self.acts.len(),
            self.report.total(|it| it.replies),
            self.report.total(|it| it.bytes_in) as f64 / 1e6,
            match self.failure() {
                None => ", and every byte was right".to_owned(),
                Some(failure) => format!("; WRONG: {failure}"),
            }
        )
    }
}

/// The clients: the downloads come first. Each keeps its connection: one that connects again and
/// again would leave flows behind that rate control counts for half a minute.
fn clients() -> Vec<LoadGroup> {
    let port = Program::Redis.port();
    let usual = |workload, connections| LoadGroup::usual(workload, connections, port);
    vec![
        LoadGroup {
            size_bytes: DOWNLOAD_BYTES,
            depth: DOWNLOAD_DEPTH,
            interval_us: DOWNLOAD_EVERY_US,
            ..usual(Workload::Download, DOWNLOADS)
        },
        usual(Workload::IdleSubscriber, 1),
        usual(Workload::Incr, 1),
        usual(Workload::Shared, 2),
        LoadGroup { interval_us: 50_000, ..usual(Workload::Pubsub, 1) },
        LoadGroup { size_bytes: UPLOAD_BYTES, interval_us: 100_000, ..usual(Workload::Upload, 1) },
    ]
}

/// What each connection does, in the load's order.
pub fn names() -> Vec<String> {
    let clients = clients();
    clients.iter().flat_map(words::clients).collect()
}

fn plan() -> Result<StringsPlan> {
    let string = StringPlan {
        bits_per_second: STRING_MBIT * 1_000_000,
        limited: true,
        queue_packets: QUEUE_PACKETS,
    };
    let delay = format!("{}us", ROUND_TRIP_MS * 500);
    Ok(StringsPlan {
        strings: vec![string; 2],
        client_path: Some(EmuSpec::parse(&["delay", &delay]).context("emulated path")?),
        // Queues count packets, which is no limit where a packet is as long as its sender likes.
        single_segments: true,
        group: format!("mode = \"active/active\"\nreturn = \"all\"\nheartbeat_ms = {HEARTBEAT_MS}"),
        tables: acts::tables(false, false),
    })
}

/// Plays all acts; each is told as soon as it is over.
///
/// # Errors
/// When the hosts cannot be built, the load cannot begin, or a daemon does not do what an act waits
/// for.
pub fn play(seed: u64, screen: &Screen, tell: impl FnMut(&Act)) -> Result<Whole> {
    screen.stage("Eight machines start: a client, two edges, two strings, the pair's edge, a pair");
    let mut journey = Journey::build(&plan()?)?;
    screen.stage("The edges of the strings find each other");
    journey.strings.start_daemons()?;
    screen.stage("redis-server starts on the primary, and in step on the backup");
    let Journey { strings, pair } = &mut journey;
    let pair = &*pair;
    Recipe::prepare(Program::Redis, pair.host(Role::Backup), 0)?;
    let recipe = Recipe::prepare(Program::Redis, pair.host(Role::Primary), 0)?;
    let mut group = Group::start(pair, &recipe, &GroupOptions::default())?;
    screen.stage("The clients connect");
    let spec = Spec {
        address: address(false)?,
        groups: clients(),
        duration_ms: 0,
        congestion: None,
        fault: None,
        seed,
        points: Vec::new(),
    };
    let mut run = Run::start_told(pair.host(Role::Client), &spec)?;
    let input = run.take_input();
    let seen = Seen::default();
    let (report, acts) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            run.follow(|snapshot| {
                screen.snapshot(snapshot);
                seen.push(snapshot.clone());
            })
        });
        let working = wait_for("working connections", READY_MAX, || seen.all_work().then_some(()));
        let mut bed = Bed { strings, group: &mut group, screen, seen: &seen, seed };
        let acts = working.and_then(|()| bed.play(tell));
        // The end of its input ends the load, whatever has happened.
        drop(input);
        let report = reader.join().map_err(|_| anyhow!("the load's reader has failed"))?;
        let logs = || format!("{}{}", bed.group.log_tails(), bed.strings.log_tails());
        Ok::<_, anyhow::Error>((report.with_context(logs)?, acts.with_context(logs)?))
    })?;
    let (events, started_ns) = (screen.journal(), screen.started_ns());
    Ok(Whole { names: names(), acts, seen: seen.all(), events, started_ns, report })
}

#[cfg(test)]
mod tests;
