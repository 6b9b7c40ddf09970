//! Descriptors that the shim opens for a moment, to look at something. The kernel gives them the
//! lowest free number, which may be just the one that the replica's log names for what another
//! thread opens. So whoever moves a descriptor to its number waits until none of these is open;
//! and so does a fork, whose child would keep it.

use crate::base::state;
use crate::base::sys;
use core::sync::atomic::AtomicU32;

static OPEN: AtomicU32 = AtomicU32::new(0);

/// Runs `f`, which opens such a descriptor and closes it again, or must not meet one.
pub fn alone<T>(f: impl FnOnce() -> T) -> T {
    if state::is_forking() {
        // This thread has kept the others from it already.
        return f();
    }
    keep();
    let result = f();
    release();
    result
}

/// Lets no other thread open one until [`release`].
pub fn keep() {
    sys::lock(&OPEN);
}

pub fn release() {
    sys::unlock(&OPEN);
}
