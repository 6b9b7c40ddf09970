//! What a TCP socket was given to send and its peer has not acknowledged: looked at through a
//! duplicate of the descriptor, and left there.

use crate::repair::{TCP_REPAIR_OFF_NO_WP, TCP_REPAIR_ON, TCP_SEND_QUEUE};
use crate::sockopt;
use holdfast_wire::seq::SeqNo;
use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Values of `tcpi_state` of a connection that has sent no FIN, so that only bytes are
/// queued: ESTABLISHED and CLOSE_WAIT.
const SAYS_MORE: [u8; 2] = [1, 8];
/// Largest segment of the kernel, in bytes: one that has been acknowledged in part is
/// queued whole.
const SEGMENT_MAX: usize = 64 << 10;

/// The unacknowledged bytes, and the number of the first one, which may be older than what
/// the peer lacks. `None` if the socket has sent its FIN, is no connection, or has more
/// than `most` bytes.
///
/// The owner must be stopped: while the kernel is asked, it would answer the owner's
/// calls with an error.
///
/// # Errors
/// As setsockopt(2) and recv(2); `CAP_NET_ADMIN` is needed.
pub fn look(fd: BorrowedFd<'_>, most: usize) -> io::Result<Option<(SeqNo, Vec<u8>)>> {
    let [state] = sockopt::get::<[u8; 1]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let mut queued: c_int = 0;
    // SAFETY: the kernel writes one int, which is what we pass.
    sockopt::checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) })?;
    let queued = usize::try_from(queued).unwrap_or(usize::MAX);
    if !SAYS_MORE.contains(&state) || queued > most {
        return Ok(None);
    }
    let reuses: c_int = sockopt::get(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    repair(fd, TCP_REPAIR_ON)?;
    let found = queue(fd, queued);
    repair(fd, TCP_REPAIR_OFF_NO_WP)?;
    // Leaving repair mode forbids the reuse of the address.
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &reuses)?;
    found.map(Some)
}

fn repair(fd: BorrowedFd<'_>, how: c_int) -> io::Result<()> {
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &how)
}

fn queue(fd: BorrowedFd<'_>, queued: usize) -> io::Result<(SeqNo, Vec<u8>)> {
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &TCP_SEND_QUEUE)?;
    let mut bytes = vec![0; queued + SEGMENT_MAX];
    let len = sockopt::receive(fd, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
    bytes.truncate(len);
    let end: u32 = sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)?;
    Ok((SeqNo(end.wrapping_sub(len as u32)), bytes))
}
