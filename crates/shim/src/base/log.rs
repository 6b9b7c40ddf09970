//! The log in shared memory: appending on the primary, consuming on the backup.
//!
//! All threads share one totally ordered log. A replaying thread may take the
//! head record only if it is its own; the record stays at the head until its
//! effect (a lock taken, a descriptor made) is in place.

use crate::base::state::{self, Mode, group, header, threaded};
use crate::base::table::Call;
use crate::base::watch::Watch;
use crate::base::{conns, copy, handlers, processes, report, ring, robust, sys, token};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::group::TURN_WORDS;
use holdfast_wire::log::{HEADER_LEN, Header, LAZY, NO_CONN, Op, record_len};
use holdfast_wire::shm::{OPEN, mode};

/// Time in ns after which a waiting thread looks at the log by itself: the thread that should wake
/// it may be blocked in a call that is not in the log.
const TURN_WAIT_NS: u64 = 10_000_000;
/// Size in bytes up to which a record may grow (see [`extend`]).
const OPEN_BYTES_MAX: u64 = 512;
/// Longest time in ns that a server waits for a joining member which does not advance.
const JOINER_WAIT_NS: u64 = 50_000_000;

/// Holds the log, so that a call and its record are one step for other threads.
pub struct Held(bool);

/// Takes the log lock if there is more than one thread.
pub fn hold() -> Held {
    // A thread that forks has it already.
    if !threaded() || state::is_forking() {
        return Held(false);
    }
    lock(&group().lock.0);
    Held(true)
}

impl Held {
    /// Keeps the log until [`release`].
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

/// Releases the log lock after [`Held::keep`].
pub fn release() {
    unlock(&group().lock.0);
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0 {
            release();
        }
    }
}

/// Takes a lock that the server's threads share, in whichever process they are.
pub fn lock(word: &AtomicU32) {
    if state::is_family() { robust::lock(word) } else { sys::lock(word) }
}

pub fn unlock(word: &AtomicU32) {
    if state::is_family() { robust::unlock(word) } else { sys::unlock(word) }
}

/// Content of a record, besides its payload.
#[derive(Clone, Copy)]
pub struct Entry {
    pub op: Op,
    pub flags: u8,
    pub fd: i32,
    pub conn: u32,
    pub ret: i64,
    pub hash: u64,
}

impl Entry {
    pub fn new(op: Op, call: Call, fd: i32, ret: isize) -> Self {
        Self { op, flags: 0, fd, conn: 0, ret: ret as i64, hash: call as u64 }
    }

    /// Marks the record as lazy if `lazy`: output does not wait for it, because a replica whose
    /// log ends before it knows the outcome by itself and runs on.
    pub fn lazy_if(mut self, lazy: bool) -> Self {
        if lazy {
            self.flags |= LAZY;
        }
        self
    }
}

/// Whether anybody reads the log. A server that runs alone does what a primary does, so that its
/// state is right when a log begins, but it writes none.
#[inline]
pub fn is_on() -> bool {
    matches!(header().mode.0.load(Acquire), mode::RECORD | mode::BROKEN)
}

/// Number of the current log among those that this server has written, from 1; 0 if none is on.
pub fn which() -> u32 {
    if is_on() { header().logs.load(Relaxed) + 1 } else { 0 }
}

/// Appends a record; `parts` are (address, bytes) of its payload.
#[inline]
pub fn append(entry: Entry, parts: &[(*const u8, usize)]) {
    if is_on() {
        append_held(&hold(), entry, parts);
    }
}

/// Like [`append`], for a caller that holds the log already.
pub fn append_held(_: &Held, entry: Entry, parts: &[(*const u8, usize)]) {
    if is_on() && !state::has_left() {
        let tail = put(entry, parts);
        header().tail.0.store(tail, Release);
    }
}

/// Appends a record that [`extend`] may add to. The log must be on.
pub fn append_open(_: &Held, entry: Entry) {
    if state::has_left() {
        return;
    }
    let h = header();
    let tail = put(entry, &[]);
    h.open_at.0.store(tail - HEADER_LEN as u64, Relaxed);
    h.tail.0.store(tail | OPEN, Release);
}

/// Adds to the payload of the last record, if that is the calling thread's and
/// the daemon has not taken it.
pub fn extend(_: &Held, word: u64) -> bool {
    const WORD: u64 = size_of::<u64>() as u64;
    let h = header();
    let tail = h.tail.0.load(Relaxed);
    let end = tail & !OPEN;
    let start = h.open_at.0.load(Relaxed);
    let used = end + WORD - h.head.0.load(Acquire);
    if tail & OPEN == 0 || end - start >= OPEN_BYTES_MAX || used > state::ring_bytes() {
        return false;
    }
    // SAFETY: the open record begins at `start`, and behind `end` there is space.
    unsafe {
        if ring::at(start).cast::<Header>().read().tid != state::tid() {
            return false;
        }
        ring::at(end).cast::<u64>().write(word.to_le());
    }
    // This fails if the daemon has ended the record meanwhile.
    let added = h.tail.0.compare_exchange(tail, tail + WORD, Release, Relaxed).is_ok();
    if added && buffering().waits_for(Op::Clock, 0) {
        group().dirty.0.store(end + WORD, Relaxed);
    }
    added
}

/// Writes a record behind the last one; returns the tail that the caller must store to make it
/// part of the log.
fn put(entry: Entry, parts: &[(*const u8, usize)]) -> u64 {
    let payload_len: usize = parts.iter().map(|p| p.1).sum();
    let len = record_len(payload_len) as u64;
    let tail = end_open();
    wait_for_space(tail + len);
    // SAFETY: the ring is mapped twice, so `len` bytes from any position are
    // contiguous; wait_for_space made sure that the daemon has done with them.
    unsafe {
        ring::at(tail).cast::<Header>().write(Header {
            payload_len: payload_len as u32,
            op: entry.op as u8,
            flags: entry.flags,
            tid: state::tid(),
            fd: entry.fd,
            conn: entry.conn,
            ret: entry.ret,
            hash: entry.hash,
        });
        let mut to = ring::at(tail).add(HEADER_LEN);
        for &(from, n) in parts {
            copy::for_keeping(from, to, n);
            to = to.add(n);
        }
    }
    if buffering().waits_for(entry.op, entry.flags) {
        group().dirty.0.store(tail + len, Relaxed);
    }
    tail + len
}

/// Ends a record that may still grow; returns the log's tail. The daemon may do the same at the
/// same time: both then write the same values.
fn end_open() -> u64 {
    let h = header();
    let tail = h.tail.0.load(Relaxed);
    let end = tail & !OPEN;
    if tail & OPEN != 0 {
        let start = h.open_at.0.load(Relaxed);
        let payload_len = (end - start) as u32 - HEADER_LEN as u32;
        // SAFETY: the record at `start` is ours until the tail says otherwise.
        unsafe { (&raw mut (*ring::at(start).cast::<Header>()).payload_len).write(payload_len) };
        // Before `open_at` changes: the daemon reads the two together.
        h.tail.0.store(end, Release);
    }
    end
}

/// Waits for space in the ring. The daemon frees it when the backup has
/// confirmed it: until then it is the only copy of what the server has read
/// (decision 4).
fn wait_for_space(until: u64) {
    let h = header();
    if until - h.head.0.load(Acquire) > state::ring_bytes() / 2 {
        keep_pace(until);
    }
    while until - h.head.0.load(Acquire) > state::ring_bytes() {
        let seen = h.stable_futex.0.load(Acquire);
        ring::kick();
        if until - h.head.0.load(Acquire) <= state::ring_bytes() || !is_on() {
            return;
        }
        if h.stable.0.load(Acquire) == u64::MAX {
            // Only a joining member reads the log. The server does not wait for it (nor for a
            // daemon that has died meanwhile), but ends the log.
            let _ = h.mode.0.compare_exchange(mode::RECORD, mode::SOLO, AcqRel, Acquire);
            continue;
        }
        ring::sleep_shared(&h.stable_futex.0, seen, 0);
    }
}

/// Slows the server down to the pace of a joining member that is half the ring behind, as it will
/// be when the two are a pair. It does not wait for a member that does not advance.
#[cold]
fn keep_pace(until: u64) {
    let h = header();
    while h.stable.0.load(Acquire) == u64::MAX && is_on() {
        let seen = h.stable_futex.0.load(Acquire);
        let head = h.head.0.load(Acquire);
        let slowed_at = &group().slowed_at.0;
        if until - head <= state::ring_bytes() / 2 || slowed_at.load(Relaxed) == head + 1 {
            return;
        }
        ring::kick();
        ring::sleep_shared(&h.stable_futex.0, seen, JOINER_WAIT_NS);
        if h.head.0.load(Acquire) == head {
            slowed_at.store(head + 1, Relaxed);
        }
    }
}

/// What output waits for in this group (decision 32).
fn buffering() -> Buffering {
    Buffering::of_options(state::OPTIONS.load(Relaxed))
}

/// Position before which the backup must hold everything for output to leave now, of what the
/// group's `buffering` waits for.
pub fn needed() -> u64 {
    group().dirty.0.load(Relaxed)
}

/// Whether output could leave now without waiting.
pub fn is_committed() -> bool {
    holds(needed())
}

/// Whether the backup holds everything before `need`, or nothing waits for that.
pub fn holds(need: u64) -> bool {
    header().stable.0.load(Acquire) >= need || !is_on() || buffering() == Buffering::Immediate
}

/// Ends a last record that may still grow; returns where the log ends.
pub fn close() -> u64 {
    let _held = hold();
    end_open()
}

/// A record that the calling thread has taken from the head of the log.
pub struct Taken {
    pub header: Header,
    payload: *const u8,
}

impl Taken {
    /// Lets the log go on behind this record.
    pub fn done(self) {
        let h = header();
        let next = h.head.0.load(Relaxed) + record_len(self.header.payload_len as usize) as u64;
        let threads = threaded();
        if threads {
            group().last.0.store(state::own_name(), Relaxed);
        }
        if threads && token::is_chosen() {
            // The thread of the next record goes on when this one has come to its next call.
            token::go_on();
            return h.head.0.store(next, SeqCst);
        }
        h.head.0.store(next, SeqCst);
        if threads && next < h.tail.0.load(Acquire) {
            let tid = read_at(next).header.tid;
            if tid != state::tid() {
                wake(tid);
            }
        }
    }

    /// The record's payload. It is valid only until the record is
    /// [`Self::done`].
    pub fn payload(&self) -> &[u8] {
        let len = self.header.payload_len as usize;
        // SAFETY: this many bytes lie behind the header, and stay until then.
        unsafe { core::slice::from_raw_parts(self.payload, len) }
    }

    pub fn ret(&self) -> isize {
        self.header.ret as isize
    }
}

/// Waits for the calling thread's next record without checking it. `None`: the
/// log has ended; the caller runs on alone or parks.
pub fn take_any() -> Option<Taken> {
    let h = header();
    loop {
        if token::is_chosen() {
            token::give();
        }
        let head = h.head.0.load(Acquire);
        if head < h.tail.0.load(Acquire) {
            let taken = read_at(head);
            if is_for_anybody(&taken.header) {
                wait_for_other();
                settle(head);
                continue;
            }
            if taken.header.tid != state::tid() {
                wake(taken.header.tid);
                if h.mode.0.load(Acquire) == mode::DRAIN && processes::is_lost(taken.header.tid) {
                    settle(head);
                } else {
                    wait_for_turn(head, false);
                }
                continue;
            }
            wait_for_other();
            match Op::from_u8(taken.header.op) {
                Some(Op::Pad) => taken.done(),
                Some(Op::Signal) => {
                    let signal = taken.header.ret as i32;
                    if state::is_family() {
                        processes::handled(signal);
                    }
                    handlers::has_been_told(signal);
                    taken.done();
                    handlers::run(signal);
                }
                _ => return Some(taken),
            }
            continue;
        }
        let shared_mode = h.mode.0.load(Acquire);
        if mode::is_alone(shared_mode) || state::mode() != Mode::Replay {
            return None;
        }
        if matches!(shared_mode, mode::DRAIN | mode::PARKED) && head >= h.end.0.load(Acquire) {
            return None;
        }
        if !waits_for_more() {
            wait_for_turn(head, true);
            continue;
        }
        let seen = h.tail_futex.0.load(Acquire);
        h.shim_waiting.0.fetch_add(1, SeqCst);
        if head >= h.tail.0.load(SeqCst) && h.mode.0.load(SeqCst) == shared_mode {
            sys::futex_wait(&h.tail_futex.0, seen, true, 0);
        }
        h.shim_waiting.0.fetch_sub(1, SeqCst);
    }
}

/// Whether a record is no thread's, so that any may consume it: a process has died, or a
/// connection has ended with it.
fn is_for_anybody(record: &Header) -> bool {
    let op = Op::from_u8(record.op);
    op == Some(Op::Death) || op == Some(Op::Close) && record.fd < 0
}

/// Consumes the record at the head if it is no thread's, or that of a thread which is gone. The
/// first thread that comes does it.
fn settle(head: u64) {
    let _held = hold();
    if header().head.0.load(Acquire) != head {
        return;
    }
    let taken = read_at(head);
    let Header { op, fd, conn, .. } = taken.header;
    match Op::from_u8(op) {
        Some(Op::Death) => processes::end_twin(fd as usize),
        Some(Op::Close) if is_for_anybody(&taken.header) => conns::end(conn),
        // The next connection's number must follow this one's.
        Some(Op::Accept) if conn != NO_CONN => drop(conns::take_number(conn)),
        _ => {}
    }
    taken.done();
}

/// Whether the calling thread is the one that waits for the daemon to append more.
fn waits_for_more() -> bool {
    let (last, me) = (&group().last.0, state::own_name());
    last.load(Relaxed) == me || last.compare_exchange(0, me, SeqCst, Relaxed).is_ok()
}

/// Called before the replica's thread makes a call that is not in the log and may block: another
/// thread must then wait for more log.
pub fn leave() {
    if token::is_chosen() {
        token::give();
        if state::mode() == Mode::Replay {
            wake_next();
        }
    }
    if group().last.0.compare_exchange(state::own_name(), 0, SeqCst, Relaxed).is_err() {
        return;
    }
    let sleepers = group().sleepers.0.load(SeqCst);
    if sleepers != 0 {
        wake(sleepers.trailing_zeros() as u16);
    }
}

/// Wakes the thread whose record is next.
fn wake_next() {
    let h = header();
    let head = h.head.0.load(SeqCst);
    if head < h.tail.0.load(SeqCst) {
        wake(read_at(head).header.tid);
    }
}

/// Where threads run one at a time, waits until the thread that runs has come to its next call:
/// only then may the calling thread consume the record at the head.
fn wait_for_other() {
    if !token::is_chosen() {
        return;
    }
    let (word, mut watch) = (turn_word(state::tid()), Watch::new());
    while token::another_runs() && state::mode() == Mode::Replay {
        let seen = word.load(SeqCst);
        if !token::another_runs() {
            return;
        }
        let r = sys::futex_wait(word, seen, state::is_family(), token::REPLICA_LOOK_NS);
        if r == -(libc::ETIMEDOUT as isize) {
            token::look_at_other(&mut watch);
        }
    }
}

fn turn_word(tid: u16) -> &'static AtomicU32 {
    &group().turns[tid as usize % TURN_WORDS]
}

pub fn wake(tid: u16) {
    turn_word(tid).fetch_add(1, SeqCst);
    sys::futex_wake(turn_word(tid), state::is_family());
}

/// Sleeps until another thread or the daemon finds this thread's record at the head.
fn wait_for_turn(head: u64, empty: bool) {
    let h = header();
    let word = turn_word(state::tid());
    let seen = word.load(SeqCst);
    let unchanged = h.head.0.load(SeqCst) == head && (h.tail.0.load(SeqCst) <= head) == empty;
    if unchanged && !mode::is_alone(h.mode.0.load(SeqCst)) {
        let bit = 1 << (state::tid() as usize % TURN_WORDS);
        group().sleepers.0.fetch_or(bit, SeqCst);
        // Who stops waiting for more log wakes only those that it sees here (see `leave`).
        if !empty || group().last.0.load(SeqCst) != 0 {
            sys::futex_wait(word, seen, state::is_family(), TURN_WAIT_NS);
        }
        group().sleepers.0.fetch_and(!bit, SeqCst);
    }
}

fn read_at(head: u64) -> Taken {
    // SAFETY: [head, tail) holds whole records written by our daemon; the
    // double mapping makes each contiguous. They stay until `done`.
    unsafe {
        let header = ring::at(head).cast::<Header>().read();
        Taken { header, payload: ring::at(head).add(HEADER_LEN) }
    }
}

/// The calling thread's next record, which must be `op` on `fd` by `call`
/// (0 = the record's hash means something else). `None`: the log has ended.
pub fn take(op: Op, call: Call, fd: i32) -> Option<Taken> {
    let taken = take_any()?;
    let other_call = call != Call::none && taken.header.hash != call as u64;
    if taken.header.op != op as u8 || taken.header.fd != fd || other_call {
        report::diverged_at(&taken.header, op, call, fd);
    }
    Some(taken)
}

/// Makes every waiting thread look again: the mode has changed.
pub fn wake_turns() {
    for word in &group().turns {
        word.fetch_add(1, SeqCst);
        sys::futex_wake(word, state::is_family());
    }
}

#[cfg(test)]
mod tests;
