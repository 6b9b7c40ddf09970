//! Sockets, as far as they can be described. The restoring side decides what becomes
//! of them.

use super::Refusals;
use super::fdinfo::{flags_of, info_of};
use crate::snapshot::quiet::Quiescence;
use crate::{sockopt, unread};
use holdfast_wire::snapshot::{Description, FileKind, OpenFile, Socket, SocketOption};
use libc::c_int;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const IPV6_MINHOPCOUNT: c_int = 73;
const IPV6_TRANSPARENT: c_int = 75;
const IPV6_FREEBIND: c_int = 78;

/// An option of a socket: level, name, bytes.
pub(in super::super) type Known = (c_int, c_int, usize);

/// The interface that a socket is bound to, if any.
pub(in super::super) const OF_DEVICE: Known = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, 16);

/// Options that let a socket have an address of somebody else's, or that say which packets reach
/// it. A connection does without: it has its address, a promotion sets what it needs itself, and
/// what clients had sent is played to it from this host, by another interface and with a usual TTL.
pub(in super::super) const OF_ADDRESSES: [Known; 7] = [
    OF_DEVICE,
    (libc::IPPROTO_IP, libc::IP_MINTTL, 4),
    (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, 4),
    (libc::IPPROTO_IP, libc::IP_FREEBIND, 4),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, 4),
    (libc::IPPROTO_IPV6, IPV6_FREEBIND, 4),
    (libc::IPPROTO_IPV6, IPV6_TRANSPARENT, 4),
];

/// Further options that are recorded and set again. The kernel derives the priority from the type
/// of service, which therefore comes first.
pub(in super::super) const OPTIONS: [Known; 26] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 4),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 4),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 4),
    (libc::SOL_SOCKET, libc::SO_LINGER, 8),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 4),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4),
    (libc::SOL_SOCKET, libc::SO_PASSCRED, 4),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, 16),
    (libc::SOL_SOCKET, libc::SO_MARK, 4),
    (libc::IPPROTO_IP, libc::IP_TOS, 4),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 4),
    (libc::IPPROTO_IP, libc::IP_TTL, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 4),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 4),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 4),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 4),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, 4),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 4),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, 16),
];
/// Room for any option's value.
const OPTION_BYTES: usize = 16;
/// Largest `sockaddr`, in bytes.
const ADDRESS_MAX: usize = 128;

pub(super) fn describe(fd: BorrowedFd<'_>) -> io::Result<Socket> {
    let get = |level, name| sockopt::get::<c_int>(fd, level, name);
    let family = get(libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    Ok(Socket {
        family,
        kind: get(libc::SOL_SOCKET, libc::SO_TYPE)?,
        protocol: get(libc::SOL_SOCKET, libc::SO_PROTOCOL)?,
        cookie: unread::cookie(fd)?,
        is_listening: get(libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0,
        is_connected: address(fd, libc::getpeername).is_ok(),
        options: options(fd),
        local: address(fd, libc::getsockname)?,
    })
}

/// The options that the socket has, with their values.
pub(super) fn options(fd: BorrowedFd<'_>) -> Vec<SocketOption> {
    let option = |known| {
        let (level, name, _) = known;
        Some(SocketOption { level, name, value: value(fd, known)? })
    };
    OPTIONS.into_iter().chain(OF_ADDRESSES).filter_map(option).collect()
}

/// What an option is set to; `None`: this kind of socket does not have it.
pub(in super::super) fn value(fd: BorrowedFd<'_>, (level, name, bytes): Known) -> Option<Vec<u8>> {
    let value: [u8; OPTION_BYTES] = sockopt::get(fd, level, name).ok()?;
    Some(value[..bytes].to_vec())
}

/// A connection about which nothing is known; it may be closed at once.
pub(super) fn unknown() -> Socket {
    Socket {
        family: libc::AF_INET,
        kind: libc::SOCK_STREAM,
        protocol: libc::IPPROTO_TCP,
        cookie: 0,
        is_listening: false,
        is_connected: true,
        options: Vec::new(),
        local: Vec::new(),
    }
}

/// Completes the connections of a process that runs again: what was not asked while
/// it stood, because there may be thousands. What it has done to one since then is
/// in its log, too.
pub(in super::super) fn complete(
    pids: &[u32],
    later: &[(u32, u32)],
    description: &mut Description,
    quiet: &mut dyn Quiescence,
) {
    let (files, members) = (&mut description.files, &mut description.members);
    let cookie_of = |(number, file): (u32, &OpenFile)| match &file.kind {
        FileKind::Socket(socket) if socket.cookie != 0 => Some((socket.cookie, number)),
        _ => None,
    };
    // A connection that was duplicated is known by its other number.
    let known: BTreeMap<u64, u32> = (0..).zip(files.iter()).filter_map(cookie_of).collect();
    for (index, number) in later {
        let (pid, member) = (pids[*index as usize], &mut members[*index as usize]);
        let (own, descriptors) = (member.process.pid, &mut member.descriptors);
        let mut found = None;
        quiet.lend(own, *number, &mut |fd| found = describe(fd).ok());
        let at = descriptors.binary_search_by_key(number, |it| it.number);
        let (Some(socket), Ok(at), Ok(info)) = (found, at, info_of(pid, *number)) else {
            continue;
        };
        let (flags, on_exec) = (flags_of(&info), libc::O_CLOEXEC as u32);
        descriptors[at].close_on_exec = flags & on_exec != 0;
        match known.get(&socket.cookie) {
            Some(file) => descriptors[at].file = *file,
            None => {
                let kind = FileKind::Socket(socket);
                files[descriptors[at].file as usize] =
                    OpenFile { flags: flags & !on_exec, kind, signals: 0 };
            }
        }
    }
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

/// Refuses sockets that nobody could rebuild.
pub(super) fn refusals(socket: &Socket, number: u32, refusals: &mut Refusals) {
    let reason = match socket.family {
        libc::AF_INET | libc::AF_INET6 if socket.kind == libc::SOCK_RAW => "is a raw socket",
        // A copy hears nothing of its own through one, as a replica does not.
        libc::AF_INET | libc::AF_INET6 | libc::AF_NETLINK => return,
        libc::AF_UNIX if socket.is_connected => "is a connected UNIX socket",
        libc::AF_UNIX => return,
        libc::AF_PACKET => "is a packet socket",
        _ => "is a socket of an unknown family",
    };
    refusals.add(format!("descriptor {number} {reason}"));
}
