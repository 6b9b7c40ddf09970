//! A wheel of future events in virtual time: a hierarchical timing wheel (Varghese and Lauck 1987)
//! over 64-bit nanoseconds, with eight levels of 256 slots.
//!
//! Events of one instant come out in the order in which they were scheduled, so that a seed
//! determines a run. A slot is a list of chunks, so that its events are written and read in memory
//! order. Chunks are reused: once the wheel has held its largest number of events, it allocates no
//! more.

use crate::Ns;
use prefetch_index::prefetch_index;

const LEVELS: usize = 8;
const SLOTS: usize = 256;
const WORDS: usize = SLOTS / 64;
/// Number of events in a chunk, which makes it two cache lines.
const CHUNK: usize = 7;
/// Number of a chunk that ends a list.
const NIL: u32 = u32::MAX;
/// Level (2^16 ns a slot) up to which slots with at most [`SORT_MAX`] events are sorted; others are
/// spread.
const SORT_LEVEL: usize = 2;
/// Most events of a slot that is sorted instead of spread.
const SORT_MAX: u32 = 256;

#[derive(Clone, Copy)]
struct Entry<E> {
    at: Ns,
    event: E,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk<E> {
    entries: [Entry<E>; CHUNK],
    len: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    count: u32,
}

const EMPTY: Slot = Slot { head: NIL, tail: NIL, count: 0 };

/// A queue of future events, earliest first.
pub struct Wheel<E> {
    now: Ns,
    /// The next events in their order, from `first` on.
    ready: Vec<Entry<E>>,
    first: usize,
    /// Time before which all events are in `ready`; the slots are counted from here.
    horizon: Ns,
    chunks: Vec<Chunk<E>>,
    free: u32,
    slots: Box<[[Slot; SLOTS]; LEVELS]>,
    occupied: [[u64; WORDS]; LEVELS],
    /// One bit for each word of `occupied` that is not zero.
    words: [u8; LEVELS],
    /// One bit for each level that holds anything.
    levels: u32,
    len: usize,
    ahead: usize,
}

impl<E: Copy> Default for Wheel<E> {
    fn default() -> Self {
        Self {
            now: 0,
            ready: Vec::new(),
            first: 0,
            horizon: 0,
            chunks: Vec::new(),
            free: NIL,
            slots: Box::new([[EMPTY; SLOTS]; LEVELS]),
            occupied: [[0; WORDS]; LEVELS],
            words: [0; LEVELS],
            levels: 0,
            len: 0,
            ahead: 0,
        }
    }
}

impl<E: Copy> Wheel<E> {
    /// Schedules an event. An event in the past happens now.
    #[inline]
    pub fn push(&mut self, at: Ns, event: E) {
        let at = at.max(self.now);
        self.len += 1;
        if at < self.horizon {
            self.insert(Entry { at, event });
        } else {
            self.append(Entry { at, event });
        }
    }

    /// Takes the next event, and makes its time the present.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ns, E)> {
        while self.first + self.ahead >= self.ready.len() && self.refill() {}
        let Entry { at, event } = *self.ready.get(self.first)?;
        self.first += 1;
        self.now = at;
        self.len -= 1;
        Some((at, event))
    }

    /// The event `behind` places after the next one, if that is known yet; others may still come
    /// before it.
    #[inline]
    pub fn peek(&self, behind: usize) -> Option<E> {
        self.ready.get(self.first + behind).map(|it| it.event)
    }

    /// Keeps up to `ahead` near events ready to be peeked at.
    pub fn look_ahead(&mut self, ahead: usize) {
        self.ahead = ahead;
    }

    /// Number of scheduled events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is scheduled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts an event among those that are ready, after those of the same time.
    #[inline]
    fn insert(&mut self, entry: Entry<E>) {
        // The events before it move into the places of past ones: they are few.
        if self.first == 0 {
            self.ready.insert(0, entry);
        } else {
            self.first -= 1;
        }
        let mut place = self.first;
        while let Some(next) = self.ready.get(place + 1).filter(|it| it.at <= entry.at) {
            self.ready[place] = *next;
            place += 1;
        }
        self.ready[place] = entry;
    }

    /// Makes the events of the earliest slot ready, or spreads it. Returns false if there is no
    /// slot, or none that is near while others are ready.
    fn refill(&mut self) -> bool {
        let level = self.levels.trailing_zeros() as usize;
        if level > SORT_LEVEL && (level >= LEVELS || self.first < self.ready.len()) {
            return false;
        }
        let word = self.words[level].trailing_zeros() as usize;
        let slot = word * 64 + self.occupied[level][word].trailing_zeros() as usize;
        let Slot { head, count, .. } = self.slots[level][slot];
        let at = self.chunks[head as usize].entries[0].at;
        let below = (1u64 << (8 * level)) - 1;
        if level > 0 && count > 1 && (level > SORT_LEVEL || count > SORT_MAX) {
            self.horizon = at & !below;
            self.slots[level][slot] = EMPTY;
            self.clear(level, slot);
            self.spread(head);
            return true;
        }
        // A lone event of the earliest slot is the earliest of all, whatever its level; events of a
        // slot of the lowest level have the same time.
        let is_sorted = level == 0 || count == 1;
        self.horizon = if is_sorted { at } else { at | below };
        self.ready.drain(..self.first);
        self.first = 0;
        let known = self.ready.len();
        self.collect(level, slot, head);
        if !is_sorted {
            self.ready[known..].sort_by_key(|it| it.at);
        }
        true
    }

    /// Takes the events of a slot; from the lowest level one chunk of them, since any number may
    /// have the same time.
    fn collect(&mut self, level: usize, slot: usize, head: u32) {
        let mut index = head;
        loop {
            let Chunk { len, next, .. } = self.chunks[index as usize];
            let entries = &self.chunks[index as usize].entries[..len as usize];
            self.ready.extend_from_slice(entries);
            self.slots[level][slot].count -= len;
            self.release(index);
            index = next;
            if index == NIL || level == 0 {
                break;
            }
        }
        self.slots[level][slot].head = index;
        if index == NIL {
            self.clear(level, slot);
        }
    }

    /// Moves the events of a slot to the levels below. None of these holds events of that slot's
    /// times yet, so their order is kept.
    fn spread(&mut self, head: u32) {
        let mut index = head;
        while index != NIL {
            let Chunk { len, next, .. } = self.chunks[index as usize];
            prefetch_index(&self.chunks, next as usize);
            for place in 0..len as usize {
                self.append(self.chunks[index as usize].entries[place]);
            }
            self.release(index);
            index = next;
        }
    }

    /// Appends an event to the slot of its time, on the level of the highest byte in which that
    /// differs from the horizon.
    #[inline]
    fn append(&mut self, entry: Entry<E>) {
        let level = (63 - ((entry.at ^ self.horizon) | 1).leading_zeros() as usize) / 8;
        let slot = (entry.at >> (8 * level)) as usize % SLOTS;
        let list = &mut self.slots[level][slot];
        list.count += 1;
        if list.head != NIL {
            let last = &mut self.chunks[list.tail as usize];
            if (last.len as usize) < CHUNK {
                last.entries[last.len as usize] = entry;
                last.len += 1;
                return;
            }
        }
        let Slot { head, tail, .. } = *list;
        let chunk = self.chunk(entry);
        self.slots[level][slot].tail = chunk;
        if head == NIL {
            self.slots[level][slot].head = chunk;
            self.occupied[level][slot / 64] |= 1 << (slot % 64);
            self.words[level] |= 1 << (slot / 64);
            self.levels |= 1 << level;
        } else {
            self.chunks[tail as usize].next = chunk;
        }
    }

    /// A new chunk that holds one event.
    #[inline]
    fn chunk(&mut self, entry: Entry<E>) -> u32 {
        if self.free == NIL {
            self.chunks.push(Chunk { entries: [entry; CHUNK], len: 1, next: NIL });
            return (self.chunks.len() - 1) as u32;
        }
        let index = self.free;
        let chunk = &mut self.chunks[index as usize];
        self.free = chunk.next;
        chunk.entries[0] = entry;
        (chunk.len, chunk.next) = (1, NIL);
        index
    }

    #[inline]
    fn release(&mut self, chunk: u32) {
        self.chunks[chunk as usize].next = self.free;
        self.free = chunk;
    }

    #[inline]
    fn clear(&mut self, level: usize, slot: usize) {
        let word = &mut self.occupied[level][slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.words[level] &= !(1 << (slot / 64));
            if self.words[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_sorted_map_and_keeps_the_order_of_equal_times() {
        let mut rng = Rng::new(7, 0);
        for ahead in [0, 1, 30] {
            let mut wheel = Wheel::default();
            wheel.look_ahead(ahead);
            let mut model = BTreeMap::new();
            let mut now = 0;
            for number in 0..200_000u64 {
                let bits = rng.below(40);
                let at = now + (rng.below(1 << bits) & !rng.below(4));
                wheel.push(at, number);
                model.insert((at, number), ());
                if rng.one_in(2) {
                    let expected = model.pop_first().map(|(key, ())| key);
                    let got = wheel.pop();
                    assert_eq!(got, expected);
                    now = got.map_or(now, |it| it.0);
                }
            }
            while let Some(got) = wheel.pop() {
                assert_eq!(Some(got), model.pop_first().map(|(key, ())| key));
            }
            assert!(model.is_empty() && wheel.is_empty());
        }
    }

    #[test]
    fn it_holds_any_time() {
        let mut wheel = Wheel::default();
        wheel.push(u64::MAX, 2);
        wheel.push(0, 1);
        assert_eq!(wheel.pop(), Some((0, 1)));
        assert_eq!(wheel.pop(), Some((u64::MAX, 2)));
        wheel.push(3, 4);
        assert_eq!(wheel.pop(), Some((u64::MAX, 4)), "the past is now");
        assert_eq!(wheel.pop(), None);
    }
}
