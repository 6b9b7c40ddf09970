//! Event counters.

use crate::sockopt::checked_fd;
use libc::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A counter that wakes a poll: any thread or process that has it can ring it.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter that another process has handed over.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn of(fd: OwnedFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        match link.to_str() {
            Some("anon_inode:[eventfd]") => Ok(Self(fd)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// A new, non-blocking counter at 0.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd() touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        checked_fd(c_long::from(fd)).map(Self)
    }

    /// Wakes the waiting thread. A counter that is already full wakes just as
    /// well.
    pub fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: pointer and length describe `one`.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// How often it was rung since the last call; 0 if it was not.
    #[must_use]
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: pointer and length describe `count`.
        let read = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        if read == 8 { u64::from_ne_bytes(count) } else { 0 }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
