//! Copies bytes that are retained for a failure, and so hardly ever read, past the caches
//! (non-temporal stores), which the server and its peers need for their work.

use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

/// Length in bytes below which an ordinary copy is cheaper.
const PAST_CACHE_BYTES: usize = 16 << 10;
const LINE: usize = 64;

/// Copies `n` bytes that nobody is expected to read soon.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`].
pub unsafe fn for_keeping(from: *const u8, to: *mut u8, n: usize) {
    let head = if n < PAST_CACHE_BYTES { n } else { to.align_offset(LINE) };
    let lines = (n - head) / LINE * LINE;
    let rest = head + lines;
    // SAFETY: the three parts are the caller's range; `to + head` is aligned. SSE2
    // is part of x86_64.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..rest).step_by(LINE) {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            for quarter in 0..4 {
                _mm_stream_si128(to.add(quarter), _mm_loadu_si128(from.add(quarter)));
            }
        }
        if lines != 0 {
            // These stores are not ordered with the one that publishes the bytes.
            _mm_sfence();
        }
        core::ptr::copy_nonoverlapping(from.add(rest), to.add(rest), n - rest);
    }
}
