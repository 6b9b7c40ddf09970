//! Processes of a family that have ended without saying so: killed ones, whose parents may
//! never ask. The daemon sees their ends by pidfd, and writes them into the server's log in
//! place of a process, so that what they held is free on both members.

use super::Server;
use crate::process;
use crate::shm::{SharedMemory, futex_wake};
use holdfast_wire::group::{DAEMON, PROCESSES_MAX};
use holdfast_wire::log::{Header, Op};
use holdfast_wire::shm::{ConnEntry, conn_state, mode};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest time between two looks, where one takes long.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How many times as long as a look took none follows.
const PAUSE: u32 = 20;
/// Looks in a row in which a process must not be found before it counts as gone: one that
/// has just begun may be missed.
const MISSES_MAX: u32 = 10;

/// What is known of a family's ends.
#[derive(Default)]
pub(super) struct Deaths {
    seen: Mutex<Seen>,
    /// The log is at its end, since the first process ends.
    log_is_over: AtomicBool,
}

/// What was seen of the processes.
struct Seen {
    look_at: Instant,
    /// Number of each place's process, and in how many looks it was not found.
    places: [(i32, u32); PROCESSES_MAX],
}

impl Default for Seen {
    fn default() -> Self {
        Self { look_at: Instant::now(), places: [(0, 0); PROCESSES_MAX] }
    }
}

impl Seen {
    /// Places of processes that have ended. The numbers are the server's word.
    fn look(&mut self, server: &Server) -> Vec<usize> {
        let (mut others, mut places, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (place, (known, misses)) in self.places.iter_mut().enumerate().skip(1) {
            let number = server.memory.group().processes[place].pid.load(SeqCst);
            if *known != number {
                others.extend([*known, number]);
                (*known, *misses) = (number, 0);
            }
            if number > 0 {
                places.push(place);
                numbers.push(number);
            }
        }
        server.members.forget(&others);
        let ended = server.members.ended(server.pid(), &numbers);
        let mut has_ended = |(place, over): &(usize, Option<bool>)| {
            let (_, misses) = &mut self.places[*place];
            *misses = if over.is_none() { *misses + 1 } else { 0 };
            *over == Some(true) || *misses >= MISSES_MAX
        };
        places.into_iter().zip(ended).filter(|it| has_ended(it)).map(|(place, _)| place).collect()
    }
}

impl Server {
    /// The log's tail, for reading what follows `seen` ([`SharedMemory::take_tail`]). When the
    /// first process of a family is killed the kernel closes what it had open before it ends
    /// the others: what they make of that is no part of the log.
    #[must_use]
    pub fn take_tail(&self, seen: u64) -> Option<u64> {
        let tail = self.memory.take_tail(seen)?;
        let is_over = tail > seen && self.memory.is_family() && is_ending(self.pid());
        if is_over {
            self.deaths.log_is_over.store(true, Relaxed);
        }
        Some(if is_over { seen } else { tail })
    }

    /// Whether that was seen to happen. What the others still send by then hangs on nothing that
    /// is not in the log, for all of that waits for the backup: the replica sends it, too.
    #[must_use]
    pub fn is_log_over(&self) -> bool {
        self.deaths.log_is_over.load(Relaxed)
    }

    /// Whether its daemon may sleep, which has read the log up to `seen`, and is then woken when
    /// more is there. Behind the end of a family's log nothing is read: a daemon of real-time
    /// priority that waited for it without a sleep would keep the processor from those that are
    /// to end, until the kernel throttles it (after 0.95 s of each second).
    #[must_use]
    pub fn may_sleep(&self, seen: u64) -> bool {
        let tail = self.memory.tail();
        let is_read = tail == seen || self.deaths.log_is_over.load(Relaxed);
        is_read && self.memory.may_sleep(tail)
    }

    /// Of a family: writes into its log which of its processes have ended unseen. Called
    /// again and again; it looks now and then.
    pub fn note_deaths(&self) {
        if !self.memory.is_family() || !matches!(self.memory.mode(), mode::RECORD | mode::SOLO) {
            return;
        }
        let now = Instant::now();
        let Ok(mut seen) = self.deaths.seen.lock() else { return };
        if now < seen.look_at {
            return;
        }
        let ended = seen.look(self);
        // The numbers are the server's word. Whom nobody finds is searched for in all of /proc, and
        // that must not become what this thread does.
        seen.look_at = now + (PAUSE * now.elapsed()).clamp(LOOK_EVERY, LOOK_EVERY_MAX);
        // With the first process all end, and then the server has died, not they. Whoever has
        // the log now will have given it back at the next look.
        if ended.is_empty() || is_ending(self.pid()) || !self.memory.take_log() {
            return;
        }
        for place in ended {
            let (pid, _) = seen.places[place];
            if self.memory.group().processes[place].pid.load(SeqCst) == pid {
                self.memory.note_death(place);
            }
        }
        self.memory.give_log();
    }
}

/// Whether a process has begun to end: then its descendants in its namespace are killed. It gives
/// up its memory first, and what it has open after that.
fn is_ending(pid: u32) -> bool {
    // Nothing is at address 0, so that a process that has memory answers `EFAULT`: a look into
    // /proc, in each turn of the loop, would cost thirty times as much.
    let seen = process::read_memory(pid, 0, &mut [0]);
    seen.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

impl SharedMemory {
    /// With the log in hand: the process of this place has died, and with it the
    /// connections that it alone had.
    fn note_death(&self, place: usize) {
        let at = place as i32;
        if !self.append_as_shim(&Header { op: Op::Death as u8, fd: at, ..Header::default() }) {
            return;
        }
        let entry = |number| self.entry(number);
        self.group().end(place, entry, |e: &ConnEntry| {
            let conn = e.conn.load(Relaxed);
            let close = Header { op: Op::Close as u8, fd: -1, conn, ..Header::default() };
            let _room = self.append_as_shim(&close);
            e.fd.store(-1, Relaxed);
            e.state.store(conn_state::CLOSED, SeqCst);
        });
    }

    /// On the primary, with the lock of a family's log: appends a record without payload in
    /// place of a process. False if there is no room now, or no log.
    fn append_as_shim(&self, record: &Header) -> bool {
        let h = self.header();
        if self.mode() != mode::RECORD {
            // Nobody reads it, but the books are kept.
            return self.mode() == mode::SOLO;
        }
        // Who has the log writes alone; one that does not know that only breaks its own log.
        if self.take_tail(h.head.0.load(Acquire)).is_none() {
            return false;
        }
        let is_written = self.append(record, &[]);
        if is_written {
            self.group().dirty.0.store(h.tail.0.load(Relaxed), Relaxed);
        }
        is_written
    }

    /// Takes the lock of a family's log, if it is free.
    fn take_log(&self) -> bool {
        let word = &self.group().lock.0;
        word.compare_exchange(0, DAEMON, SeqCst, Relaxed).is_ok()
    }

    fn give_log(&self) {
        let word = &self.group().lock.0;
        word.store(0, SeqCst);
        futex_wake(word);
    }
}
