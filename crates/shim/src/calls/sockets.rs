//! Sockets: making, binding, accepting, ending. The replica's TCP sockets are real and
//! unconnected; a promotion turns these very sockets into the clients' connections, by TCP_REPAIR
//! (decision 13).

use crate::base::commit;
use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, header, mode};
use crate::base::sys::{libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{binds, conns, defer, park, quiet, report, token};
use crate::calls::input::interruptible;
use crate::calls::shapes::{beside_output, new_fd, refuse_high, simple, with_data};
use crate::calls::{children, family, inherited, signals};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::{AcceptInfo, NO_CONN, Op};
use zerocopy::{FromBytes, IntoBytes};

/// Room for a socket address, in bytes.
const ADDR_MAX: usize = 128;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    children::leave();
    let stream =
        kind & 0xf == libc::SOCK_STREAM && matches!(domain, libc::AF_INET | libc::AF_INET6);
    let make = || sys!(SYS_socket, domain, kind, protocol);
    // Processes of a family talk to each other by UNIX datagrams.
    let is_inside = state::is_family() && domain == libc::AF_UNIX && kind & 0xf == libc::SOCK_DGRAM;
    let ours = match (stream, is_inside) {
        (true, _) => Kind::Socket,
        (_, true) => Kind::Local,
        _ => Kind::Outside,
    };
    libc_result(new_fd(Call::socket, -1, ours, kind & libc::SOCK_CLOEXEC != 0, make, make)) as i32
}

/// `bind`: the address of a TCP socket is remembered for promotion, when listeners are bound. A
/// UNIX socket is bound on both members: its name is a file of the member's own, whose owner and
/// mode servers often change at once. The replica's other sockets stay unbound, since their
/// addresses belong to the primary.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bind(fd: i32, addr: *const u8, len: u32) -> i32 {
    children::touch(fd);
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_bind, fd, addr, len) };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    let unix = fds::is_unix(fd);
    if !unix {
        binds::remember_bind(fd, addr, len);
    }
    libc_result(simple(Call::bind, fd, unix, raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn listen(fd: i32, backlog: i32) -> i32 {
    children::touch(fd);
    let raw = || sys!(SYS_listen, fd, backlog);
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    let r = simple(Call::listen, fd, false, raw);
    if r == 0 && mode() != Mode::Pass {
        let protected =
            header().ports.iter().take_while(|p| **p != 0).any(|p| *p == binds::bound_port(fd));
        if let Some(f) = fds::get(fd) {
            f.set_kind(if protected { Kind::Listener } else { Kind::PlainListener });
            f.backlog.store(backlog, Relaxed);
        }
        binds::remember_listen(fd, backlog);
    }
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: i32, addr: *const u8, len: u32) -> i32 {
    children::touch(fd);
    // SAFETY: the server's own call, with its own arguments.
    let raw = || {
        token::apart_if(token::may_block(fd), || unsafe { syscall!(SYS_connect, fd, addr, len) })
    };
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        return libc_result(raw()) as i32;
    }
    if fds::kind(fd) == Kind::Local {
        return libc_result(simple(Call::connect, fd, true, raw)) as i32;
    }
    if let Some(f) = fds::get(fd) {
        f.set_kind(Kind::Outside);
    }
    if mode() == Mode::Record {
        inherited::connect_again(fd);
        commit::commit();
    }
    libc_result(simple(Call::connect, fd, false, raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(fd: i32, addr: *mut u8, len: *mut u32) -> i32 {
    // SAFETY: the same call without flags.
    unsafe { accept4(fd, addr, len, 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(fd: i32, addr: *mut u8, len: *mut u32, flags: i32) -> i32 {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        children::touch(fd);
        family::touch(fd, "accept");
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_accept4, fd, addr, len, flags) }) as i32;
    }
    let mut peer = Peer { addr: [0; ADDR_MAX], len: 0 };
    let r = quiet::call(|call| match mode() {
        Mode::Replay => accept_replay(fd, flags, &mut peer),
        _ => accept_record(call, fd, flags, &mut peer),
    });
    if r >= 0 && !addr.is_null() && !len.is_null() {
        // SAFETY: the caller's address buffer of `*len` bytes.
        unsafe {
            let n = (*len as usize).min(peer.len as usize).min(ADDR_MAX);
            core::ptr::copy_nonoverlapping(peer.addr.as_ptr(), addr, n);
            *len = peer.len;
        }
    }
    libc_result(r) as i32
}

struct Peer {
    addr: [u8; ADDR_MAX],
    len: u32,
}

fn accept_record(call: &quiet::Call, fd: i32, flags: i32, peer: &mut Peer) -> Option<isize> {
    defer::flush_before_blocking(fd);
    let raw = || inherited::accept(fd, flags, &mut peer.addr, &mut peer.len);
    let r = interruptible(call, fd, raw)?;
    // Connections get their numbers in the log's order.
    let held = log::hold();
    let mut r = refuse_high(r);
    let protected = fds::kind(fd) == Kind::Listener;
    let number = if r >= 0 && protected { conns::next_number() } else { None };
    if r >= 0 && protected && number.is_none() {
        sys!(SYS_close, r);
        r = -(libc::EMFILE as isize);
    }
    let conn = number.unwrap_or(NO_CONN);
    let socket = if r >= 0 { accepted(r as i32, conn) } else { 0 };
    if log::is_on() {
        log_accept(&held, fd, (conn, socket), peer, r);
    }
    Some(r)
}

fn log_accept(held: &log::Held, fd: i32, (conn, socket): (u32, u64), peer: &Peer, r: isize) {
    let mut info = AcceptInfo { addr_len: peer.len, ..AcceptInfo::default() };
    info.addr.copy_from_slice(&peer.addr[..32]);
    if r >= 0 {
        (info.peer, info.peer_port) = binds::endpoint(&peer.addr);
    }
    if conn != NO_CONN {
        let mut local = [0u8; ADDR_MAX];
        let mut local_len = ADDR_MAX as u32;
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_getsockname, r, local.as_mut_ptr(), &raw mut local_len) };
        (info.local, info.local_port) = binds::endpoint(&local);
        info.conn_id = socket;
    }
    let entry = Entry { op: Op::Accept, flags: 0, fd, conn, ret: r as i64, hash: 0 };
    let payload = [(info.as_bytes().as_ptr(), size_of::<AcceptInfo>())];
    log::append_held(held, entry, &payload);
}

/// Enters a connection into the tables. Returns its socket's [`binds::cookie`] if it is protected.
fn accepted(fd: i32, conn: u32) -> u64 {
    fds::opened(fd, if conn == NO_CONN { Kind::Outside } else { Kind::Conn });
    if conn == NO_CONN {
        return 0;
    }
    if let Some(f) = fds::get(fd) {
        f.conn.store(conn, Relaxed);
    }
    let socket = binds::cookie(fd);
    conns::open(conn, fd, socket);
    socket
}

fn accept_replay(fd: i32, flags: i32, peer: &mut Peer) -> Option<isize> {
    let Some(taken) = log::take(Op::Accept, Call::none, fd) else { return park::start_over() };
    let r = taken.ret();
    if let Ok((info, _)) = AcceptInfo::read_from_prefix(taken.payload()) {
        peer.addr[..32].copy_from_slice(&info.addr);
        peer.len = info.addr_len;
    }
    if r >= 0 {
        if taken.header.conn != NO_CONN && !conns::take_number(taken.header.conn) {
            report::diverged("connections were accepted in another order");
        }
        let family = binds::bound_family(fd);
        let made = sys!(SYS_socket, family, libc::SOCK_STREAM | flags, 0);
        inherit(fd, made);
        fds::renumber(made, r, flags & libc::SOCK_CLOEXEC != 0);
        accepted(r as i32, taken.header.conn);
    }
    taken.done();
    Some(r)
}

/// Size of the largest value of [`INHERITED`], in bytes.
const OPTION_BYTES: usize = 16;

/// Options that a connection inherits from its listener: level, name, and size in bytes. On the
/// primary the kernel copies them; on the replica the shim does.
const INHERITED: [(i32, i32, usize); 18] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 4),
    (libc::SOL_SOCKET, libc::SO_LINGER, 8),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 4),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, OPTION_BYTES),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, OPTION_BYTES),
    (libc::SOL_SOCKET, libc::SO_MARK, 4),
    (libc::IPPROTO_IP, libc::IP_TOS, 4),
    (libc::IPPROTO_IP, libc::IP_TTL, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 4),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, OPTION_BYTES),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 4),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 4),
];

fn inherit(listener: i32, made: isize) {
    let get = |fd: isize, (level, option, bytes): (i32, i32, usize)| {
        let (mut value, mut len) = ([0u8; OPTION_BYTES], bytes as u32);
        let at = (value.as_mut_ptr(), &raw mut len);
        // SAFETY: memory of ours, of the sizes that are said.
        let r = unsafe { syscall!(SYS_getsockopt, fd, level, option, at.0, at.1) };
        (r == 0).then_some(value)
    };
    for option in INHERITED {
        let (theirs, ours) = (get(listener as isize, option), get(made, option));
        if let Some(value) = theirs.filter(|_| theirs != ours) {
            let (level, name, bytes) = option;
            // SAFETY: as above.
            unsafe { syscall!(SYS_setsockopt, made, level, name, value.as_ptr(), bytes) };
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shutdown(fd: i32, how: i32) -> i32 {
    let raw = || sys!(SYS_shutdown, fd, how);
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        family::touch(fd, "shutdown");
        return libc_result(raw()) as i32;
    }
    if fds::kind(fd) != Kind::Conn {
        return libc_result(simple(Call::shutdown, fd, true, raw)) as i32;
    }
    libc_result(end_of_stream(fd, how, raw)) as i32
}

/// Ends a stream (`shutdown`). The gate lets a FIN out only after the backup knows of it
/// (decision 11). The outcome has a record of its own, since the client may have ended the
/// connection before.
fn end_of_stream(fd: i32, how: i32, raw: impl Fn() -> isize) -> isize {
    let conn = conns::of_fd(fd);
    quiet::call(|_| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            defer::flush_fd(fd);
            log::append(
                Entry { op: Op::Shutdown, flags: 0, fd, conn, ret: i64::from(how), hash: 0 },
                &[],
            );
            commit::commit_all();
            note_shut(conn, how);
            let r = raw();
            log::append(Entry::new(Op::Result, Call::shutdown, fd, r).lazy_if(r == 0), &[]);
            Some(r)
        }
        Mode::Replay => replay_end_of_stream(fd, how, conn),
    })
}

fn note_shut(conn: u32, how: i32) {
    let bits = [2, 1, 3].get(how as usize).copied().unwrap_or(0);
    conns::entry(conn).shut.fetch_or(bits, Relaxed);
}

fn replay_end_of_stream(fd: i32, how: i32, conn: u32) -> Option<isize> {
    match log::take(Op::Shutdown, Call::none, fd) {
        Some(taken) => taken.done(),
        None if park::draining() => {}
        None => return park::start_over(),
    }
    note_shut(conn, how);
    Some(match log::take(Op::Result, Call::shutdown, fd) {
        Some(taken) => {
            let r = taken.ret();
            taken.done();
            r
        }
        None => 0,
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockname(fd: i32, addr: *mut u8, len: *mut u32) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    libc_result(name(Call::getsockname, fd, addr, len, || unsafe {
        syscall!(SYS_getsockname, fd, addr, len)
    })) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpeername(fd: i32, addr: *mut u8, len: *mut u32) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    libc_result(name(Call::getpeername, fd, addr, len, || unsafe {
        syscall!(SYS_getpeername, fd, addr, len)
    })) as i32
}

fn name(call: Call, fd: i32, addr: *mut u8, len: *mut u32, raw: impl Fn() -> isize) -> isize {
    if !fds::is_virtual(fd) {
        return raw();
    }
    // SAFETY: the caller's address buffer and its length.
    let room = unsafe { *len } as usize;
    with_data(call, fd, &[(len.cast(), 4), (addr, room)], raw)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: i32,
    level: i32,
    option: i32,
    value: *mut u8,
    len: *mut u32,
) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_getsockopt, fd, level, option, value, len) };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    // SAFETY: the caller's value buffer and its length.
    let room = unsafe { *len } as usize;
    let r = with_data(Call::getsockopt, fd, &[(len.cast(), 4), (value, room)], raw);
    let is_error = (level, option) == (libc::SOL_SOCKET, libc::SO_ERROR);
    if is_error && r == 0 && room >= size_of::<i32>() && inherited::is_dead(fd) {
        // SAFETY: the kernel has just put a number there.
        unsafe { value.cast::<i32>().write_unaligned(libc::ECONNRESET) };
    }
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: i32,
    level: i32,
    option: i32,
    value: *const u8,
    len: u32,
) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_setsockopt, fd, level, option, value, len) };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    let protected = matches!(mode(), Mode::Record | Mode::Replay);
    if (level, option) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) && protected {
        // Refused: the kernel would report sent data in the error queue, which is not logged.
        return libc_result(-(libc::EOPNOTSUPP as isize)) as i32;
    }
    // SAFETY: the server's own call, with its own arguments.
    let hurries = level == libc::IPPROTO_TCP && unsafe { hurries(option, value.cast(), len) };
    libc_result(match hurries {
        true => beside_output(Call::setsockopt, fd, true, raw),
        false => simple(Call::setsockopt, fd, true, raw),
    }) as i32
}

/// Whether an option of TCP makes what was written leave at once. What is deferred leaves in one
/// piece, later, and so no later for it: servers (nginx with `tcp_nopush`) uncork each response.
///
/// # Safety
/// `value` is null, or `len` bytes can be read there.
unsafe fn hurries(option: i32, value: *const i32, len: u32) -> bool {
    if value.is_null() || (len as usize) < size_of::<i32>() {
        return false;
    }
    // SAFETY: by the caller's promise.
    let is_on = unsafe { value.read_unaligned() } != 0;
    (option, is_on) == (libc::TCP_CORK, false) || (option, is_on) == (libc::TCP_NODELAY, true)
}

#[cfg(all(test, not(miri)))]
mod tests;
