//! The state of each thread with respect to the log, and how threads are made to stand still. The
//! daemon may copy the server only at a moment at which no thread is between a logged call's
//! effect and its record; and the copy continues in another mode. So every logged call is run by
//! [`call`]. It marks the thread as being in a call, has no effect while threads have to stand
//! still, and starts over in the new mode if it has not happened yet.
//!
//! The mark is a word that is read only while its thread is stopped (`holdfast_wire::quiet` has
//! the rule), so only its order among the thread's own instructions matters, and it needs no
//! memory fence.

use crate::base::state::{self, Mode, header, mode};
use crate::base::{handlers, sys, token};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::*, compiler_fence};
use holdfast_wire::quiet::{THREADS_MAX, Thread, state as at};

/// Longest time for which a thread waits at the daemon's request, in ns: the daemon may have
/// died. A daemon that copies the server has frozen it by then.
const STILL_MAX_NS: u64 = 1_000_000_000;

/// State word of threads that the shim has not made: they log nothing that counts.
static NOBODY: Thread = Thread::new();

std::thread_local! {
    static PLACE: Cell<&'static Thread> = const { Cell::new(&NOBODY) };
}

/// A logged call of the calling thread.
pub struct Call {
    place: &'static Thread,
    /// The thread's state before this call. If it was in a call already, a signal handler or a
    /// routine run by libc has made this one, and the outer call decides.
    before: u32,
    /// Value of `Header::park` at the beginning.
    seen: u32,
    /// Whether the thread has taken the token for this call, which only the outermost call does.
    holds: bool,
}

/// Runs a logged call: `f` reads the mode and does what it demands. `None` starts
/// over, as if the server had only just called.
#[inline]
pub fn call<T>(mut f: impl FnMut(&Call) -> Option<T>) -> T {
    loop {
        let call = enter();
        if let Some(result) = f(&call) {
            return result;
        }
    }
}

#[inline]
fn enter() -> Call {
    let place = PLACE.get();
    let before = place.state.load(Relaxed);
    loop {
        let mut seen = go(place, at::BUSY);
        if seen & 1 != 0 && before == at::OUTSIDE {
            seen = stand_still(place);
        }
        let entered = token::enter_by(|word, held| match before {
            at::OUTSIDE => wait_for_turn(place, word, held),
            _ => token::sleep(word, held),
        });
        if let Some(holds) = entered {
            return Call { place, before, seen, holds };
        }
    }
}

/// Waits for the token, which another thread holds: meanwhile this one stands still, for nothing
/// of its call has happened. `None`: it has to stand still longer, without the token.
#[cold]
fn wait_for_turn(place: &Thread, word: &AtomicU32, held: u32) -> Option<isize> {
    let r = match go(place, at::PARKED) & 1 {
        0 => token::sleep(word, held),
        _ => None,
    };
    if go(place, at::BUSY) & 1 == 0 { r } else { None }
}

/// Sets the thread's state; returns [`park_word`] as it is after that.
#[inline]
fn go(place: &Thread, state: u32) -> u32 {
    compiler_fence(SeqCst);
    place.state.store(state, Relaxed);
    compiler_fence(SeqCst);
    park_word()
}

#[inline]
fn park_word() -> u32 {
    if state::is_attached() { header().park.0.load(Relaxed) } else { 0 }
}

/// Waits while threads have to stand still, without the token: one that has made a call has to
/// log that before it comes to the next one. A child of the server does not wait.
#[cold]
fn stand_still(place: &Thread) -> u32 {
    let word = &header().park.0;
    if token::is_chosen() {
        token::give();
    }
    loop {
        let seen = go(place, at::PARKED);
        if seen & 1 != 0 && mode() != Mode::Pass {
            let r = sys::futex_wait(word, seen, true, STILL_MAX_NS);
            let is_late = r == -(libc::ETIMEDOUT as isize);
            if is_late && word.compare_exchange(seen, seen.wrapping_add(1), SeqCst, SeqCst).is_ok()
            {
                sys::futex_wake(word, true);
            }
            continue;
        }
        let seen = go(place, at::BUSY);
        if seen & 1 == 0 || mode() == Mode::Pass {
            return seen;
        }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        self.place.state.store(self.before, Relaxed);
        if self.holds || token::is_chosen() && self.before == at::OUTSIDE && mode() == Mode::Record
        {
            token::exit();
        }
    }
}

impl Call {
    /// Makes a system call that may take long. `None`: the server's call must start
    /// over, because it has not happened.
    #[inline]
    pub fn sleep(&self, raw: impl FnOnce() -> isize) -> Option<isize> {
        token::lend(|| self.sleep_quiet(raw))
    }

    fn sleep_quiet(&self, raw: impl FnOnce() -> isize) -> Option<isize> {
        if self.before != at::OUTSIDE {
            return Some(raw());
        }
        go(self.place, at::SLEEPS);
        let r = raw();
        let was_stopped = go(self.place, at::BUSY) != self.seen;
        // Stopping a thread interrupts its system call with EINTR. The server must not see that,
        // unless a signal has come whose handler has to run.
        let in_vain = || r == -(libc::EINTR as isize) && !handlers::ANY.load(Relaxed);
        if self.is_over() || was_stopped && in_vain() { None } else { Some(r) }
    }

    /// Runs a libc function that waits for other threads, without a time limit.
    pub fn wait<T>(&self, f: impl FnOnce() -> T) -> T {
        self.stand(at::WAITS, f)
    }

    /// Runs a libc function that waits until a point in time, or on `condition` (or
    /// 0).
    pub fn wait_timed<T>(&self, condition: usize, f: impl FnOnce() -> T) -> T {
        self.place.condition.store(condition as u64, Relaxed);
        self.stand(at::TIMED, f)
    }

    fn stand<T>(&self, state: u32, f: impl FnOnce() -> T) -> T {
        if self.before != at::OUTSIDE {
            return f();
        }
        go(self.place, state);
        let result = f();
        go(self.place, at::BUSY);
        result
    }

    /// Takes a lock of the shim's own that other threads may hold for long. `None`: the server's
    /// call must start over.
    pub fn lock(&self, word: &AtomicU32) -> Option<()> {
        if word.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            return Some(());
        }
        while word.swap(2, Acquire) != 0 {
            self.sleep(|| sys::futex_wait(word, 2, false, 0))?;
        }
        Some(())
    }

    /// Whether this call was begun on the primary and now continues in a copy that follows the
    /// log: there it is undone, and starts over.
    pub fn is_over(&self) -> bool {
        mode() == Mode::Replay
    }
}

/// Gives the calling thread a state word of its own; called at the thread's beginning.
pub fn join() {
    let shim = state::shim();
    let tid = sys::sys!(SYS_gettid) as i32;
    let free = |place: &&Thread| place.tid.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
    let Some((n, place)) = shim.threads.iter().enumerate().find(|(_, place)| free(place)) else {
        shim.threads_lost.fetch_add(1, Relaxed);
        return;
    };
    place.state.store(at::OUTSIDE, Relaxed);
    shim.threads_len.fetch_max(n as u32 + 1, Relaxed);
    PLACE.set(place);
}

/// Keeps of all state words only that of the calling thread, the only one of a process that was
/// just forked.
pub fn born() {
    let shim = state::shim();
    let own = PLACE.get();
    for place in &shim.threads[..(shim.threads_len.load(Relaxed) as usize).min(THREADS_MAX)] {
        if !core::ptr::eq(place, own) {
            place.tid.store(0, Relaxed);
        }
    }
    shim.threads_lost.store(0, Relaxed);
    if core::ptr::eq(own, &raw const NOBODY) {
        return join();
    }
    own.state.store(at::OUTSIDE, Relaxed);
    own.tid.store(sys::sys!(SYS_gettid) as i32, Release);
}

/// Frees the state word of the calling thread, which ends.
pub fn part() {
    let place = PLACE.replace(&NOBODY);
    if place.tid.swap(0, Relaxed) == 0 {
        state::shim().threads_lost.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
