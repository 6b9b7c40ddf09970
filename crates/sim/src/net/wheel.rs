//! What happens next, in virtual time: a hierarchical timing wheel (Varghese
//! and Lauck 1987) over 64-bit nanoseconds, eight levels of 256 slots.
//!
//! Events of one instant come out in the order in which they went in, so that a
//! seed names one run. Nodes are reused: once the wheel has held as many events
//! as it ever will at once, it allocates no more.

use crate::Ns;

const LEVELS: usize = 8;
const SLOTS: usize = 256;
const WORDS: usize = SLOTS / 64;
/// The end of a list.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node<E> {
    at: Ns,
    next: u32,
    event: E,
}

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
}

const EMPTY: Slot = Slot { head: NIL, tail: NIL };

/// The events to come, earliest first.
pub struct Wheel<E> {
    now: Ns,
    nodes: Vec<Node<E>>,
    free: u32,
    slots: Box<[[Slot; SLOTS]; LEVELS]>,
    occupied: [[u64; WORDS]; LEVELS],
    /// One bit per level that holds anything.
    levels: u32,
    len: usize,
}

impl<E: Copy> Default for Wheel<E> {
    fn default() -> Self {
        Self {
            now: 0,
            nodes: Vec::new(),
            free: NIL,
            slots: Box::new([[EMPTY; SLOTS]; LEVELS]),
            occupied: [[0; WORDS]; LEVELS],
            levels: 0,
            len: 0,
        }
    }
}

impl<E: Copy> Wheel<E> {
    /// Schedules an event. What should have happened already happens now.
    #[inline]
    pub fn push(&mut self, at: Ns, event: E) {
        let at = at.max(self.now);
        let node = Node { at, next: NIL, event };
        let index = if self.free == NIL {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.len += 1;
        self.link(index, at);
    }

    /// Takes the next event, and makes its time the present.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ns, E)> {
        while self.levels != 0 {
            let level = self.levels.trailing_zeros() as usize;
            let slot = first_set(&self.occupied[level]);
            let Slot { head, tail } = self.slots[level][slot];
            // Alone in the earliest slot it is the earliest of all, whatever
            // its level: no need to spread the slot over the levels below.
            if level == 0 || head == tail {
                return Some(self.take_head(level, slot, head, tail));
            }
            self.spread(level, slot, head);
        }
        None
    }

    /// How many events wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Does nothing wait?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn take_head(&mut self, level: usize, slot: usize, head: u32, tail: u32) -> (Ns, E) {
        let Node { at, next, event } = self.nodes[head as usize];
        if head == tail {
            self.slots[level][slot] = EMPTY;
            self.clear(level, slot);
        } else {
            self.slots[level][slot].head = next;
        }
        self.nodes[head as usize].next = self.free;
        self.free = head;
        self.now = at;
        self.len -= 1;
        (at, event)
    }

    /// Moves the events of a slot to the levels below. None of them can be
    /// there already, so their order stays what it was.
    fn spread(&mut self, level: usize, slot: usize, head: u32) {
        self.slots[level][slot] = EMPTY;
        self.clear(level, slot);
        let below = (1u64 << (8 * level)) - 1;
        self.now = self.nodes[head as usize].at & !below;
        let mut index = head;
        while index != NIL {
            let Node { at, next, .. } = self.nodes[index as usize];
            self.nodes[index as usize].next = NIL;
            self.link(index, at);
            index = next;
        }
    }

    /// Appends a node to the slot of its time: on the level of the highest byte
    /// in which that differs from the present.
    #[inline]
    fn link(&mut self, index: u32, at: Ns) {
        let level = (63 - ((at ^ self.now) | 1).leading_zeros() as usize) / 8;
        let slot = (at >> (8 * level)) as usize % SLOTS;
        let list = &mut self.slots[level][slot];
        if list.head == NIL {
            *list = Slot { head: index, tail: index };
            self.occupied[level][slot / 64] |= 1 << (slot % 64);
            self.levels |= 1 << level;
        } else {
            let tail = list.tail;
            list.tail = index;
            self.nodes[tail as usize].next = index;
        }
    }

    #[inline]
    fn clear(&mut self, level: usize, slot: usize) {
        self.occupied[level][slot / 64] &= !(1 << (slot % 64));
        if self.occupied[level] == [0; WORDS] {
            self.levels &= !(1 << level);
        }
    }
}

#[inline]
fn first_set(words: &[u64; WORDS]) -> usize {
    let word = words.iter().position(|word| *word != 0).unwrap_or(0);
    word * 64 + words[word].trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_sorted_map_and_keeps_the_order_of_equal_times() {
        let mut rng = Rng::new(7, 0);
        let mut wheel = Wheel::default();
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
