//! Deferred writes, which wait for the backup, in one queue per thread. `defer` decides which
//! writes are deferred, and when they are made.

use crate::base::cells::{Guard, Locked};
use crate::base::fds;
use crate::base::sys::syscall;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of threads that defer writes, the first ones: servers start event loops first.
const QUEUES: usize = 16;
/// Most writes in one queue.
const ENTRIES_MAX: usize = 256;
/// Most bytes in one queue.
const ARENA_BYTES: usize = 256 << 10;
/// Time in ms for which a send buffer may be full, which the rules of `defer` should exclude: the
/// server waits meanwhile.
const FULL_WAIT_MS: i32 = 1000;

#[derive(Clone, Copy)]
struct Waiting {
    fd: i32,
    at: usize,
    len: usize,
}

struct Writes {
    entries: [Waiting; ENTRIES_MAX],
    arena: [u8; ARENA_BYTES],
    used: usize,
}

/// One thread's deferred writes. Another thread empties the queue before it uses a descriptor
/// that has a write in it.
pub struct Queue {
    /// Entries in use; changed only by the holder of the writes.
    count: AtomicUsize,
    writes: Locked<Writes>,
}

static QUEUE: [Queue; QUEUES] = [const {
    Queue {
        count: AtomicUsize::new(0),
        writes: Locked::new(Writes {
            entries: [Waiting { fd: 0, at: 0, len: 0 }; ENTRIES_MAX],
            arena: [0; ARENA_BYTES],
            used: 0,
        }),
    }
}; QUEUES];

/// The queue of the thread with this number, if it is among the first.
pub fn queue(number: usize) -> Option<&'static Queue> {
    QUEUE.get(number)
}

/// Empties the queues in a forked child: their writes are its parent's. No thread of the parent
/// holds the lock of a queue that the child could need.
pub fn forget() {
    QUEUE.iter().for_each(|queue| queue.count.store(0, Relaxed));
}

/// Empties the queues before a replica becomes the server: writes that were deferred when the
/// server was copied are the original's. A replica defers nothing itself.
pub fn drop_all() {
    QUEUE.iter().for_each(|queue| queue.hold().discard());
}

impl Queue {
    /// Whether the queue is empty. Only the queue's own thread can rely on the answer.
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Waits for the queue.
    pub fn hold(&self) -> Held<'_> {
        Held { count: &self.count, writes: self.writes.hold() }
    }
}

/// A queue that is held.
pub struct Held<'a> {
    count: &'a AtomicUsize,
    writes: Guard<'a, Writes>,
}

impl Held<'_> {
    /// Whether the queue takes one more write of `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        self.count.load(Relaxed) < ENTRIES_MAX && self.writes.used + len <= ARENA_BYTES
    }

    /// Bytes that wait for `fd`.
    pub fn bytes_of(&self, fd: i32) -> usize {
        let entries = &self.writes.entries[..self.count.load(Relaxed)];
        entries.iter().filter(|e| e.fd == fd).map(|e| e.len).sum()
    }

    /// Adds a write of `len` bytes, for which there is room. Behind one to the same descriptor it
    /// becomes a part of that.
    pub fn add(&mut self, fd: i32, parts: &[libc::iovec], len: usize) {
        let count = self.count.load(Relaxed);
        let writes = &mut *self.writes;
        let at = writes.used;
        let last = writes.entries[..count].last_mut().filter(|last| last.fd == fd);
        let count = match last {
            Some(last) => {
                last.len += len;
                count
            }
            None => {
                writes.entries[count] = Waiting { fd, at, len };
                count + 1
            }
        };
        let mut room = &mut writes.arena[at..at + len];
        for part in parts {
            let n = part.iov_len.min(room.len());
            // SAFETY: the caller's buffer, and `n` bytes of the arena.
            unsafe {
                core::ptr::copy_nonoverlapping(part.iov_base.cast(), room.as_mut_ptr(), n);
            }
            room = &mut room[n..];
        }
        writes.used += len;
        self.count.store(count, Relaxed);
    }

    /// Makes the writes.
    pub fn drain(&mut self) {
        self.end(send);
    }

    /// Forgets the writes.
    pub fn discard(&mut self) {
        self.end(|_, _| ());
    }

    fn end(&mut self, each: impl Fn(i32, &[u8])) {
        let writes = &mut *self.writes;
        for entry in &writes.entries[..self.count.load(Relaxed)] {
            each(entry.fd, &writes.arena[entry.at..entry.at + entry.len]);
            if let Some(f) = fds::get(entry.fd) {
                f.deferred.store(0, Relaxed);
            }
        }
        writes.used = 0;
        self.count.store(0, Relaxed);
    }
}

/// Sends bytes. An error means that the connection has ended, which the server learns by its next
/// call. One that takes no more ends: the server was told that everything is sent, and nobody else
/// shall wait for that client.
fn send(fd: i32, bytes: &[u8]) {
    let (mut done, mut has_waited) = (0, false);
    while done < bytes.len() {
        let rest = &bytes[done..];
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: memory of ours, of the sizes that are said.
        match unsafe { syscall!(SYS_sendto, fd, rest.as_ptr(), rest.len(), flags, 0usize, 0usize) }
        {
            r if r >= 0 => (done, has_waited) = (done + r as usize, false),
            r if r == -(libc::EAGAIN as isize) && has_waited => return reset(fd),
            r if r == -(libc::EAGAIN as isize) => {
                has_waited = true;
                let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: memory of ours, of the sizes that are said.
                unsafe { syscall!(SYS_poll, &raw mut poll, 1, FULL_WAIT_MS) };
            }
            r if r == -(libc::EINTR as isize) => {}
            _ => return,
        }
    }
}

/// Ends a connection by a reset, as connect(2) does with AF_UNSPEC.
fn reset(fd: i32) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_connect, fd, &raw const nowhere, size_of_val(&nowhere)) };
}

#[cfg(test)]
mod tests;
