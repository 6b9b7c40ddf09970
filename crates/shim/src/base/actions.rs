//! The server's `sigaction` for one signal, readable from everywhere: by other threads, and in a
//! handler that has interrupted the very call that changes it. A lock would deadlock there, so
//! there are two copies, of which one is always complete.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence,
};

/// Size of a `sigset_t`, in words.
const MASK_WORDS: usize = size_of::<libc::sigset_t>() / size_of::<u64>();
type Mask = [u64; MASK_WORDS];

struct Place {
    is_set: AtomicBool,
    flags: AtomicI32,
    handler: AtomicUsize,
    restorer: AtomicPtr<()>,
    mask: [AtomicU64; MASK_WORDS],
}

/// A `sigaction`, or none.
pub struct ActionCell {
    /// Number of changes; its last bit is the index of the newest copy.
    changes: AtomicU32,
    places: [Place; 2],
}

impl ActionCell {
    pub const fn new() -> Self {
        Self {
            changes: AtomicU32::new(0),
            places: [const {
                Place {
                    is_set: AtomicBool::new(false),
                    flags: AtomicI32::new(0),
                    handler: AtomicUsize::new(0),
                    restorer: AtomicPtr::new(core::ptr::null_mut()),
                    mask: [const { AtomicU64::new(0) }; MASK_WORDS],
                }
            }; 2],
        }
    }

    /// The action of the last complete change.
    pub fn get(&self) -> Option<libc::sigaction> {
        loop {
            let seen = self.changes.load(Acquire);
            let action = self.places[seen as usize % 2].load();
            // If what was read comes from a later change, that change's number is seen below.
            fence(Acquire);
            // A copy is written again only by the change after the next one.
            if self.changes.load(Relaxed) == seen {
                return action;
            }
        }
    }

    /// Changes the action. Two threads must not change the same signal's action at once: the
    /// kernel would keep one of the two, and this may mix them.
    pub fn set(&self, action: Option<&libc::sigaction>) {
        let next = self.changes.load(Relaxed).wrapping_add(1);
        // The writes below must not become visible before the change before.
        fence(Release);
        self.places[next as usize % 2].store(action);
        self.changes.store(next, Release);
    }
}

impl Place {
    fn load(&self) -> Option<libc::sigaction> {
        if !self.is_set.load(Relaxed) {
            return None;
        }
        let mask: Mask = core::array::from_fn(|i| self.mask[i].load(Relaxed));
        let restorer = self.restorer.load(Relaxed);
        Some(libc::sigaction {
            sa_sigaction: self.handler.load(Relaxed),
            // SAFETY: a set is an array of words.
            sa_mask: unsafe { core::mem::transmute::<Mask, libc::sigset_t>(mask) },
            sa_flags: self.flags.load(Relaxed),
            // SAFETY: a function's address, as it was put there, or null for none.
            sa_restorer: unsafe {
                core::mem::transmute::<*mut (), Option<extern "C" fn()>>(restorer)
            },
        })
    }

    fn store(&self, action: Option<&libc::sigaction>) {
        self.is_set.store(action.is_some(), Relaxed);
        let Some(action) = action else { return };
        // SAFETY: a set is an array of words.
        let mask = unsafe { core::mem::transmute::<libc::sigset_t, Mask>(action.sa_mask) };
        for (to, from) in self.mask.iter().zip(mask) {
            to.store(from, Relaxed);
        }
        self.flags.store(action.sa_flags, Relaxed);
        let restorer = action.sa_restorer.map_or(core::ptr::null_mut(), |f| f as *mut ());
        self.restorer.store(restorer, Relaxed);
        self.handler.store(action.sa_sigaction, Relaxed);
    }
}

#[cfg(test)]
mod tests;
