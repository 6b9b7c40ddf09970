//! The flows with the most bytes, without counting all of them: a sketch with a
//! fixed number of counters (space-saving, Metwally, Agrawal and El Abbadi
//! 2005). Every flow with more than its share of a window's bytes is in it.

use crate::Ns;
use std::collections::{BTreeMap, BTreeSet};

/// Counters per flow that is to be found; more than one, because light flows
/// use counters too.
const COUNTERS_PER_FLOW: usize = 4;

/// The `count` heaviest flows of the last window.
#[derive(Debug)]
pub(crate) struct Heaviest<K> {
    count: usize,
    window_ns: Ns,
    ends: Option<Ns>,
    bytes: BTreeMap<K, u64>,
    order: BTreeSet<(u64, K)>,
    chosen: BTreeSet<K>,
}

impl<K: Ord + Copy> Heaviest<K> {
    pub(crate) fn new(count: usize, window_ns: Ns) -> Self {
        Self {
            count,
            window_ns,
            ends: None,
            bytes: BTreeMap::new(),
            order: BTreeSet::new(),
            chosen: BTreeSet::new(),
        }
    }

    /// Counts a packet. `true` when a window has ended and the choice has
    /// changed.
    pub(crate) fn see(&mut self, now: Ns, key: K, bytes: u32) -> bool {
        let ends = *self.ends.get_or_insert(now + self.window_ns);
        let is_over = now >= ends;
        if is_over {
            self.ends = Some(now + self.window_ns);
            self.chosen = self.order.iter().rev().take(self.count).map(|(_, key)| *key).collect();
            self.bytes.clear();
            self.order.clear();
        }
        self.add(key, bytes);
        is_over
    }

    /// Whether this flow is among the heaviest. Until there are enough flows,
    /// every flow is.
    pub(crate) fn has(&mut self, key: K) -> bool {
        if self.chosen.len() < self.count {
            self.chosen.insert(key);
        }
        self.chosen.contains(&key)
    }

    fn add(&mut self, key: K, bytes: u32) {
        let before = match self.bytes.get(&key) {
            Some(known) => {
                self.order.remove(&(*known, key));
                *known
            }
            None if self.bytes.len() < self.count * COUNTERS_PER_FLOW => 0,
            // The lightest flow gives up its counter, with its count: no flow
            // is ever underestimated.
            None => self.order.pop_first().map_or(0, |(least, gone)| {
                self.bytes.remove(&gone);
                least
            }),
        };
        let bytes = before + u64::from(bytes);
        self.bytes.insert(key, bytes);
        self.order.insert((bytes, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heavy_ones_are_found_among_many() {
        let mut heaviest = Heaviest::new(10, 1000);
        for round in 0..200u32 {
            (0..10).for_each(|key| assert!(!heaviest.see(0, key, 1500)));
            (0..50).for_each(|mouse| assert!(!heaviest.see(0, 1000 + round * 50 + mouse, 60)));
        }
        assert!(heaviest.see(1000, 77, 60), "the window is over");
        assert!((0..10).all(|key| heaviest.has(key)));
        assert!(!heaviest.has(77) && !heaviest.has(1003));
        assert!(heaviest.bytes.len() <= 40);
    }

    #[test]
    fn before_there_are_enough_everyone_is() {
        let mut heaviest = Heaviest::new(2, 1000);
        assert_eq!([1, 2, 3, 1].map(|key| heaviest.has(key)), [true, true, false, true]);
    }

    #[test]
    fn who_was_heavy_in_an_earlier_window_is_not_for_that() {
        let mut heaviest = Heaviest::new(1, 1000);
        heaviest.see(0, 1, 9000);
        assert!(heaviest.see(1000, 2, 60) && heaviest.has(1));
        assert!(heaviest.see(2000, 3, 60));
        assert!(heaviest.has(2) && !heaviest.has(1));
    }
}
