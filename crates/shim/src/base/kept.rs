//! The replica's retained output, which promotion may have to send again (decision 9).

use crate::base::cells::Locked;
use crate::base::copy;
use crate::base::state::{self, MEMORY_FD, Mode};
use crate::base::sys::{self, syscall};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use holdfast_wire::shm::{
    CONNS_MAX, ConnEntry, KEEP_BYTES_MAX, POOL_BYTES, POOL_PART_BYTES, conn_state,
};

/// First size of a connection's retained output, in bytes; it may grow to
/// KEEP_BYTES_MAX.
const KEEP_BYTES_FIRST: u64 = 64 << 10;
/// Closed connections that each close looks at: enough that those waiting for
/// their clients never grow in number, and few enough that a close stays short.
const LOOKS_PER_CLOSE: usize = 4;
/// Places that are tried for a ring before the replica waits, and how many of them
/// have the same distance from each other.
const PLACES_MAX: u32 = 64;
const PLACES_ALIKE: u32 = 4;

/// Addresses for rings, given out in turn, round and round.
struct Region {
    start: usize,
    end: usize,
    next: AtomicUsize,
}

/// Region far from everything that the kernel, a program or a sanitizer takes
/// by itself.
static REGION: Region = Region::new(0x2000_0000_0000, 1 << 42);

/// Keeps output of the replica until the client has acknowledged it. A replica
/// that is a little behind need not even copy what the client already has.
pub fn keep(e: &ConnEntry, bytes: &[u8]) {
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
    let fresh = new_ring(e, cap);
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
        free_ring(e, old, old_cap);
    }
    true
}

/// Offset of a family's pool in the shared memory.
static POOL_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Maps a family's pool, which lies at `offset` in the memory: all processes have it at
/// the same place. What one writes there the others and the daemon can read.
pub fn map_pool(memory: i32, offset: usize) -> bool {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
    let at = REGION.start;
    // SAFETY: it takes no memory that anybody has.
    let r = unsafe { syscall!(SYS_mmap, at, POOL_BYTES, both, flags, memory, offset) };
    if r != at as isize {
        return false;
    }
    // SAFETY: the mapping that was just made.
    unsafe { syscall!(SYS_madvise, at, POOL_BYTES, libc::MADV_DONTDUMP) };
    POOL_OFFSET.store(offset, Relaxed);
    true
}

/// Where the connection's part of the pool begins, from the pool's beginning on.
fn part(e: &ConnEntry) -> usize {
    // SAFETY: an entry of the table.
    let place = unsafe { core::ptr::from_ref(e).offset_from(state::table()) };
    place as usize * POOL_PART_BYTES
}

fn new_ring(e: &ConnEntry, cap: u64) -> *mut u8 {
    if state::is_family() {
        return (REGION.start + part(e) + cap as usize) as *mut u8;
    }
    REGION.map(cap as usize)
}

fn free_ring(e: &ConnEntry, ring: *mut u8, cap: u64) {
    if state::is_family() {
        let at = POOL_OFFSET.load(Relaxed) + part(e) + cap as usize;
        return sys::punch(MEMORY_FD.load(Relaxed), at as u64, cap);
    }
    sys::unmap(ring, cap as usize);
}

impl Region {
    const fn new(start: usize, bytes: usize) -> Self {
        Self { start, end: start + bytes, next: AtomicUsize::new(start) }
    }

    /// Fresh memory, or null if there is none, or if no free place in the region is
    /// found. If the kernel chose the place, the server's own maps would lie elsewhere
    /// than the primary's.
    fn map(&self, bytes: usize) -> *mut u8 {
        for n in 0..PLACES_MAX {
            // What lies there may be a ring much larger than this one.
            let step = (bytes << (n / PLACES_ALIKE)).min(KEEP_BYTES_MAX as usize);
            match sys::map_anonymous_at(self.advance(bytes, step), bytes) {
                Ok(fresh) => return fresh,
                Err(libc::EEXIST) => {}
                Err(_) => break,
            }
        }
        core::ptr::null_mut()
    }

    /// The next place where `bytes` fit; the one after it is `step` away.
    fn advance(&self, bytes: usize, step: usize) -> usize {
        let place = |next: usize| if next + bytes <= self.end { next } else { self.start };
        let before = self.next.fetch_update(Relaxed, Relaxed, |next| Some(place(next) + step));
        place(before.unwrap_or(self.start))
    }
}

/// Frees the memory. Several threads may come at once: one of them frees it
/// then.
pub fn release(e: &ConnEntry) {
    if e.keep_addr.load(Relaxed) == 0 {
        return;
    }
    let cap = e.keep_cap.load(Relaxed);
    let addr = e.keep_addr.swap(0, Relaxed);
    if addr == 0 {
        return;
    }
    e.keep_cap.store(0, Relaxed);
    e.keep_from.store(e.out_bytes.load(Relaxed), Relaxed);
    free_ring(e, addr as *mut u8, cap);
}

/// Closed connections whose output is still kept, in a ring.
struct Leaving {
    first: usize,
    len: usize,
    entries: [Option<&'static ConnEntry>; CONNS_MAX],
}

static LEAVING: Locked<Leaving> =
    Locked::new(Leaving { first: 0, len: 0, entries: [None; CONNS_MAX] });
/// Whether there are any such connections.
static ANY_LEAVES: AtomicBool = AtomicBool::new(false);

impl Leaving {
    fn push(&mut self, e: &'static ConnEntry) {
        // If there is no place, the next connection of the entry frees its memory.
        if self.len < CONNS_MAX {
            self.entries[(self.first + self.len) % CONNS_MAX] = Some(e);
            self.len += 1;
        }
    }

    fn pop(&mut self) -> Option<&'static ConnEntry> {
        let e = self.entries[self.first].take()?;
        self.first = (self.first + 1) % CONNS_MAX;
        self.len -= 1;
        Some(e)
    }

    /// Looks at up to `many` of them. A server that is no replica keeps nothing: the
    /// daemon has taken what it sends again.
    fn look(&mut self, many: usize) {
        for _ in 0..many.min(self.len) {
            let Some(e) = self.pop() else { break };
            if e.state.load(Acquire) == conn_state::OPEN {
                // The entry is another connection's by now, which closes in its
                // time.
            } else if state::mode() == Mode::Record
                || e.acked_bytes.load(Acquire) >= e.out_bytes.load(Relaxed)
            {
                release(e);
            } else {
                self.push(e);
            }
        }
        ANY_LEAVES.store(self.len > 0, Relaxed);
    }
}

/// The server has closed a connection: its output is kept until the client has all of
/// it, and no longer. The closing thread looks at a few connections that were closed
/// before it.
pub fn leave(e: &'static ConnEntry) {
    if state::is_family() {
        // The daemon frees it: which process would come by is not known.
        return;
    }
    let keeps = e.keep_addr.load(Relaxed) != 0;
    if !keeps && !ANY_LEAVES.load(Relaxed) {
        return;
    }
    let mut leaving = LEAVING.hold();
    if keeps {
        leaving.push(e);
    }
    leaving.look(LOOKS_PER_CLOSE);
}

/// Called when a server that keeps nothing has written: frees what it kept as a
/// replica, of this connection and, little by little, of those that were closed.
pub fn give_up(e: &ConnEntry) {
    release(e);
    if ANY_LEAVES.load(Relaxed) {
        LEAVING.hold().look(1);
    }
}

/// Frees an entry's memory and has `fill` turn it into another connection's.
/// Meanwhile nobody takes it for the one that has left.
pub fn reuse(e: &ConnEntry, fill: impl FnOnce()) {
    let _leaving = LEAVING.hold();
    release(e);
    fill();
}

#[cfg(all(test, not(miri)))]
mod tests;
