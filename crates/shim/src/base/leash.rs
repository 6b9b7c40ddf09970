//! As long as a backup could take over, the server dies with its daemon, without which nothing
//! that it does could be confirmed (`PR_SET_PDEATHSIG`). Once it runs alone, the daemon's death
//! does not harm it. Only the server's first thread, for which this setting was made, can undo
//! it, so the daemon interrupts that thread by a signal, wherever it sleeps.

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

/// If the server runs alone, stops it from dying with its daemon. Returns whether it runs alone.
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
