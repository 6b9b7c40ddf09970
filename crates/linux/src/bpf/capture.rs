//! The packets that the programs of a daemon changed, moved or dropped
//! (`bpf/capture.h`), for whoever wants to see them. The daemon is not asked.

use super::error::BpfError;
use super::layout::{CAPTURE_BYTES_MAX, RawCaptured};
use aya::maps::{Array, Map, MapData, RingBuf};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;
use zerocopy::FromBytes;

/// The programs show packets for so long after each [`Captures::renew`].
pub const CAPTURE_LEASE: Duration = Duration::from_secs(3);

const RING: &str = "captures";
const UNTIL: &str = "capture_until";

/// Why a packet is shown: `enum capture_what`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Redirected,
    Clamped,
    Resent,
    Dropped,
    Answered,
    /// Of a newer release.
    Other(u32),
}

/// One packet, as it was when a program showed it.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// Of CLOCK_BOOTTIME; see [`boot_ns`].
    pub at_ns: u64,
    /// Where it came in.
    pub ifindex: u32,
    pub what: What,
    /// Its length; a frame of several segments counts as one.
    pub wire_bytes: u32,
    /// Its beginning, at most 256 bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
}

/// What one set of programs shows. Dropping it switches the showing off.
pub struct Captures {
    until: Array<MapData, u64>,
    ring: RingBuf<MapData>,
}

impl Captures {
    /// Opens the rings of every object that is pinned below `pin_dir`, the
    /// daemon's directory of pins. None at all if no daemon ever ran there.
    ///
    /// # Errors
    /// [`BpfError::Map`] if a pinned map cannot be opened, as for want of root.
    pub fn open(pin_dir: &Path) -> Result<Vec<Self>, BpfError> {
        let Ok(objects) = std::fs::read_dir(pin_dir) else { return Ok(Vec::new()) };
        let directories = objects.filter_map(|entry| Some(entry.ok()?.path()));
        directories.filter(|at| at.join(RING).exists()).map(|at| Self::open_one(&at)).collect()
    }

    fn open_one(directory: &Path) -> Result<Self, BpfError> {
        let pinned = |name: &'static str| {
            MapData::from_pin(directory.join(name)).map_err(BpfError::map(name))
        };
        let until = Array::try_from(Map::Array(pinned(UNTIL)?)).map_err(BpfError::map(UNTIL))?;
        let ring = RingBuf::try_from(Map::RingBuf(pinned(RING)?)).map_err(BpfError::map(RING))?;
        let mut captures = Self { until, ring };
        // What an earlier reader left is old.
        while captures.ring.next().is_some() {}
        Ok(captures)
    }

    /// Shows packets for another [`CAPTURE_LEASE`].
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn renew(&mut self) -> Result<(), BpfError> {
        self.set(boot_ns() + CAPTURE_LEASE.as_nanos() as u64)
    }

    fn set(&mut self, until_ns: u64) -> Result<(), BpfError> {
        self.until.set(0, until_ns, 0).map_err(BpfError::map(UNTIL))
    }

    /// Hands over what was shown since the last call.
    pub fn drain(&mut self, mut handle: impl FnMut(Captured<'_>)) {
        while let Some(item) = self.ring.next() {
            let Ok((raw, _)) = RawCaptured::ref_from_prefix(&item) else { continue };
            let bytes = &raw.data[..(raw.bytes as usize).min(CAPTURE_BYTES_MAX)];
            let RawCaptured { at_ns, ifindex, wire_bytes, .. } = *raw;
            handle(Captured { at_ns, ifindex, what: What::of(raw.what), wire_bytes, bytes });
        }
    }
}

impl AsFd for Captures {
    /// Readable when packets were shown.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        // If it fails, the lease ends by itself.
        let _ = self.set(0);
    }
}

impl What {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Redirected,
            2 => Self::Clamped,
            3 => Self::Resent,
            4 => Self::Dropped,
            5 => Self::Answered,
            other => Self::Other(other),
        }
    }
}

/// CLOCK_BOOTTIME now, which the programs' stamps are of.
#[must_use]
pub fn boot_ns() -> u64 {
    // SAFETY: an all-zero timespec is a valid value of that plain C structure.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one timespec, which `now` is.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    // It cannot fail: the clock has existed since Linux 2.6.39.
    if status == 0 { now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 } else { 0 }
}
