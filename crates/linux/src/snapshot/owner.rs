//! Who gets a file's signals: `O_ASYNC`, and the owner that fcntl(2) knows.

use crate::sockopt::checked;
use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
/// Which signal it is, if not `SIGIO`.
const F_GETSIG: c_int = 11;
/// The owner is a process.
const F_OWNER_PID: c_int = 1;

/// `struct f_owner_ex`: what the owner is, and its number.
type Owner = [c_int; 2];

/// The process that gets a `SIGIO`, 0 if nobody gets anything. `None`: somebody gets something
/// else.
pub(super) fn of(file: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let (raw, mut owner) = (file.as_raw_fd(), Owner::default());
    // SAFETY: the kernel writes two ints.
    let signal = unsafe {
        checked(libc::fcntl(raw, F_GETOWN_EX, owner.as_mut_ptr()))?;
        checked(libc::fcntl(raw, F_GETSIG))?
    };
    Ok(match owner {
        [_, 0] => Some(0),
        [F_OWNER_PID, pid] if signal == 0 => u32::try_from(pid).ok(),
        _ => None,
    })
}

/// Has a file with these flags, which it has already but for `O_ASYNC`, signal a process.
pub(super) fn set(file: BorrowedFd<'_>, flags: u32, pid: u32) -> io::Result<()> {
    let (raw, owner): (_, Owner) = (file.as_raw_fd(), [F_OWNER_PID, pid.cast_signed()]);
    // SAFETY: the kernel reads two ints. What is opened with the flag has no owner: it is set last.
    unsafe {
        checked(libc::fcntl(raw, F_SETOWN_EX, owner.as_ptr()))?;
        checked(libc::fcntl(raw, libc::F_SETFL, flags.cast_signed() | libc::O_ASYNC))?;
    }
    Ok(())
}
