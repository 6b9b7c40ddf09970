//! Sockets of ports, and which of them have something.

use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Sockets that are looked at in a turn.
const READY_PER_TURN: usize = 32;

/// Reports a socket under this token when it has something.
pub fn watch(epoll: &OwnedFd, socket: impl AsFd, token: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(token);
    Ok(epoll::add(epoll, socket, data, epoll::EventFlags::IN)?)
}

/// Sockets that have something now, and whether there may be more of them.
///
/// # Errors
/// As `epoll_wait`.
pub fn ready(epoll: &OwnedFd) -> io::Result<(Vec<epoll::Event>, bool)> {
    let mut ready = Vec::with_capacity(READY_PER_TURN);
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut ready), Some(&at_once)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((Vec::new(), true)),
        Err(error) => return Err(error.into()),
    }
    let is_more = ready.len() == READY_PER_TURN;
    Ok((ready, is_more))
}
