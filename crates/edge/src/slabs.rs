//! Packets of different lengths in little memory: slots of a few sizes in
//! chunks of at most 64 KiB, and a limit that the chunks together never exceed.

use crate::recovery::PacketStore;

/// Sizes of slots, in bytes: a SYN of IPv4 and of IPv6 as Linux sends it, small
/// requests, an Ethernet frame's packet, and those of larger MTUs.
const SIZES: [usize; 8] = [64, 96, 256, 512, 1024, 1500, 3072, 9216];
/// Most bytes of a chunk: as many slots as fit, and nothing behind them.
const CHUNK_BYTES: usize = 64 << 10;
/// Longest packet that is taken, in bytes.
pub const PACKET_MAX: usize = SIZES[SIZES.len() - 1];
/// Index that stands for no slot.
const NONE: u16 = u16::MAX;

/// A packet's place, and a number that its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    chunk: u16,
    slot: u16,
    len: u16,
    /// Number given by the owner.
    pub tag: u16,
}

#[derive(Debug)]
struct Chunk {
    class: u8,
    used: u16,
    /// First free slot that was used before; each names the next in its first
    /// two bytes.
    free: u16,
    /// Index from which on slots were never used.
    fresh: u16,
    bytes: Box<[u8]>,
}

/// Packets, up to a total number of bytes.
#[derive(Debug)]
pub struct Slabs {
    chunks: Vec<Option<Chunk>>,
    /// Bytes that the chunks take.
    bytes: usize,
    /// Chunks that have room, by size of their slots.
    open: [Vec<u16>; SIZES.len()],
    chunks_max: usize,
}

impl Slabs {
    /// Takes at most `bytes_max`, in whole chunks.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let chunks_max = (bytes_max / CHUNK_BYTES as u64).clamp(1, u64::from(NONE)) as usize;
        Self { chunks: Vec::new(), bytes: 0, open: Default::default(), chunks_max }
    }

    /// Bytes that a packet of this length takes; `None` if it is too long.
    #[must_use]
    pub fn footprint(len: usize) -> Option<usize> {
        SIZES.into_iter().find(|size| len <= *size)
    }

    /// Copies a packet; `None` if there is no room or it is too long.
    pub fn put(&mut self, packet: &[u8], tag: u16) -> Option<Slot> {
        let class = SIZES.iter().position(|size| packet.len() <= *size)?;
        let number = match self.open[class].last() {
            Some(number) => *number,
            None => self.add_chunk(class)?,
        };
        let chunk = self.chunks[usize::from(number)].as_mut()?;
        let slot = chunk.allocate();
        chunk.slot_mut(slot)[..packet.len()].copy_from_slice(packet);
        if chunk.is_full() {
            self.open[class].pop();
        }
        Some(Slot { chunk: number, slot, len: packet.len() as u16, tag })
    }

    /// The packet in a slot that was not released.
    #[must_use]
    pub fn get(&self, slot: Slot) -> &[u8] {
        let chunk = self.chunks.get(usize::from(slot.chunk)).and_then(Option::as_ref);
        chunk.map_or(&[], |chunk| &chunk.slot(slot.slot)[..usize::from(slot.len)])
    }

    /// Bytes asked of the allocator.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }

    fn add_chunk(&mut self, class: usize) -> Option<u16> {
        let number = match self.chunks.iter().position(Option::is_none) {
            Some(gap) => gap,
            None if self.chunks.len() < self.chunks_max => {
                self.chunks.push(None);
                self.chunks.len() - 1
            }
            None => return None,
        };
        let bytes = vec![0; CHUNK_BYTES / SIZES[class] * SIZES[class]].into_boxed_slice();
        self.bytes += bytes.len();
        assert!(self.bytes <= self.chunks_max * CHUNK_BYTES, "L6: more memory than the limit");
        self.chunks[number] =
            Some(Chunk { class: class as u8, used: 0, free: NONE, fresh: 0, bytes });
        self.open[class].push(number as u16);
        Some(number as u16)
    }
}

impl PacketStore for Slabs {
    type Packet = Slot;

    fn release(&mut self, packet: Slot) {
        let number = usize::from(packet.chunk);
        let Some(chunk) = self.chunks.get_mut(number).and_then(Option::as_mut) else { return };
        let (was_full, class) = (chunk.is_full(), usize::from(chunk.class));
        chunk.release(packet.slot);
        let is_empty = chunk.used == 0;
        if was_full {
            self.open[class].push(packet.chunk);
        }
        // One open chunk of each size stays, or a lone packet that comes and
        // goes would take and give back its chunk each time.
        if is_empty && self.open[class].len() > 1 {
            self.open[class].retain(|open| *open != packet.chunk);
            let gone = self.chunks[number].take();
            self.bytes -= gone.map_or(0, |chunk| chunk.bytes.len());
        }
    }
}

impl Chunk {
    fn size(&self) -> usize {
        SIZES[usize::from(self.class)]
    }

    fn is_full(&self) -> bool {
        usize::from(self.used) == self.bytes.len() / self.size()
    }

    fn slot(&self, slot: u16) -> &[u8] {
        let from = usize::from(slot) * self.size();
        &self.bytes[from..from + self.size()]
    }

    fn slot_mut(&mut self, slot: u16) -> &mut [u8] {
        let (from, size) = (usize::from(slot) * self.size(), self.size());
        &mut self.bytes[from..from + size]
    }

    /// Takes a free slot; the chunk is not full.
    fn allocate(&mut self) -> u16 {
        self.used += 1;
        let slot = self.free;
        if slot == NONE {
            self.fresh += 1;
            return self.fresh - 1;
        }
        let bytes = self.slot(slot);
        self.free = u16::from_ne_bytes([bytes[0], bytes[1]]);
        slot
    }

    fn release(&mut self, slot: u16) {
        let next = self.free.to_ne_bytes();
        self.slot_mut(slot)[..2].copy_from_slice(&next);
        self.free = slot;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_as_they_were() {
        let mut slabs = Slabs::new(1 << 20);
        let packet = |len: usize| (0..len).map(|byte| (byte * 7 + len) as u8).collect::<Vec<_>>();
        let lengths = [0, 1, 60, 64, 65, 80, 1499, 1500, 1501, 9000, PACKET_MAX];
        let slots: Vec<Slot> =
            lengths.iter().map(|len| slabs.put(&packet(*len), 3).unwrap()).collect();
        for (slot, len) in slots.iter().zip(lengths) {
            assert_eq!((slabs.get(*slot), slot.tag), (&packet(len)[..], 3));
        }
        assert_eq!(slabs.put(&[0; PACKET_MAX + 1], 0), None);
        slots.into_iter().for_each(|slot| slabs.release(slot));
        let (again, third) =
            (slabs.put(&packet(60), 1).unwrap(), slabs.put(&packet(9), 1).unwrap());
        assert_eq!((slabs.get(again), slabs.get(third)), (&packet(60)[..], &packet(9)[..]));
    }

    #[test]
    fn the_limit_holds_and_empty_chunks_serve_other_sizes() {
        let mut slabs = Slabs::new(4 * CHUNK_BYTES as u64);
        let mut small = Vec::new();
        while let Some(slot) = slabs.put(&[7; 60], 0) {
            small.push(slot);
        }
        assert_eq!(small.len(), 4 * CHUNK_BYTES / 64);
        assert!(slabs.memory_bytes() <= 4 * CHUNK_BYTES + 512);
        assert_eq!(slabs.put(&[7; 1500], 0), None, "no room for another size");
        small.drain(..).for_each(|slot| slabs.release(slot));
        let mut large = 0;
        while slabs.put(&[7; 1500], 0).is_some() {
            large += 1;
        }
        // One chunk of the old size stays.
        assert_eq!(large, 3 * (CHUNK_BYTES / 1500));
    }

    #[test]
    fn a_packet_takes_the_smallest_slot_that_holds_it() {
        for (index, size) in SIZES.into_iter().enumerate() {
            assert_eq!(Slabs::footprint(size), Some(size));
            assert_eq!(Slabs::footprint(size + 1), SIZES.get(index + 1).copied());
        }
        assert_eq!(Slabs::footprint(0), Some(SIZES[0]));
    }
}
