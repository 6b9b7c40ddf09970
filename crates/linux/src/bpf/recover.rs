//! The copies that `bpf/recover.h` makes, for any object that includes it.

use super::capture::Resent;
use super::error::BpfError;
use super::layout::{
    RECOVER_FROM_NOW, RECOVER_HELD, RECOVER_HOLDS, RECOVER_INTO, RECOVER_OPENED,
    RECOVER_RING_BYTES, RawRecoverCount, Recovered,
};
use super::loader::Loaded;
use aya::maps::{Array, MapData, PerCpuArray, RingBuf};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use zerocopy::FromBytes;

/// Most packets of one [`Copies::drain`]: some ms of a loop that others wait for.
const DRAIN_MAX: usize = 8192;
/// Number of [`Copies::drain`] calls that empty the fullest ring.
pub const DRAINS_MAX: usize = RECOVER_RING_BYTES as usize / RECORD_BYTES_MIN / DRAIN_MAX;
/// Least bytes of a record: the kernel's head, ours, and the shortest headers.
const RECORD_BYTES_MIN: usize = 64;

/// The maps that `recover.h` adds to an object.
pub(crate) const RECOVER_MAPS: [&str; 4] =
    ["recover_control", "recover_hold", "recover_packets", "recover_counts"];

/// What is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPolicy {
    /// Nothing; costs the load of a word per packet.
    Off,
    /// SYNs, and the headers that tell that they have arrived.
    Syns,
    /// Every segment, and every acknowledgement's headers.
    Segments,
}

/// One copied packet: its headers, the payload of its first segment and, if the
/// packet is longer than that, of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Whether it goes into the part of the network that may fail, or else out
    /// of it.
    pub into: bool,
    /// Whether what its flow sent before was answered, though no answer was
    /// seen.
    pub is_opened: bool,
    /// Whether it was not forwarded: the reader sends it on ([`Copies::hold`]).
    pub is_held: bool,
    /// The program's own number, such as that of the string.
    pub way: u16,
    /// The IP and the TCP header.
    pub headers: &'a [u8],
    /// Payload bytes of the whole packet.
    pub payload_bytes: u32,
    /// The payload of the first segment. Incomplete where only headers were
    /// copied.
    pub head: &'a [u8],
    /// The payload of the last segment and where it begins in the whole.
    pub tail: Option<(u32, &'a [u8])>,
    /// Payload of one segment, if this frame has several.
    pub gso_bytes: u16,
}

/// The maps of one loaded object.
pub struct Copies {
    control: Array<MapData, u32>,
    until: Array<MapData, u64>,
    policy: u32,
    packets: RingBuf<MapData>,
    counts: PerCpuArray<MapData, RawRecoverCount>,
    resent: Resent,
}

impl Copies {
    pub(crate) fn of(loaded: &mut Loaded) -> Result<Self, BpfError> {
        let [control, hold, packets, counts] = RECOVER_MAPS;
        Ok(Self {
            control: loaded.map(control)?,
            until: loaded.map(hold)?,
            policy: 0,
            packets: loaded.map(packets)?,
            counts: loaded.map(counts)?,
            resent: Resent::of(loaded)?,
        })
    }

    /// Sets what is copied from now on.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn set(&mut self, policy: CopyPolicy) -> Result<(), BpfError> {
        self.policy = match policy {
            CopyPolicy::Off => 0,
            CopyPolicy::Syns => 1,
            CopyPolicy::Segments => 2,
        };
        self.control(self.policy)
    }

    fn control(&mut self, value: u32) -> Result<(), BpfError> {
        self.control.set(0, value, 0).map_err(BpfError::map("recover_control"))
    }

    /// Stops forwarding bare acknowledgements that come out of the cluster: they are
    /// only copied until [`Copies::release`], or for `at_most`.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn hold(&mut self, at_most: Duration) -> Result<(), BpfError> {
        let ns = at_most.as_nanos().min(u128::from(RECOVER_FROM_NOW - 1)) as u64;
        self.until.set(0, RECOVER_FROM_NOW | ns, 0).map_err(BpfError::map("recover_hold"))?;
        self.control(self.policy | RECOVER_HOLDS)
    }

    /// Forwards acknowledgements again. What is still in the ring is to be
    /// read.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn release(&mut self) -> Result<(), BpfError> {
        self.control(self.policy)
    }

    /// Readable when much waits. Copies need not be read before, but until then
    /// nothing is known of them.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.packets.as_fd()
    }

    /// Hands over the packets that were copied since the last call, in order, until
    /// `take` answers false, but no more than some thousand: they come as fast as
    /// clients send. True if none is left.
    pub fn drain(&mut self, mut take: impl FnMut(Copied<'_>) -> bool) -> bool {
        for _ in 0..DRAIN_MAX {
            let Some(record) = self.packets.next() else { return true };
            if copied(&record).is_some_and(|copied| !take(copied)) {
                return false;
            }
        }
        false
    }

    /// Discards what was copied, and copies nothing more.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn discard(&mut self) -> Result<(), BpfError> {
        self.set(CopyPolicy::Off)?;
        for _ in 0..DRAINS_MAX {
            if self.drain(|_| true) {
                break;
            }
        }
        Ok(())
    }

    /// Whether somebody watches what the programs do to packets.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.resent.is_watched()
    }

    /// Shows a watcher a resent packet, IP header first, as one of the interface
    /// `ifindex`; 0 if the routes chose it.
    pub fn show_resent(&mut self, ifindex: u32, packet: &[u8]) {
        self.resent.show(ifindex, packet);
    }

    /// Packets that were copied, and packets for which the ring had no room.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let values = self.counts.get(&0, 0);
        values.map_or((0, 0), |values| {
            values.iter().fold((0, 0), |sum, it| (sum.0 + it.copied, sum.1 + it.lost))
        })
    }
}

fn copied(record: &[u8]) -> Option<Copied<'_>> {
    let (head, data) = Recovered::read_from_prefix(record).ok()?;
    let headers = usize::from(head.headers);
    let part = |from: usize, bytes: u16| data.get(from..from + usize::from(bytes));
    let tail = match head.tail_bytes {
        0 => None,
        bytes => Some((head.tail_at, part(usize::from(head.tail_from), bytes)?)),
    };
    Some(Copied {
        into: matches!(head.direction, RECOVER_INTO | RECOVER_OPENED),
        is_opened: head.direction == RECOVER_OPENED,
        is_held: head.direction == RECOVER_HELD,
        way: head.way,
        headers: data.get(..headers)?,
        payload_bytes: head.payload,
        head: part(headers, head.head_bytes)?,
        tail,
        gso_bytes: head.gso_size,
    })
}
