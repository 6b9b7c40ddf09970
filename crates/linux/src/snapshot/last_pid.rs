//! The number that a pid namespace has given last: that of a child that ends at once. It counts
//! as given, in the namespace as in its image.

use crate::sockopt::checked;
use libc::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of the child's stack.
const STACK: usize = 16 << 10;

/// The number, in the pid namespace of a process.
pub(super) fn of(pid: u32) -> io::Result<u32> {
    let namespace = File::open(format!("/proc/{pid}/ns/pid"))?;
    // Only the children of a thread of its own are in the namespace.
    std::thread::scope(|scope| {
        let asks = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: plain numbers.
            checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWPID) })?;
            child()
        })?;
        asks.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

/// Writes its number where the parent finds it.
extern "C" fn tell(into: *mut c_void) -> c_int {
    // SAFETY: the parent waits, and has given a pointer to an int. This returns to the
    // clone's own code, which ends the child.
    unsafe { into.cast::<c_int>().write(libc::syscall(libc::SYS_getpid) as c_int) };
    0
}

/// The number of a child, which its namespace gives it.
fn child() -> io::Result<u32> {
    let (mut stack, mut number) = (vec![0u128; STACK / size_of::<u128>()], 0 as c_int);
    // No signal tells of its end: nobody else in this process waits for it.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the child runs on memory of its own, at whose end its stack begins, and ends before
    // this goes on.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let child = checked(libc::clone(tell, top, flags, (&raw mut number).cast()))?;
        checked(libc::waitpid(child, std::ptr::null_mut(), libc::__WALL))?;
    }
    u32::try_from(number).map_err(io::Error::other)
}
