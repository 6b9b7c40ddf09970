//! What a TCP socket has received and its owner has not read: looked at through a
//! duplicate of the descriptor, and left there.

use crate::sockopt;
use libc::c_int;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Offsets of `tcpi_state` and `tcpi_bytes_received` in `struct tcp_info`, in
/// bytes.
const STATE: usize = 0;
const BYTES_RECEIVED: Range<usize> = 128..136;
/// States, numbered as in Linux: the last three have the client's FIN. Whether
/// a closed socket had one is not known.
const CLOSED: u8 = 7;
const HAVE_FIN: [u8; 3] = [8, 9, 11];
const SO_PEEK_OFF: c_int = 42;
const SO_COOKIE: c_int = 57;
/// Most looks at a socket that is being read or fed meanwhile.
const TRIES: usize = 4;
/// Size of a buffer for skipped bytes: the kernel copies what lies in front of
/// the range, too, over and over into this buffer.
const SKIP_BYTES: usize = 64 << 10;
/// Most pieces of one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// The outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The range's first byte is not there any more, or not yet.
    Nothing,
    /// Bytes from the range's start on.
    Bytes,
    /// Bytes from the range's start on, possibly none, and behind them the
    /// client's FIN.
    Last,
}

/// How far the stream has come, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// Stream offset behind the last byte received in order.
    end: u64,
    fin: bool,
}

/// Cookie of the socket in this kernel.
///
/// # Errors
/// As getsockopt(2).
pub fn cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    sockopt::get(fd, libc::SOL_SOCKET, SO_COOKIE)
}

/// Replaces `into` by the unread bytes of the range that a connection holds, in
/// offsets of the stream that it receives. For a restored connection
/// (`TCP_REPAIR`), offsets count from its restoration.
///
/// # Errors
/// As getsockopt(2) and recvmsg(2).
pub fn look(fd: BorrowedFd<'_>, range: Range<u64>, into: &mut Vec<u8>) -> io::Result<Unread> {
    let found = look_often(fd, &range, into)?;
    if found == Unread::Nothing {
        into.clear();
    }
    Ok(found)
}

fn look_often(fd: BorrowedFd<'_>, range: &Range<u64>, into: &mut Vec<u8>) -> io::Result<Unread> {
    // Where its owner peeks from an offset, every peek would move that.
    if sockopt::get::<c_int>(fd, libc::SOL_SOCKET, SO_PEEK_OFF).is_ok_and(|offset| offset >= 0) {
        return Ok(Unread::Nothing);
    }
    for _ in 0..TRIES {
        if let Some(found) = look_once(fd, range, into)? {
            return Ok(found);
        }
    }
    Ok(Unread::Nothing)
}

/// Looks once; `None` if the socket changed meanwhile.
fn look_once(
    fd: BorrowedFd<'_>,
    range: &Range<u64>,
    into: &mut Vec<u8>,
) -> io::Result<Option<Unread>> {
    let Some(standing) = standing(fd)? else { return Ok(Some(Unread::Nothing)) };
    let queued = queued(fd)?;
    let first = standing.end.saturating_sub(queued);
    if range.start < first || range.start > standing.end {
        return Ok(Some(Unread::Nothing));
    }
    let until = range.end.min(standing.end).max(range.start);
    into.clear();
    into.resize((until - range.start) as usize, 0);
    // A socket without bytes would hand over a pending error, which is its owner's.
    if !into.is_empty() && peek(fd, (range.start - first) as usize, into)? < into.len() {
        return Ok(None);
    }
    // Nothing was received between the outer two questions, so the number queued
    // could only fall between the inner two.
    if self::queued(fd)? != queued || self::standing(fd)? != Some(standing) {
        return Ok(None);
    }
    let last = standing.fin && until == standing.end;
    Ok(Some(match (last, into.is_empty()) {
        (true, _) => Unread::Last,
        (false, true) => Unread::Nothing,
        (false, false) => Unread::Bytes,
    }))
}

fn standing(fd: BorrowedFd<'_>) -> io::Result<Option<Standing>> {
    let info: [u8; BYTES_RECEIVED.end] = sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let mut received = [0; 8];
    received.copy_from_slice(&info[BYTES_RECEIVED]);
    let fin = HAVE_FIN.contains(&info[STATE]);
    // The kernel counts the FIN as a byte.
    let end = u64::from_ne_bytes(received).saturating_sub(u64::from(fin));
    Ok((info[STATE] != CLOSED).then_some(Standing { end, fin }))
}

/// Bytes that wait to be read, without the FIN.
fn queued(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut count: c_int = 0;
    // SAFETY: the kernel writes one int, which is what we pass.
    sockopt::checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Copies what waits behind the first `skip` bytes; returns its length.
fn peek(fd: BorrowedFd<'_>, skip: usize, into: &mut [u8]) -> io::Result<usize> {
    let mut sink = vec![0u8; skip.min(SKIP_BYTES)];
    let piece = |start: *mut u8, len| libc::iovec { iov_base: start.cast(), iov_len: len };
    let mut pieces = Vec::with_capacity(skip / SKIP_BYTES + 2);
    let mut left = skip;
    while left > 0 {
        pieces.push(piece(sink.as_mut_ptr(), left.min(SKIP_BYTES)));
        left -= left.min(SKIP_BYTES);
    }
    pieces.push(piece(into.as_mut_ptr(), into.len()));
    if pieces.len() > PIECES_MAX {
        return Ok(0);
    }
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: every piece lies in `sink` or is `into`, which live on; that pieces
    // overlap is nothing to the kernel.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    match sockopt::checked_len(result) {
        Ok(copied) => Ok(copied.saturating_sub(skip)),
        // The owner was faster.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
