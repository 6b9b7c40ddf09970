//! Virtual time: what happens next. Events of one instant happen in the order
//! in which they were scheduled, so that a seed names one run.

use crate::Ns;
use crate::world::Event;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry {
    at: Ns,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What is to happen.
#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    number: u64,
}

impl Queue {
    pub fn push(&mut self, at: Ns, event: Event) {
        self.number += 1;
        self.heap.push(Reverse(Entry { at, number: self.number, event }));
    }

    pub fn pop(&mut self) -> Option<(Ns, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
