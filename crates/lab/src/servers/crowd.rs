//! The clients of a server that stay: each has a session, which goes on until the crowd
//! is sent away or something is wrong.

use super::row::{At, Lasts, Talk};
use super::session::{Broken, HANG_LIMIT, Session};
use crate::testbed::{Host, addresses};
use anyhow::{Context as _, Result, anyhow, bail};
use holdfast_linux::netns;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a waiting trial looks at the crowd.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the sessions share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Turns of each session.
    turns: Vec<AtomicU64>,
    /// The longest turn since it was last asked for, µs.
    longest_us: AtomicU64,
    /// Turns that ended with a proxy's other half.
    lost: AtomicU64,
    /// What went wrong first.
    wrong: Mutex<Option<String>>,
}

/// Clients that talk to a server.
pub struct Crowd {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Starts the sessions of a talk on `host`; `first` is the number of the first one, so that
    /// no two crowds use the same names.
    pub fn start(host: &Host, talk: Talk, at: &At, has_ipv6: bool, first: u64) -> Self {
        let turns = (0..talk.sessions).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { turns, ..Shared::default() });
        let namespace = Path::new("/run/netns").join(host.namespace());
        let threads = (0..talk.sessions).map(|index| {
            let mut one = One {
                talk,
                at: match has_ipv6 && index % 2 == 1 {
                    true => At { host: addresses::SERVICE_V6.to_owned(), ..at.clone() },
                    false => at.clone(),
                },
                number: first + index,
                index: index as usize,
                namespace: namespace.clone(),
                shared: Arc::clone(&shared),
            };
            thread::spawn(move || one.live())
        });
        Self { threads: threads.collect(), shared }
    }

    /// Turns of all sessions.
    pub fn turns(&self) -> u64 {
        self.shared.turns.iter().map(|turns| turns.load(Relaxed)).sum()
    }

    /// The longest turn since the last call.
    pub fn take_longest(&self) -> Duration {
        Duration::from_micros(self.shared.longest_us.swap(0, Relaxed))
    }

    /// Turns that ended with a proxy's other half.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Waits until every session has made so many turns more.
    ///
    /// # Errors
    /// When a session has failed, or does not move for longer than one may hang.
    pub fn progress(&self, more: u64) -> Result<()> {
        let now = |turns: &AtomicU64| turns.load(Relaxed);
        let before: Vec<u64> = self.shared.turns.iter().map(now).collect();
        let limit = Instant::now() + HANG_LIMIT * 2;
        loop {
            self.check()?;
            let moved =
                self.shared.turns.iter().zip(&before).all(|(it, old)| now(it) >= old + more);
            if moved {
                return Ok(());
            }
            if Instant::now() > limit {
                bail!("a session does not move");
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// # Errors
    /// What went wrong in a session, if anything.
    pub fn check(&self) -> Result<()> {
        let wrong = self.shared.wrong.lock().map_err(|_| anyhow!("a session panicked"))?;
        wrong.as_ref().map_or(Ok(()), |wrong| bail!("{wrong}"))
    }

    /// Sends the clients away.
    ///
    /// # Errors
    /// What went wrong in a session, if anything.
    pub fn finish(mut self) -> Result<()> {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a session panicked"))?;
        }
        self.check()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The sessions see it after their turn.
        self.shared.stop.store(true, Relaxed);
    }
}

/// One client.
struct One {
    talk: Talk,
    at: At,
    number: u64,
    index: usize,
    namespace: PathBuf,
    shared: Arc<Shared>,
}

impl One {
    fn live(&mut self) {
        let done = netns::enter(&self.namespace).map_err(anyhow::Error::from);
        if let Err(error) = done.and_then(|()| self.turns())
            && let Ok(mut wrong) = self.shared.wrong.lock()
        {
            let turn = self.shared.turns[self.index].load(Relaxed);
            let Self { number, at: At { host, .. }, .. } = self;
            let what = format!("session {number} with {host}, turn {turn}: {error:#}");
            wrong.get_or_insert(what);
        }
    }

    fn turns(&mut self) -> Result<()> {
        let mut session = None;
        while !self.shared.stop.load(Relaxed) {
            let begun = Instant::now();
            match self.turn(&mut session) {
                Ok(()) => {}
                // What hangs, and what is wrong, is so for a proxy's clients, too.
                Err(error) if self.may_end(&error) => {
                    self.shared.lost.fetch_add(1, Relaxed);
                    session = None;
                    thread::sleep(LOOK_EVERY);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let took = begun.elapsed().as_micros() as u64;
            self.shared.longest_us.fetch_max(took, Relaxed);
            self.shared.turns[self.index].fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(self.talk.pause_ms));
        }
        Ok(())
    }

    fn turn(&self, session: &mut Option<Session>) -> Result<()> {
        let open = match session {
            Some(open) => open,
            None => session.insert(self.open()?),
        };
        let turn = self.shared.turns[self.index].load(Relaxed);
        open.step(&(self.talk.turn)(self.number, turn))?;
        let is_over = match self.talk.lasts {
            Lasts::AllTurns => false,
            Lasts::Turns(count) => (turn + 1).is_multiple_of(count),
            Lasts::OneTurnOfAProxy => true,
        };
        if is_over {
            *session = None;
        }
        Ok(())
    }

    fn open(&self) -> Result<Session> {
        let mut session = Session::open(self.talk.carrier, &self.at)?;
        for (number, step) in (self.talk.opening)(self.number).iter().enumerate() {
            session.step(step).with_context(|| format!("opening, step {number}"))?;
        }
        Ok(session)
    }

    fn may_end(&self, error: &anyhow::Error) -> bool {
        let ended = matches!(error.downcast_ref(), Some(Broken::Ended(_)));
        self.talk.lasts == Lasts::OneTurnOfAProxy && ended
    }
}
