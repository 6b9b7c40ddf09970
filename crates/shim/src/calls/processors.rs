//! The daemon may bind the server's main thread to the processor on which it runs itself. That
//! concerns only those two threads: other threads and children are not bound, and calls about
//! affinity answer as if the main thread were not either.

use crate::base::cells::SetOnce;
use crate::base::state::{self, Mode, header, mode};
use crate::base::sys::{sys, syscall};
use core::sync::atomic::Ordering::Acquire;

/// Size of the set, in bytes: as large as glibc's.
const SET_BYTES: usize = 128;

/// Processors that the server may run on, as set by its starter.
static OURS: SetOnce<[u8; SET_BYTES]> = SetOnce::new();

/// Remembers these processors; once, before the server's first call.
pub fn note() {
    let mut set = [0; SET_BYTES];
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_sched_getaffinity, 0, SET_BYTES, set.as_mut_ptr()) };
    OURS.set(set);
}

fn is_kept() -> bool {
    mode() == Mode::Record && header().kept.0.load(Acquire) != 0
}

fn restore() {
    if let Some(set) = OURS.get() {
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_sched_setaffinity, 0, SET_BYTES, set.as_ptr()) };
    }
}

/// Lets a thread that the main one has made run on all permitted processors.
pub fn free_thread() {
    if is_kept() {
        restore();
    }
}

/// Runs `f`, which makes a child, so that the child may run on all permitted processors.
pub fn freed<T>(f: impl FnOnce() -> T) -> T {
    if !is_kept() || state::tid() != 0 {
        return f();
    }
    let mut kept = [0u8; SET_BYTES];
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_sched_getaffinity, 0, SET_BYTES, kept.as_mut_ptr()) };
    restore();
    let result = f();
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_sched_setaffinity, 0, SET_BYTES, kept.as_ptr()) };
    result
}

/// `sched_getaffinity`; for the main thread it answers as if that were not bound.
pub fn affinity(pid: i32, len: usize, out: *mut u8) -> isize {
    // SAFETY: the caller's own pointer and size.
    let r = unsafe { syscall!(SYS_sched_getaffinity, pid, len, out) };
    let main = pid == 0 && state::tid() == 0 || pid as isize == sys!(SYS_getpid);
    if let Some(ours) = OURS.get().filter(|_| r > 0 && main && is_kept()) {
        // SAFETY: the kernel has just filled `r` bytes there.
        unsafe { core::ptr::copy_nonoverlapping(ours.as_ptr(), out, (r as usize).min(SET_BYTES)) };
    }
    r
}
