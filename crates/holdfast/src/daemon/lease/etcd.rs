//! etcd as the arbiter: the record is one key, changed by etcd's own compare-and-swap, asked for
//! over its JSON gateway (`/v3/kv/txn`). No lease of etcd is used: it is asked once per takeover,
//! and now and then whether it answers.
//!
//! Each of its addresses has a thread, because a try that hangs (a member without a leader) must
//! not keep the next one from another address. What etcd does not know a witness does is made here:
//! the ticket, which is the time of the last answer; and whether an earlier life of this member
//! goes on, which each life tells in a key of its own.

mod https;
mod transaction;

use crate::config;
use crate::poll::Poll;
use anyhow::{Context as _, Result};
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::client::ClientSettings;
use holdfast_cluster::arbiter::witness::WitnessLimits;
use holdfast_cluster::arbiter::{Asker, Call, Record, Refusal, Reply, Request, rank_of};
use holdfast_linux::priority;
use holdfast_linux::process::EventFd;
use https::Https;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transaction::{Keys, Seen};

/// etcd is one, whatever answers for it.
pub(super) const LINEAGE: u64 = 1;
/// Time for which an answer proves that this member hears etcd: a little longer than the time between
/// two reads.
const TICKET_AGE: Duration = Duration::from_millis(1200);
/// Time for which an earlier life of this member must not have been heard before this one gets its
/// record, as of a witness.
const LIFE_QUIET: Duration = Duration::from_nanos(WitnessLimits::STANDARD.owner_quiet.0);
/// Time after which an address that nobody asks is asked for nothing, so that a takeover finds a
/// connection that is open, and a user who is known.
const WARM_EVERY: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Etcd {
    jobs: Vec<Sender<Job>>,
    answers: Receiver<(u64, Reply)>,
    shared: Arc<Shared>,
}

struct Job {
    number: u64,
    asker: Asker,
    request: Request,
}

/// What the threads of all addresses share.
struct Shared {
    keys: Keys,
    begun: Instant,
    known: Mutex<Known>,
    /// Rings when there is an answer.
    bell: EventFd,
}

#[derive(Default)]
struct Known {
    /// What was read last.
    seen: Option<Seen>,
    /// Number of the cluster that has answered first: another one's records mean nothing.
    cluster: Option<u64>,
    /// When another life of this member's name was last known to be there.
    other_life: Option<Instant>,
    /// Why the last try has failed, since one succeeded.
    failure: Option<String>,
}

/// How etcd is asked: a member without a leader just hangs, so each try is short.
pub(super) fn settings(etcd: &config::Etcd) -> ClientSettings {
    ClientSettings {
        endpoints: etcd.endpoints.len(),
        pause: Nanos::from_ms(100),
        poll: Nanos::from_ms(1000),
        ..ClientSettings::STANDARD
    }
}

/// Has each address of an etcd write a key of a group's that means nothing.
///
/// # Errors
/// Of each address, what it lacks.
pub fn reach(etcd: &config::Etcd, group: &str) -> Vec<Result<()>> {
    let keys = Keys::new(group, ["", ""], "", 0);
    let ask = |url: &String| Https::new(etcd, url)?.post("kv/put", &keys.try_out()).map(drop);
    etcd.endpoints.iter().map(ask).collect()
}

impl Etcd {
    /// Starts a thread for each address. `me` and `life` are this member's.
    ///
    /// # Errors
    /// When a file that is named for TLS or the user cannot be read.
    pub fn start(
        etcd: &config::Etcd,
        members: [&str; 2],
        (group, me, life): (&str, &str, u64),
        realtime: bool,
    ) -> Result<Self> {
        let keys = Keys::new(group, members, me, life);
        let (begun, bell) = (Instant::now(), EventFd::new()?);
        let shared = Arc::new(Shared { keys, begun, known: Mutex::default(), bell });
        let (told, answers) = channel();
        let mut jobs = Vec::new();
        for (index, url) in etcd.endpoints.iter().enumerate() {
            let https = Https::new(etcd, url)?;
            let (sender, todo) = channel();
            let endpoint = Endpoint { https, shared: Arc::clone(&shared), told: told.clone() };
            std::thread::Builder::new().name(format!("etcd-{index}")).spawn(move || {
                if realtime {
                    // A takeover waits for it.
                    let _ = priority::set_realtime(super::PRIORITY);
                }
                endpoint.run(&todo);
            })?;
            jobs.push(sender);
        }
        Ok(Self { jobs, answers, shared })
    }

    /// Has `poll` look for answers.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn register(&self, poll: &Poll, token: u64) -> Result<()> {
        poll.add(&self.shared.bell, token, crate::poll::Interest::Read).context("poll")
    }

    pub fn ask(&self, call: Call, asker: &Asker, request: Request) {
        let job = Job { number: call.number, asker: asker.clone(), request };
        if let Some(jobs) = self.jobs.get(call.endpoint) {
            // The thread ends with this daemon.
            let _ = jobs.send(job);
        }
    }

    /// The next answer that has come, with the number of its question.
    pub fn take(&self) -> Option<(u64, Reply)> {
        let _ = self.shared.bell.take();
        self.answers.try_recv().ok()
    }

    /// Why etcd does not answer, where that is known.
    pub fn failure(&self) -> Option<String> {
        super::locked(&self.shared.known).failure.clone()
    }
}

/// One address.
struct Endpoint {
    https: Https,
    shared: Arc<Shared>,
    told: Sender<(u64, Reply)>,
}

impl Endpoint {
    fn run(mut self, todo: &Receiver<Job>) {
        loop {
            let job = match todo.recv_timeout(WARM_EVERY) {
                // Those that came while the last one hung nobody waits for.
                Ok(job) => todo.try_iter().last().unwrap_or(job),
                Err(RecvTimeoutError::Timeout) => {
                    let _kept_open = self.https.post("kv/range", &self.shared.keys.touch());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let done = self.answer(&job);
            let mut known = super::locked(&self.shared.known);
            known.failure = done.as_ref().err().map(|error| format!("{error:#}"));
            drop(known);
            if let Ok(outcome) = done {
                let reply = Reply { lineage: LINEAGE, ticket: self.shared.ticket(), outcome };
                let _ = self.told.send((job.number, reply));
                self.shared.bell.ring();
            }
        }
    }

    /// Asks; an error is a try that is not answered.
    fn answer(&mut self, job: &Job) -> Result<Result<Option<Record>, Refusal>> {
        let Request::Swap { expected, next } = &job.request else {
            let seen = self.look()?;
            return Ok(seen.and_then(|seen| not_older(seen.record, &job.asker)));
        };
        let fresh = self.shared.is_young(job.asker.ticket);
        let last = super::locked(&self.shared.known).seen.clone();
        let seen = match last.filter(|seen| fresh && seen.record == *expected) {
            Some(seen) => seen,
            // Who does not hear etcd must not win; and its revision has to be known.
            None => match self.look()? {
                Ok(seen) => seen,
                Err(refusal) => return Ok(Err(refusal)),
            },
        };
        if seen.record != *expected {
            return Ok(not_older(seen.record, &job.asker));
        }
        let from = &job.asker.from;
        let replaces =
            expected.as_ref().is_some_and(|it| it.owner.name == from.name && it.owner != *from);
        if replaces && self.shared.hears_other_life() {
            return Ok(Err(Refusal::OwnerLives));
        }
        let answer = self.https.post("kv/txn", &self.shared.keys.swap(&seen, next))?;
        let swapped = self.shared.keys.swapped(&answer, next)?;
        Ok(self.shared.note(swapped, false).map(|seen| seen.record))
    }

    /// Reads the record, and tells that this life is here.
    fn look(&mut self) -> Result<Result<Seen, Refusal>> {
        let answer = self.https.post("kv/txn", &self.shared.keys.look())?;
        let (seen, others) = self.shared.keys.looked(&answer)?;
        Ok(self.shared.note(seen, others))
    }
}

/// The record, unless this member knows a later one: then etcd was restored from a backup.
fn not_older(read: Option<Record>, asker: &Asker) -> Result<Option<Record>, Refusal> {
    let known = asker.known.as_ref();
    match read.as_ref().zip(known).is_some_and(|(read, known)| read.contradicts(known)) {
        true => Err(Refusal::Conflict),
        false if rank_of(read.as_ref()) < rank_of(known) => Err(Refusal::Behind),
        false => Ok(read),
    }
}

impl Shared {
    /// Proves that etcd was heard now.
    fn ticket(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64 + 1
    }

    fn is_young(&self, ticket: u64) -> bool {
        let age_ms = self.ticket().checked_sub(ticket);
        ticket != 0 && age_ms.is_some_and(|age| age <= TICKET_AGE.as_millis() as u64)
    }

    /// Whether another life may go on: also where the read that would have found it was answered
    /// too late.
    fn hears_other_life(&self) -> bool {
        let at = super::locked(&self.known).other_life.unwrap_or(self.begun);
        at.elapsed() < LIFE_QUIET
    }

    /// Keeps what was read, unless another cluster says it. `others`: whether another life of this
    /// member has told of itself since this one did.
    fn note(&self, seen: Seen, others: bool) -> Result<Seen, Refusal> {
        let mut known = super::locked(&self.known);
        if *known.cluster.get_or_insert(seen.cluster) != seen.cluster {
            return Err(Refusal::OtherLineage);
        }
        if others {
            known.other_life = Some(Instant::now());
        }
        // Two addresses may be asked at once, and the older answer come later.
        if known.seen.as_ref().is_none_or(|before| before.revision <= seen.revision) {
            known.seen = Some(seen.clone());
        }
        Ok(seen)
    }
}
