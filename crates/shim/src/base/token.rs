//! Threads one at a time (decision 34): a thread of the server, in any of its processes, runs the
//! server's code only while it holds the token. On the primary it takes the token before it
//! appends a record, and gives it away before a call that may block. So the log is a sequence of
//! runs. On the replica a thread goes on only when the one before has come to its next call, so
//! the runs are repeated in the same order: what threads share in memory changes in the log's
//! order, with locks or without.
//!
//! A holder that does not run does not keep others waiting: `watch` checks it, and a waiting
//! thread takes the token from it. The former holder takes the token back at its next call. While
//! nothing is logged no thread needs the token.

use crate::base::state::{self, Mode, group, header, mode, threaded};
use crate::base::sys::{self, sys, syscall};
use crate::base::watch::{self, Watch, Why};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::shm::mode as shared_mode;
use holdfast_wire::token::{CALL, CALLS, HOLDER, IN_CALL, WAITED_FOR};

/// Time in ns after which a waiting thread checks the holder.
const LOOK_NS: u64 = 2_000_000;
/// Number of calls after which a holder that never blocks lets waiting threads run: tens of
/// microseconds of its time.
const CALLS_MAX: u32 = 100;
/// Most times that such a holder yields its processor before it takes the token again.
const YIELDS_MAX: u32 = 64;

std::thread_local! {
    /// Calls that this thread has made since another one had the token.
    static MADE: Cell<u32> = const { Cell::new(0) };
}

/// Whether the server's threads run one at a time.
#[inline]
pub fn is_chosen() -> bool {
    state::takes_turns()
}

/// Whether the calling thread needs the token: on a primary, as long as its log is on.
#[inline]
fn is_on() -> bool {
    is_chosen()
        && threaded()
        && mode() == Mode::Record
        && header().mode.0.load(Relaxed) == shared_mode::RECORD
}

fn word() -> &'static AtomicU32 {
    &group().token.word.0
}

fn is_held() -> bool {
    word().load(Relaxed) & HOLDER == state::own_name()
}

/// Begins a logged call, during which no thread takes the token from this one. True if [`exit`]
/// must follow: the call is no part of another one.
#[inline]
pub fn enter() -> bool {
    enter_by(sleep).unwrap_or(false)
}

/// Like [`enter`], sleeping by `wait`, which sleeps while the token's word has that value, for
/// [`LOOK_NS`] at most, and returns what the kernel says. `None`, if that does: this thread has
/// not got the token, and the call has not begun.
#[inline]
pub fn enter_by(wait: impl FnMut(&AtomicU32, u32) -> Option<isize>) -> Option<bool> {
    if !is_chosen() || !is_on() {
        return Some(false);
    }
    // While this thread waited, the log may have ended, or gone on without it: in a copy.
    Some(begin_call(wait)? && is_held())
}

fn begin_call(wait: impl FnMut(&AtomicU32, u32) -> Option<isize>) -> Option<bool> {
    let seen = word().load(Relaxed);
    if seen & HOLDER != state::own_name() {
        take_by(wait)?;
        return Some(true);
    }
    if seen & IN_CALL != 0 {
        return Some(false);
    }
    let made = MADE.get() + 1;
    MADE.set(made);
    if seen & WAITED_FOR != 0 && made > CALLS_MAX {
        let_others(wait)?;
        return Some(true);
    }
    let next = seen & !CALLS | seen.wrapping_add(CALL) & CALLS | IN_CALL;
    if word().compare_exchange(seen, next, Acquire, Relaxed).is_err() {
        take_by(wait)?;
    }
    Some(true)
}

/// Sleeps while the token's word is `seen`.
pub fn sleep(word: &AtomicU32, seen: u32) -> Option<isize> {
    Some(sys::futex_wait(word, seen, true, LOOK_NS))
}

/// Ends the call that [`enter`] has begun: the server's code goes on.
pub fn exit() {
    if is_held() {
        word().fetch_and(!IN_CALL, Release);
    }
    if !is_on() {
        give();
    }
}

/// Takes the token for a call, waiting for whoever has it.
pub fn take() {
    take_by(sleep);
}

fn take_by(mut wait: impl FnMut(&AtomicU32, u32) -> Option<isize>) -> Option<()> {
    let (me, mut watch, mut others) = (state::own_name(), Watch::new(), 0);
    while is_on() {
        let seen = word().load(Relaxed);
        let holder = seen & HOLDER;
        if holder == 0 || holder == me {
            let wanted = me | seen & (CALLS | WAITED_FOR) | IN_CALL | others;
            if word().compare_exchange(seen, wanted, Acquire, Relaxed).is_ok() {
                note_holder(me);
                break;
            }
            continue;
        }
        let marked = seen | WAITED_FOR;
        if seen != marked && word().compare_exchange(seen, marked, Relaxed, Relaxed).is_err() {
            continue;
        }
        // Other threads may wait behind one that has waited.
        others = WAITED_FOR;
        let r = wait(word(), marked)?;
        if r != -(libc::ETIMEDOUT as isize) {
            continue;
        }
        let Some(why) = watch.look(marked) else { continue };
        let wanted = me | IN_CALL | WAITED_FOR;
        if word().compare_exchange(marked, wanted, Acquire, Relaxed).is_ok() {
            count(&why);
            note_holder(me);
            break;
        }
    }
    Some(())
}

fn count(why: &Why) {
    if matches!(why, Why::Computes) {
        header().overlaps.fetch_add(1, Relaxed);
    }
}

fn note_holder(me: u32) {
    let token = &group().token;
    token.task.store(watch::own_task(), Relaxed);
    if token.last.swap(me, Relaxed) != me {
        token.passes.fetch_add(1, Relaxed);
        MADE.set(0);
    }
}

/// Gives the token away, if the calling thread has it. On the replica this notes that the thread
/// has come to its next call.
pub fn give() {
    let (me, mut seen) = (state::own_name(), word().load(Relaxed));
    while seen & HOLDER == me {
        match word().compare_exchange(seen, 0, SeqCst, Relaxed) {
            Ok(_) if seen & WAITED_FOR != 0 => return sys::futex_wake_one(word()),
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Lets waiting threads run before this one, which makes call after call and never blocks.
fn let_others(wait: impl FnMut(&AtomicU32, u32) -> Option<isize>) -> Option<()> {
    let passes = &group().token.passes;
    let before = passes.load(Relaxed);
    give();
    for _ in 0..YIELDS_MAX {
        if passes.load(Relaxed) != before {
            break;
        }
        sys!(SYS_sched_yield);
    }
    take_by(wait)?;
    MADE.set(0);
    Some(())
}

/// Runs a part of a call that waits for others, without the token. Meanwhile a log may begin in
/// which threads need the token.
pub fn apart<T>(f: impl FnOnce() -> T) -> T {
    if mode() != Mode::Record {
        return f();
    }
    let is_call = !is_on() || is_in_call();
    if is_chosen() {
        give();
    }
    let result = f();
    if is_on() {
        take_back(is_call);
    }
    result
}

/// Like [`apart`], if that part `may_block`.
pub fn apart_if<T>(may_block: bool, f: impl FnOnce() -> T) -> T {
    if may_block { apart(f) } else { f() }
}

/// Runs a part of a call that will hardly block, or the server's own code, with the token. Others
/// may take it if this thread sleeps there after all.
pub fn lend<T>(f: impl FnOnce() -> T) -> T {
    if !is_on() {
        return apart(f);
    }
    if !is_held() {
        return f();
    }
    let is_call = is_in_call();
    word().fetch_and(!IN_CALL, Release);
    let result = f();
    take_back(is_call);
    result
}

fn is_in_call() -> bool {
    is_held() && word().load(Relaxed) & IN_CALL != 0
}

fn take_back(is_call: bool) {
    take();
    if !is_call {
        exit();
    }
}

/// Whether a call on a descriptor may block.
pub fn may_block(fd: i32) -> bool {
    is_chosen() && is_on() && sys!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize == 0
}

/// Like [`may_block`], for a call that reads input: it does not block if there is some.
pub fn may_wait_for_input(fd: i32) -> bool {
    let has_come = || {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) == 1 }
    };
    may_block(fd) && !has_come()
}

/// Gives the token to the calling thread, which is the only one so far.
pub fn begin() {
    if is_chosen() {
        go_on();
    }
}

/// On the replica: gives the token to the calling thread, which has consumed a record and runs.
pub fn go_on() {
    let token = &group().token;
    token.task.store(watch::own_task(), Relaxed);
    token.word.0.store(state::own_name(), SeqCst);
}

/// On the replica: whether another thread runs.
pub fn another_runs() -> bool {
    let holder = word().load(SeqCst) & HOLDER;
    holder != 0 && holder != state::own_name()
}

/// On the replica: called when the calling thread, whose record is next, has waited for another
/// one to come to its next call. Frees the token if that thread sleeps in a call which the shim
/// does not see, has ended, or computes for long, as a thread of the primary has.
pub fn look_at_other(watch: &mut Watch) {
    let seen = word().load(SeqCst);
    if seen & HOLDER == 0 {
        return;
    }
    let Some(why) = watch.look(seen) else { return };
    if word().compare_exchange(seen, 0, SeqCst, Relaxed).is_ok() {
        count(&why);
    }
}

/// Time in ns after which a replica's thread checks the one that it waits for.
pub const REPLICA_LOOK_NS: u64 = LOOK_NS;

#[cfg(all(test, not(miri)))]
mod tests;
