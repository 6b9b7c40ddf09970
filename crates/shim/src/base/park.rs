//! The end of the log: threads drain it, and stop here until the sockets are
//! real. What the first of them does meanwhile is the promotion's.

use crate::base::cells::SetOnce;
use crate::base::state::{MAIN_AWAY, Mode, THREADS, header, mode, tid};
use crate::base::{defer, leash, log, quiet, ring, sys};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::shm::mode as shared_mode;

/// How often the others look whether one of them must promote in its stead.
const LEADER_WAIT_NS: u64 = 5_000_000;

/// Threads that need nothing of the log: they have reached its end, or wait where
/// it does not reach.
static AT_END: AtomicU32 = AtomicU32::new(0);
/// Promotions that have been made: a copy of a survivor may make another.
static DONE: AtomicU32 = AtomicU32::new(0);
/// Promotions that a thread has taken on itself.
static LED: AtomicU32 = AtomicU32::new(0);
/// What that thread runs. The promotion stands above the calls, which park here:
/// it is told to this module at start-up.
static LEAD: SetOnce<fn()> = SetOnce::new();

/// Says what the thread that promotes runs; once, at start-up.
pub fn set_lead(lead: fn()) {
    LEAD.set(lead);
}

/// Whether all threads of the server need nothing of the log any more.
pub fn all_at_end() -> bool {
    AT_END.load(SeqCst) >= THREADS.load(SeqCst)
}

/// The sockets are real: those who stopped here go on.
pub fn release() {
    DONE.fetch_add(1, SeqCst);
    sys::futex_wake(&DONE, false);
}

/// Whether the log has ended and the replica still runs on alone: its output is
/// kept, and its first call that needs a live answer parks it (decision 8).
pub fn draining() -> bool {
    let h = header();
    mode() == Mode::Replay
        && h.mode.0.load(Acquire) == shared_mode::DRAIN
        && h.head.0.load(Acquire) >= h.end.0.load(Acquire)
}

/// Stops here until the sockets are real; the call that came to the log's end then
/// starts over. The main thread leads; another one does while the main thread waits
/// for it to end, or has ended.
pub fn start_over<T>() -> Option<T> {
    park();
    None
}

/// As [`start_over`], at the end of a program, which does not.
pub fn park() {
    if mode() != Mode::Replay {
        return;
    }
    AT_END.fetch_add(1, SeqCst);
    if tid() != 0 {
        log::wake(0);
    }
    loop {
        let done = DONE.load(SeqCst);
        if mode() != Mode::Replay {
            break;
        }
        let may_lead = tid() == 0 || MAIN_AWAY.load(SeqCst);
        if may_lead && LED.compare_exchange(done, done + 1, SeqCst, SeqCst).is_ok() {
            if let Some(lead) = LEAD.get() {
                lead();
            }
        } else {
            sys::futex_wait(&DONE, done, false, LEADER_WAIT_NS);
        }
    }
    AT_END.fetch_sub(1, SeqCst);
    leash::slip();
}

/// Runs a call that waits for other threads and that the log knows nothing of:
/// its outcome is theirs.
pub fn outside<T>(f: impl Fn() -> T) -> T {
    quiet::call(|call| {
        match mode() {
            Mode::Record => {
                defer::flush();
                ring::before_block();
            }
            Mode::Replay => log::leave(),
            Mode::Pass => return Some(f()),
        }
        let main = tid() == 0;
        AT_END.fetch_add(1, SeqCst);
        MAIN_AWAY.fetch_or(main, SeqCst);
        let result = call.wait(&f);
        if main {
            MAIN_AWAY.store(false, SeqCst);
        }
        AT_END.fetch_sub(1, SeqCst);
        Some(result)
    })
}
