//! The addresses that the server's sockets were bound to: the replica's listeners are bound and
//! made to listen at promotion, and the backup's daemon checks beforehand whether that is
//! possible.

use crate::base::cells::Locked;
use crate::base::fds::Kind;
use crate::base::state::{self, Mode, header, header_ptr, mode};
use crate::base::sys::{say, syscall};
use crate::base::{fds, log, processes, report};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use holdfast_wire::shm::Listener;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Process id that stands for no process.
const NOBODY: i32 = 0;

/// Most TCP sockets that are bound and not connected, whose addresses are remembered.
const BINDS_MAX: usize = 256;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
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
    let may_listen = fds::kind(fd) == Kind::Socket;
    if mode() == Mode::Pass || addr.is_null() || len as usize > 32 || !may_listen {
        return;
    }
    let mut bind = Bind { fd, len, backlog: -1, addr: [0; 32] };
    // SAFETY: the caller's address of `len` <= 32 bytes.
    unsafe { core::ptr::copy_nonoverlapping(addr, bind.addr.as_mut_ptr(), len as usize) };
    let mut binds = BINDS.hold();
    let known = binds.iter().position(|b| b.fd == fd);
    if let Some(at) = known.or_else(|| binds.iter().position(|b| !is_bound(b))) {
        binds[at] = bind;
        return;
    }
    drop(binds);
    report::end_protection("the server has bound more than 256 sockets that it may listen on");
}

/// Whether the entry is in use. Sockets to somewhere else need none.
fn is_bound(b: &Bind) -> bool {
    b.fd >= 0 && (fds::kind(b.fd) == Kind::Socket || is_listener(b.fd))
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

/// Address family that `fd` was bound with. A duplicate's is its socket's.
pub fn bound_family(fd: i32) -> i32 {
    let of_bind = |b: Bind| i32::from(u16::from_ne_bytes([b.addr[0], b.addr[1]]));
    bind_of(fd).map_or_else(|| fds::socket_option(fd, libc::SO_DOMAIN), of_bind)
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

/// Calls `f` for every listener of this process, those of protected ports first: there may be
/// more than the header has room for. `f` says whether it had room.
fn for_each_listener(mut f: impl FnMut(&Bind) -> bool) {
    let (fits, others_fit) = {
        // Held to the end: nobody else changes them meanwhile.
        let binds = BINDS.hold();
        let mut all = |kind: Kind| {
            let listeners = binds.iter().filter(|b| b.backlog >= 0 && fds::kind(b.fd) == kind);
            listeners.filter(|b| !f(b)).count() == 0
        };
        (all(Kind::Listener), all(Kind::PlainListener))
    };
    if !fits {
        report::end_protection("the server listens at more addresses of its service than 16");
    } else if !others_fit {
        say(&["it listens at more than 16 addresses: after a takeover not at the last ones"]);
    }
}

/// Whether an address is one that the service has.
fn is_protected(addr: &[u8]) -> bool {
    header().ports.iter().take_while(|p| **p != 0).any(|p| *p == endpoint(addr).1)
}

/// Whether `fd` is a listener still: its number may be another socket's by now.
fn is_listener(fd: i32) -> bool {
    matches!(fds::kind(fd), Kind::Listener | Kind::PlainListener)
}

/// Lists for the daemon every listener that it has to bind at promotion.
pub fn publish() {
    if state::is_family() {
        return publish_of_family();
    }
    let mut n = 0;
    for_each_listener(|b| {
        let fits = put(n, listener(b));
        n += usize::from(fits);
        fits
    });
    header().listeners_len.store(n as u32, Release);
}

/// The same in a family: each process lists its listeners that no other process has listed. At
/// the log's end all are listed, since from there on no process opens or closes any. A listener
/// that no process is known to hold any more stays listed until then, as a hint.
fn publish_of_family() {
    let _held = log::hold();
    let own = state::process().pid.load(Relaxed);
    let mut n = header().listeners_len.load(Acquire) as usize;
    for at in 0..n {
        let has_it = |it: &Listener| it.pid != own && processes::place_of(it.pid).is_some();
        if let Some(lost) = get(at).filter(|it| !has_it(it)) {
            put(at, Listener { pid: NOBODY, ..lost });
        }
    }
    for_each_listener(|b| {
        let socket = cookie(b.fd);
        let find =
            |is: &dyn Fn(&Listener) -> bool| (0..n).find(|at| get(*at).is_some_and(|it| is(&it)));
        let known = find(&|it| it.socket == socket);
        if known.and_then(get).is_some_and(|it| it.pid != NOBODY) {
            return true;
        }
        let own = Listener { pid: own, socket, ..listener(b) };
        if let Some(at) = known {
            put(at, own);
        } else if put(n, own) {
            n += 1;
        } else if let Some(at) = find(&|it| it.pid == NOBODY)
            .or_else(|| find(&|it| is_protected(&b.addr) && !is_protected(&it.addr)))
        {
            put(at, own);
        } else {
            return false;
        }
        true
    });
    header().listeners_len.store(n as u32, Release);
}

/// In a family, when all processes are at the log's end: removes listeners that no process holds.
pub fn conclude() {
    let _held = log::hold();
    let mut n = 0;
    for at in 0..header().listeners_len.load(Acquire) as usize {
        if let Some(kept) = get(at).filter(|it| it.pid != NOBODY) {
            n += usize::from(put(n, kept));
        }
    }
    header().listeners_len.store(n as u32, Release);
}

fn listener(b: &Bind) -> Listener {
    Listener { fd: b.fd, backlog: b.backlog, addr_len: b.len, addr: b.addr, pid: NOBODY, socket: 0 }
}

/// The table of listeners in the header, and its number of entries.
fn places() -> (*mut Listener, usize) {
    // SAFETY: the header is mapped. No reference is made to what is written.
    unsafe {
        let field = &raw mut (*header_ptr()).listeners;
        (field.cast::<Listener>(), (*field).len())
    }
}

/// Writes a listener into entry `at`; false if there is no such entry. Unless the mode is PARKED,
/// the daemon treats what it reads there as a hint.
fn put(at: usize, listener: Listener) -> bool {
    let (places, room) = places();
    if at < room {
        // SAFETY: one of the places.
        unsafe { places.add(at).write(listener) };
    }
    at < room
}

fn get(at: usize) -> Option<Listener> {
    let (places, room) = places();
    // SAFETY: one of the places; whoever shares them has the log to write there.
    (at < room).then(|| unsafe { places.add(at).read() })
}

/// The kernel's cookie of a socket, which the gate knows, too. It is the same in all processes
/// that share the socket.
pub fn cookie(fd: i32) -> u64 {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as u32);
    let at = (&raw mut cookie, &raw mut len);
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, at.0, at.1) };
    cookie
}

/// Size of what the next program must know of one socket's address (see `calls::carry`).
pub const CARRIED_BYTES: usize = size_of::<Bind>();

/// Calls `f` for the address of every socket that is open.
pub fn for_each_carried(mut f: impl FnMut(&[u8; CARRIED_BYTES])) {
    for b in BINDS.hold().iter().filter(|b| is_bound(b)) {
        f(zerocopy::transmute_ref!(b));
    }
}

/// Remembers an address that [`for_each_carried`] has given in the program before.
pub fn carry_on(carried: [u8; CARRIED_BYTES]) {
    if let Some(free) = BINDS.hold().iter_mut().find(|b| b.fd < 0) {
        *free = zerocopy::transmute!(carried);
    }
}

#[cfg(test)]
mod tests;
