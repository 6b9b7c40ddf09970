//! The kernel's clock that neither jumps nor counts while the machine sleeps.

use std::time::Duration;

/// Time since the machine was started, to a tick of the kernel's, as BPF programs and the times of
/// TCP connections have it. It means the same to every process.
#[must_use]
pub fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    assert_eq!(read, 0, "every kernel has this clock");
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
