//! Bringing up a replica's listener at promotion: the socket exists, with the
//! server's options; its address and its queue are missing.

use crate::sockopt::{self, checked};
use libc::{c_int, socklen_t};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Size of the buffer for a `sockaddr`, in bytes.
const ADDR_MAX: usize = 128;

/// Binds `fd` to `address` (a raw `sockaddr`), which need not be local yet, and
/// listens. A kernel that silently chose another port is an error: clients would
/// be refused.
///
/// # Errors
/// `EADDRINUSE` if another socket holds the port, or as bind(2) and listen(2).
pub fn revive(fd: BorrowedFd<'_>, address: &[u8], backlog: i32) -> io::Result<()> {
    // Only the server says which of its descriptors this is.
    if sockopt::get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket of TCP"));
    }
    let one: c_int = 1;
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, one)?;
    set(fd, libc::IPPROTO_IP, libc::IP_FREEBIND, one)?;
    // SAFETY: pointer and length describe `address`.
    checked(unsafe {
        libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), address.len() as socklen_t)
    })?;
    if port_of(fd)? != address.get(2..4).map(|p| [p[0], p[1]]) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "the kernel bound another port"));
    }
    // SAFETY: no memory of ours.
    checked(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(())
}

fn set(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: an option of the size of an int.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len)
    })?;
    Ok(())
}

fn port_of(fd: BorrowedFd<'_>) -> io::Result<Option<[u8; 2]>> {
    let mut address = [0u8; ADDR_MAX];
    let mut len = ADDR_MAX as socklen_t;
    // SAFETY: a buffer and its length.
    checked(unsafe {
        libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len)
    })?;
    Ok((len >= 4).then_some([address[2], address[3]]))
}
