//! What the server wants done on signals: its own handlers, which ours stand
//! before. The log runs them at its records; who marks and delivers is in
//! `calls::signals`.

use crate::base::actions::ActionCell;
use crate::base::sys::syscall;
use crate::base::{real, state};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use holdfast_wire::quiet::SIGNALS;

/// Whether signals have come whose handlers have not run.
pub static ANY: AtomicBool = AtomicBool::new(false);

static WANTED: [ActionCell; SIGNALS] = [const { ActionCell::new() }; SIGNALS];

/// What the server wants done on `signal`, if it has ever said so.
pub fn wanted(signal: i32) -> Option<libc::sigaction> {
    WANTED.get(signal as usize)?.get()
}

/// Whether an action is a function of the server's.
pub fn has_handler(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// Remembers the server's `action` for `signal`, which is below [`SIGNALS`].
pub fn want(signal: i32, action: &libc::sigaction) {
    WANTED[signal as usize].set(Some(action));
}

/// libc's `sigaction`, noted.
pub fn install(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    let r = real::sigaction(signal, new, old);
    note(signal);
    r
}

/// Notes what the kernel does on `signal`: a copy of the server must be given the same,
/// and nobody else can ask.
pub fn note(signal: i32) {
    let mut kernel = [0u64; 4];
    let none = core::ptr::null::<u64>();
    // SAFETY: the kernel's own structure: handler, flags, restorer and mask.
    let r = unsafe { syscall!(SYS_rt_sigaction, signal, none, kernel.as_mut_ptr(), 8) };
    if r == 0
        && let Some(action) = state::shim().actions.get(signal as usize)
    {
        let [handler, flags, restorer, mask] = kernel;
        action.handler.store(handler, Relaxed);
        action.flags.store(flags, Relaxed);
        action.restorer.store(restorer, Relaxed);
        action.mask.store(mask, Relaxed);
    }
}

/// As [`note`], of all signals.
pub fn note_all() {
    (1..SIGNALS as i32).for_each(note);
}

/// Gives a forked child the server's own handlers: nobody delivers there.
pub fn restore() {
    for signal in 1..SIGNALS as i32 {
        if let Some(action) = wanted(signal) {
            install(signal, &raw const action, core::ptr::null_mut());
        }
    }
}

/// Runs the server's own handler of `signal`.
pub fn run(signal: i32) {
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
