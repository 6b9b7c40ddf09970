//! Captures of the packets that a daemon's programs changed, redirected or dropped
//! (`bpf/capture.h`), read through pinned maps without the daemon's help.

use super::error::BpfError;
use super::layout::{CAPTURE_BYTES_MAX, RawCaptured};
use super::loader::Loaded;
use super::trace;
use aya::maps::{Array, Map, MapData, RingBuf};
use aya::programs::SchedClassifier;
use aya::{TestRun as _, TestRunOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use zerocopy::FromBytes;

/// Number of packets that are captured until the next [`Captures::renew`]: a reader that dies
/// costs no more than these.
pub const CAPTURE_CREDIT: i64 = 1 << 16;

const RING: &str = "captures";
const CREDIT: &str = "capture_credit";
/// Program that captures the packets that the daemon itself sends.
const RESENT: &str = "recover_resent";
const ETHERNET: usize = 14;

/// Why a packet was captured: `enum capture_what`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Redirected,
    Clamped,
    Dropped,
    Answered,
    /// Sent by the daemon, after an outage.
    Resent,
    /// A reason of a newer release.
    Other(u32),
}

/// One packet, as it was when a program captured it.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// Time of the kernel's CLOCK_BOOTTIME, which a time namespace may hide:
    /// good for intervals.
    pub at_ns: u64,
    /// Index of the interface where it came in.
    pub ifindex: u32,
    pub what: What,
    /// Length of the packet in bytes; a GSO frame of several segments counts as one.
    pub wire_bytes: u32,
    /// The packet's beginning, at most 256 bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
}

/// The captures of one set of programs. Dropping it stops them.
pub struct Captures {
    credit: Array<MapData, i64>,
    ring: RingBuf<MapData>,
}

impl Captures {
    /// Opens the rings of every object that is pinned below `pin_dir`, the
    /// daemon's directory of pins. Empty if no daemon ever ran there.
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
        let credit = Array::try_from(Map::Array(pinned(CREDIT)?)).map_err(BpfError::map(CREDIT))?;
        let ring = RingBuf::try_from(Map::RingBuf(pinned(RING)?)).map_err(BpfError::map(RING))?;
        let mut captures = Self { credit, ring };
        // Packets left from an earlier reader are out of date.
        while captures.ring.next().is_some() {}
        Ok(captures)
    }

    /// Lets the programs capture another [`CAPTURE_CREDIT`] packets.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn renew(&mut self) -> Result<(), BpfError> {
        self.set(CAPTURE_CREDIT)
    }

    fn set(&mut self, packets: i64) -> Result<(), BpfError> {
        self.credit.set(0, packets, 0).map_err(BpfError::map(CREDIT))
    }

    /// Passes the packets that were captured since the last call to `handle`.
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
    /// A descriptor that is readable when packets were captured.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        // If this fails, the programs stop when the credit is used up.
        let _ = self.set(0);
    }
}

/// Adds packets that a daemon has resent to the captures of its programs.
pub(super) struct Resent {
    credit: Array<MapData, i64>,
    program: SchedClassifier,
    frame: Vec<u8>,
}

impl Resent {
    pub(super) fn of(loaded: &mut Loaded) -> Result<Self, BpfError> {
        let credit = Map::Array(loaded.pinned(CREDIT)?);
        let credit = Array::try_from(credit).map_err(BpfError::map(CREDIT))?;
        let program = loaded.pin_only(RESENT)?;
        Ok(Self { credit, program, frame: Vec::with_capacity(CAPTURE_BYTES_MAX) })
    }

    /// Whether somebody is watching.
    pub(super) fn is_watched(&self) -> bool {
        self.credit.get(&0, 0).is_ok_and(|credit| credit > 0)
    }

    /// Captures a packet, given from the IP header on, as one that left by this interface; 0 if
    /// the routes chose it. Failures are ignored: a watcher may miss a packet.
    pub(super) fn show(&mut self, ifindex: u32, l3: &[u8]) {
        let ethertype: u16 =
            if l3.first().is_some_and(|it| it >> 4 == 6) { 0x86dd } else { 0x0800 };
        self.frame.clear();
        self.frame.resize(ETHERNET - 2, 0);
        self.frame.extend(ethertype.to_be_bytes());
        self.frame.extend(l3.iter().take(CAPTURE_BYTES_MAX - ETHERNET));
        let context = trace::context((ETHERNET + l3.len()) as u32, ifindex);
        let mut options = TestRunOptions::new();
        options.data_in = Some(&self.frame);
        options.ctx_in = Some(&context);
        let _missed = self.program.test_run(options);
    }
}

impl What {
    pub(super) fn of(number: u32) -> Self {
        match number {
            1 => Self::Redirected,
            2 => Self::Clamped,
            3 => Self::Dropped,
            4 => Self::Answered,
            5 => Self::Resent,
            other => Self::Other(other),
        }
    }
}
