//! Socket calls without the pointers. Other modules of this crate set options, send
//! and receive through these few functions, unless a call takes ancillary data or
//! answers with more than a number.

use libc::{c_int, c_long, c_void, socklen_t};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The result of a call that answers -1 and sets `errno` on failure.
pub(crate) fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`checked`] for calls that count bytes.
pub(crate) fn checked_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// As [`checked`] for system calls that answer with a new descriptor.
pub(crate) fn checked_fd(result: c_long) -> io::Result<OwnedFd> {
    let fd = checked(RawFd::try_from(result).unwrap_or(-1))?;
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new close-on-exec socket.
pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket() touches no memory of ours.
    let fd = checked(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// setsockopt() with the bytes of `value`.
pub(crate) fn set<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()>
where
    T: IntoBytes + Immutable + ?Sized,
{
    let bytes = value.as_bytes();
    let len = bytes.len() as socklen_t;
    // SAFETY: pointer and length describe `bytes`, which outlives the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, bytes.as_ptr().cast(), len) })?;
    Ok(())
}

/// getsockopt() of a value of fixed size; a shorter answer leaves zeros.
pub(crate) fn get<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T>
where
    T: FromBytes + IntoBytes,
{
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    let mut len = bytes.len() as socklen_t;
    // SAFETY: pointer and length describe `bytes`, and the kernel writes at most `len`.
    checked(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, bytes.as_mut_ptr().cast(), &raw mut len)
    })?;
    Ok(value)
}

/// send() on a connected socket, never blocking and never raising SIGPIPE.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length describe `bytes`.
    checked_len(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// recv() into `buffer`.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    let start = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: pointer and length describe `buffer`, which is ours alone.
    checked_len(unsafe { libc::recv(fd.as_raw_fd(), start, buffer.len(), flags) })
}

/// A socket address of any family this crate uses.
pub(crate) enum Address {
    Inet(libc::sockaddr_in),
    Inet6(libc::sockaddr_in6),
    Link(libc::sockaddr_ll),
}

impl Address {
    pub(crate) fn inet(address: [u8; 4], port: u16) -> Self {
        Self::Inet(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
            sin_zero: [0; 8],
        })
    }

    pub(crate) fn inet6(address: [u8; 16], port: u16) -> Self {
        Self::Inet6(libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: address },
            sin6_scope_id: 0,
        })
    }

    /// `protocol` is an Ethernet type in host order.
    pub(crate) fn link(interface: u32, protocol: u16, mac: Option<[u8; 6]>) -> Self {
        let mut sll_addr = [0; 8];
        if let Some(mac) = mac {
            sll_addr[..6].copy_from_slice(&mac);
        }
        Self::Link(libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as libc::sa_family_t,
            sll_protocol: protocol.to_be(),
            sll_ifindex: interface as c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr,
        })
    }

    fn raw(&self) -> (*const libc::sockaddr, socklen_t) {
        match self {
            Self::Inet(a) => (std::ptr::from_ref(a).cast(), size_of_val(a) as socklen_t),
            Self::Inet6(a) => (std::ptr::from_ref(a).cast(), size_of_val(a) as socklen_t),
            Self::Link(a) => (std::ptr::from_ref(a).cast(), size_of_val(a) as socklen_t),
        }
    }
}

pub(crate) fn bind(fd: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    let (start, len) = address.raw();
    // SAFETY: pointer and length describe one sockaddr inside `address`.
    checked(unsafe { libc::bind(fd.as_raw_fd(), start, len) })?;
    Ok(())
}

pub(crate) fn connect(fd: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    let (start, len) = address.raw();
    // SAFETY: pointer and length describe one sockaddr inside `address`.
    checked(unsafe { libc::connect(fd.as_raw_fd(), start, len) })?;
    Ok(())
}

/// sendto(), never blocking.
pub(crate) fn send_to(fd: BorrowedFd<'_>, bytes: &[u8], to: &Address) -> io::Result<usize> {
    let (start, len) = to.raw();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: both pointers and lengths describe live values.
    checked_len(unsafe {
        libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, start, len)
    })
}
