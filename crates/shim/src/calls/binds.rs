//! The addresses that the server's sockets were bound to: listeners are made
//! again at promotion, and the backup's daemon checks beforehand whether they
//! could be.

use crate::base::cells::Locked;
use crate::base::fds;
use crate::base::state::{self, Mode, header, header_ptr, mode};
use core::sync::atomic::Ordering::Release;
use holdfast_wire::shm::Listener;

/// Most sockets whose address is remembered; few of them are listeners.
const BINDS_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Bind {
    fd: i32,
    len: u32,
    backlog: i32,
    addr: [u8; 32],
}

static BINDS: Locked<[Bind; BINDS_MAX]> =
    Locked::new([Bind { fd: -1, len: 0, backlog: -1, addr: [0; 32] }; BINDS_MAX]);

fn bind_of(fd: i32) -> Option<Bind> {
    BINDS.hold().iter().find(|b| b.fd == fd).copied()
}

pub fn remember_bind(fd: i32, addr: *const u8, len: u32) {
    if mode() == Mode::Pass || addr.is_null() || len as usize > 32 {
        return;
    }
    let mut bind = Bind { fd, len, backlog: -1, addr: [0; 32] };
    // SAFETY: the caller's address of `len` <= 32 bytes.
    unsafe { core::ptr::copy_nonoverlapping(addr, bind.addr.as_mut_ptr(), len as usize) };
    let mut binds = BINDS.hold();
    let known = binds.iter().position(|b| b.fd == fd);
    if let Some(at) = known.or_else(|| binds.iter().position(|b| !is_bound(b))) {
        binds[at] = bind;
    }
}

fn is_bound(b: &Bind) -> bool {
    b.fd >= 0 && fds::is_virtual(b.fd)
}

pub fn remember_listen(fd: i32, backlog: i32) {
    if let Some(b) = BINDS.hold().iter_mut().find(|b| b.fd == fd) {
        b.backlog = backlog;
    }
    publish();
}

/// Port that `fd` was bound to, in host order; 0 if none.
pub fn bound_port(fd: i32) -> u16 {
    bind_of(fd).map_or(0, |b| endpoint(&b.addr).1)
}

/// Address family that `fd` was bound with.
pub fn bound_family(fd: i32) -> i32 {
    bind_of(fd).map_or(libc::AF_INET, |b| i32::from(u16::from_ne_bytes([b.addr[0], b.addr[1]])))
}

/// Address (IPv4 mapped into IPv6) and port of a `sockaddr`.
pub fn endpoint(addr: &[u8]) -> ([u8; 16], u16) {
    let mut ip = [0u8; 16];
    if addr.len() < 24 {
        return (ip, 0);
    }
    let port = u16::from_be_bytes([addr[2], addr[3]]);
    match i32::from(u16::from_ne_bytes([addr[0], addr[1]])) {
        libc::AF_INET => {
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&addr[4..8]);
        }
        libc::AF_INET6 => ip.copy_from_slice(&addr[8..24]),
        _ => return (ip, 0),
    }
    (ip, port)
}

/// Tells the daemon of every listener that it has to bring up. In a family those of the
/// first process count, which the others have from it.
pub fn publish() {
    if state::place() != 0 {
        return;
    }
    // SAFETY: the header is mapped. No reference is made to what is written.
    let (listeners, room) = unsafe {
        let field = &raw mut (*header_ptr()).listeners;
        (field.cast::<Listener>(), (*field).len())
    };
    // Held to the end: nobody else writes the table meanwhile.
    let binds = BINDS.hold();
    let bound = binds.iter().filter(|b| is_bound(b) && b.backlog >= 0).take(room);
    let mut n = 0;
    for b in bound {
        let listener = Listener { fd: b.fd, backlog: b.backlog, addr_len: b.len, addr: b.addr };
        // SAFETY: `n` is below `room`. While the mode is not PARKED the daemon takes
        // what it reads here for a hint.
        unsafe { listeners.add(n).write(listener) };
        n += 1;
    }
    header().listeners_len.store(n as u32, Release);
}

#[cfg(test)]
mod tests;
