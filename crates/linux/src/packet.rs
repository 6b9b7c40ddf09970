//! Packet sockets. The kernel lets who closes one wait until no processor looks at it any more
//! (`packet_release`): milliseconds on an idle machine, seconds on one that is busy with network
//! namespaces. A daemon's loop has no time for that.

use crate::aside::drop_aside;
use crate::sockopt;
use libc::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A packet socket; it is closed by another thread.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    /// `None` while it is dropped.
    fd: Option<OwnedFd>,
}

impl PacketSocket {
    /// Opens one of protocol 0, which receives nothing until it is bound.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open(kind: c_int) -> io::Result<Self> {
        Ok(Self { fd: Some(sockopt::socket(libc::AF_PACKET, kind, 0)?) })
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is open until it is dropped").as_fd()
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        drop_aside(self.fd.take());
    }
}
