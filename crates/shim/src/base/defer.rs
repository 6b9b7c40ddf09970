//! Deferred writes: output that waits for the backup without making the server wait.
//!
//! A small write to a connection whose send buffer is empty, and takes the segments that the write
//! becomes, is certain to be accepted whole, so its result is known before it is made. Such writes
//! are queued here and made at the server's next blocking call, all after one wait. So an event
//! loop pays one round trip to the backup for a batch of replies instead of one for each. Only the
//! first threads of a server defer, each with a queue of its own.

use crate::base::commit;
use crate::base::state::{Mode, tid};
use crate::base::sys::sys;
use crate::base::waiting::{self, Queue};
use crate::base::{conns, fds, holders, log, state};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::NO_CONN;

/// Most bytes that may be deferred for one connection.
pub const FD_BYTES_MAX: usize = 8 << 10;
/// Bytes of a send buffer that a segment takes beside its payload, at most.
const SEGMENT_BYTES: usize = 1280;
/// Places in what SO_MEMINFO tells (`linux/sock_diag.h`).
const SNDBUF: usize = 3;
const WMEM_QUEUED: usize = 5;

fn own() -> Option<&'static Queue> {
    waiting::queue(usize::from(tid()))
}

/// Defers a write if its success is certain; false if it must be made now.
pub fn try_keep(fd: i32, parts: &[libc::iovec], len: usize) -> bool {
    if len == 0 || len > FD_BYTES_MAX || log::is_committed() {
        return false;
    }
    let (Some(queue), Some(f)) = (own(), fds::get(fd)) else { return false };
    if is_shared(f) {
        return false;
    }
    let mark = u32::from(tid()) + 1;
    let has_waiting = match f.deferred.load(Relaxed) {
        0 => false,
        m if m == mark => true,
        _ => return false,
    };
    let mut held = queue.hold();
    if !held.has_room(len) {
        return false;
    }
    let is_certain =
        if has_waiting { held.bytes_of(fd) + len <= FD_BYTES_MAX } else { takes_all(fd) };
    if is_certain {
        held.add(fd, parts, len);
        f.deferred.store(mark, Relaxed);
    }
    is_certain
}

/// Whether the same client may be written to by another process, or by another descriptor: what is
/// deferred here would not be seen there.
fn is_shared(f: &fds::Fd) -> bool {
    let conn = f.conn.load(Relaxed);
    let by_process = || state::is_family() && holders::is_shared(conns::entry(conn));
    conn != NO_CONN && (!conns::is_last_ref(conn) || by_process())
}

/// Whether the send buffer is empty, and takes [`FD_BYTES_MAX`] bytes at once. A client can make
/// segments small, and so their number large, by its MSS or by a window that it keeps small: none is
/// longer than half of the largest window.
fn takes_all(fd: i32) -> bool {
    let Some(memory) = fds::socket_numbers::<9>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO) else {
        return false;
    };
    if memory[WMEM_QUEUED] != 0 {
        return false;
    }
    let mss = fds::socket_numbers(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    let mss = mss.map_or(0, |[mss]| mss);
    let segments = FD_BYTES_MAX / mss.max(1) as usize + 1;
    memory[SNDBUF] as usize >= FD_BYTES_MAX + segments * SEGMENT_BYTES
}

/// Whether the calling thread has waiting writes.
pub fn is_waiting() -> bool {
    own().is_some_and(|queue| !queue.is_empty())
}

/// Makes the calling thread's deferred writes, after one commit for all.
pub fn flush() {
    if let Some(queue) = own()
        && !queue.is_empty()
    {
        flush_all(queue);
    }
}

/// Like [`flush`], before a call for which an earlier write on `fd` matters,
/// whichever thread made it.
pub fn flush_fd(fd: i32) {
    let mark = fds::get(fd).map_or(0, |f| f.deferred.load(Relaxed)) as usize;
    if let Some(queue) = mark.checked_sub(1).and_then(waiting::queue) {
        flush_all(queue);
    }
}

/// Like [`flush`], unless `fd` is non-blocking and so cannot keep the server
/// waiting.
pub fn flush_before_blocking(fd: i32) {
    if is_waiting() && sys!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize == 0 {
        flush();
    }
}

fn flush_all(queue: &Queue) {
    if state::mode() == Mode::Replay {
        // These writes were deferred in the original of which this is a copy, which makes them.
        return queue.hold().discard();
    }
    commit::commit();
    queue.hold().drain();
}
