//! Signals: the shim's handler only marks them; the server's handler runs at the next logged call,
//! a place that both members can name.

use crate::base::handlers::{ASIDE, PENDING, bit};
use crate::base::log::{self, Entry};
use crate::base::state::{self, MAIN_AWAY, Mode, mode};
use crate::base::{alarm, handlers, leash, real, sys};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use holdfast_wire::log::Op;

/// Signals caused by the instruction that runs, whose handlers cannot be deferred.
const SYNCHRONOUS: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Whether another thread runs a handler in place of the first one, which is away.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    /// Whether this thread has run a handler since its last [`take_delivered`].
    static DELIVERED: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn mark(signal: i32, _: *mut libc::siginfo_t, _: *mut u8) {
    if mode() == Mode::Pass {
        // Protection has ended, so no logged call will deliver it.
        return handlers::run(signal);
    }
    let is_theirs = !state::is_first() && handlers::BLOCKED.load(Relaxed) & bit(signal) != 0;
    let marked = if is_theirs { &ASIDE } else { &PENDING };
    marked.fetch_or(bit(signal), SeqCst);
    handlers::ANY.store(true, SeqCst);
}

fn each(signals: u64) -> impl Iterator<Item = i32> {
    (1..=64).filter(move |it| signals & bit(*it) != 0)
}

/// Runs the handlers of signals that have come and are not blocked. Called before every logged
/// call. Only the process's first thread does, or any thread while that one is away
/// ([`MAIN_AWAY`]); and of what the first one blocks, others.
#[inline]
pub fn deliver() {
    deliver_within(u64::MAX);
}

/// Like [`deliver`], in a call that blocks only the signals `during` while it waits: those in both
/// this and the thread's own mask stay blocked.
#[inline]
pub fn deliver_within(during: u64) {
    if handlers::ANY.load(Relaxed) && mode() != Mode::Replay {
        deliver_all(during);
    }
}

fn deliver_all(during: u64) {
    let (pending, aside) = (PENDING.load(SeqCst), ASIDE.load(SeqCst));
    if state::is_first() {
        let blocked = sys::mask() & during;
        if pending != 0 && !IN_PLACE.load(SeqCst) {
            give_back(pending & blocked);
            run_all(&PENDING, pending & !blocked);
        }
        run_all(&ASIDE, aside & !blocked);
    } else {
        if pending != 0 && MAIN_AWAY.load(Relaxed) && !IN_PLACE.swap(true, SeqCst) {
            run_all(&PENDING, pending);
            IN_PLACE.store(false, SeqCst);
        }
        if aside != 0 {
            run_all(&ASIDE, aside & !(sys::mask() & during));
        }
    }
    let is_any = || PENDING.load(SeqCst) | ASIDE.load(SeqCst) != 0;
    if !is_any() {
        handlers::ANY.store(false, SeqCst);
        // One that came just now must not be forgotten.
        if is_any() {
            handlers::ANY.store(true, SeqCst);
        }
    }
}

/// Gives signals that came before the server blocked them back to the kernel, as if they came only
/// now: it keeps them until they are not blocked, or asked for.
fn give_back(signals: u64) {
    for signal in each(signals) {
        PENDING.fetch_and(!bit(signal), SeqCst);
        sys::signal_self(signal);
    }
}

fn run_all(marked: &AtomicU64, due: u64) {
    for signal in each(due) {
        // A handler's own calls may have run the next one's, or given it back.
        if marked.fetch_and(!bit(signal), SeqCst) & bit(signal) == 0 {
            continue;
        }
        if mode() == Mode::Record {
            log::append(
                Entry {
                    op: Op::Signal,
                    flags: 0,
                    fd: -1,
                    conn: 0,
                    ret: i64::from(signal),
                    hash: 0,
                },
                &[],
            );
        }
        handlers::run(signal);
        DELIVERED.set(true);
    }
}

/// Forgets pending signals, in a forked child: they are its parent's. Its only thread is its first.
pub fn forget() {
    PENDING.store(0, SeqCst);
    ASIDE.store(0, SeqCst);
    IN_PLACE.store(false, SeqCst);
    DELIVERED.set(false);
    handlers::ANY.store(false, SeqCst);
    handlers::note_mask(sys::mask());
}

/// After EINTR: delivers signals, and returns whether the call must be made again (all signals
/// that came have `SA_RESTART`).
pub fn deliver_and_restart() -> bool {
    let pending = PENDING.load(SeqCst) | ASIDE.load(SeqCst);
    let restart = each(pending)
        .all(|s| handlers::wanted(s).is_some_and(|a| a.sa_flags & libc::SA_RESTART != 0));
    deliver();
    // The server must not notice the daemon's own signal.
    restart && pending != 0 || pending == 0 && leash::take_asked()
}

/// After EINTR in a call that the kernel never makes again (signal(7)): delivers signals, and
/// returns whether the server must hear of it, as it must unless only the daemon's own signal came.
/// `during` is as in [`deliver_within`].
pub fn deliver_and_end(during: u64) -> bool {
    let asked = leash::take_asked();
    deliver_within(during);
    take_delivered() || !asked
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: i32,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> i32 {
    if alarm::keep_action(signal, new, old) {
        return 0;
    }
    if mode() == Mode::Pass
        || !(1..handlers::SIGNALS as i32).contains(&signal)
        || SYNCHRONOUS.contains(&signal)
    {
        return real::sigaction(signal, new, old);
    }
    let before = handlers::wanted(signal);
    if !new.is_null() {
        // SAFETY: the caller's action.
        let action = unsafe { *new };
        let mut ours = action;
        // SAFETY: the kernel knows the first word of a signal set only.
        alarm::unblockable(unsafe { &mut *(&raw mut ours.sa_mask).cast() });
        if handlers::has_handler(&action) {
            ours.sa_sigaction = mark as *const () as usize;
            // System calls must return EINTR, so that the handler can run at a record.
            ours.sa_flags =
                (action.sa_flags | libc::SA_SIGINFO) & !(libc::SA_RESTART | libc::SA_RESETHAND);
        }
        if real::sigaction(signal, &ours, core::ptr::null_mut()) != 0 {
            return -1;
        }
        handlers::want(signal, &action);
    }
    if !old.is_null() {
        match before {
            // SAFETY: the caller's buffer.
            Some(action) => unsafe { *old = action },
            None if new.is_null() => return real::sigaction(signal, core::ptr::null(), old),
            // SAFETY: the caller's buffer; all-zero is SIG_DFL.
            None => unsafe { *old = core::mem::zeroed() },
        }
    }
    0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(number: i32, handler: usize) -> usize {
    // SAFETY: all-zero is a valid action.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        if sigaction(number, &raw const new, &raw mut old) != 0 {
            return libc::SIG_ERR;
        }
        old.sa_sigaction
    }
}

/// Whether this thread has run a handler since its last call of this.
pub fn take_delivered() -> bool {
    DELIVERED.take()
}
