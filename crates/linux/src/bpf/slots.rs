//! The gate's slots, mapped into this process. Every field is read and written as one aligned
//! atomic word, since the gate changes slots at the same time. A slot belongs to a connection
//! only while its generation is the one in the [`ConnId`] (decision 1).

use super::layout::{GateSlot, RawKey};
use holdfast_wire::gate::{Adopted, SlotView};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::seq::SeqNo;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

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
        // A view that may mix two generations is dropped.
        fence(Ordering::Acquire);
        self.live(conn).map(|_| view)
    }

    /// The record of the connection's handshake, with its latest timestamps.
    pub(crate) fn record(&self, conn: ConnId) -> Option<ConnRecord> {
        let (slot, _) = self.live(conn)?;
        let word = |offset| slot.u32(offset).load(Ordering::Relaxed);
        let half = |offset| slot.u16(offset).load(Ordering::Relaxed);
        let byte = |offset| slot.u8(offset).load(Ordering::Relaxed);
        let has_ts = byte(offset_of!(GateSlot, has_ts)) != 0;
        let record = ConnRecord {
            key: slot.key(),
            iss: SeqNo(word(offset_of!(GateSlot, iss))),
            irs: SeqNo(word(offset_of!(GateSlot, irs))),
            mss: half(offset_of!(GateSlot, mss)),
            peer_mss: half(offset_of!(GateSlot, peer_mss)),
            rcv_wscale: byte(offset_of!(GateSlot, rcv_wscale)),
            snd_wscale: byte(offset_of!(GateSlot, snd_wscale)),
            sack: byte(offset_of!(GateSlot, sack)) != 0,
            tsval: has_ts.then(|| word(offset_of!(GateSlot, tsval))),
            window: half(offset_of!(GateSlot, window)),
        };
        // As in `view`.
        fence(Ordering::Acquire);
        self.live(conn).map(|_| record)
    }

    /// Sets `stable` with one store; the caller ensures that it never goes
    /// back.
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

    /// Fills a free slot, as the gate does for a SYN-ACK, and opens it.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(crate) fn adopt(&self, index: u32, adopted: &Adopted) -> ConnId {
        let slot = self.slot(index).expect("the gate's queue holds numbers of slots only");
        let last = slot.u32(offset_of!(GateSlot, generation)).load(Ordering::Acquire);
        // Never 0, which the words that user space writes hold before their first store.
        let generation = last.wrapping_add(1).max(1);
        slot.u32(offset_of!(GateSlot, generation)).store(generation, Ordering::Release);
        slot.put_numbers(adopted);
        slot.put_record(&adopted.record);
        let conn = ConnId(u64::from(generation) << 32 | u64::from(index));
        self.set_stable(conn, adopted.rcv_nxt);
        if adopted.fin_allowed {
            self.allow_fin(conn);
        }
        self.open(conn);
        conn
    }

    /// Marks the slot free; returns its key, which the caller removes from the map. `None` if it
    /// was free already.
    pub(crate) fn release(&self, conn: ConnId) -> Option<ConnKey> {
        let key = self.live(conn)?.0.key();
        self.stamp(conn, offset_of!(GateSlot, free_generation)).then_some(key)
    }

    /// Stores the generation into one of the words that user space writes: true from then on.
    fn stamp(&self, conn: ConnId, offset: usize) -> bool {
        let Some((slot, generation)) = self.live(conn) else { return false };
        slot.u32(offset).store(generation, Ordering::Release);
        true
    }

    /// The connection in a slot.
    pub(crate) fn current(&self, index: u32) -> Option<ConnId> {
        let slot = self.slot(index)?;
        let generation = slot.u32(offset_of!(GateSlot, generation)).load(Ordering::Acquire);
        let conn = ConnId(u64::from(generation) << 32 | u64::from(index));
        self.live(conn).map(|_| conn)
    }

    fn live(&self, conn: ConnId) -> Option<(Slot<'_>, u32)> {
        let (index, generation) = (conn.0 as u32, (conn.0 >> 32) as u32);
        let slot = self.slot(index)?;
        let load = |offset| slot.u32(offset).load(Ordering::Acquire);
        let current = load(offset_of!(GateSlot, generation)) == generation;
        let freed = load(offset_of!(GateSlot, free_generation)) == generation;
        (current && !freed).then_some((slot, generation))
    }

    fn slot(&self, index: u32) -> Option<Slot<'_>> {
        let start = index as usize * size_of::<GateSlot>();
        (index < self.count).then_some(Slot { slots: self, start })
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

    fn u16(&self, offset: usize) -> &'a AtomicU16 {
        // SAFETY: as in `u8`; pages and slots are aligned to 8, `offset` to 2.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }
    }

    fn stable(&self) -> &'a AtomicU64 {
        let offset = offset_of!(GateSlot, stable);
        // SAFETY: as in `u8`; pages, slots and `offset` are aligned to 8.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Writes the positions of both streams.
    fn put_numbers(&self, adopted: &Adopted) {
        let put = |offset, value| self.u32(offset).store(value, Ordering::Relaxed);
        put(offset_of!(GateSlot, snd_una), adopted.snd_una.0);
        put(offset_of!(GateSlot, snd_nxt), adopted.snd_nxt.0);
        put(offset_of!(GateSlot, rcv_nxt), adopted.rcv_nxt.0);
        put(offset_of!(GateSlot, last_ack), adopted.rcv_nxt.0);
        put(offset_of!(GateSlot, right_edge), adopted.right_edge.0);
        put(offset_of!(GateSlot, last_edge), adopted.right_edge.0);
        put(offset_of!(GateSlot, tsval), adopted.tsval);
        put(offset_of!(GateSlot, tsecr), adopted.tsecr);
    }

    /// Writes what the handshake has agreed on.
    fn put_record(&self, record: &ConnRecord) {
        let word = |offset, value| self.u32(offset).store(value, Ordering::Relaxed);
        let half = |offset, value| self.u16(offset).store(value, Ordering::Relaxed);
        let byte = |offset, value| self.u8(offset).store(value, Ordering::Relaxed);
        word(offset_of!(GateSlot, iss), record.iss.0);
        word(offset_of!(GateSlot, irs), record.irs.0);
        half(offset_of!(GateSlot, mss), record.mss);
        half(offset_of!(GateSlot, peer_mss), record.peer_mss);
        half(offset_of!(GateSlot, window), record.window);
        byte(offset_of!(GateSlot, rcv_wscale), record.rcv_wscale);
        byte(offset_of!(GateSlot, snd_wscale), record.snd_wscale);
        byte(offset_of!(GateSlot, sack), u8::from(record.sack));
        byte(offset_of!(GateSlot, has_ts), u8::from(record.tsval.is_some()));
        let key: [u8; size_of::<RawKey>()] = zerocopy::transmute!(RawKey::from(&record.key));
        for (i, value) in key.into_iter().enumerate() {
            byte(offset_of!(GateSlot, key) + i, value);
        }
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
