//! Output that waits for the backup without keeping the server waiting.
//!
//! A small write to a connection whose send buffer is empty is certain to be
//! taken whole, so its result is known before it is made. Such writes are kept
//! here and made at the server's next blocking call, all behind one wait: an
//! event loop pays one round trip to the backup for a batch of replies instead
//! of one for each. The first threads of a server defer, each for itself.

use crate::base::state::{Mode, mode, tid};
use crate::base::sys::sys;
use crate::base::{fds, log, waiting};
use core::sync::atomic::Ordering::Relaxed;

/// Bytes that one connection may have waiting: far below the smallest send buffer.
const FD_BYTES_MAX: usize = 8 << 10;
const SIOCOUTQ: u64 = 0x5411;

fn own() -> Option<&'static waiting::Queue> {
    waiting::QUEUE.get(usize::from(tid()))
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
    if count == waiting::ENTRIES_MAX || q.used + len > waiting::ARENA_BYTES {
        return false;
    }
    if has_waiting {
        let already: usize = q.entries[..count].iter().filter(|e| e.fd == fd).map(|e| e.len).sum();
        if already + len > FD_BYTES_MAX {
            return false;
        }
    } else if !buffer_is_empty(fd) {
        return false;
    }
    q.entries[count] = waiting::Waiting { fd, at: q.used, len };
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
    if let Some(queue) = mark.checked_sub(1).and_then(|n| waiting::QUEUE.get(n)) {
        flush_all(queue);
    }
}

/// As [`flush`], unless `fd` is non-blocking and so cannot keep the server.
pub fn flush_before_blocking(fd: i32) {
    if is_waiting() && sys!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize == 0 {
        flush();
    }
}

fn flush_all(queue: &waiting::Queue) {
    log::commit();
    let _held = queue.hold();
    queue.drain();
}
