//! Protected connections: the table shared with the daemon, and the replica's
//! retained output, which promotion may have to send again (decision 9).

use crate::base::sys::{self, sys, syscall};
use crate::base::{copy, fds, state};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::NO_CONN;
use holdfast_wire::shm::{CONNS_MAX, ConnEntry, KEEP_BYTES_MAX, conn_state};

/// First size of a connection's retained output; it may grow to KEEP_BYTES_MAX.
const KEEP_BYTES_FIRST: u64 = 64 << 10;
/// How long a close waits for a daemon that looks at the connection: steps, and
/// the length of one.
const LOOK_STEPS_MAX: u32 = 2000;
const LOOK_STEP_NS: i64 = 50_000;

static LAST: AtomicU32 = AtomicU32::new(0);
/// Descriptors that refer to each connection (dup, dup2).
static REFS: [AtomicU32; CONNS_MAX] = [const { AtomicU32::new(0) }; CONNS_MAX];

/// The accept number that comes next: the first whose entry no connection needs any
/// more. `None` if there is none. Call it with the log held.
pub fn next_number() -> Option<u32> {
    let last = LAST.load(Relaxed);
    let next = (1..=CONNS_MAX as u32).map(|n| last.wrapping_add(n));
    let number = next.filter(|n| *n != NO_CONN).find(|n| is_free(*n))?;
    LAST.store(number, Relaxed);
    Some(number)
}

/// On the replica: takes the number that the primary has given; false if no primary
/// gives it.
pub fn take_number(number: u32) -> bool {
    let ahead = number.wrapping_sub(LAST.swap(number, Relaxed));
    (1..=CONNS_MAX as u32).contains(&ahead)
}

/// Whether a connection was ever accepted.
pub fn any() -> bool {
    LAST.load(Relaxed) != 0
}

/// Table entry of accept number `conn` (not [`holdfast_wire::log::NO_CONN`]).
pub fn entry(conn: u32) -> &'static ConnEntry {
    // SAFETY: the table has CONNS_MAX entries, all atomics, mapped for good.
    unsafe { &*state::table().add(conn as usize % CONNS_MAX) }
}

/// The connection that `fd` refers to.
pub fn of_fd(fd: i32) -> u32 {
    fds::get(fd).map_or(NO_CONN, |f| f.conn.load(Relaxed))
}

/// Whether no connection holds the number's entry.
fn is_free(conn: u32) -> bool {
    entry(conn).state.load(Acquire) != conn_state::OPEN
}

/// Fills the entry of a connection that was just accepted as `fd`, a socket that the
/// kernel calls `socket`.
pub fn open(conn: u32, fd: i32, socket: u64) {
    let e = entry(conn);
    release(e);
    e.in_bytes.store(0, Relaxed);
    e.out_bytes.store(0, Relaxed);
    e.acked_bytes.store(0, Relaxed);
    e.shut.store(0, Relaxed);
    e.eof.store(0, Relaxed);
    e.fd.store(fd, Relaxed);
    e.socket.store(socket, Relaxed);
    e.pid.store(sys!(SYS_getpid) as i32, Relaxed);
    e.conn.store(conn, Relaxed);
    e.state.store(conn_state::OPEN, Release);
    REFS[conn as usize % CONNS_MAX].store(1, Relaxed);
}

pub fn add_ref(conn: u32) {
    REFS[conn as usize % CONNS_MAX].fetch_add(1, Relaxed);
}

/// Whether closing this descriptor ends the server's hold on the connection.
pub fn is_last_ref(conn: u32) -> bool {
    REFS[conn as usize % CONNS_MAX].load(Relaxed) <= 1
}

/// Another descriptor of the connection goes.
pub fn drop_ref(conn: u32, fd: i32) {
    let e = entry(conn);
    if REFS[conn as usize % CONNS_MAX].fetch_sub(1, Relaxed) == 1 {
        e.fd.store(-1, Relaxed);
        e.state.store(conn_state::CLOSED, SeqCst);
        await_return(e);
    } else if e.fd.load(Relaxed) == fd {
        fds::for_each(|other, f| {
            if other != fd && f.conn.load(Relaxed) == conn {
                e.fd.store(other, Relaxed);
            }
        });
    }
}

/// Waits until the daemon holds no duplicate of the descriptor: epoll would go on
/// to report what the server takes for closed. A daemon that stands still does not
/// hold the server for ever.
fn await_return(e: &ConnEntry) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_STEP_NS };
    for _ in 0..LOOK_STEPS_MAX {
        if e.borrowed.load(SeqCst) == 0 {
            return;
        }
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
}

/// Counts bytes that the server has read.
pub fn read(conn: u32, bytes: u64) {
    let e = entry(conn);
    if bytes == 0 {
        e.eof.store(1, Relaxed);
    }
    e.in_bytes.fetch_add(bytes, Relaxed);
}

/// Counts bytes that the server has written, without keeping them (primary).
pub fn wrote(conn: u32, bytes: u64) {
    entry(conn).out_bytes.fetch_add(bytes, Relaxed);
}

/// Keeps output of the replica until the client has acknowledged it. A replica
/// that is a little behind need not even copy what the client has by now.
pub fn keep(conn: u32, bytes: &[u8]) {
    let e = entry(conn);
    let out = e.out_bytes.load(Relaxed);
    let acked = e.acked_bytes.load(Acquire).saturating_sub(out).min(bytes.len() as u64);
    if acked > 0 {
        e.keep_from.store(out + acked, Relaxed);
        e.out_bytes.store(out + acked, Release);
    }
    let mut bytes = &bytes[acked as usize..];
    while !bytes.is_empty() {
        let room = make_room(e, bytes.len() as u64);
        let n = room.min(bytes.len() as u64);
        copy_in(e, &bytes[..n as usize]);
        bytes = &bytes[n as usize..];
    }
}

fn copy_in(e: &ConnEntry, bytes: &[u8]) {
    let (base, cap) = (e.keep_addr.load(Relaxed) as *mut u8, e.keep_cap.load(Relaxed));
    let out = e.out_bytes.load(Relaxed);
    let at = (out % cap) as usize;
    let first = bytes.len().min(cap as usize - at);
    // SAFETY: the ring at `base` has `cap` bytes and make_room left space.
    unsafe {
        copy::for_keeping(bytes.as_ptr(), base.add(at), first);
        copy::for_keeping(bytes.as_ptr().add(first), base, bytes.len() - first);
    }
    e.out_bytes.store(out + bytes.len() as u64, Release);
}

/// Drops acknowledged output, then grows the ring until `want` bytes fit or the
/// limit is reached; there the replica waits: it may lag, never lose.
fn make_room(e: &ConnEntry, want: u64) -> u64 {
    loop {
        let out = e.out_bytes.load(Relaxed);
        let from = e.keep_from.load(Relaxed).max(e.acked_bytes.load(Acquire).min(out));
        e.keep_from.store(from, Relaxed);
        let cap = e.keep_cap.load(Relaxed);
        let room = cap - (out - from);
        if room >= want || room > 0 && cap >= KEEP_BYTES_MAX {
            return room;
        }
        if cap < KEEP_BYTES_MAX && grow(e, (out - from) + want) {
            continue;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
}

fn grow(e: &ConnEntry, need: u64) -> bool {
    let (old, old_cap) = (e.keep_addr.load(Relaxed) as *mut u8, e.keep_cap.load(Relaxed));
    let cap = need.next_power_of_two().clamp(KEEP_BYTES_FIRST, KEEP_BYTES_MAX);
    if cap <= old_cap {
        return false;
    }
    let fresh = sys::map_anonymous(cap as usize);
    if fresh.is_null() {
        return false;
    }
    let mut offset = e.keep_from.load(Relaxed);
    let out = e.out_bytes.load(Relaxed);
    while offset < out {
        let n = (out - offset).min(old_cap - offset % old_cap).min(cap - offset % cap);
        // SAFETY: both rings hold their capacity; the ranges stay inside them.
        unsafe {
            let from = old.add((offset % old_cap) as usize);
            core::ptr::copy_nonoverlapping(from, fresh.add((offset % cap) as usize), n as usize);
        }
        offset += n;
    }
    e.keep_addr.store(fresh as u64, Relaxed);
    e.keep_cap.store(cap, Relaxed);
    if !old.is_null() {
        sys::unmap(old, old_cap as usize);
    }
    true
}

/// Gives the memory of a finished connection back.
fn release(e: &ConnEntry) {
    let (addr, cap) = (e.keep_addr.swap(0, Relaxed), e.keep_cap.swap(0, Relaxed));
    if addr != 0 {
        sys::unmap(addr as *mut u8, cap as usize);
    }
    e.keep_from.store(0, Relaxed);
}
