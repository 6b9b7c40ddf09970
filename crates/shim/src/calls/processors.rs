//! The daemon may keep the server's main thread on the processor that it runs
//! on itself. That is between those two: other threads, children, and answers
//! about processors are as if nobody did.

use crate::base::cells::SetOnce;
use crate::base::state::{self, Mode, header, mode};
use crate::base::sys::{sys, syscall};
use core::sync::atomic::Ordering::Acquire;

/// Bytes of the set, as many as glibc's own.
const SET_BYTES: usize = 128;

/// Where the server may run, by whoever started it.
static OURS: SetOnce<[u8; SET_BYTES]> = SetOnce::new();

/// Remembers where the server may run; once, before its first call.
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

/// A thread that the main one has made is not kept with it.
pub fn free_thread() {
    if is_kept() {
        restore();
    }
}

/// Runs `f`, which makes a child that shall run where it may.
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

/// `sched_getaffinity`, for the main thread as if it were not kept.
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
