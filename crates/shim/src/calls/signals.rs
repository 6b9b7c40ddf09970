//! Signals: the shim's handler only marks them; the server's handler runs at the next logged call,
//! a place that both members can name.

use crate::base::log::{self, Entry};
use crate::base::state::{self, MAIN_AWAY, Mode, mode};
use crate::base::{alarm, handlers, leash, real};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::*};
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

static PENDING: AtomicU64 = AtomicU64::new(0);

std::thread_local! {
    /// Whether this thread has run a handler since its last [`take_delivered`].
    static DELIVERED: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn mark(signal: i32, _: *mut libc::siginfo_t, _: *mut u8) {
    if mode() == Mode::Pass {
        // Protection has ended, so no logged call will deliver it.
        return handlers::run(signal);
    }
    PENDING.fetch_or(1 << (signal - 1), SeqCst);
    handlers::ANY.store(true, SeqCst);
}

/// Runs the handlers of signals that have come. Called before every logged call; only the
/// process's first thread delivers, or any thread while that one is away ([`MAIN_AWAY`]).
#[inline]
pub fn deliver() {
    if handlers::ANY.load(Relaxed) && (state::is_first() || MAIN_AWAY.load(Relaxed)) {
        deliver_all();
    }
}

fn deliver_all() {
    if mode() == Mode::Replay {
        return;
    }
    handlers::ANY.store(false, SeqCst);
    let pending = PENDING.swap(0, SeqCst);
    for signal in (1..=64).filter(|s| pending & (1 << (s - 1)) != 0) {
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

/// Forgets pending signals, in a forked child: they are its parent's.
pub fn forget() {
    PENDING.store(0, SeqCst);
    DELIVERED.set(false);
    handlers::ANY.store(false, SeqCst);
}

/// After EINTR: delivers signals, and returns whether the call must be made again (all signals
/// that came have `SA_RESTART`).
pub fn deliver_and_restart() -> bool {
    let pending = PENDING.load(SeqCst);
    let restart = (1..=64)
        .filter(|s| pending & (1 << (s - 1)) != 0)
        .all(|s| handlers::wanted(s).is_some_and(|a| a.sa_flags & libc::SA_RESTART != 0));
    deliver();
    // The server must not notice the daemon's own signal.
    restart && pending != 0 || pending == 0 && leash::take_asked()
}

/// After EINTR in a call that the kernel never makes again (signal(7)): delivers signals, and
/// returns whether the server must hear of it, as it must unless only the daemon's own signal came.
pub fn deliver_and_end() -> bool {
    let asked = leash::take_asked();
    deliver();
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
