//! The end of the log at a takeover: the replica's threads execute what is left of it, and stop
//! here until the daemon has made the sockets real (repaired them). One of them, normally the
//! first thread, meanwhile runs the promotion.

use crate::base::cells::SetOnce;
use crate::base::log::Entry;
use crate::base::state::{self, MAIN_AWAY, Mode, header, mode};
use crate::base::table::Call;
use crate::base::{binds, conns, defer, leash, log, quiet, ring, sys, token};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::Op;
use holdfast_wire::shm::mode as shared_mode;

/// Time in ns between two checks of a parked thread whether it must run the promotion itself.
const LEADER_WAIT_NS: u64 = 5_000_000;

/// Number of promotions that are done: a copy of a survivor may be promoted once more.
static DONE: AtomicU32 = AtomicU32::new(0);
/// Number of promotions that a thread has begun.
static LED: AtomicU32 = AtomicU32::new(0);
/// The function that runs the promotion. It depends on the calls, which depend on this module, so
/// it is handed down at start-up.
static LEAD: SetOnce<fn()> = SetOnce::new();

/// Sets the function that the promoting thread runs; once, at start-up.
pub fn set_lead(lead: fn()) {
    LEAD.set(lead);
}

/// Lets the threads that stopped here go on, because the sockets are real.
pub fn release() {
    DONE.fetch_add(1, SeqCst);
    sys::futex_wake(&DONE, false);
}

/// Whether the log has ended and the replica still runs on without it: its output is retained,
/// and its first call that needs an answer from the world parks it (decision 8).
pub fn draining() -> bool {
    let h = header();
    mode() == Mode::Replay
        && h.mode.0.load(Acquire) == shared_mode::DRAIN
        && h.head.0.load(Acquire) >= h.end.0.load(Acquire)
}

/// Stops here until the sockets are real; the call that reached the log's end then starts over.
/// The process's first thread runs the promotion; another one does if the first waits for that
/// one's end, or has ended itself.
pub fn start_over<T>() -> Option<T> {
    park();
    None
}

/// Like [`start_over`], at the end of a program, where nothing starts over.
pub fn park() {
    if mode() != Mode::Replay {
        return;
    }
    if state::is_family() {
        conns::claim_all();
        binds::publish();
    }
    let at_end = &state::process().at_end;
    at_end.fetch_add(1, SeqCst);
    if !state::is_first() {
        log::wake(state::first());
    }
    loop {
        let done = DONE.load(SeqCst);
        if mode() != Mode::Replay {
            break;
        }
        let may_lead = state::is_first() || MAIN_AWAY.load(SeqCst);
        if may_lead && LED.compare_exchange(done, done + 1, SeqCst, SeqCst).is_ok() {
            if let Some(lead) = LEAD.get() {
                lead();
            }
        } else {
            sys::futex_wait(&DONE, done, false, LEADER_WAIT_NS);
        }
    }
    at_end.fetch_sub(1, SeqCst);
    leash::slip();
}

/// Runs a call that waits for other threads and that is not in the log: its
/// outcome depends on theirs.
pub fn outside<T>(f: impl Fn() -> T) -> T {
    let result = outside_alone(f);
    go_on();
    result
}

/// Logs that a thread begins, or goes on after a wait that is in no other record. Only where
/// threads run one at a time: both members must agree on that place.
pub fn go_on() {
    if !token::is_chosen() || !state::threaded() {
        return;
    }
    quiet::call(|_| match mode() {
        Mode::Pass => Some(()),
        Mode::Record => {
            log::append(Entry::new(Op::Lock, Call::sched_yield, 0, 0), &[]);
            Some(())
        }
        Mode::Replay => match log::take(Op::Lock, Call::sched_yield, 0) {
            Some(taken) => {
                taken.done();
                Some(())
            }
            None => start_over(),
        },
    });
}

fn outside_alone<T>(f: impl Fn() -> T) -> T {
    quiet::call(|call| {
        match mode() {
            Mode::Record => {
                defer::flush();
                ring::before_block();
            }
            Mode::Replay => log::leave(),
            Mode::Pass => return Some(f()),
        }
        let (main, at_end) = (state::is_first(), &state::process().at_end);
        at_end.fetch_add(1, SeqCst);
        MAIN_AWAY.fetch_or(main, SeqCst);
        let result = token::apart(|| call.wait(&f));
        if main {
            MAIN_AWAY.store(false, SeqCst);
        }
        at_end.fetch_sub(1, SeqCst);
        Some(result)
    })
}
