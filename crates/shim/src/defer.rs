//! Output that waits for the backup without keeping the server waiting.
//!
//! A small write to a connection whose send buffer is empty is certain to be
//! taken whole, so its result is known before it is made. Such writes are kept
//! here and made at the server's next blocking call, all behind one wait: an
//! event loop pays one round trip to the backup for a batch of replies instead
//! of one for each. Only the main thread defers.

use crate::log;
use crate::state::{Own, tid};
use crate::sys::sys;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

struct Queue {
    entries: [Waiting; ENTRIES_MAX],
    arena: [u8; ARENA_BYTES],
    used: usize,
}

static QUEUE: Own<Queue> = Own::new(Queue {
    entries: [Waiting { fd: -1, at: 0, len: 0 }; ENTRIES_MAX],
    arena: [0; ARENA_BYTES],
    used: 0,
});
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps a write for later if its success is certain.
pub fn try_keep(fd: i32, parts: &[libc::iovec], len: usize) -> bool {
    if tid() != 0 || len == 0 || len > FD_BYTES_MAX || log::is_committed() {
        return false;
    }
    let count = COUNT.load(Relaxed);
    // SAFETY: only the main thread comes here.
    let q = unsafe { QUEUE.get() };
    if count == ENTRIES_MAX || q.used + len > ARENA_BYTES {
        return false;
    }
    let waiting: usize = q.entries[..count].iter().filter(|e| e.fd == fd).map(|e| e.len).sum();
    if waiting + len > FD_BYTES_MAX || waiting == 0 && !buffer_is_empty(fd) {
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
    COUNT.store(count + 1, Relaxed);
    true
}

fn buffer_is_empty(fd: i32) -> bool {
    let mut queued = 1i32;
    sys!(SYS_ioctl, fd, SIOCOUTQ, &raw mut queued) == 0 && queued == 0
}

/// Makes the writes that wait, after one commit for all.
pub fn flush() {
    if COUNT.load(Relaxed) != 0 && tid() == 0 {
        flush_all();
    }
}

/// As [`flush`], before a call to which an earlier write on `fd` matters.
pub fn flush_fd(fd: i32) {
    let count = COUNT.load(Relaxed);
    // SAFETY: only the main thread reads its own queue.
    if count != 0
        && tid() == 0
        && unsafe { QUEUE.get() }.entries[..count].iter().any(|e| e.fd == fd)
    {
        flush_all();
    }
}

/// As [`flush`], unless `fd` is non-blocking and so cannot keep the server.
pub fn flush_before_blocking(fd: i32) {
    if COUNT.load(Relaxed) != 0
        && tid() == 0
        && sys!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize == 0
    {
        flush_all();
    }
}

fn flush_all() {
    log::commit();
    // SAFETY: only the main thread comes here.
    let q = unsafe { QUEUE.get() };
    for entry in &q.entries[..COUNT.load(Relaxed)] {
        send(entry.fd, &q.arena[entry.at..entry.at + entry.len]);
    }
    q.used = 0;
    COUNT.store(0, Relaxed);
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
