//! The pages that a process has: by `PAGEMAP_SCAN` (Linux 6.7), or from its page
//! map entry by entry.

use super::bounds::Patience;
use super::error::{Doing, Result};
use holdfast_wire::snapshot::PAGE;
use libc::c_ulong;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: c_ulong = 0xc060_6610;
const WP_MATCHING: u64 = 1;
const CHECK_WP_ASYNC: u64 = 2;
const WP_ALLOWED: u64 = 1;
const WRITTEN: u64 = 2;
const FILE: u64 = 4;
const PRESENT: u64 = 8;
const SWAPPED: u64 = 16;
const ZERO: u64 = 32;
/// Most regions that one call returns.
const REGIONS: usize = 2048;
/// Addresses that are scanned before the time is checked: pages of zeros take none of a
/// server's memory, but time.
pub(super) const SCAN_BYTES: u64 = 16 << 30;
/// Entries of the page map that are read at once.
const ENTRIES: usize = 4096;

impl Region {
    pub const fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE
    }

    /// Whether a copy from the time of the last protection is out of date.
    pub const fn is_dirty(&self) -> bool {
        self.categories & WRITTEN != 0 || self.categories & WP_ALLOWED == 0
    }
}

/// Whose pages an area may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Only the process's own.
    Own,
    /// A file's pages, too. To tell them apart, the kernel looks at each page's own entry:
    /// 16 ms for a gigabyte instead of 2.
    File,
}

impl Shows {
    /// Flags that pages must not have.
    const fn not(self) -> u64 {
        match self {
            Self::Own => ZERO,
            Self::File => FILE | ZERO,
        }
    }
}

/// The page map of a process.
pub(super) struct PageMap {
    file: File,
    /// Whether the kernel lists pages by itself.
    scans: bool,
}

impl PageMap {
    pub fn open(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let file = File::open(&path).doing(path)?;
        let mut nothing = ScanArg { size: size_of::<ScanArg>() as u64, ..ScanArg::default() };
        let scans = scan(&file, &mut nothing).is_ok();
        Ok(Self { file, scans })
    }

    /// Whether the kernel can be asked for changed pages.
    pub const fn scans(&self) -> bool {
        self.scans
    }

    /// Pages of the process's own: in memory or swapped out, neither a file's nor the
    /// page of zeros.
    pub fn own(
        &self,
        start: u64,
        end: u64,
        (shows, patience): (Shows, Patience),
        found: &mut Vec<Region>,
    ) -> Result<()> {
        let step = if self.scans { SCAN_BYTES } else { ENTRIES as u64 * PAGE };
        let mut at = start;
        while at < end {
            patience.check()?;
            let to = end.min(at.saturating_add(step));
            match self.scans {
                true => self.scan(at, to, shows, found).doing("scanning its page map")?,
                false => self.own_by_entries(at, to, found).doing("reading its page map")?,
            }
            at = to;
        }
        Ok(())
    }

    fn scan(&self, start: u64, end: u64, shows: Shows, found: &mut Vec<Region>) -> io::Result<()> {
        let filter = ScanArg {
            category_inverted: shows.not(),
            category_mask: shows.not(),
            category_anyof_mask: PRESENT | SWAPPED,
            return_mask: PRESENT | WRITTEN | WP_ALLOWED,
            ..ScanArg::default()
        };
        self.walk(&filter, start, end, found)
    }

    /// Protects the existing pages, or, later, those written since the last time, and
    /// lists them. For an area that is not registered any more, it lists none.
    pub fn protect(
        &self,
        first: bool,
        (start, end): (u64, u64),
        shows: Shows,
        found: &mut Vec<Region>,
    ) {
        let filter = ScanArg {
            flags: WP_MATCHING | CHECK_WP_ASYNC,
            category_mask: if first { 0 } else { WRITTEN },
            category_anyof_mask: if first { PRESENT | SWAPPED } else { 0 },
            return_mask: PRESENT | shows.not(),
            ..ScanArg::default()
        };
        let before = found.len();
        // What it could not protect is found and copied in the freeze.
        let _ = self.walk(&filter, start, end, found);
        let mut fresh = found.split_off(before);
        fresh.retain(|region| region.categories & (FILE | ZERO) == 0);
        found.append(&mut fresh);
    }

    fn walk(
        &self,
        filter: &ScanArg,
        start: u64,
        end: u64,
        found: &mut Vec<Region>,
    ) -> io::Result<()> {
        let mut regions = vec![Region::default(); REGIONS];
        let mut at = start;
        while at < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                ..*filter
            };
            let count = scan(&self.file, &mut arg)?;
            found.extend_from_slice(&regions[..count.min(REGIONS)]);
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(())
    }

    fn own_by_entries(&self, start: u64, end: u64, found: &mut Vec<Region>) -> io::Result<()> {
        const IN_MEMORY: u64 = 1 << 63;
        const IN_SWAP: u64 = 1 << 62;
        const IN_FILE: u64 = 1 << 61;
        let mut bytes = vec![0; ENTRIES * 8];
        let mut at = start;
        while at < end {
            let count = ENTRIES.min(((end - at) / PAGE) as usize);
            let bytes = &mut bytes[..count * 8];
            self.file.read_exact_at(bytes, at / PAGE * 8)?;
            for entry in bytes.as_chunks::<8>().0 {
                let entry = u64::from_ne_bytes(*entry);
                if entry & (IN_MEMORY | IN_SWAP) != 0 && entry & IN_FILE == 0 {
                    match found.last_mut() {
                        Some(last) if last.end == at => last.end += PAGE,
                        _ => found.push(Region { start: at, end: at + PAGE, categories: PRESENT }),
                    }
                }
                at += PAGE;
            }
        }
        Ok(())
    }
}

fn scan(file: &File, arg: &mut ScanArg) -> io::Result<usize> {
    // SAFETY: the kernel reads and writes one `pm_scan_arg`, whose vector is null with
    // no room, or has the room that it says.
    let count = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(arg)) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same_pages() {
        let mut map = PageMap::open(std::process::id()).unwrap();
        let pages = 300;
        // An area of its own: what an allocator hands out may have been used before.
        let len = pages * PAGE as usize;
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which nothing else knows, and which lasts to the test's end.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: as above; whole pages of it.
        assert_eq!(unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) }, 0);
        // SAFETY: as above; it is readable and writable.
        let memory = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), len) };
        let start = memory.as_ptr() as u64;
        let end = start + (pages as u64 - 1) * PAGE;
        for page in [0, 3, 4, 5, 100, 298] {
            memory[(page * PAGE) as usize] = 1;
        }
        let mut scanned = Vec::new();
        let patience = Patience::of(std::time::Duration::from_secs(10));
        map.own(start, end, (Shows::File, patience), &mut scanned).unwrap();
        let mut scanned_fast = Vec::new();
        map.own(start, end, (Shows::Own, patience), &mut scanned_fast).unwrap();
        assert_eq!(scanned_fast, scanned);
        map.scans = false;
        let mut listed = Vec::new();
        map.own(start, end, (Shows::Own, patience), &mut listed).unwrap();
        let plain = |regions: &[Region]| -> Vec<(u64, u64)> {
            regions.iter().map(|r| ((r.start - start) / PAGE, (r.end - start) / PAGE)).collect()
        };
        assert_eq!(plain(&listed), [(0, 1), (3, 6), (100, 101), (298, 299)]);
        assert_eq!(plain(&scanned), plain(&listed));
    }
}
