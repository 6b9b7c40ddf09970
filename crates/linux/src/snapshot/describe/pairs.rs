//! Pairs of UNIX sockets without names, as socketpair(2) makes them: of which the server's processes
//! have both ends, or one, and nobody has the other one any more.

use super::Refusals;
use super::descriptors::readable;
use crate::netlink::{self, SOCK_DIAG_BY_FAMILY};
use crate::sockopt::{self, checked_len};
use holdfast_wire::snapshot::{FileKind, Socket, UNREAD_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `struct unix_diag_msg`, before its attributes.
const ANSWER: usize = 16;
/// Room for an answer about one socket.
const ANSWER_BYTES: usize = 512;
/// `UNIX_DIAG_PEER`, and the bit that asks for it; `UNIX_DIAG_SHUTDOWN` comes unasked.
const PEER: u16 = 2;
const SHOW_PEER: u32 = 1 << 2;
const SHUTDOWN: u16 = 6;
/// Bytes of an address without a name.
const NAMELESS: usize = size_of::<libc::sa_family_t>();

/// The ends that were found.
#[derive(Default)]
pub(super) struct Pairs {
    asks: Option<OwnedFd>,
    /// Numbers of pairs, by the kernel's numbers of their ends, the smaller first.
    numbers: BTreeMap<(u64, u64), u32>,
    /// Kernel's numbers of the other ends that must be here, too, with an end's descriptor.
    others: BTreeMap<u64, u32>,
    own: BTreeSet<u64>,
}

/// Whether this may be an end of a pair.
pub(super) fn is_end(socket: &Socket) -> bool {
    socket.family == libc::AF_UNIX && socket.is_connected && socket.local.len() <= NAMELESS
}

impl Pairs {
    /// Describes an end with the kernel's number `inode`, and what it holds. `None`: it cannot be
    /// rebuilt, and the reason is given.
    pub fn end(
        &mut self,
        (number, inode): (u32, u64),
        fd: BorrowedFd<'_>,
        socket: &Socket,
        refusals: &mut Refusals,
    ) -> io::Result<Option<(FileKind, Vec<u8>)>> {
        let asks = match &mut self.asks {
            Some(asks) => asks,
            none => none.insert(netlink::open(libc::NETLINK_SOCK_DIAG)?),
        };
        let (peer, shut) = match ask(asks, inode) {
            // Of another network namespace, or closed by now: the next look tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refusals.add(format!("descriptor {number} is a connected UNIX socket"));
                return Ok(None);
            }
            asked => asked?,
        };
        self.own.insert(inode);
        let Some(content) = content(fd, socket.kind)? else {
            refusals.add(format!("descriptor {number} is a UNIX socket that holds messages"));
            return Ok(None);
        };
        if peer != 0 {
            self.others.insert(peer, number);
        }
        let fresh = self.numbers.len() as u32;
        let ends = (inode.min(peer), inode.max(peer));
        let pair = *self.numbers.entry(ends).or_insert(fresh);
        let unread = content.len() as u32;
        let (kind, options) = (socket.kind, socket.options.clone());
        Ok(Some((FileKind::Pair { pair, kind, shut: shut & 3, unread, options }, content)))
    }

    /// Notes a socket that is in the image, whatever it is.
    pub fn is_here(&mut self, inode: u64) {
        self.own.insert(inode);
    }

    /// Refuses ends whose other end another process has.
    pub fn refuse_others(&self, refusals: &mut Refusals) {
        for (_, number) in self.others.iter().filter(|(peer, _)| !self.own.contains(peer)) {
            refusals.add(format!("descriptor {number} is a connected UNIX socket"));
        }
    }
}

/// The kernel's number of the other end, 0 if that was closed; and what was shut down.
fn ask(fd: &OwnedFd, inode: u64) -> io::Result<(u64, u8)> {
    let mut body = vec![libc::AF_UNIX as u8, 0, 0, 0];
    let inode = inode as u32;
    // States, number, what is shown, and no cookie.
    for word in [u32::MAX, inode, SHOW_PEER, u32::MAX, u32::MAX] {
        body.extend(word.to_ne_bytes());
    }
    let mut request = Vec::new();
    netlink::append(&mut request, SOCK_DIAG_BY_FAMILY, libc::NLM_F_REQUEST, inode, &body);
    netlink::send(fd, &request)?;
    let mut buffer = [0; ANSWER_BYTES];
    let datagram = netlink::receive(fd, &mut buffer)?;
    let answer = netlink::answers(datagram).find(|answer| answer.sequence == inode);
    let answer = answer.ok_or(io::ErrorKind::InvalidData)?;
    if let Some(errno) = answer.errno() {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let (mut peer, mut shut) = (0, 0);
    for (kind, value) in netlink::attributes(answer.body.get(ANSWER..).unwrap_or_default()) {
        match (kind, value) {
            (PEER, [a, b, c, d]) => peer = u32::from_ne_bytes([*a, *b, *c, *d]).into(),
            (SHUTDOWN, [bits]) => shut = *bits,
            _ => {}
        }
    }
    Ok((peer, shut))
}

/// What an end has received and not read, which stays there; `None`: more than a stream's bytes.
fn content(fd: BorrowedFd<'_>, kind: i32) -> io::Result<Option<Vec<u8>>> {
    let wanted = readable(fd)?;
    if wanted == 0 {
        return Ok(Some(Vec::new()));
    }
    // Whoever passes rights gets them with the first byte.
    let passes = sockopt::get::<i32>(fd, libc::SOL_SOCKET, libc::SO_PASSCRED)? != 0;
    if kind != libc::SOCK_STREAM || wanted > UNREAD_MAX as usize || passes {
        return Ok(None);
    }
    let mut content = vec![0; wanted];
    let mut part = libc::iovec { iov_base: content.as_mut_ptr().cast(), iov_len: wanted };
    // SAFETY: all-zero is a valid message header, which names no memory.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `wanted` bytes to `content`, and to the header.
    let got = checked_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) })?;
    // Descriptors that were passed are cut off, and end what is read at once.
    let plain = got == wanted && message.msg_flags & libc::MSG_CTRUNC == 0;
    Ok(plain.then_some(content))
}
