//! The replica's retained output, which promotion may have to send again (decision 9).

use crate::base::cells::Locked;
use crate::base::copy;
use crate::base::state::{self, MEMORY_FD, Mode};
use crate::base::sys::{self, syscall};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use holdfast_wire::shm::{
    CONNS_MAX, ConnEntry, KEEP_BYTES_MAX, POOL_BYTES, POOL_PART_BYTES, conn_state,
};

/// First size of a connection's ring of retained output, in bytes; it may grow to
/// KEEP_BYTES_MAX.
const KEEP_BYTES_FIRST: u64 = 64 << 10;
/// Closed connections that each close looks at: enough that those which still wait for their
/// clients do not accumulate, and few enough that a close stays short.
const LOOKS_PER_CLOSE: usize = 4;
/// Most addresses that are tried for a ring.
const PLACES_MAX: u32 = 64;
/// Number of tries after which the distance between two addresses doubles.
const PLACES_ALIKE: u32 = 4;

/// An address range for rings, used from its beginning to its end and then again.
struct Region {
    start: usize,
    end: usize,
    next: AtomicUsize,
}

/// A region far from the addresses that the kernel, a program or a sanitizer uses by itself.
static REGION: Region = Region::new(0x2000_0000_0000, 1 << 42);

/// Retains output of the replica until the client has acknowledged it. What the client has
/// acknowledged already, because the replica is behind, is not even copied.
pub fn keep(e: &ConnEntry, bytes: &[u8]) {
    keep_with(e, bytes.len(), |at, to, n| {
        // SAFETY: a part of `bytes`, and room for as many.
        unsafe { copy::for_keeping(bytes[at..at + n].as_ptr(), to, n) };
    });
}

/// The same for `len` bytes that `fill` puts into the ring: `n` of them, from the byte `at` on.
pub fn keep_with(e: &ConnEntry, len: usize, mut fill: impl FnMut(usize, *mut u8, usize)) {
    let out = e.out_bytes.load(Relaxed);
    let acked = e.acked_bytes.load(Acquire).saturating_sub(out).min(len as u64);
    if acked > 0 {
        e.keep_from.store(out + acked, Relaxed);
        e.out_bytes.store(out + acked, Release);
    }
    let mut done = acked as usize;
    while done < len {
        let room = make_room(e, (len - done) as u64);
        let n = room.min((len - done) as u64) as usize;
        take_in(e, done, n, &mut fill);
        done += n;
    }
}

fn take_in(e: &ConnEntry, done: usize, n: usize, fill: &mut impl FnMut(usize, *mut u8, usize)) {
    let (base, cap) = (e.keep_addr.load(Relaxed) as *mut u8, e.keep_cap.load(Relaxed));
    let out = e.out_bytes.load(Relaxed);
    let at = (out % cap) as usize;
    let first = n.min(cap as usize - at);
    // SAFETY: the ring at `base` has `cap` bytes and make_room left space.
    fill(done, unsafe { base.add(at) }, first);
    if first < n {
        fill(done + first, base, n - first);
    }
    e.out_bytes.store(out + n as u64, Release);
}

/// Drops acknowledged output, then grows the ring until `want` bytes fit. At the ring's size limit
/// the replica waits until the client has acknowledged more: it may lag, but not lose output.
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

/// Maps a family's pool of retained output, at `offset` in the shared memory: at the same address
/// in all processes. The other processes and the daemon read what one writes there.
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

/// Offset of the connection's part in the pool.
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

    /// Fresh memory in the region, or null if there is none or no free address was found. If the
    /// kernel chose the address, the server's own mappings would lie elsewhere than the primary's.
    fn map(&self, bytes: usize) -> *mut u8 {
        for n in 0..PLACES_MAX {
            // A ring much larger than this one may be in the way: the steps grow.
            let step = (bytes << (n / PLACES_ALIKE)).min(KEEP_BYTES_MAX as usize);
            match sys::map_anonymous_at(self.advance(bytes, step), bytes) {
                Ok(fresh) => return fresh,
                Err(libc::EEXIST) => {}
                Err(_) => break,
            }
        }
        core::ptr::null_mut()
    }

    /// The next address where `bytes` fit; the one after it is `step` bytes further.
    fn advance(&self, bytes: usize, step: usize) -> usize {
        let place = |next: usize| if next + bytes <= self.end { next } else { self.start };
        let before = self.next.fetch_update(Relaxed, Relaxed, |next| Some(place(next) + step));
        place(before.unwrap_or(self.start))
    }
}

/// Frees a connection's ring. If several threads do that at once, one of them frees it.
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

/// A queue of closed connections whose output is still retained.
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
        // If the queue is full, the next connection with this entry frees the memory.
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

    /// Looks at up to `many` of them, and frees what is not needed. A server that is no replica
    /// needs none of it: the daemon has taken what it sends again.
    fn look(&mut self, many: usize) {
        for _ in 0..many.min(self.len) {
            let Some(e) = self.pop() else { break };
            if e.state.load(Acquire) == conn_state::OPEN {
                // The entry belongs to another connection by now, which is not closed.
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

/// Notes that the server has closed a connection: its output is retained until the client has
/// acknowledged all of it. The closing thread also looks at a few connections that were closed
/// before.
pub fn leave(e: &'static ConnEntry) {
    if state::is_family() {
        // The daemon frees it, since no process of the family is certain to.
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

/// Called when a server that is no replica any more has written: frees the output that it retained
/// as one, of this connection and, little by little, of closed ones.
pub fn give_up(e: &ConnEntry) {
    release(e);
    if ANY_LEAVES.load(Relaxed) {
        LEAVING.hold().look(1);
    }
}

/// Frees an entry's memory and lets `fill` turn it into another connection's, while the queue of
/// closed connections is locked.
pub fn reuse(e: &ConnEntry, fill: impl FnOnce()) {
    let _leaving = LEAVING.hold();
    release(e);
    fill();
}

#[cfg(all(test, not(miri)))]
mod tests;
