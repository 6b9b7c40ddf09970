//! The part of netlink that addresses, routes and socket diagnosis need: requests
//! as bytes, answers as an iterator that trusts no length.

use crate::sockopt;
use libc::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Size of `struct nlmsghdr`, in bytes.
const HEADER: usize = 16;
/// Type of a question about sockets (`linux/sock_diag.h`).
pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Types of messages about neighbours (`linux/rtnetlink.h`).
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;

/// Longest time that a netlink answer may take, in ms: the kernel answers inside
/// sendmsg().
const ANSWER_TIMEOUT_MS: c_int = 1000;

/// Opens a netlink socket for `protocol`.
pub(crate) fn open(protocol: c_int) -> io::Result<OwnedFd> {
    sockopt::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)
}

/// Has the kernel report events of these groups, one bit each.
pub(crate) fn listen(fd: &OwnedFd, groups: u32) -> io::Result<()> {
    // SAFETY: all-zero is a valid address of that plain C structure.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`.
    sockopt::checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// Appends one message; `sequence` comes back with the answer.
pub(crate) fn append(out: &mut Vec<u8>, kind: u16, flags: c_int, sequence: u32, body: &[u8]) {
    let len = (HEADER + body.len()) as u32;
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend((flags as u16).to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend(0u32.to_ne_bytes());
    out.extend(body);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends one attribute to a message body.
pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((4 + value.len()) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an IP address as an attribute.
pub(crate) fn address(out: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => attribute(out, kind, &v4.octets()),
        IpAddr::V6(v6) => attribute(out, kind, &v6.octets()),
    }
}

/// `struct ndmsg`, with which messages about neighbours begin.
pub(crate) fn neighbour(family: c_int, interface: u32, state: u16, flags: u8) -> Vec<u8> {
    // Family, padding, interface, state, flags, type.
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend(state.to_ne_bytes());
    body.extend([flags, 0]);
    body
}

pub(crate) fn send(fd: &OwnedFd, request: &[u8]) -> io::Result<()> {
    sockopt::send(fd.as_fd(), request).map(|_| ())
}

/// Receives one datagram, or fails with `TimedOut`.
pub(crate) fn receive<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    if !crate::process::poll_in(fd.as_fd(), ANSWER_TIMEOUT_MS)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let len = sockopt::receive(fd.as_fd(), buffer, libc::MSG_DONTWAIT)?;
    Ok(&buffer[..len])
}

/// Has the kernel change what this message of rtnetlink(7) says, and waits until it has.
pub(crate) fn change(kind: u16, flags: c_int, body: &[u8]) -> io::Result<()> {
    let fd = open(libc::NETLINK_ROUTE)?;
    let mut request = Vec::new();
    append(&mut request, kind, flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK, 1, body);
    send(&fd, &request)?;
    let mut buffer = [0; 1024];
    match answers(receive(&fd, &mut buffer)?).find_map(|answer| answer.errno()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Discards answers that nobody waits for any more.
pub(crate) fn discard(fd: BorrowedFd<'_>) {
    let mut buffer = [0; 64];
    while sockopt::receive(fd, &mut buffer, libc::MSG_DONTWAIT).is_ok() {}
}

/// One answer.
pub(crate) struct Answer<'a> {
    pub(crate) kind: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

impl Answer<'_> {
    /// The error number of an `NLMSG_ERROR` (0 for an acknowledgement) or of a list
    /// that has failed; `None` for any other message, and for a list that ends.
    pub(crate) fn errno(&self) -> Option<c_int> {
        let number = self.body.first_chunk().map(|bytes| -c_int::from_ne_bytes(*bytes));
        match c_int::from(self.kind) {
            libc::NLMSG_ERROR => number,
            libc::NLMSG_DONE => number.filter(|number| *number > 0),
            _ => None,
        }
    }
}

/// The answers in one datagram, up to the first impossible length.
pub(crate) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let len = word(0) as usize;
        let body = bytes.get(HEADER..len)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Answer { kind, sequence: word(8), body })
    })
}

/// The attributes of a message body, up to the first impossible length.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// The two high bits of a type are flags.
    const KIND: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let header: &[u8; 4] = bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}
