//! `holdfast witness`: the arbiter of pairs without an edge, on any third host, for many groups.
//! It says who owns a service, once per takeover; nothing that clients send passes it.
//!
//! A question is a datagram with a tag that only the group's key makes; whoever has no key hears
//! nothing. The machine is [`Witness`]; here are its socket, its disk, and its words.

mod disk;

use super::reload::{Ended, Reader, Reloads, goes_back, has_ended};
use super::{Asked, asked};
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::config::{Config, GroupFile, Settings as _};
use crate::daemon::rights;
use crate::daemon::sealed::{self, Sealed};
use crate::daemon::service_manager;
use crate::daemon::viewer::Viewer;
use crate::key::Keyring;
use crate::poll::{Interest, Poll, Signals};
use crate::status::{Member, Role, State, Status};
use anyhow::{Context as _, Result, ensure};
use disk::Disk;
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::datagram::{QUESTION_BYTES_MAX, Question};
use holdfast_cluster::arbiter::witness::{Decision, Witness, WitnessLimits};
use holdfast_cluster::arbiter::{Mode, Refusal, Reply, Request as Wish};
use serde_json::Value;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SOCKET: u64 = 0;
const SIGNALS: u64 = 1;
/// Counter of the groups that this witness serves.
pub const GROUPS_SERVED: &str = "witness.groups";
/// First token of the groups' admin sockets.
const GROUPS: u64 = 2;
/// Most datagrams taken in one turn.
const BATCH_MAX: usize = 64;
/// Time between two turns in which nothing has come.
const IDLE: Duration = Duration::from_secs(1);
/// Time between two looks at the disk.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Silence after which a member is shown as away: it asks several times a second.
const AWAY_AFTER: Duration = Duration::from_secs(4);

/// A group that is served.
struct Served {
    config: Config,
    key: Keyring,
    admin: AdminSocket,
    events: Events,
    /// When each member was last heard.
    heard: [Option<Instant>; 2],
    /// What was last told of the record.
    told: String,
    /// What was last refused, and told, since something was granted.
    refused: String,
    reloads: Reloads,
}

struct Daemon {
    socket: UdpSocket,
    poll: Poll,
    machine: Witness,
    disk: Disk,
    groups: Vec<Served>,
    started: Instant,
    /// Datagrams that no key of a group has made.
    strangers: u64,
    /// Why the last record could not be written, or the next one could not be.
    failure: Option<String>,
    probe_at: Instant,
}

/// Serves the groups of these files until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(mut files: Vec<Config>) -> Result<()> {
    let (at, state_dir) = shared(&files)?;
    let groups: Vec<_> = files.iter().map(|file| file.common()).collect();
    rights::keep_for_witness(&groups, state_dir, at.port())?;
    let signals = Signals::block()?;
    let (mut before, mut told, mut has_begun) = (None, String::new(), false);
    loop {
        service_manager::pet();
        match Daemon::start(files.clone(), &std::mem::take(&mut told)) {
            Ok(mut daemon) => {
                let seen: Vec<_> = files.iter().map(|file| (file.common(), "witness")).collect();
                let _viewer = Viewer::start(&seen);
                daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
                has_begun = true;
                let changed = daemon.run(&signals);
                // Whoever serves the page may be waiting at its sockets.
                drop(daemon);
                let changed = changed?;
                if changed.is_empty() {
                    return Ok(());
                }
                before = Some(files.clone());
                for (index, file, words) in changed {
                    told.push_str(&format!("{}: {words} ", file.group.name));
                    files[index] = file;
                }
            }
            Err(error) => {
                if !has_begun {
                    return Err(error);
                }
                told = goes_back(&error);
                match before.take() {
                    Some(earlier) => files = earlier,
                    None if has_ended(&signals) => return Ok(()),
                    None => {}
                }
            }
        }
    }
}

/// What all files must say alike, for one witness serves them.
///
/// # Errors
/// Which file says something else, or that it needs no witness.
pub(crate) fn shared(files: &[Config]) -> Result<(SocketAddr, &PathBuf)> {
    let mut all = files.iter().map(|file| {
        let name = &file.group.name;
        let arbiter = file.arbiter.as_ref().with_context(|| {
            format!(
                "group `{name}` has no [arbiter]\n  remedy: leave its file out: its edge decides"
            )
        })?;
        let at = arbiter.witness().with_context(|| {
            format!("group `{name}` asks {}\n  remedy: leave its file out", arbiter.name())
        })?;
        Ok((at, &arbiter.state_dir))
    });
    let first = all.next().context("no group to serve; remedy: name a file with --config")??;
    for other in all {
        let other: Result<_> = other;
        let other = other?;
        ensure!(
            other == first,
            "the files name two witnesses, {} and {}, or two folders for what they keep; remedy: \
             start one `holdfast witness` for each",
            first.0,
            other.0
        );
    }
    Ok(first)
}

fn unbound(at: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let remedy = match error.kind() {
        ErrorKind::AddrInUse => "end the other witness that runs here; one serves all groups",
        ErrorKind::AddrNotAvailable => "run it on the host that has this address",
        _ => "choose another address and port in the file of every host",
    };
    anyhow::anyhow!("cannot listen at arbiter.witness = {at}: {error}; remedy: {remedy}")
}

impl Daemon {
    /// Begins; `told` is why the life before has ended.
    fn start(files: Vec<Config>, told: &str) -> Result<Self> {
        let (at, state_dir) = shared(&files)?;
        let socket = UdpSocket::bind(at).map_err(|error| unbound(at, &error))?;
        socket.set_nonblocking(true)?;
        let (disk, stored) = Disk::open(state_dir)?;
        let limits = WitnessLimits::STANDARD;
        let run = getrandom::u64().map_err(std::io::Error::other)?;
        let machine = Witness::new(Nanos(0), (disk.boot(), run), limits, stored);
        let poll = Poll::new()?;
        poll.add(&socket, SOCKET, Interest::Read)?;
        let mut groups: Vec<Served> = Vec::new();
        for config in files {
            let name = &config.group.name;
            ensure!(
                groups.iter().all(|it| it.config.group.name != *name),
                "two files are of a group `{name}`; remedy: give each group a name of its own"
            );
            let admin = AdminSocket::of_daemon(&config.common(), "witness")?;
            poll.add(&admin, GROUPS + groups.len() as u64, Interest::Read)?;
            let key = config.keyring("witness")?;
            tracing::info!("the witness of `{name}` listens at {at}");
            let heard = [None; 2];
            let mut events = Events::begin(&config.common(), "witness");
            if !told.is_empty() {
                events.add("reload", told.to_owned());
            }
            let file = GroupFile::Replicated(Box::new(config.clone()));
            let reloads = Reloads::new(file, key.clone(), "witness", Reader::Witness);
            let (told, refused) = (String::new(), String::new());
            groups.push(Served { config, key, admin, events, heard, told, refused, reloads });
        }
        let (started, strangers, failure) = (Instant::now(), 0, None);
        let probe_at = started;
        Ok(Self { socket, poll, machine, disk, groups, started, strangers, failure, probe_at })
    }

    /// Serves until a signal ends it (the answer is empty), or files have changed: their numbers, what
    /// they say now, and what has changed in each.
    fn run(&mut self, signals: &Signals) -> Result<Vec<(usize, Config, String)>> {
        loop {
            let until = Instant::now() + IDLE;
            let ready: Vec<u64> = self.poll.wait(Some(until))?.iter().map(|it| it.token).collect();
            self.take();
            self.probe();
            self.tell();
            self.serve();
            service_manager::turn(|| self.line());
            match asked(signals, ready.contains(&SIGNALS)) {
                Some(Asked::End(signal)) => {
                    tracing::info!(
                        "signal {signal}: ending; the groups go on, and nobody can take over"
                    );
                    return Ok(Vec::new());
                }
                Some(Asked::Reload) => {
                    for group in &mut self.groups {
                        group.reloads.handle(false, &mut group.events);
                    }
                }
                None => {}
            }
            let changed = |(index, group): (usize, &mut Served)| match group
                .reloads
                .take(&mut group.events)?
            {
                Ended::Anew(file, words, _) => file.replicated().ok().map(|it| (index, it, words)),
                Ended::Stopped => None,
            };
            let changed: Vec<_> = self.groups.iter_mut().enumerate().filter_map(changed).collect();
            if !changed.is_empty() {
                return Ok(changed);
            }
        }
    }

    /// Takes and answers the questions that have come.
    fn take(&mut self) {
        // One byte more than a question has, to notice those that are too long.
        let mut buffer = [0; QUESTION_BYTES_MAX + sealed::TAG_BYTES + 1];
        for _ in 0..BATCH_MAX {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if self.answer(&buffer[..len], from).is_none() {
                        self.strangers += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // An ICMP error about an earlier reply.
                Err(_) => {}
            }
        }
    }

    /// Answers a question; `None` if nobody with a group's key has asked it.
    fn answer(&mut self, datagram: &[u8], from: SocketAddr) -> Option<()> {
        // What it says counts only if the one has made it who is named inside.
        let (claimed, _) = datagram.split_last_chunk::<{ sealed::TAG_BYTES }>()?;
        let question = Question::parse(claimed)?;
        let (name, asks) = (&question.asker.group, &question.asker.from.name);
        let index = self.groups.iter().position(|group| group.config.group.name == *name)?;
        let secrets = self.groups[index].key.with(asks);
        let (_, secret) = sealed::open_with(datagram, Sealed::Question, &secrets)?;
        let key = secret.arbiter_key();
        let now = Instant::now();
        let group = self.groups.get_mut(index)?;
        let names = group.config.members.iter().map(|member| &member.name);
        let member = names.clone().position(|name| *name == question.asker.from.name)?;
        names.clone().position(|name| *name == question.asker.peer).filter(|it| *it != member)?;
        group.heard[member] = Some(now);
        let reply = self.decide(index, &question);
        let bytes = question.reply(&reply)?;
        let sealed = sealed::seal(&bytes, Sealed::Reply, &key);
        // A reply that cannot be sent is as good as lost: the member asks again.
        let _ = self.socket.send_to(&sealed, from);
        Some(())
    }

    /// Looks now and then whether a record could be written.
    fn probe(&mut self) {
        let now = Instant::now();
        if now >= self.probe_at {
            self.probe_at = now + PROBE_EVERY;
            self.failure = self.disk.probe().err().map(|error| format!("{error:#}"));
        }
    }

    fn decide(&mut self, index: usize, question: &Question) -> Reply {
        let Question { asker, request, .. } = question;
        let now = Nanos(self.started.elapsed().as_nanos() as u64);
        let mut reply = match self.machine.handle_question(now, asker, request) {
            Decision::Answer(reply) => reply,
            Decision::Persist(state) => {
                let written = self.disk.keep(&state);
                self.failure = written.as_ref().err().map(|error| format!("{error:#}"));
                let name = &asker.group;
                // A disk may be slow, and the reply's ticket says when it was made.
                let now = Nanos(self.started.elapsed().as_nanos() as u64);
                let reply = match written {
                    Ok(()) => self.machine.handle_persisted(now, name),
                    Err(_) => self.machine.handle_persist_failed(now, name),
                };
                reply.expect("a question was being answered")
            }
        };
        // Nobody is to believe that a takeover would succeed.
        if self.failure.is_some() && *request == Wish::Read && reply.outcome.is_ok() {
            reply.outcome = Err(Refusal::NotWritten);
        }
        let group = &mut self.groups[index];
        match (&reply.outcome, request) {
            // It is asked again with the ticket that this brings.
            (Err(Refusal::Unproven), _) => {}
            (Err(refusal), Wish::Swap { .. }) => {
                let what = format!("{}: {refusal}", asker.from.name);
                if group.refused != what {
                    group.events.add("refused", what.clone());
                    group.refused = what;
                }
            }
            (Ok(_), Wish::Swap { .. }) => group.refused.clear(),
            _ => {}
        }
        reply
    }

    /// Notes records that have changed.
    fn tell(&mut self) {
        for group in &mut self.groups {
            let Some(record) = self.machine.record(&group.config.group.name) else { continue };
            let mode = if record.mode == Mode::Pair { "with its backup" } else { "alone" };
            let told = format!("epoch {}: {} serves {mode}", record.epoch, record.owner.name);
            if group.told != told {
                group.events.add("granted", told.clone());
                group.told = told;
            }
        }
    }

    /// Answers verbs.
    fn serve(&mut self) {
        for index in 0..self.groups.len() {
            let status = self.status(index);
            let Served { admin, events, reloads, .. } = &mut self.groups[index];
            if events.is_due(Instant::now()) {
                events.note_status(&status);
            }
            admin.serve(|request| match request {
                Request::Status => serde_json::to_value(&status).unwrap_or(Value::Null),
                Request::Events { since } => events.answer(since),
                Request::Reload { dry_run } => reloads.handle(dry_run, events),
                _ => refusal("the witness can only say what it knows; ask a member"),
            });
        }
    }

    /// The state of each group in a line.
    fn line(&self) -> String {
        let of = |index| {
            let status = self.status(index);
            format!("{}: {}", status.group, service_manager::line(&status))
        };
        (0..self.groups.len()).map(of).collect::<Vec<_>>().join("; ")
    }

    fn status(&self, index: usize) -> Status {
        let group = &self.groups[index];
        let name = &group.config.group.name;
        let record = self.machine.record(name);
        let mut status = Status {
            role: Role::Witness,
            mode: group.config.group.mode.word().to_owned(),
            buffering: group.config.group.buffering.word().to_owned(),
            ..Status::new(name, "witness")
        };
        status.epoch = record.map_or(0, |record| record.epoch);
        let (state, reason, remedy) = self.judge(index);
        (status.state, status.reason, status.remedy) = (state, reason, remedy.to_owned());
        let now = Instant::now();
        for (member, heard) in group.config.members.iter().zip(group.heard) {
            let connected = heard.is_some_and(|at| now - at < AWAY_AFTER);
            let is_owner = record.is_some_and(|record| record.owner.name == member.name);
            let note = if is_owner { "owns the service" } else { "" };
            status.peers.push(crate::status::Peer {
                name: member.name.clone(),
                connected,
                note: note.to_owned(),
            });
        }
        status.list_members(false);
        for (peer, heard) in status.peers.iter().zip(group.heard) {
            let heard_ms_ago = heard.map(|at| ((now - at).as_millis() as u64).max(1));
            status.members.push(Member { heard_ms_ago, ..Member::known(&peer.name, &peer.note) });
        }
        let counts = self.machine.counts();
        for (what, count) in [
            ("changes", counts.changes),
            ("refusals", counts.refusals),
            ("behind", counts.behind),
            ("conflicts", counts.conflicts),
            ("misdirected", counts.misdirected),
            ("copies", counts.copies),
            ("unproven", counts.unproven),
            ("strangers", self.strangers),
        ] {
            status.counters.insert(format!("witness.{what}"), count);
        }
        status.counters.insert(GROUPS_SERVED.to_owned(), self.groups.len() as u64);
        status
    }

    fn judge(&self, index: usize) -> (State, String, &'static str) {
        let group = &self.groups[index];
        let name = &group.config.group.name;
        if let Some(failure) = &self.failure {
            let reason = format!("nobody could take over: {failure}");
            return (State::Unprotected, reason, "look at the disk of arbiter.state_dir");
        }
        let now = Instant::now();
        let away = group
            .config
            .members
            .iter()
            .zip(group.heard)
            .find(|(_, heard)| heard.is_none_or(|at| now - at >= AWAY_AFTER));
        let record = self.machine.record(name);
        if !self.machine.is_settled(name) {
            let reason = match away {
                Some((member, _)) => format!("`{}` has not said yet what it knows", member.name),
                None => "the members are about to say what they know".to_owned(),
            };
            let remedy = "start both members: this host was started anew, or its disk is another";
            return (State::Waiting, reason, remedy);
        }
        match (record, away) {
            (None, _) => (State::Waiting, "nobody has served yet".to_owned(), "start the members"),
            (Some(_), Some((member, _))) => {
                let reason = format!("`{}` is not heard here", member.name);
                (State::Unprotected, reason, "look at its daemon, and at the way to it")
            }
            (Some(record), None) if record.mode == Mode::Solo => {
                let owner = &record.owner.name;
                let reason = format!("`{owner}` is alone: only that host knows whether it serves");
                (State::Unprotected, reason, "look at the status of both members")
            }
            (Some(_), None) => (State::Protected, String::new(), ""),
        }
    }
}
