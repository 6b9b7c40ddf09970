//! The queue of events in virtual time. Events of the same time happen in the order in
//! which they were scheduled, so that a seed determines the run.

use crate::Ns;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry<E> {
    at: Ns,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The events to come, the earliest first.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    number: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<E> Queue<E> {
    pub fn push(&mut self, at: Ns, event: E) {
        self.number += 1;
        self.heap.push(Reverse(Entry { at, number: self.number, event }));
    }

    pub fn pop(&mut self) -> Option<(Ns, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
