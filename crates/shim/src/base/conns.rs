//! Protected connections: the table shared with the daemon.

use crate::base::sys::{self, sys};
use crate::base::{fds, holders, kept, state};
use core::sync::atomic::{AtomicU32, Ordering::*, fence};
use holdfast_wire::group::let_go as let_go_of;
use holdfast_wire::log::NO_CONN;
use holdfast_wire::shm::{CONNS_MAX, ConnEntry, conn_state};

/// How long a close waits for a daemon that holds a duplicate of the descriptor, in ns.
const RETURN_WAIT_NS: u64 = 200_000_000;

/// Number of this process's descriptors that refer to each connection (dup, dup2).
static REFS: [AtomicU32; CONNS_MAX] = [const { AtomicU32::new(0) }; CONNS_MAX];

/// Locks held during a write, so that the log has the writes to a stream in their order, whichever
/// descriptor of it they are made to.
static WRITING: [AtomicU32; CONNS_MAX] = [const { AtomicU32::new(0) }; CONNS_MAX];

/// The next accept number: the first one after the last whose table entry is free. `None` if none
/// is. Call it with the log held.
pub fn next_number() -> Option<u32> {
    let last = state::group().last_conn.load(Relaxed);
    let next = (1..=CONNS_MAX as u32).map(|n| last.wrapping_add(n));
    let number = next.filter(|n| *n != NO_CONN).find(|n| is_free(*n))?;
    state::group().last_conn.store(number, Relaxed);
    Some(number)
}

/// On the replica: takes the accept number in the primary's record; false if no primary could
/// have given that number.
pub fn take_number(number: u32) -> bool {
    let ahead = number.wrapping_sub(state::group().last_conn.swap(number, Relaxed));
    (1..=CONNS_MAX as u32).contains(&ahead)
}

/// Whether a connection was ever accepted.
pub fn any() -> bool {
    state::group().last_conn.load(Relaxed) != 0
}

/// Table entry of accept number `conn` (not [`holdfast_wire::log::NO_CONN`]).
pub fn entry(conn: u32) -> &'static ConnEntry {
    // SAFETY: the table has CONNS_MAX entries, all atomics, mapped for good.
    unsafe { &*state::table().add(conn as usize % CONNS_MAX) }
}

/// Whether an open connection has the socket with this cookie.
pub fn is_known(socket: u64) -> bool {
    let is_it = |e: &ConnEntry| {
        e.state.load(Acquire) == conn_state::OPEN && e.socket.load(Relaxed) == socket
    };
    (0..CONNS_MAX as u32).any(|place| is_it(entry(place)))
}

/// The connection that `fd` refers to.
pub fn of_fd(fd: i32) -> u32 {
    fds::get(fd).map_or(NO_CONN, |f| f.conn.load(Relaxed))
}

/// Whether no connection holds the number's entry.
fn is_free(conn: u32) -> bool {
    entry(conn).state.load(Acquire) != conn_state::OPEN
}

/// Fills the entry of a connection that was just accepted as `fd`, whose kernel cookie is
/// `socket`. The daemon may read the entry at the same time, so its number is set last.
pub fn open(conn: u32, fd: i32, socket: u64) {
    let e = entry(conn);
    REFS[conn as usize % CONNS_MAX].store(1, Relaxed);
    e.conn.store(NO_CONN, Relaxed);
    fence(Release);
    kept::reuse(e, || {
        e.in_bytes.store(0, Relaxed);
        e.out_bytes.store(0, Relaxed);
        e.keep_from.store(0, Relaxed);
        e.acked_bytes.store(0, Relaxed);
        e.shut.store(0, Relaxed);
        e.eof.store(0, Relaxed);
        e.fd.store(fd, Relaxed);
        e.socket.store(socket, Relaxed);
        e.pid.store(sys!(SYS_getpid) as i32, Relaxed);
        if state::is_family() {
            holders::hold_alone(e);
        }
        e.state.store(conn_state::OPEN, Release);
    });
    e.conn.store(conn, Release);
}

/// The lock of those threads of this process that write to the connection.
pub fn writing(conn: u32) -> &'static AtomicU32 {
    &WRITING[conn as usize % CONNS_MAX]
}

pub fn add_ref(conn: u32) {
    REFS[conn as usize % CONNS_MAX].fetch_add(1, Relaxed);
}

/// Whether closing this descriptor ends the server's hold on the connection.
pub fn is_last_ref(conn: u32) -> bool {
    REFS[conn as usize % CONNS_MAX].load(Relaxed) <= 1
}

/// Notes that a descriptor of the connection is closed.
pub fn drop_ref(conn: u32, fd: i32) {
    let e = entry(conn);
    if REFS[conn as usize % CONNS_MAX].fetch_sub(1, Relaxed) == 1 {
        e.fd.store(-1, Relaxed);
        e.state.store(conn_state::CLOSED, SeqCst);
        await_return(e);
        kept::leave(e);
    } else if e.fd.load(Relaxed) == fd {
        fds::for_each(|other, f| {
            if other != fd && f.conn.load(Relaxed) == conn {
                e.fd.store(other, Relaxed);
            }
        });
    }
}

/// In a family: notes that a descriptor of this process is closed, with the log held. Returns
/// whether no process holds the connection any more.
pub fn let_go(conn: u32, fd: i32) -> bool {
    let e = entry(conn);
    let is_last_here = REFS[conn as usize % CONNS_MAX].fetch_sub(1, Relaxed) == 1;
    if e.fd.load(Relaxed) == fd && e.pid.load(Relaxed) == state::process().pid.load(Relaxed) {
        e.pid.store(0, Relaxed);
        fds::for_each(|other, f| {
            if other != fd && f.conn.load(Relaxed) == conn {
                claim(e, other);
            }
        });
    }
    is_last_here && let_go_of(e, state::place())
}

/// Notes that no process of a family holds the connection any more.
pub fn end(conn: u32) {
    let e = entry(conn);
    e.fd.store(-1, Relaxed);
    e.state.store(conn_state::CLOSED, SeqCst);
    await_return(e);
}

/// Enters this process as the one from which the daemon can take the connection, if no other is
/// entered.
fn claim(e: &ConnEntry, fd: i32) {
    if e.pid.load(Relaxed) == 0 {
        e.fd.store(fd, Relaxed);
        e.pid.store(state::process().pid.load(Relaxed), Release);
    }
}

/// The same for each connection that this process holds.
pub fn claim_all() {
    fds::for_each(|fd, f| match f.conn.load(Relaxed) {
        NO_CONN => {}
        conn => claim(entry(conn), fd),
    });
}

/// Waits until the daemon holds no duplicate of the descriptor: otherwise epoll would go on to
/// report a socket that the server considers closed. The wait is limited, so a daemon that hangs
/// does not stop the server.
fn await_return(e: &ConnEntry) {
    sys::look_until(RETURN_WAIT_NS, sys::LOOK_NS, || e.borrowed.load(SeqCst) == 0);
}

/// Counts bytes that the server has read.
pub fn read(conn: u32, bytes: u64) {
    let e = entry(conn);
    if bytes == 0 {
        e.eof.store(1, Relaxed);
    }
    e.in_bytes.fetch_add(bytes, Relaxed);
}

/// Counts bytes that the server has written, without retaining them (primary).
pub fn wrote(conn: u32, bytes: u64) {
    let e = entry(conn);
    e.out_bytes.fetch_add(bytes, Relaxed);
    kept::give_up(e);
}

/// Retains output of the replica until the client has acknowledged it.
pub fn keep(conn: u32, bytes: &[u8]) {
    kept::keep(entry(conn), bytes);
}

/// The same for `len` bytes that `fill` puts where they are retained: `n` of them, from the byte `at`
/// on.
pub fn keep_with(conn: u32, len: usize, fill: impl FnMut(usize, *mut u8, usize)) {
    kept::keep_with(entry(conn), len, fill);
}

#[cfg(all(test, not(miri)))]
mod tests;
