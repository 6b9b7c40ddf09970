//! The server dies with its daemon as long as a backup could take over: nobody
//! would confirm what it does. Once it speaks alone, no death of the daemon
//! touches it. The kernel kills it at the order of the server's first thread,
//! which only that thread can take back: the daemon asks it by a signal, wherever
//! it sleeps.

use crate::base::state::{header, tid};
use crate::base::sys::syscall;
use core::sync::atomic::{AtomicBool, Ordering::*};
use holdfast_wire::shm::{leash, mode};

/// Whether the daemon's signal has interrupted a call.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Notes that the handler of that signal is in place.
pub fn hold() {
    header().leash.store(leash::HELD, SeqCst);
}

/// If the server speaks alone, stops it from dying with its daemon. Returns
/// whether it does.
pub fn slip() -> bool {
    let h = header();
    if !mode::is_alone(h.mode.0.load(SeqCst)) {
        return false;
    }
    if tid() == 0 && h.leash.load(SeqCst) == leash::HELD {
        // SAFETY: numbers only.
        unsafe { syscall!(SYS_prctl, libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
        h.leash.store(leash::LOOSE, SeqCst);
        ASKED.store(true, SeqCst);
    }
    true
}

/// Whether the daemon's signal interrupted a call of this thread; asking resets
/// this.
pub fn take_asked() -> bool {
    tid() == 0 && ASKED.swap(false, SeqCst)
}
