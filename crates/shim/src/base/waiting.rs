//! Writes that wait for the backup, in a queue for each thread. What decides
//! which writes wait, and when they are made, is in `defer`; the log makes them
//! all when protection ends.

use crate::base::fds;
use crate::base::state::{Mode, Own, set_mode, threaded};
use crate::base::sys::{self, sys};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Threads that defer: event loops are made first.
pub const QUEUES: usize = 16;
/// Writes and bytes that may wait altogether.
pub const ENTRIES_MAX: usize = 256;
pub const ARENA_BYTES: usize = 256 << 10;
/// A full send buffer, which the rules of `defer` exclude, is waited for this long
/// at a time, in milliseconds.
const FULL_WAIT_MS: i32 = 1000;

#[derive(Clone, Copy)]
pub struct Waiting {
    pub fd: i32,
    pub at: usize,
    pub len: usize,
}

pub struct Entries {
    pub entries: [Waiting; ENTRIES_MAX],
    pub arena: [u8; ARENA_BYTES],
    pub used: usize,
}

/// One thread's writes. Another one empties it before it uses a descriptor that
/// has a write waiting here.
pub struct Queue {
    lock: AtomicU32,
    pub count: AtomicUsize,
    pub inner: Own<Entries>,
}

pub static QUEUE: [Queue; QUEUES] = [const {
    Queue {
        lock: AtomicU32::new(0),
        count: AtomicUsize::new(0),
        inner: Own::new(Entries {
            entries: [Waiting { fd: 0, at: 0, len: 0 }; ENTRIES_MAX],
            arena: [0; ARENA_BYTES],
            used: 0,
        }),
    }
}; QUEUES];

/// Holds a queue, if there is anybody to hold it against.
pub struct Held<'a>(Option<&'a AtomicU32>);

impl Queue {
    pub fn hold(&self) -> Held<'_> {
        let lock = threaded().then_some(&self.lock);
        if let Some(lock) = lock {
            sys::lock(lock);
        }
        Held(lock)
    }

    /// Makes the writes; the caller holds the queue.
    pub fn drain(&self) {
        // SAFETY: the queue is held.
        let q = unsafe { self.inner.get() };
        for entry in &q.entries[..self.count.load(Relaxed)] {
            send(entry.fd, &q.arena[entry.at..entry.at + entry.len]);
            if let Some(f) = fds::get(entry.fd) {
                f.deferred.store(0, Relaxed);
            }
        }
        q.used = 0;
        self.count.store(0, Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            sys::unlock(lock);
        }
    }
}

/// Protection has ended: all that waits goes out before any thread writes live.
pub fn end() {
    let _held = QUEUE.each_ref().map(Queue::hold);
    QUEUE.iter().for_each(Queue::drain);
    set_mode(Mode::Live);
}

/// An error is the connection's end; the server learns of it by its next call.
fn send(fd: i32, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        match sys!(SYS_sendto, fd, rest.as_ptr(), rest.len(), flags, 0usize, 0usize) {
            r if r >= 0 => done += r as usize,
            r if r == -(libc::EAGAIN as isize) => {
                let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                sys!(SYS_poll, &raw mut poll, 1, FULL_WAIT_MS);
            }
            r if r == -(libc::EINTR as isize) => {}
            _ => return,
        }
    }
}
