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

/// Most packets of one [`Copies::drain`]: they take some ms, for which the loop does nothing else.
const DRAIN_MAX: usize = 8192;
/// Number of [`Copies::drain`] calls that empty the fullest ring.
pub const DRAINS_MAX: usize = RECOVER_RING_BYTES as usize / RECORD_BYTES_MIN / DRAIN_MAX;
/// Least bytes of a record: the kernel's header, ours, and the shortest packet headers.
const RECORD_BYTES_MIN: usize = 64;

/// The maps that `recover.h` adds to an object.
pub(crate) const RECOVER_MAPS: [&str; 4] =
    ["recover_control", "recover_hold", "recover_packets", "recover_counts"];

/// Which packets are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPolicy {
    /// None; that costs the load of one word per packet.
    Off,
    /// SYNs, and the headers that acknowledge them.
    Syns,
    /// Every segment, and the headers of every acknowledgement.
    Segments,
}

/// One copied packet: its headers, the payload of its first segment and, if the
/// packet is longer than that, of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Whether it goes into the part of the network that may fail, or comes out of it.
    pub into: bool,
    /// Whether it shows that the flow's earlier packets were answered, although the answers do
    /// not pass this host.
    pub is_opened: bool,
    /// Whether it was not forwarded: the reader must send it on ([`Copies::hold`]).
    pub is_held: bool,
    /// The program's number of the path, such as the string's, or the host server's slot.
    pub way: u16,
    /// The IP and the TCP header.
    pub headers: &'a [u8],
    /// Payload bytes of the whole packet.
    pub payload_bytes: u32,
    /// The payload of the first segment; incomplete if only headers were copied.
    pub head: &'a [u8],
    /// Where the last segment's payload begins in the whole, in bytes, and that payload.
    pub tail: Option<(u32, &'a [u8])>,
    /// Payload bytes of one segment, if this is a GSO frame of several.
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

    /// Holds back pure ACKs that come out of the cluster: until [`Copies::release`], but for
    /// `at_most` at the longest, they are copied and not forwarded.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn hold(&mut self, at_most: Duration) -> Result<(), BpfError> {
        let ns = at_most.as_nanos().min(u128::from(RECOVER_FROM_NOW - 1)) as u64;
        self.until.set(0, RECOVER_FROM_NOW | ns, 0).map_err(BpfError::map("recover_hold"))?;
        self.control(self.policy | RECOVER_HOLDS)
    }

    /// Forwards ACKs again. Those that are still in the ring must be read and sent on.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn release(&mut self) -> Result<(), BpfError> {
        self.control(self.policy)
    }

    /// A descriptor that is readable when many copies wait. [`Copies::drain`] may be called
    /// before.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.packets.as_fd()
    }

    /// Passes the packets that were copied since the last call to `take`, in order, until that
    /// answers false. At most some thousands, since they may come as fast as they are read. True
    /// if none is left.
    pub fn drain(&mut self, mut take: impl FnMut(Copied<'_>) -> bool) -> bool {
        for _ in 0..DRAIN_MAX {
            let Some(record) = self.packets.next() else { return true };
            if copied(&record).is_some_and(|copied| !take(copied)) {
                return false;
            }
        }
        false
    }

    /// Stops copying, and discards what was copied.
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

    /// Adds a resent packet, given from the IP header on, to the captures, as one that left by
    /// the interface `ifindex`; 0 if the routes chose it.
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
