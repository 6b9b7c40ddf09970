//! The thread that writes the edge's state: a slow disk, or one that never
//! answers, must not hold up heartbeats.
//!
//! The disk is also tried when there is nothing to write: an edge whose disk
//! fails cannot grant anything, and that must be known before a takeover needs
//! it.

use crate::daemon::edge_state::{StateFile, StateFileError};
use holdfast_cluster::state::EdgeState;
use holdfast_linux::priority;
use holdfast_linux::process::{self, EventFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two test writes to the disk.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// Time until the next test write after a failure, or when a takeover may be near.
const TRY_AGAIN: Duration = Duration::from_millis(250);
/// Time after which an unfinished write is reported as a failure of the disk.
const SLOW: Duration = Duration::from_secs(1);

type Outcome = Result<(), StateFileError>;

/// The daemon's end of the thread.
pub(super) struct Disk {
    /// `None` while it is dropped.
    jobs: Option<Sender<EdgeState>>,
    thread: Option<JoinHandle<()>>,
    outcomes: Receiver<Outcome>,
    bell: Arc<EventFd>,
    /// Unfinished writes, oldest first: number, and when it was requested.
    under_way: VecDeque<(u64, Instant)>,
    writes: u64,
    try_at: Instant,
    failure: Option<String>,
}

impl Disk {
    /// Starts the thread, at the daemon's own `priority` if it has one.
    pub fn start(file: StateFile, priority: Option<i32>, now: Instant) -> io::Result<Self> {
        let (jobs, todo) = channel();
        let (done, outcomes) = channel();
        let bell = Arc::new(EventFd::new()?);
        let ringer = Arc::clone(&bell);
        let work = move || {
            // Without the privilege the thread has an ordinary priority.
            let _ = priority.map(priority::set_realtime);
            write(file, &todo, &done, &ringer);
        };
        let thread = std::thread::Builder::new().name("disk".to_owned()).spawn(work)?;
        let (jobs, thread) = (Some(jobs), Some(thread));
        let (under_way, try_at) = (VecDeque::new(), now + TRY_EVERY);
        let (writes, failure) = (0, None);
        Ok(Self { jobs, thread, outcomes, bell, under_way, writes, try_at, failure })
    }

    /// Queues a write of `state` behind those that were requested before; returns the number of
    /// the write.
    pub fn keep(&mut self, state: EdgeState, now: Instant) -> u64 {
        self.writes += 1;
        if self.jobs.as_ref().is_some_and(|jobs| jobs.send(state).is_ok()) {
            self.under_way.push_back((self.writes, now));
        }
        self.try_at = now + TRY_EVERY;
        self.writes
    }

    /// Writes `state`, which is on disk already, once more if the last write was long ago. This
    /// tests the disk. Unless `is_calm` it is put off, so that a takeover need not wait for it.
    pub fn try_again(&mut self, state: &EdgeState, is_calm: bool, now: Instant) {
        if self.try_at > now || self.is_busy() {
        } else if is_calm {
            self.keep(state.clone(), now);
        } else {
            self.try_at = now + TRY_AGAIN;
        }
    }

    /// When [`Disk::try_again`] is due, or a write becomes too slow.
    pub fn deadline(&self) -> Option<Instant> {
        match self.under_way.front() {
            Some((_, since)) if self.failure.is_none() => Some(*since + SLOW),
            Some(_) => None,
            None => Some(self.try_at),
        }
    }

    /// The next finished write, by its number, with the reason if it failed.
    pub fn take(&mut self, now: Instant) -> Option<(u64, Result<(), String>)> {
        let _ = self.bell.take();
        let (number, since) = *self.under_way.front()?;
        let Ok(outcome) = self.outcomes.try_recv() else {
            if now - since >= SLOW {
                self.failure = Some("the disk of edge.state_file does not answer".to_owned());
            }
            return None;
        };
        self.under_way.pop_front();
        let outcome = outcome.map_err(|error| error.to_string());
        self.failure = outcome.as_ref().err().cloned();
        if self.failure.is_some() {
            self.try_at = now + TRY_AGAIN;
        }
        Some((number, outcome))
    }

    /// Waits for the next outcome, but no longer than `limit`.
    pub fn wait(&self, limit: Duration) {
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        let _ = process::poll_in(self.bell.as_fd(), limit_ms);
    }

    /// Whether a write is unfinished.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The disk's failure, if any: as long as it lasts, no epoch can be granted.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs = None;
        // A daemon that begins anew opens the same file. A disk that does not answer is left alone.
        if !self.is_busy() {
            let _panicked = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The thread: writes states until the daemon drops its end of the queue.
fn write(mut file: StateFile, todo: &Receiver<EdgeState>, done: &Sender<Outcome>, bell: &EventFd) {
    while let Ok(state) = todo.recv() {
        let outcome = file.keep(state);
        if done.send(outcome).is_err() {
            return;
        }
        bell.ring();
    }
}
