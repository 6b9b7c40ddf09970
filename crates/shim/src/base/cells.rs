//! Containers for values that threads share and that are more than a number. These are the
//! crate's only two; their users need no `unsafe`.
//!
//! Rust's own locks cannot be used here: they sleep through libc's `syscall`, which the shim
//! itself exports.

use crate::base::state::threaded;
use crate::base::sys;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// A value that is set once, at start-up, and only read from then on.
pub struct SetOnce<T> {
    stage: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Stages of a [`SetOnce`].
const EMPTY: u32 = 0;
const BEING_SET: u32 = 1;
const SET: u32 = 2;

// SAFETY: only the one thread that moves the stage from EMPTY writes, and nobody
// reads before the stage is SET, which is stored behind the write.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    pub const fn new() -> Self {
        Self { stage: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value, unless it is set already.
    pub fn set(&self, value: T) {
        if self.stage.compare_exchange(EMPTY, BEING_SET, Relaxed, Relaxed).is_ok() {
            // SAFETY: nobody else writes in this stage, and nobody reads.
            unsafe { (*self.value.get()).write(value) };
            self.stage.store(SET, Release);
        }
    }

    /// The value, once it is set.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: in this stage it is there, and never written again.
        (self.stage.load(Acquire) == SET).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}

/// A value behind a lock. As long as the server has only one thread, taking and returning the
/// lock cost one store each.
pub struct Locked<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: whoever holds the word is alone with the value. Without atomic swaps
// that holds too as long as there is one thread; a second one is made behind
// `threaded`, by the first, which holds nothing meanwhile.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the value. It must not be held by the same thread.
    pub fn hold(&self) -> Guard<'_, T> {
        if threaded() || self.word.load(Relaxed) != 0 {
            sys::lock(&self.word);
        } else {
            self.word.store(1, Relaxed);
        }
        Guard(self)
    }
}

/// A value that is held.
pub struct Guard<'a, T>(&'a Locked<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is held, and by this guard alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if threaded() {
            sys::unlock(&self.0.word);
        } else {
            self.0.word.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
