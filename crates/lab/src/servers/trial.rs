//! One server of the table on trial: started as it is and under Holdfast, with its own
//! clients and with sessions that stay; killed again and again, and joined each time.

use super::crowd::Crowd;
use super::report::{Found, Verdict};
use super::row::{At, ORIGIN_PORT, Row, copy_files};
use super::{ASK_EVERY, at_last, session};
use crate::command::Killed;
use crate::testbed::ours::{Group, GroupOptions, MEMBERS};
use crate::testbed::server::{Recipe, listens};
use crate::testbed::{Host, Plan, Role, Testbed};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use holdfast_chance::Rng;
use holdfast_linux::netns;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// Turns that every session makes before anything is measured, and after each takeover.
const SOME_TURNS: u64 = 5;

/// How long turns are counted for a rate, and how often: the best counts, for what else the
/// machine does takes from the others.
const MEASURED: Duration = Duration::from_millis(500);
const MEASUREMENTS: usize = 4;

/// How long a group may take to say what it is.
const START_LIMIT: Duration = Duration::from_secs(90);

/// How long a group must have said that it is not protected before that is its answer.
const SETTLED: Duration = Duration::from_secs(3);

/// How long a takeover may take until somebody says that he serves.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(20);

/// How long a group may go on refusing joins until that is its answer, and how long a join may
/// take.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
const JOIN_MAX: Duration = Duration::from_secs(90);

/// The latest moment of a kill after the last takeover was over, ms.
const KILL_WITHIN_MS: u64 = 500;

/// What every trial is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often the primary dies.
    pub takeovers: u64,
    /// Draws the moments.
    pub seed: u64,
    /// Time between two heartbeats, ms; without it, the default.
    pub heartbeat_ms: Option<u64>,
    /// Where the logs of what fails are kept.
    pub keep_logs: Option<PathBuf>,
}

/// Why a trial ends before its last takeover.
enum End {
    /// Protection was refused, in these words, and clients were served all the same.
    Refused(String),
    /// What was promised was not kept.
    Failed(String),
}

impl From<anyhow::Error> for End {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

/// Tries one server; `tick` is called at every step.
pub fn run(row: &Row, options: &Options, tick: &dyn Fn()) -> Found {
    let mut found = Found::of(row, options.takeovers);
    let missing = row.missing();
    if !missing.is_empty() {
        found.verdict = Verdict::NotInstalled(missing.join(", "));
        return found;
    }
    let rng = Rng::of_state(options.seed);
    let mut trial = Trial { row, options, rng, crowds: 0, found, forgiven: 0, tick };
    let ended = trial.plain().context("without Holdfast").map_err(End::from);
    let ended = ended.and_then(|()| trial.protected());
    let Trial { mut found, .. } = trial;
    found.verdict = match ended {
        Ok(()) if row.asks().is_empty() => Verdict::Works,
        Ok(()) => Verdict::WorksWith(row.asks()),
        Err(End::Refused(reason)) => Verdict::Refused(reason),
        Err(End::Failed(what)) => Verdict::Failed(what),
    };
    found
}

struct Trial<'a> {
    row: &'a Row,
    options: &'a Options,
    rng: Rng,
    /// Crowds that were there, for the names that they use.
    crowds: u64,
    found: Found,
    /// Replicas that were given up, and are no defect.
    forgiven: usize,
    tick: &'a dyn Fn(),
}

impl Trial<'_> {
    /// The server without Holdfast: the row itself is right.
    fn plain(&mut self) -> Result<()> {
        let testbed = Testbed::build(&Plan::default())?;
        let primary = testbed.host(Role::Primary);
        let recipe = self.row.install(primary, &[])?;
        testbed.own_service_addresses(Role::Primary)?;
        let _origin = self.origin(&testbed)?;
        let _server = recipe.start_plain(primary)?;
        self.ask_first(&testbed)?;
        let crowd = self.crowd(&testbed);
        self.found.clean_per_s = Some(rate(&crowd)?);
        crowd.finish()?;
        (self.tick)();
        Ok(())
    }

    /// The server under Holdfast.
    fn protected(&mut self) -> Result<(), End> {
        let testbed = Testbed::build(&Plan::default())?;
        let ended = self.protected_on(&testbed);
        if let (Err(End::Failed(_)), Some(folder)) = (&ended, &self.options.keep_logs) {
            keep_logs(&testbed, self.row.name, folder)?;
        }
        ended
    }

    fn protected_on(&mut self, testbed: &Testbed) -> Result<(), End> {
        let [primary, backup] = MEMBERS.map(|role| testbed.host(role));
        let recipe = self.row.install(primary, &[backup])?;
        let _origin = self.origin(testbed)?;
        let mut group = self.launch(testbed, &recipe)?;
        let begun = Instant::now();
        if let Some(reason) = self.settled(&group)? {
            return Err(self.apart(testbed, &group, reason));
        }
        self.found.start_ms = begun.elapsed().as_millis() as u64;
        let served = self.ask_first(testbed);
        let mut crowd = self.crowd(testbed);
        let mut served = served.and_then(|()| rate(&crowd));
        let took_turns = self.found.takes_turns;
        let reason = self.settled(&group)?;
        if self.found.takes_turns != took_turns {
            served = served.and_then(|_| rate(&crowd));
        }
        if let Some(reason) = reason {
            served.map_err(|error| End::Failed(format!("{reason}; and {error:#}")))?;
            crowd.finish()?;
            return Err(self.apart(testbed, &group, reason));
        }
        self.found.ours_per_s = Some(served.context("protected, but")?);
        (self.tick)();
        for number in 1..=self.options.takeovers {
            let step = self.takeover(testbed, &mut group, crowd, number);
            crowd = step.map_err(|error| anyhow!("takeover {number}: {error:#}"))?;
            (self.tick)();
        }
        crowd.finish().context("after the last takeover")?;
        Ok(())
    }

    fn launch<'t>(&self, testbed: &'t Testbed, recipe: &Recipe) -> Result<Group<'t>> {
        let options = GroupOptions {
            heartbeat_ms: self.options.heartbeat_ms,
            run: self.row.run,
            ..GroupOptions::default()
        };
        Group::launch(testbed, recipe, &options)
    }

    /// Why a replica was given up, if that is for good: where the first one has differed, the
    /// server's threads take turns from the next join on.
    fn lost(&mut self, group: &Group<'_>) -> Option<String> {
        let said = gave_up(group);
        // A daemon that was started again has forgotten.
        self.forgiven = self.forgiven.min(said.len());
        let why = said.get(self.forgiven)?.clone();
        let joins_again = || {
            let is_new = |status: Value| {
                status["state"] == "protected" && status["one_at_a_time"] == Value::Bool(true)
            };
            MEMBERS.iter().all(|role| group.status(*role).is_ok_and(is_new))
        };
        if self.found.takes_turns || !why.starts_with(DIFFERED) || !wait(JOIN_MAX, joins_again) {
            return Some(why);
        }
        self.found.takes_turns = true;
        self.forgiven = gave_up(group).len();
        None
    }

    /// As [`settle`], of a group whose first replica may have differed.
    fn settled(&mut self, group: &Group<'_>) -> Result<Option<String>> {
        let took_turns = self.found.takes_turns;
        let reason = settle(group)?;
        match self.lost(group) {
            None if self.found.takes_turns != took_turns => settle(group),
            None => Ok(reason),
            why => Ok(why),
        }
    }

    /// A group that is not protected: it has said why; are its clients served?
    fn apart(&mut self, testbed: &Testbed, group: &Group<'_>, reason: String) -> End {
        if let Some(why) = self.lost(group) {
            return End::Failed(format!("protection is lost: {why}"));
        }
        if reason.contains(TOOK_OVER) {
            return End::Failed(format!("nobody had died: {reason}"));
        }
        let crowd = self.crowd(testbed);
        let served = self.ask(testbed).and_then(|()| crowd.progress(SOME_TURNS));
        match served.and_then(|()| crowd.finish()) {
            Ok(()) => End::Refused(reason),
            Err(error) => End::Failed(format!("{reason}; and clients: {error:#}")),
        }
    }

    /// The primary dies under its clients, who are to notice nothing; and joins.
    fn takeover(
        &mut self,
        testbed: &Testbed,
        group: &mut Group<'_>,
        crowd: Crowd,
        number: u64,
    ) -> Result<Crowd> {
        let victim = group.wait_primary()?;
        thread::sleep(Duration::from_millis(self.rng.below(KILL_WITHIN_MS)));
        crowd.progress(1).context("before it")?;
        crowd.take_longest();
        // A server that dies, and a machine that does.
        match number % 2 {
            1 => group.signal_server(victim, Signal::KILL)?,
            _ => group.kill_member(victim)?,
        }
        let serves = || group.primary() == Some(victim.other());
        let taken = wait(TAKEOVER_LIMIT, serves);
        ensure!(taken, "nobody has taken over: {}\n{}", said(group), group.log_tails());
        crowd.progress(SOME_TURNS)?;
        self.found.stalls_ms.push(crowd.take_longest().as_millis() as u64);
        self.ask(testbed).context("new clients")?;
        if !group.has_daemon(victim) {
            group.start_daemon(victim)?;
        }
        let crowd = self.join(testbed, group, crowd)?;
        self.found.lost = self.found.lost.max(crowd.lost());
        self.found.takeovers += 1;
        Ok(crowd)
    }

    /// Waits for the other member to join, or repairs the group where that is refused.
    fn join(&mut self, testbed: &Testbed, group: &mut Group<'_>, crowd: Crowd) -> Result<Crowd> {
        match self.wait_joined(group, &crowd)? {
            None => {
                self.found.joins += 1;
                // What joined must have followed, too.
                crowd.progress(SOME_TURNS)?;
                return Ok(crowd);
            }
            refused => self.found.join_refused = refused,
        }
        crowd.finish()?;
        let survivor = group.wait_primary()?;
        let [from, to] = [survivor, survivor.other()].map(|role| testbed.host(role));
        // The survivor's files are the ones that are right.
        group.repair_with(|| if self.row.is_copied { copy_files(from, to) } else { Ok(()) })?;
        self.ask_first(testbed)?;
        let crowd = self.crowd(testbed);
        crowd.progress(SOME_TURNS).context("after the repair")?;
        Ok(crowd)
    }

    /// `None`: it has joined. Else why the group, which serves, cannot be joined.
    fn wait_joined(&mut self, group: &Group<'_>, crowd: &Crowd) -> Result<Option<String>> {
        let begun = Instant::now();
        // What was refused once is not waited for again.
        let limit = if self.found.join_refused.is_some() { SETTLED } else { JOIN_LIMIT };
        loop {
            crowd.check()?;
            let statuses = MEMBERS.map(|role| group.status(role).unwrap_or_default());
            if statuses.iter().all(|status| status["state"] == "protected") {
                return Ok(None);
            }
            if let Some(why) = self.lost(group) {
                bail!("protection is lost: {why}");
            }
            let alone = |it: &&Value| it["role"] == "primary" && it["state"] == "unprotected";
            let said_so = statuses.iter().find(alone).map(|status| word(status, "reason"));
            let over = begun.elapsed() > limit;
            if let Some(reason) = said_so.filter(|reason| over && reason.contains(REFUSES_JOIN)) {
                return Ok(Some(reason.to_owned()));
            }
            ensure!(begun.elapsed() < JOIN_MAX, "the other member does not join: {}", said(group));
            thread::sleep(ASK_EVERY);
        }
    }

    fn crowd(&mut self, testbed: &Testbed) -> Crowd {
        let Row { talk, has_ipv6, .. } = *self.row;
        let first = self.crowds * talk.sessions;
        self.crowds += 1;
        Crowd::start(testbed.host(Role::Client), talk, &self.at(testbed), has_ipv6, first)
    }

    /// Runs the server's own clients.
    fn ask(&self, testbed: &Testbed) -> Result<()> {
        let clients = (self.row.clients)(&self.at(testbed));
        on(testbed.host(Role::Client), || clients.iter().try_for_each(session::client))
    }

    /// The same of a server that has just begun to listen: some answer properly only later.
    fn ask_first(&self, testbed: &Testbed) -> Result<()> {
        at_last(|| self.ask(testbed))
    }

    fn at(&self, testbed: &Testbed) -> At {
        At::of(self.row, testbed)
    }

    /// The web server that a proxy fetches from.
    fn origin(&self, testbed: &Testbed) -> Result<Option<Killed>> {
        if !self.row.has_origin {
            return Ok(None);
        }
        let client = testbed.host(Role::Client);
        let child = client
            .network_command("/usr/bin/python3")
            .args(["-m", "http.server", &ORIGIN_PORT.to_string(), "--directory"])
            .arg(format!("{}/www", self.at(testbed).files))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let origin = Killed(child);
        ensure!(wait(START_LIMIT, || listens(client.holder(), ORIGIN_PORT)), "no web server");
        Ok(Some(origin))
    }
}

/// A part of the reason of a member that has taken over.
const TOOK_OVER: &str = "took over from";

/// How a member begins that says that its replica has differed.
const DIFFERED: &str = "diverged";

/// A part of the reason where a server cannot be joined.
const REFUSES_JOIN: &str = "it cannot be copied";

/// Turns per second of a crowd, once all its sessions work.
fn rate(crowd: &Crowd) -> Result<f64> {
    crowd.progress(SOME_TURNS)?;
    let mut best: f64 = 0.0;
    for _ in 0..MEASUREMENTS {
        let (begun, before) = (Instant::now(), crowd.turns());
        thread::sleep(MEASURED);
        best = best.max((crowd.turns() - before) as f64 / begun.elapsed().as_secs_f64());
        crowd.progress(1)?;
    }
    Ok(best)
}

/// Waits until the group says what it is: `None`: protected; else why it is not.
fn settle(group: &Group<'_>) -> Result<Option<String>> {
    let begun = Instant::now();
    let mut apart: Option<(Instant, String)> = None;
    loop {
        let statuses = MEMBERS.map(|role| group.status(role).unwrap_or_default());
        let primary = statuses.iter().find(|status| status["role"] == "primary");
        if primary.is_some_and(|status| status["state"] == "protected") {
            return Ok(None);
        }
        let over = |status: &&Value| {
            ["unprotected", "ended", "diverged"].map(Value::from).contains(&status["state"])
        };
        match primary.into_iter().chain(&statuses).find(over) {
            None => apart = None,
            Some(status) => {
                let reason = word(status, "reason").to_owned();
                let (since, first) = apart.get_or_insert((Instant::now(), reason));
                if since.elapsed() > SETTLED {
                    return Ok(Some(first.clone()));
                }
            }
        }
        if begun.elapsed() > START_LIMIT {
            return Ok(Some(format!(
                "not protected after {} s: {}",
                START_LIMIT.as_secs(),
                said(group)
            )));
        }
        thread::sleep(ASK_EVERY);
    }
}

/// Copies the logs of daemons and servers.
fn keep_logs(testbed: &Testbed, name: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for role in [Role::Edge, Role::Primary, Role::Backup] {
        for log in ["daemon.log", "server.log"] {
            let text = fs::read(testbed.host(role).outside().join(log)).unwrap_or_default();
            fs::write(folder.join(format!("{name}-{}-{log}", role.name())), text)?;
        }
    }
    Ok(())
}

/// Why replicas were given up: what they computed, or that they did not move.
fn gave_up(group: &Group<'_>) -> Vec<String> {
    let states = MEMBERS.map(|role| group.details(role, "state")).concat();
    let of = |state: &String| {
        let (_, said) = state.split_once(", ")?;
        [DIFFERED, "hung"].iter().any(|it| said.starts_with(it)).then(|| said.to_owned())
    };
    states.iter().filter_map(of).collect()
}

/// What both members say.
fn said(group: &Group<'_>) -> String {
    let one = |role: Role| {
        let status = group.status(role).unwrap_or_default();
        format!("{} {}: {}", word(&status, "role"), word(&status, "state"), word(&status, "reason"))
    };
    MEMBERS.map(one).join("; ")
}

fn word<'s>(status: &'s Value, name: &str) -> &'s str {
    status[name].as_str().unwrap_or_default()
}

fn wait(limit: Duration, ready: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !ready() {
        if begun.elapsed() > limit {
            return false;
        }
        thread::sleep(ASK_EVERY);
    }
    true
}

/// Runs `work` in the network namespace of a host.
fn on(host: &Host, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let namespace = Path::new("/run/netns").join(host.namespace());
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            netns::enter(&namespace)?;
            work()
        });
        done.join().map_err(|_| anyhow!("a client panicked"))?
    })
}
