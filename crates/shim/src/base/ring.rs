//! The ring in shared memory that holds the log: where a position of the log lies in it, where
//! the log ends, and how server and daemon wake each other.

use crate::base::state::{self, WAKE_FD, header};
use crate::base::sys::{self, syscall};
use core::sync::atomic::{AtomicU32, Ordering::*, fence};
use holdfast_wire::shm::OPEN;

/// Bytes of log since the daemon was last woken at which it is woken before a blocking call.
const KICK_BYTES: u64 = 256 << 10;

/// Address of a position in the ring.
///
/// # Safety
/// The shared memory is mapped.
pub unsafe fn at(position: u64) -> *mut u8 {
    // SAFETY: the offset is below the ring's size.
    unsafe { state::ring().add((position & (state::ring_bytes() - 1)) as usize) }
}

/// End of the log.
pub fn tail() -> u64 {
    header().tail.0.load(Acquire) & !OPEN
}

/// Wakes the daemon if it sleeps: there is something in the ring for it.
pub fn kick() {
    let h = header();
    let end = tail();
    state::group().kicked_at.0.store(end, Relaxed);
    h.direct.announced.fetch_max(end, Relaxed);
    fence(SeqCst);
    if h.daemon_waiting.0.load(Relaxed) != 0 && h.daemon_waiting.0.swap(0, AcqRel) != 0 {
        let one = 1u64;
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_write, WAKE_FD.load(Relaxed), &raw const one, 8) };
    }
}

/// Called before a call that may block. Nothing has to be confirmed then, but the backup should
/// not fall far behind.
pub fn before_block() {
    if tail().saturating_sub(state::group().kicked_at.0.load(Relaxed)) > KICK_BYTES {
        kick();
    }
}

/// Sleeps until the daemon changes `word` from `seen`, for at most `timeout_ns` (0: no limit).
pub fn sleep_shared(word: &AtomicU32, seen: u32, timeout_ns: u64) {
    let h = header();
    h.shim_waiting.0.fetch_add(1, SeqCst);
    sys::futex_wait(word, seen, true, timeout_ns);
    h.shim_waiting.0.fetch_sub(1, SeqCst);
}
