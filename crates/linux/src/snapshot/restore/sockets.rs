//! Sockets like those of an image: no connection comes with them.

use super::super::describe::sockets::OPTIONS;
use crate::sockopt::{checked, set, socket};
use holdfast_wire::snapshot::Socket;
use libc::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A socket as it was before it was connected or bound, with its options.
///
/// # Errors
/// As socket(2).
pub fn placeholder(of: &Socket) -> io::Result<OwnedFd> {
    let fd = socket(of.family, of.kind, of.protocol)?;
    let own = |it: &&holdfast_wire::snapshot::SocketOption| {
        OPTIONS.contains(&(it.level, it.name, it.value.len()))
    };
    for option in of.options.iter().filter(own) {
        // What can be asked cannot always be set: 0 seconds of something, most often.
        let _ = set(fd.as_fd(), option.level, option.name, &option.value[..]);
    }
    Ok(fd)
}

/// A socket that is bound, and listens, as the image's was.
///
/// # Errors
/// As bind(2) and listen(2).
pub fn bound(of: &Socket) -> io::Result<OwnedFd> {
    let fd = placeholder(of)?;
    bind(&fd, of)?;
    if of.is_listening {
        // SAFETY: plain numbers.
        checked(unsafe { libc::listen(fd.as_raw_fd(), libc::SOMAXCONN) })?;
    }
    Ok(fd)
}

/// Binds a socket to where the image's was.
///
/// # Errors
/// As bind(2).
pub fn bind(fd: &OwnedFd, of: &Socket) -> io::Result<c_int> {
    let (address, len) = (of.local.as_ptr().cast(), of.local.len() as libc::socklen_t);
    // SAFETY: pointer and length describe the address.
    checked(unsafe { libc::bind(fd.as_raw_fd(), address, len) })
}
