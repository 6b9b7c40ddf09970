//! The server's own actions for signals, in whose place the shim's handler is installed. The
//! server's handlers run at records of the log; `calls::signals` marks and delivers signals.

use crate::base::actions::ActionCell;
use crate::base::sys::{self, syscall};
use crate::base::{alarm, real, state, token};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Size of the kernel's signal set, in bytes.
const SET_BYTES: usize = 8;
/// Number of the highest signal, plus 1.
pub const SIGNALS: usize = 65;

/// Whether signals have come whose handlers have not run yet.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// Signals whose handlers the process's first thread runs, by [`bit`].
pub static PENDING: AtomicU64 = AtomicU64::new(0);
/// Those that came to another thread while the first one blocked them: another one runs theirs.
pub static ASIDE: AtomicU64 = AtomicU64::new(0);

/// What the process's first thread blocks, as far as it has said so.
pub static BLOCKED: AtomicU64 = AtomicU64::new(0);

static WANTED: [ActionCell; SIGNALS] = [const { ActionCell::new() }; SIGNALS];

/// Its place in a set of signals.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Forgets a signal that had come before the server was copied: the log has told what the original
/// did with it. One that is blocked the kernel still keeps here, and whoever opens it behind the log
/// would get it once more. The end of a child is kept: the replica's own children end when they
/// like, and servers know that one signal may stand for several ends, or for none.
pub fn has_been_told(signal: i32) {
    if signal != libc::SIGCHLD {
        PENDING.fetch_and(!bit(signal), SeqCst);
        ASIDE.fetch_and(!bit(signal), SeqCst);
        let (set, now, none) = (bit(signal), [0u64; 2], 0usize);
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_rt_sigtimedwait, &raw const set, none, now.as_ptr(), SET_BYTES) };
    }
}

/// The server's action for `signal`, if it has ever set one.
pub fn wanted(signal: i32) -> Option<libc::sigaction> {
    WANTED.get(signal as usize)?.get()
}

/// Whether an action is a handler function, not the default or to ignore the signal.
pub fn has_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// Remembers the server's `action` for `signal`, which is below [`SIGNALS`].
pub fn want(signal: i32, action: &libc::sigaction) {
    WANTED[signal as usize].set(Some(action));
}

/// Installs the server's own handlers in a forked child, where the shim delivers no signals.
pub fn restore() {
    for signal in 1..SIGNALS as i32 {
        if let Some(action) = wanted(signal) {
            real::sigaction(signal, &raw const action, core::ptr::null_mut());
        }
    }
}

/// Notes the calling thread's mask from now on, if it is the first one.
pub fn note_mask(mask: u64) {
    if state::is_first() {
        BLOCKED.store(mask, Relaxed);
    }
}

/// Runs the server's own handler of `signal` as the kernel would: meanwhile the signal itself, and
/// what the action names, is blocked.
pub fn run(signal: i32) {
    let Some(action) = wanted(signal).filter(has_handler) else { return };
    let before = sys::change_mask(libc::SIG_BLOCK, blocked_by(signal, &action));
    token::lend(|| run_own(signal, &action));
    sys::change_mask(libc::SIG_SETMASK, before);
    note_mask(before);
}

fn blocked_by(signal: i32, action: &libc::sigaction) -> u64 {
    // SAFETY: the kernel knows the first word of a signal set only.
    let mut mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
    if action.sa_flags & libc::SA_NODEFER == 0 {
        mask |= bit(signal);
    }
    alarm::unblockable(&mut mask);
    mask
}

fn run_own(signal: i32, action: &libc::sigaction) {
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the server's handler; a zeroed siginfo but for the number.
        unsafe {
            let mut info: libc::siginfo_t = core::mem::zeroed();
            info.si_signo = signal;
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut u8) =
                core::mem::transmute(action.sa_sigaction);
            handler(signal, &raw mut info, core::ptr::null_mut());
        }
    } else {
        // SAFETY: the server's handler.
        unsafe {
            let handler: extern "C" fn(i32) = core::mem::transmute(action.sa_sigaction);
            handler(signal);
        }
    }
}
