//! Sockets: what can be said of them. What is made of them, whoever restores decides.

use super::Refusals;
use crate::{sockopt, unread};
use holdfast_wire::snapshot::Socket;
use libc::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of any `sockaddr`.
const ADDRESS_MAX: usize = 128;

pub(super) fn describe(fd: BorrowedFd<'_>) -> io::Result<Socket> {
    let get = |level, name| sockopt::get::<c_int>(fd, level, name);
    let family = get(libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let is_inet = family == libc::AF_INET || family == libc::AF_INET6;
    let set = |level, name| is_inet && get(level, name).is_ok_and(|value| value != 0);
    Ok(Socket {
        family,
        kind: get(libc::SOL_SOCKET, libc::SO_TYPE)?,
        protocol: get(libc::SOL_SOCKET, libc::SO_PROTOCOL)?,
        cookie: unread::cookie(fd)?,
        is_listening: get(libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0,
        is_connected: address(fd, libc::getpeername).is_ok(),
        only_v6: family == libc::AF_INET6 && set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
        reuse_address: set(libc::SOL_SOCKET, libc::SO_REUSEADDR),
        reuse_port: set(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        local: address(fd, libc::getsockname)?,
    })
}

type NameCall = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

fn address(fd: BorrowedFd<'_>, call: NameCall) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; ADDRESS_MAX];
    let mut len = ADDRESS_MAX as libc::socklen_t;
    // SAFETY: getsockname and getpeername write at most `len` bytes to `bytes`.
    sockopt::checked(unsafe { call(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut len) })?;
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// Sockets that nobody could make anything of.
pub(super) fn refusals(socket: &Socket, number: u32, refusals: &mut Refusals) {
    let reason = match socket.family {
        libc::AF_INET | libc::AF_INET6 if socket.kind == libc::SOCK_RAW => "is a raw socket",
        libc::AF_INET | libc::AF_INET6 => return,
        libc::AF_UNIX if socket.is_connected => "is a connected UNIX socket",
        libc::AF_UNIX => return,
        libc::AF_NETLINK => "is a netlink socket",
        libc::AF_PACKET => "is a packet socket",
        _ => "is a socket of an unknown family",
    };
    refusals.add(format!("descriptor {number} {reason}"));
}
