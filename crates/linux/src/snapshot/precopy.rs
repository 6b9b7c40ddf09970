//! Copying memory in rounds while the server runs: a userfaultfd of its own protects
//! copied pages against writing, and the kernel lifts the protection by itself and
//! remembers where (`UFFD_FEATURE_WP_ASYNC`, Linux 6.7).

use super::bounds::{LOOK_MAX, Patience};
use super::describe::same::Open;
use super::error::{Doing, Result, refuse};
use super::maps::{self, Mapping};
use super::pages::{PageMap, Region, SCAN_BYTES, Shows};
use super::store::{Memory, Store};
use crate::process;
use crate::sockopt::checked;
use holdfast_wire::snapshot::PAGE;
use libc::c_ulong;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`; a `uffdio_range` is its beginning.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `_IOWR(0xaa, 0x3f, struct uffdio_api)` and so on.
const UFFDIO_API: c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: c_ulong = 0x8010_aa01;
const API: u64 = 0xaa;
const WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 2;
/// Bytes copied at once: cancelling an image takes as long as one such step, some
/// milliseconds.
const COPY_BYTES: u64 = 4 << 20;
/// Bytes released at once: the server waits meanwhile. At its last close a
/// userfaultfd releases everything at once, 34 ms for a gigabyte.
const LET_GO_BYTES: u64 = 2 << 20;
/// Most such steps for all of its memory: addresses cost nothing, and a server may
/// have terabytes of them.
const LET_GO_STEPS: u64 = 1 << 18;

/// Flag of an area in which a userfaultfd protects pages.
const PROTECTED: &str = "uw";

pub(super) const LINK: &[u8] = b"anon_inode:[userfaultfd]";

/// Areas whose changes the kernel remembers.
pub(super) struct Tracker {
    fd: OwnedFd,
    /// Areas by their start: a server may have tens of thousands.
    registered: BTreeMap<u64, Registered>,
}

struct Registered {
    end: u64,
    shows: Shows,
    /// Whether nothing of it has been copied.
    is_new: bool,
}

impl Tracker {
    /// Takes the process's userfaultfd, if it has one and the kernel can. One that it has from
    /// an earlier process is for the memory of that one.
    pub fn begin(
        pid: u32,
        earlier: &[u32],
        map: &PageMap,
        mappings: &[Mapping],
    ) -> Result<Option<Self>> {
        let found = userfaultfds_of(pid).into_iter().find(|own| !is_anothers(pid, *own, earlier));
        let Some(number) = found.filter(|_| map.scans()) else { return Ok(None) };
        let process = process::pidfd_open(pid).doing("opening the server")?;
        let fd = process::pidfd_getfd(process.as_fd(), number).doing("taking its userfaultfd")?;
        let mut api = Api { api: API, features: WP_ASYNC, ioctls: 0 };
        // SAFETY: the kernel reads and writes one `uffdio_api`.
        let agreed = checked(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) });
        match agreed {
            Ok(_) => {}
            // An earlier image was taken with it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(_) => return Ok(None),
        }
        let mut tracker = Self { fd, registered: BTreeMap::new() };
        tracker.register(mappings);
        // Who has given it away may have closed it since then.
        let is_own = earlier.is_empty() || tracker.shows_in(pid)?;
        Ok((is_own && !tracker.registered.is_empty()).then_some(tracker))
    }

    /// Whether what was registered shows in the process's own areas.
    fn shows_in(&self, pid: u32) -> Result<bool> {
        let flags = maps::flags(pid)?;
        let mut areas = flags.iter().filter(|(start, _)| self.registered.contains_key(start));
        Ok(areas.any(|(_, flags)| flags.iter().any(|flag| flag == PROTECTED)))
    }

    /// Registers areas that are new or have changed. Areas that cannot be registered are
    /// copied in the freeze.
    pub fn register(&mut self, mappings: &[Mapping]) {
        for mapping in mappings.iter().filter(|m| m.is_writable() && !m.is_shared) {
            let (start, end) = (mapping.start, mapping.end);
            if self.registered.get(&start).is_some_and(|known| known.end == end) {
                continue;
            }
            let mut register = Register { start, len: end - start, mode: MODE_WP, ioctls: 0 };
            let fd = self.fd.as_raw_fd();
            // SAFETY: the kernel reads and writes one `uffdio_register`.
            if unsafe { libc::ioctl(fd, UFFDIO_REGISTER, &raw mut register) } == 0 {
                // An area that has grown is looked at as a whole.
                while let Some((from, known)) = self.registered.range(..end).next_back()
                    && known.end > start
                {
                    let from = *from;
                    self.registered.remove(&from);
                }
                let shows = if mapping.inode == 0 { Shows::Own } else { Shows::File };
                self.registered.insert(start, Registered { end, shows, is_new: true });
            }
        }
    }

    /// Copies everything, or what has changed since the last round; returns the number
    /// of pages.
    pub fn round(
        &mut self,
        map: &PageMap,
        memory: &Memory,
        store: &mut Store,
        is_off: &AtomicBool,
    ) -> Result<u64> {
        let (mut regions, patience) = (Vec::new(), Patience::of(LOOK_MAX));
        for (start, Registered { end, shows, is_new }) in &mut self.registered {
            for from in (*start..*end).step_by(SCAN_BYTES as usize) {
                patience.check()?;
                let to = (from + SCAN_BYTES).min(*end);
                map.protect(*is_new, (from, to), *shows, &mut regions);
            }
            *is_new = false;
        }
        for region in &regions {
            for start in (region.start..region.end).step_by(COPY_BYTES as usize) {
                if is_off.load(Relaxed) {
                    return refuse("nobody wants the image any more");
                }
                let end = (start + COPY_BYTES).min(region.end);
                // The freeze does not ask for what is unmapped meanwhile.
                if store.take(memory, &[(start, end)]).is_err() {
                    store.forget(start, end);
                }
            }
        }
        Ok(regions.iter().map(Region::pages).sum())
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let all: u64 = self.registered.iter().map(|(start, known)| known.end - start).sum();
        let step = LET_GO_BYTES.max((all / LET_GO_STEPS).next_multiple_of(PAGE));
        for (start, Registered { end, .. }) in &self.registered {
            for start in (*start..*end).step_by(step as usize) {
                let range = [start, step.min(end - start)];
                // SAFETY: the kernel only reads one `uffdio_range`, two numbers.
                unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_UNREGISTER, range.as_ptr()) };
            }
        }
    }
}

/// Whether an earlier process has the same userfaultfd.
fn is_anothers(pid: u32, number: RawFd, earlier: &[u32]) -> bool {
    let open = |pid, number: RawFd| Open { pid, number: number.cast_unsigned() };
    let same = |other: u32| {
        userfaultfds_of(other).into_iter().any(|it| open(other, it) == open(pid, number))
    };
    earlier.iter().any(|other| same(*other))
}

fn userfaultfds_of(pid: u32) -> Vec<RawFd> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let numbers = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let link: io::Result<_> = fs::read_link(entry.path());
        let is = link.is_ok_and(|link| link.as_os_str().as_encoded_bytes() == LINK);
        is.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    });
    numbers.collect()
}
