//! Copies of another process's pages: as large as what was copied, not as what the
//! process might use.

use super::error::{Doing, Result};
use crate::sockopt::checked_len;
use holdfast_wire::snapshot::{ImageError, PAGE};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: usize = PAGE as usize;
/// Number of pages in one slab.
const SLAB: usize = 512;
/// Most pieces of one system call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Pages that are adjacent both there and here.
#[derive(Clone, Copy)]
struct Run {
    slot: usize,
    pages: usize,
}

/// The memory of another process.
pub(super) struct Memory {
    pid: u32,
    file: File,
}

impl Memory {
    pub fn open(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        Ok(Self { pid, file: File::open(&path).doing(path)? })
    }

    /// Reads, whatever the area's protection; fewer bytes where the mapping
    /// ends.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(into, address)
    }
}

pub(super) struct Store {
    /// Most pages that it may take.
    pages_max: usize,
    slabs: Vec<Box<[u8]>>,
    used: usize,
    /// Runs by address.
    runs: BTreeMap<u64, Run>,
    /// Ranges whose copies failed half-way.
    stale: Vec<(u64, u64)>,
}

/// A piece to be copied, within one slab.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    slot: usize,
    pages: usize,
}

impl Store {
    pub fn new(pages_max: usize) -> Self {
        let (slabs, runs, stale) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { pages_max, slabs, used: 0, runs, stale }
    }

    /// Makes room beforehand, so that copying meets no page that is not there.
    pub fn reserve(&mut self, pages: usize) {
        while self.slabs.len() * SLAB < self.used + pages {
            let mut slab = vec![0; SLAB * PAGE_BYTES].into_boxed_slice();
            slab.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
            self.slabs.push(slab);
        }
    }

    pub fn pages(&self) -> usize {
        self.used
    }

    /// Copies pages, over older copies of them.
    pub fn take(&mut self, memory: &Memory, ranges: &[(u64, u64)]) -> Result<()> {
        let mut pieces = Vec::new();
        for (start, end) in ranges {
            let fresh = self.fresh(*start, *end);
            if self.used + fresh > self.pages_max {
                return Err(ImageError::TooMuch("memory_bytes").into());
            }
            self.place(*start, *end, &mut pieces);
        }
        for pieces in pieces.chunks(PIECES_MAX) {
            self.copy(memory, pieces).doing("copying its memory")?;
        }
        Ok(())
    }

    /// Number of pages of a range that it has no copies of.
    fn fresh(&self, start: u64, end: u64) -> usize {
        let (mut at, mut fresh) = (start, 0);
        while at < end {
            at = match self.covering(at) {
                Some((_, pages)) => at + pages as u64 * PAGE,
                None => {
                    let next = self.runs.range(at..).next().map_or(end, |(next, _)| *next);
                    fresh += (next.min(end) - at) / PAGE;
                    next
                }
            };
        }
        fresh as usize
    }

    fn place(&mut self, start: u64, end: u64, pieces: &mut Vec<Piece>) {
        let mut at = start;
        while at < end {
            let (slot, pages) = match self.covering(at) {
                Some((slot, pages)) => (slot, pages.min(((end - at) / PAGE) as usize)),
                None => {
                    let next = self.runs.range(at..).next().map_or(end, |(next, _)| *next);
                    self.append(at, ((next.min(end) - at) / PAGE) as usize)
                }
            };
            let mut done = 0;
            while done < pages {
                let slot = slot + done;
                let count = (SLAB - slot % SLAB).min(pages - done);
                pieces.push(Piece { address: at + done as u64 * PAGE, slot, pages: count });
                done += count;
            }
            at += pages as u64 * PAGE;
        }
    }

    /// Place of a page's copy, and how many copies follow it.
    fn covering(&self, address: u64) -> Option<(usize, usize)> {
        let (start, run) = self.runs.range(..=address).next_back()?;
        let into = ((address - start) / PAGE) as usize;
        (into < run.pages).then(|| (run.slot + into, run.pages - into))
    }

    fn append(&mut self, address: u64, pages: usize) -> (usize, usize) {
        self.reserve(pages);
        let slot = self.used;
        self.used += pages;
        if let Some((start, run)) = self.runs.range_mut(..address).next_back()
            && start + run.pages as u64 * PAGE == address
            && run.slot + run.pages == slot
        {
            run.pages += pages;
        } else {
            self.runs.insert(address, Run { slot, pages });
        }
        (slot, pages)
    }

    fn copy(&mut self, memory: &Memory, pieces: &[Piece]) -> io::Result<()> {
        let mut local = Vec::with_capacity(pieces.len());
        let mut remote = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let len = piece.pages * PAGE_BYTES;
            let base = self.piece(piece).as_mut_ptr();
            local.push(libc::iovec { iov_base: base.cast(), iov_len: len });
            let base = piece.address as *mut libc::c_void;
            remote.push(libc::iovec { iov_base: base, iov_len: len });
        }
        let wanted: usize = pieces.iter().map(|piece| piece.pages * PAGE_BYTES).sum();
        let count = pieces.len() as libc::c_ulong;
        // SAFETY: the local pieces are parts of our slabs, disjoint and writable; what
        // the remote addresses mean is checked by the kernel.
        let copied = unsafe {
            libc::process_vm_readv(
                memory.pid as libc::pid_t,
                local.as_ptr(),
                count,
                remote.as_ptr(),
                count,
                0,
            )
        };
        if checked_len(copied).is_ok_and(|copied| copied == wanted) {
            return Ok(());
        }
        // For areas that the process may not read itself.
        for piece in pieces {
            let address = piece.address;
            memory.file.read_exact_at(self.piece(piece), address)?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: &Piece) -> &mut [u8] {
        let start = piece.slot % SLAB * PAGE_BYTES;
        &mut self.slabs[piece.slot / SLAB][start..start + piece.pages * PAGE_BYTES]
    }

    /// Marks copies of this range as unreliable.
    pub fn forget(&mut self, start: u64, end: u64) {
        self.stale.push((start, end));
    }

    /// The parts of a range that have no reliable copy.
    pub fn missing(&self, start: u64, end: u64, into: &mut Vec<(u64, u64)>) {
        let mut at = start;
        while at < end {
            at = match self.covering(at) {
                Some((_, pages)) => at + pages as u64 * PAGE,
                None => {
                    let next = self.runs.range(at..).next().map_or(end, |(next, _)| *next);
                    into.push((at, next.min(end)));
                    next
                }
            };
        }
        let stale = self.stale.iter().map(|(from, to)| ((*from).max(start), (*to).min(end)));
        into.extend(stale.filter(|(from, to)| from < to));
    }

    /// The copies of a range, in adjacent pieces.
    pub fn copies(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let mut at = start;
        std::iter::from_fn(move || {
            let (slot, pages) = (at < end).then(|| self.covering(at)).flatten()?;
            let pages = pages.min(SLAB - slot % SLAB).min(((end - at) / PAGE) as usize);
            let from = slot % SLAB * PAGE_BYTES;
            let bytes = &self.slabs[slot / SLAB][from..from + pages * PAGE_BYTES];
            let address = at;
            at += pages as u64 * PAGE;
            Some((address, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_where_they_were_copied_and_again() {
        let mut source = vec![0u8; 2000 * PAGE_BYTES];
        let base = (source.as_ptr() as u64).next_multiple_of(PAGE);
        let shift = (base - source.as_ptr() as u64) as usize;
        let memory = Memory::open(std::process::id()).unwrap();
        let mut store = Store::new(2000);
        let range = |from: u64, to: u64| (base + from * PAGE, base + to * PAGE);
        // Overlapping, in any order, over the end of a slab.
        let rounds = [vec![range(10, 700), range(900, 1000)], vec![range(5, 950)]];
        for (round, ranges) in (1..).zip(&rounds) {
            for page in 0..1999 {
                source[shift + page * PAGE_BYTES] = (page % 100) as u8 + round;
            }
            store.take(&memory, ranges).unwrap();
        }
        assert_eq!(store.pages(), 995);
        let (start, end) = range(5, 1000);
        let mut page = 5;
        for (address, bytes) in store.copies(start, end) {
            assert_eq!(address, base + page * PAGE);
            for copy in bytes.chunks(PAGE_BYTES) {
                let round = if page < 950 { 2 } else { 1 };
                assert_eq!(copy[0], (page % 100) as u8 + round, "page {page}");
                page += 1;
            }
        }
        assert_eq!(page, 1000);
        let too_much = store.take(&memory, &[(0, 2000 * PAGE)]);
        assert!(too_much.is_err_and(|error| error.to_string().contains("memory_bytes")));
        let (start, end) = range(0, 1010);
        let mut missing = Vec::new();
        store.forget(base + 7 * PAGE, base + 9 * PAGE);
        store.missing(start, end, &mut missing);
        assert_eq!(missing, [range(0, 5), range(1000, 1010), range(7, 9)]);
    }
}
