//! The gate's slots, mapped into this process. Every field is read and written
//! as one aligned atomic word, since the gate changes slots at the same time;
//! a slot counts only while its generation is the one asked for (decision 1).

use super::layout::{GateSlot, RawKey};
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey};
use holdfast_wire::seq::SeqNo;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// All slots of one gate.
pub(crate) struct Slots {
    base: NonNull<u8>,
    count: u32,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is accessed through
// atomics only, so it may be used from and dropped on any thread.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// Maps `count` slots of the array map `fd`.
    pub(crate) fn new(fd: impl AsFd, count: u32) -> io::Result<Self> {
        let bytes = count as usize * size_of::<GateSlot>();
        // SAFETY: a new shared mapping at an address of the kernel's choice; the
        // array is at least this long, or mmap fails.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base, count, bytes })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The slot of `conn`, if it still has that generation.
    pub(crate) fn view(&self, conn: ConnId) -> Option<SlotView> {
        let (slot, generation) = self.live(conn)?;
        let seq = |offset| SeqNo(slot.u32(offset).load(Ordering::Relaxed));
        let view = SlotView {
            key: slot.key(),
            iss: seq(offset_of!(GateSlot, iss)),
            irs: seq(offset_of!(GateSlot, irs)),
            snd_una: seq(offset_of!(GateSlot, snd_una)),
            snd_nxt: seq(offset_of!(GateSlot, snd_nxt)),
            stable: SeqNo(slot.stable().load(Ordering::Relaxed) as u32),
            right_edge: seq(offset_of!(GateSlot, right_edge)),
            rcv_nxt: seq(offset_of!(GateSlot, rcv_nxt)),
            last_ack: seq(offset_of!(GateSlot, last_ack)),
            last_edge: seq(offset_of!(GateSlot, last_edge)),
            rcv_wscale: slot.u8(offset_of!(GateSlot, rcv_wscale)).load(Ordering::Relaxed),
            tsval: seq(offset_of!(GateSlot, tsval)).0,
            tsecr: seq(offset_of!(GateSlot, tsecr)).0,
            has_ts: slot.u8(offset_of!(GateSlot, has_ts)).load(Ordering::Relaxed) != 0,
            held_synack: seq(offset_of!(GateSlot, open_generation)).0 != generation,
        };
        // A view of which a part belongs to the next generation is none.
        fence(Ordering::Acquire);
        self.live(conn).map(|_| view)
    }

    /// One store; that `stable` never goes back is the caller's part.
    pub(crate) fn set_stable(&self, conn: ConnId, stable: SeqNo) -> bool {
        let Some((slot, generation)) = self.live(conn) else { return false };
        let word = u64::from(generation) << 32 | u64::from(stable.0);
        slot.stable().store(word, Ordering::Release);
        true
    }

    pub(crate) fn open(&self, conn: ConnId) -> bool {
        self.stamp(conn, offset_of!(GateSlot, open_generation))
    }

    pub(crate) fn allow_fin(&self, conn: ConnId) -> bool {
        self.stamp(conn, offset_of!(GateSlot, fin_generation))
    }

    /// Marks the slot free; its key, for the caller to forget. `None` the second time.
    pub(crate) fn release(&self, conn: ConnId) -> Option<ConnKey> {
        let key = self.live(conn)?.0.key();
        self.stamp(conn, offset_of!(GateSlot, free_generation)).then_some(key)
    }

    /// Stores the generation into one of user space's words.
    fn stamp(&self, conn: ConnId, offset: usize) -> bool {
        let Some((slot, generation)) = self.live(conn) else { return false };
        slot.u32(offset).store(generation, Ordering::Release);
        true
    }

    /// The connection in a slot.
    pub(crate) fn current(&self, index: u32) -> Option<ConnId> {
        if index >= self.count {
            return None;
        }
        let slot = Slot { slots: self, start: index as usize * size_of::<GateSlot>() };
        let generation = slot.u32(offset_of!(GateSlot, generation)).load(Ordering::Acquire);
        let conn = ConnId(u64::from(generation) << 32 | u64::from(index));
        self.live(conn).map(|_| conn)
    }

    fn live(&self, conn: ConnId) -> Option<(Slot<'_>, u32)> {
        let (index, generation) = (conn.0 as u32, (conn.0 >> 32) as u32);
        if index >= self.count {
            return None;
        }
        let slot = Slot { slots: self, start: index as usize * size_of::<GateSlot>() };
        let load = |offset| slot.u32(offset).load(Ordering::Acquire);
        let current = load(offset_of!(GateSlot, generation)) == generation;
        let freed = load(offset_of!(GateSlot, free_generation)) == generation;
        (current && !freed).then_some((slot, generation))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of a successful mmap, and no
        // reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// One slot; `start + size_of::<GateSlot>() <= slots.bytes`.
struct Slot<'a> {
    slots: &'a Slots,
    start: usize,
}

impl<'a> Slot<'a> {
    fn at(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset + size <= size_of::<GateSlot>() && offset.is_multiple_of(size));
        // SAFETY: inside the mapping by the assertion and the type's invariant.
        unsafe { self.slots.base.as_ptr().add(self.start + offset) }
    }

    fn u8(&self, offset: usize) -> &'a AtomicU8 {
        // SAFETY: mapped as long as `slots` lives; accessed by atomics only.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    fn u32(&self, offset: usize) -> &'a AtomicU32 {
        // SAFETY: as in `u8`; pages and slots are aligned to 8, `offset` to 4.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    fn stable(&self) -> &'a AtomicU64 {
        let offset = offset_of!(GateSlot, stable);
        // SAFETY: as in `u8`; pages, slots and `offset` are aligned to 8.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    fn key(&self) -> ConnKey {
        let mut raw = [0u8; size_of::<RawKey>()];
        let start = offset_of!(GateSlot, key);
        for (i, byte) in raw.iter_mut().enumerate() {
            *byte = self.u8(start + i).load(Ordering::Relaxed);
        }
        let key: RawKey = zerocopy::transmute!(raw);
        ConnKey::from(&key)
    }
}
