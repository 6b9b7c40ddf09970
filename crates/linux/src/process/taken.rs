//! Descriptors of a server that its daemon takes duplicates of. Their numbers are the server's
//! word, so behind one may be any file that the server could open: even one of a file system that
//! another process of its user answers for (FUSE), whose last close waits for that answer.

use super::pidfd_getfd;
use crate::aside::drop_aside;
use crate::sockopt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Most descriptors that are closed aside at a time, each by a thread of its own.
const CLOSING_MAX: usize = 4;

/// Descriptors that are being closed aside.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Like [`pidfd_getfd`], of a socket, a pipe, memory, or an object without a name (an event
/// counter): of those a close asks nobody. Anything else is closed again by another thread.
///
/// # Errors
/// As [`pidfd_getfd`]; `InvalidInput` for other files, `WouldBlock` while several of those are not
/// closed yet: then nothing is taken any more.
pub fn take_descriptor(process: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    if CLOSING.load(Relaxed) >= CLOSING_MAX {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let taken = pidfd_getfd(process, fd)?;
    if closes_at_once(&taken)? {
        return Ok(taken);
    }
    // The file first. Without a thread that happens here: the number of threads is limited, and so
    // this is rare.
    drop_aside((taken, Counted::new()));
    Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a socket nor memory"))
}

/// Whether closing a file asks no file system. No question asks one, either. The first is the one
/// for clients' connections, of which a takeover takes thousands: a link of `/proc` costs it a
/// fifth of all that it does for one.
fn closes_at_once(file: &OwnedFd) -> io::Result<bool> {
    if sockopt::get::<libc::c_int>(file.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE).is_ok() {
        return Ok(true);
    }
    // SAFETY: plain numbers. Only files in memory have seals.
    let is_memory = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } >= 0;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // The kernel names what has no path by its kind: `socket:[7]`, `anon_inode:[eventfd]`.
    Ok(is_memory || link.is_relative())
}

/// One of [`CLOSING`], until it is dropped.
struct Counted;

impl Counted {
    fn new() -> Self {
        CLOSING.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CLOSING.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EventFd, pidfd_open};
    use super::*;

    #[test]
    fn only_what_closes_at_once_is_taken_from_a_server() {
        let own = pidfd_open(std::process::id()).expect("this process");
        let take = |fd: RawFd| take_descriptor(own.as_fd(), fd).map_err(|error| error.kind());
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let (pipe, _end) = std::io::pipe().expect("a pipe");
        let counter = EventFd::new().expect("a counter");
        // SAFETY: the kernel reads a C string and makes a descriptor, which is ours.
        let memory = unsafe { libc::memfd_create(c"some".as_ptr(), libc::MFD_CLOEXEC) };
        let few = [socket.as_raw_fd(), pipe.as_raw_fd(), counter.as_fd().as_raw_fd(), memory];
        for fd in few {
            assert!(take(fd).is_ok(), "{fd}");
        }
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        let folder = std::fs::File::open("/").expect("a folder");
        for _ in 0..100 {
            for named in [&file, &folder] {
                let refused = take(named.as_raw_fd()).err();
                let busy = refused == Some(io::ErrorKind::WouldBlock);
                assert!(refused == Some(io::ErrorKind::InvalidInput) || busy, "{refused:?}");
            }
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while take(socket.as_raw_fd()).is_err() {
            assert!(std::time::Instant::now() < until, "what is refused is closed");
            std::thread::yield_now();
        }
        assert_eq!(take(-1).err(), Some(io::Error::from_raw_os_error(libc::EBADF).kind()));
    }
}
