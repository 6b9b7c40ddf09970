//! The table of connections, and the pool of output that a family's replica keeps.

use super::SharedMemory;
use holdfast_wire::shm::{
    CONNS_MAX, ConnEntry, HEADER_BYTES, POOL_BYTES, POOL_PART_BYTES, RING_OFFSET, TABLE_BYTES,
    conn_state, mode,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl SharedMemory {
    /// The table entry of an accept number.
    #[must_use]
    pub fn entry(&self, accept: u32) -> &ConnEntry {
        // SAFETY: the table has CONNS_MAX entries of atomics.
        unsafe {
            &*self.base.add(HEADER_BYTES).cast::<ConnEntry>().add(accept as usize % CONNS_MAX)
        }
    }

    /// Of a family: the process that holds descriptor `fd` for a connection, in the
    /// server's own numbers.
    #[must_use]
    pub fn holder(&self, accept: u32) -> i32 {
        self.entry(accept).pid.load(Acquire)
    }

    /// Of a family: reads a connection's retained output, at an offset in its ring of
    /// `cap` bytes. The numbers are the server's word.
    ///
    /// # Errors
    /// If that lies outside of its part of the pool.
    pub fn read_pool(&self, accept: u32, (cap, at): (u64, u64), into: &mut [u8]) -> io::Result<()> {
        let within = cap.saturating_add(at).saturating_add(into.len() as u64);
        if at.saturating_add(into.len() as u64) > cap || within > POOL_PART_BYTES as u64 {
            return Err(io::Error::other("no replica keeps output there"));
        }
        let file = std::fs::File::from(self.fd.try_clone()?);
        file.read_exact_at(into, self.part_of_pool(accept) + cap + at)
    }

    /// Bytes of the memory that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        const BLOCK_BYTES: u64 = 512;
        let file = self.fd.try_clone().map(std::fs::File::from);
        file.and_then(|file| file.metadata()).map_or(0, |it| it.blocks() * BLOCK_BYTES)
    }

    /// Of a family: the connection's retained output is of no more use.
    pub fn free_part(&self, accept: u32) {
        self.punch(self.part_of_pool(accept), POOL_PART_BYTES);
    }

    /// Of a family: nobody's retained output is of use.
    pub fn free_pool(&self) {
        self.punch((RING_OFFSET + self.ring_bytes) as u64, POOL_BYTES);
    }

    fn part_of_pool(&self, accept: u32) -> u64 {
        let part = accept as usize % CONNS_MAX * POOL_PART_BYTES;
        (RING_OFFSET + self.ring_bytes + part) as u64
    }

    fn punch(&self, at: u64, bytes: usize) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain system call on our descriptor; nothing of ours is mapped there.
        // What fails leaves memory in use.
        let _ = unsafe { libc::fallocate(self.fd.as_raw_fd(), how, at as i64, bytes as i64) };
    }

    /// Cookies of the sockets in the table: accepted connections whose place was not
    /// taken by another.
    #[must_use]
    pub fn sockets(&self) -> BTreeSet<u64> {
        let places = self.written_places().map(|place| self.entry(place));
        let used = places.filter(|entry| entry.state.load(Acquire) != conn_state::FREE);
        used.map(|entry| entry.socket.load(Relaxed)).collect()
    }

    /// Places of the table in pages that somebody has written to. Reading the rest would make the
    /// kernel fill 2 MB with zeros.
    fn written_places(&self) -> impl Iterator<Item = u32> {
        let end = HEADER_BYTES + TABLE_BYTES;
        let mut at = HEADER_BYTES;
        let extents = std::iter::from_fn(move || {
            let from = self.seek(at, libc::SEEK_DATA)?.max(at);
            let to = self.seek(from, libc::SEEK_HOLE)?.min(end);
            at = to;
            (from < to).then_some(from..to)
        });
        let place = |at: usize| ((at - HEADER_BYTES) / size_of::<ConnEntry>()) as u32;
        extents.flat_map(move |bytes| place(bytes.start)..place(bytes.end))
    }

    /// Where what `whence` names begins, at or behind `at`; `None` if nothing of it follows.
    fn seek(&self, at: usize, whence: i32) -> Option<usize> {
        // SAFETY: plain numbers; nobody reads this descriptor by its offset.
        let found = unsafe { libc::lseek(self.fd.as_raw_fd(), at as i64, whence) };
        usize::try_from(found).ok()
    }

    /// A number that changes with each connection that the server accepts, and with each byte
    /// that it reads or writes; `None` if its shim keeps no books any more.
    #[must_use]
    pub fn moved(&self) -> Option<u64> {
        let keeps = !matches!(self.mode(), mode::OFF | mode::BROKEN);
        let of = |entry: &ConnEntry| {
            let [conn, bytes_in, bytes_out] = [
                u64::from(entry.conn.load(Relaxed)),
                entry.in_bytes.load(Relaxed),
                entry.out_bytes.load(Relaxed),
            ];
            conn.wrapping_add(bytes_in).wrapping_add(bytes_out)
        };
        let all = self.written_places().map(|place| of(self.entry(place)));
        keeps.then(|| all.fold(0, u64::wrapping_add))
    }
}
