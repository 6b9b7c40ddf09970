//! The end of the log: threads drain it, and stop here until the sockets are
//! real. What the first of them does meanwhile belongs to the promotion.

use crate::base::cells::SetOnce;
use crate::base::log::Entry;
use crate::base::state::{self, MAIN_AWAY, Mode, header, mode};
use crate::base::table::Call;
use crate::base::{binds, conns, defer, leash, log, quiet, ring, sys, token};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::Op;
use holdfast_wire::shm::mode as shared_mode;

/// Time between the others' looks at whether one of them must promote in its
/// stead, in ns.
const LEADER_WAIT_NS: u64 = 5_000_000;

/// Number of promotions made: a copy of a survivor may make another.
static DONE: AtomicU32 = AtomicU32::new(0);
/// Number of promotions that a thread has undertaken.
static LED: AtomicU32 = AtomicU32::new(0);
/// The function that this thread runs. The promotion depends on the calls, which
/// park here: so this module is told at start-up.
static LEAD: SetOnce<fn()> = SetOnce::new();

/// Sets the function that the promoting thread runs; once, at start-up.
pub fn set_lead(lead: fn()) {
    LEAD.set(lead);
}

/// The sockets are real: threads that stopped here go on.
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

/// Stops here until the sockets are real; the call that reached the log's end then
/// starts over. The process's first thread leads; another one does if that one waits
/// for it to end, or has ended.
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

/// A thread begins, or goes on behind a wait that is in no other record: where threads run
/// one at a time, both members must know where.
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
