//! Output that waits for the backup without keeping the server waiting.
//!
//! A small write to a connection whose send buffer is empty is certain to be
//! taken whole, so its result is known before it is made. Such writes are kept
//! here and made at the server's next blocking call, all behind one wait: an
//! event loop pays one round trip to the backup for a batch of replies instead
//! of one for each. The first threads of a server defer, each for itself.

use crate::state::{Mode, Own, mode, set_mode, threaded, tid};
use crate::sys::{self, sys};
use crate::{fds, log};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Threads that defer: event loops are made first.
const QUEUES: usize = 16;
/// Bytes that one connection may have waiting: far below the smallest send buffer.
const FD_BYTES_MAX: usize = 8 << 10;
/// Writes and bytes that may wait altogether.
const ENTRIES_MAX: usize = 256;
const ARENA_BYTES: usize = 256 << 10;
const SIOCOUTQ: u64 = 0x5411;
/// A full send buffer, which the rules here exclude, is waited for this long at a time.
const FULL_WAIT_MS: i32 = 1000;

#[derive(Clone, Copy)]
struct Waiting {
    fd: i32,
    at: usize,
    len: usize,
}

struct Entries {
    entries: [Waiting; ENTRIES_MAX],
    arena: [u8; ARENA_BYTES],
    used: usize,
}

/// One thread's writes. Another one empties it before it uses a descriptor that
/// has a write waiting here.
struct Queue {
    lock: AtomicU32,
    count: AtomicUsize,
    inner: Own<Entries>,
}

static QUEUE: [Queue; QUEUES] = [const {
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
struct Held<'a>(Option<&'a AtomicU32>);

impl Queue {
    fn hold(&self) -> Held<'_> {
        let lock = threaded().then_some(&self.lock);
        if let Some(lock) = lock {
            sys::lock(lock);
        }
        Held(lock)
    }

    /// Makes the writes; the caller holds the queue.
    fn drain(&self) {
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

fn own() -> Option<&'static Queue> {
    QUEUE.get(usize::from(tid()))
}

/// Keeps a write for later if its success is certain.
pub fn try_keep(fd: i32, parts: &[libc::iovec], len: usize) -> bool {
    if len == 0 || len > FD_BYTES_MAX || log::is_committed() {
        return false;
    }
    let (Some(queue), Some(f)) = (own(), fds::get(fd)) else { return false };
    let mark = u32::from(tid()) + 1;
    let has_waiting = match f.deferred.load(Relaxed) {
        0 => false,
        m if m == mark => true,
        _ => return false,
    };
    let _held = queue.hold();
    if mode() != Mode::Record {
        // Protection has ended meanwhile: nobody would flush it.
        return false;
    }
    let count = queue.count.load(Relaxed);
    // SAFETY: the queue is held.
    let q = unsafe { queue.inner.get() };
    if count == ENTRIES_MAX || q.used + len > ARENA_BYTES {
        return false;
    }
    if has_waiting {
        let waiting: usize = q.entries[..count].iter().filter(|e| e.fd == fd).map(|e| e.len).sum();
        if waiting + len > FD_BYTES_MAX {
            return false;
        }
    } else if !buffer_is_empty(fd) {
        return false;
    }
    q.entries[count] = Waiting { fd, at: q.used, len };
    for part in parts {
        // SAFETY: the caller's buffers; the arena has room for `len` bytes.
        unsafe {
            let to = q.arena.as_mut_ptr().add(q.used);
            core::ptr::copy_nonoverlapping(part.iov_base.cast(), to, part.iov_len);
        }
        q.used += part.iov_len;
    }
    queue.count.store(count + 1, Relaxed);
    f.deferred.store(mark, Relaxed);
    true
}

fn buffer_is_empty(fd: i32) -> bool {
    let mut queued = 1i32;
    sys!(SYS_ioctl, fd, SIOCOUTQ, &raw mut queued) == 0 && queued == 0
}

/// Whether the calling thread has writes that wait.
pub fn is_waiting() -> bool {
    own().is_some_and(|q| q.count.load(Relaxed) != 0)
}

/// Makes the calling thread's writes that wait, after one commit for all.
pub fn flush() {
    if let Some(queue) = own()
        && queue.count.load(Relaxed) != 0
    {
        flush_all(queue);
    }
}

/// As [`flush`], before a call to which an earlier write on `fd` matters,
/// whichever thread made it.
pub fn flush_fd(fd: i32) {
    let mark = fds::get(fd).map_or(0, |f| f.deferred.load(Relaxed)) as usize;
    if let Some(queue) = mark.checked_sub(1).and_then(|n| QUEUE.get(n)) {
        flush_all(queue);
    }
}

/// As [`flush`], unless `fd` is non-blocking and so cannot keep the server.
pub fn flush_before_blocking(fd: i32) {
    if is_waiting() && sys!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize == 0 {
        flush();
    }
}

fn flush_all(queue: &Queue) {
    log::commit();
    let _held = queue.hold();
    queue.drain();
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
