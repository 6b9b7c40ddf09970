//! Descriptors that processes of a family pass to each other over socketpairs, which are real on
//! both members (SCM_RIGHTS). The record has the numbers that they got on the primary; the replica
//! receives its own descriptors and moves them to those numbers.

use crate::base::fds::{self, Kind};
use crate::base::sys::{sys, syscall};
use crate::base::{binds, conns, report};

/// Most descriptors of one message.
const PASSED_MAX: usize = 16;
/// Sizes of a message's header in control data, and of a descriptor, in bytes.
const HEAD_BYTES: usize = size_of::<libc::cmsghdr>();
const NUMBER_BYTES: usize = size_of::<i32>();

/// The numbers of the descriptors in a message's control data.
pub struct Passed {
    numbers: [i32; PASSED_MAX],
    len: usize,
}

impl Passed {
    pub fn numbers(&self) -> &[i32] {
        &self.numbers[..self.len]
    }

    /// Reads control data, which begins with one message of descriptors or has none.
    pub fn of(control: &[u8]) -> Self {
        let mut this = Self { numbers: [-1; PASSED_MAX], len: 0 };
        let number = |at: usize| {
            let bytes = control.get(at..)?.first_chunk::<NUMBER_BYTES>()?;
            Some(i32::from_ne_bytes(*bytes))
        };
        let size = control.first_chunk::<8>().map_or(0, |size| usize::from_ne_bytes(*size));
        if number(8) != Some(libc::SOL_SOCKET) || number(12) != Some(libc::SCM_RIGHTS) {
            return this;
        }
        let count = size.min(control.len()).saturating_sub(HEAD_BYTES) / NUMBER_BYTES;
        while this.len < count.min(PASSED_MAX) {
            let Some(fd) = number(HEAD_BYTES + this.len * NUMBER_BYTES) else { break };
            this.numbers[this.len] = fd;
            this.len += 1;
        }
        this
    }
}

/// Notes descriptors that the calling process has received from another one.
pub fn note(passed: &Passed) {
    for fd in passed.numbers() {
        fds::opened(*fd, kind_of(*fd));
    }
}

/// The kind of a descriptor that came from another process. If it is a client's connection, that
/// process knows its accept number, and this one does not.
fn kind_of(fd: i32) -> Kind {
    if fds::is_unix(fd) {
        return Kind::Local;
    }
    if fds::socket_option(fd, libc::SO_TYPE) < 0 {
        return Kind::Own;
    }
    let is_listener = fds::socket_option(fd, libc::SO_ACCEPTCONN) > 0;
    if is_listener || conns::is_known(binds::cookie(fd)) {
        report::end_protection(
            "processes of the server pass each other clients' connections, or listeners: nobody \
             could take those over",
        );
    }
    Kind::Outside
}

/// On the replica: receives the message that another process has sent here, of as many
/// bytes as on the primary; its descriptors get the primary's numbers.
pub fn receive(fd: i32, bytes: usize, wanted: &Passed, flags: i32) {
    let (mut sink, mut control) = ([0u8; 4096], [0u64; 32]);
    let mut part = libc::iovec { iov_base: sink.as_mut_ptr().cast(), iov_len: bytes.min(4096) };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // On the primary it was received at this place in the log, so the replica's sender has sent it
    // or is about to.
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_recvmsg, fd, &raw mut message, flags & libc::MSG_CMSG_CLOEXEC) };
    let len = message.msg_controllen.min(size_of_val(&control));
    // SAFETY: this many bytes of it were filled.
    let filled = unsafe { core::slice::from_raw_parts(control.as_ptr().cast::<u8>(), len) };
    let here = Passed::of(filled);
    if r != bytes as isize || here.numbers().len() != wanted.numbers().len() {
        report::diverged("descriptors that another process has passed did not come");
    }
    for (fd, want) in here.numbers().iter().zip(wanted.numbers()) {
        let is_closed = sys!(SYS_fcntl, *fd, libc::F_GETFD) & libc::FD_CLOEXEC as isize != 0;
        fds::renumber(*fd as isize, *want as isize, is_closed);
    }
    note(wanted);
}

#[cfg(test)]
mod tests;
