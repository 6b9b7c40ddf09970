//! The server's own actions for signals, in whose place the shim's handler is installed. The
//! server's handlers run at records of the log; `calls::signals` marks and delivers signals.

use crate::base::actions::ActionCell;
use crate::base::{real, token};
use core::sync::atomic::AtomicBool;

/// Number of the highest signal, plus 1.
pub const SIGNALS: usize = 65;

/// Whether signals have come whose handlers have not run yet.
pub static ANY: AtomicBool = AtomicBool::new(false);

static WANTED: [ActionCell; SIGNALS] = [const { ActionCell::new() }; SIGNALS];

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

/// Runs the server's own handler of `signal`.
pub fn run(signal: i32) {
    token::lend(|| run_own(signal));
}

fn run_own(signal: i32) {
    let Some(action) = wanted(signal).filter(has_handler) else { return };
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
