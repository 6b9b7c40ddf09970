//! An allocator of the shim's own, so that the server's is never touched. Rust needs only a few
//! bytes here, at start-up, so nothing is ever freed.

use crate::base::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const ARENA_BYTES: usize = 1 << 20;

struct Bump {
    start: AtomicUsize,
    used: AtomicUsize,
}

#[cfg_attr(not(test), global_allocator)]
static ALLOCATOR: Bump = Bump { start: AtomicUsize::new(0), used: AtomicUsize::new(0) };

// SAFETY: every call hands out a range of its own out of one mapping; nothing is reused.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.start.load(Relaxed) == 0 {
            let fresh = sys::map_anonymous(ARENA_BYTES) as usize;
            if self.start.compare_exchange(0, fresh, Relaxed, Relaxed).is_err() {
                sys::unmap(fresh as *mut u8, ARENA_BYTES);
            }
        }
        let need = layout.size() + layout.align();
        let at = self.used.fetch_add(need, Relaxed);
        let start = self.start.load(Relaxed);
        if start == 0 || at + need > ARENA_BYTES {
            return core::ptr::null_mut();
        }
        ((start + at).next_multiple_of(layout.align())) as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
