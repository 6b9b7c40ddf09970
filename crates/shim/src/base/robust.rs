//! Locks that processes share. A process that is killed never unlocks, so the lock's word is the
//! owner's process id: a waiting thread checks from time to time whether that process still runs,
//! and takes the lock over if not. What such a lock guards must therefore be valid at every
//! instruction of its owner.

use crate::base::brief;
use crate::base::sys::{self, sys, syscall};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::group::{DAEMON, HAS_SLEEPERS};

/// Time in ns after which a waiting thread checks the owner.
const LOOK_NS: u64 = 10_000_000;

/// Number of time-outs in a row after which a lock held by the daemon, whose process cannot be
/// checked from here, counts as given up.
const DAEMON_LOOKS_MAX: u32 = 100;

/// This process's id, by which it owns locks.
static OWN: AtomicU32 = AtomicU32::new(0);

/// Notes the process's id; called first of all in a process of a family.
pub fn note_process() {
    OWN.store(sys!(SYS_getpid) as u32, Relaxed);
}

#[inline]
pub fn lock(word: &AtomicU32) {
    if !try_lock(word) {
        wait(word, OWN.load(Relaxed));
    }
}

/// Takes the lock if it is free.
#[inline]
pub fn try_lock(word: &AtomicU32) -> bool {
    word.compare_exchange(0, OWN.load(Relaxed), Acquire, Relaxed).is_ok()
}

#[cold]
fn wait(word: &AtomicU32, own: u32) {
    let mut looks = 0;
    loop {
        let seen = word.load(Relaxed);
        let marked = seen | HAS_SLEEPERS;
        // Other threads may wait behind one that has waited.
        let want = if seen == 0 { own | HAS_SLEEPERS } else { marked };
        if seen != want && word.compare_exchange(seen, want, Acquire, Relaxed).is_err() {
            continue;
        }
        if seen == 0 {
            return;
        }
        if sys::futex_wait(word, marked, true, LOOK_NS) != -(libc::ETIMEDOUT as isize) {
            // Somebody has had the lock and given it back.
            looks = 0;
            continue;
        }
        looks += 1;
        if is_given_up(marked & !HAS_SLEEPERS, looks)
            && word.compare_exchange(marked, own | HAS_SLEEPERS, Acquire, Relaxed).is_ok()
        {
            return;
        }
    }
}

/// Whether the owner of a lock will never give it back.
fn is_given_up(owner: u32, looks: u32) -> bool {
    match owner {
        // The daemon holds a lock for moments only, unless it has died.
        DAEMON => looks > DAEMON_LOOKS_MAX,
        process => has_ended(process),
    }
}

#[inline]
pub fn unlock(word: &AtomicU32) {
    if word.swap(0, Release) & HAS_SLEEPERS != 0 {
        sys::futex_wake(word, true);
    }
}

/// Whether a process of the family has ended; a zombie has.
pub fn has_ended(process: u32) -> bool {
    brief::alone(|| {
        let fd = sys!(SYS_pidfd_open, process, 0);
        if fd < 0 {
            return fd == -(libc::ESRCH as isize);
        }
        let mut poll = libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 0 };
        // SAFETY: memory of ours, of the sizes that are said.
        let ready = unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) };
        sys!(SYS_close, fd);
        ready == 1
    })
}

#[cfg(all(test, not(miri)))]
mod tests;
