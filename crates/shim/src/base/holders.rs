//! Which processes of a family hold a connection: one bit in its entry for each place.

use crate::base::state;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::shm::ConnEntry;

fn word_and_bit(place: usize) -> (usize, u64) {
    (place / 64, 1 << (place % 64))
}

/// Whether the process of a place holds a connection.
pub fn holds(e: &ConnEntry, place: usize) -> bool {
    let (word, bit) = word_and_bit(place);
    e.holders[word].load(Relaxed) & bit != 0
}

/// The process of a place holds a connection, too.
pub fn add(e: &ConnEntry, place: usize) {
    let (word, bit) = word_and_bit(place);
    e.holders[word].fetch_or(bit, Relaxed);
}

/// This process alone holds a connection.
pub fn hold_alone(e: &ConnEntry) {
    e.holders.iter().for_each(|word| word.store(0, Relaxed));
    let (word, bit) = word_and_bit(state::place());
    e.holders[word].store(bit, Relaxed);
}

/// Whether another process of the family holds the connection, too.
pub fn is_shared(e: &ConnEntry) -> bool {
    let (own, bit) = word_and_bit(state::place());
    let others = |(word, held): (usize, u64)| if word == own { held & !bit } else { held };
    e.holders.iter().map(|word| word.load(Relaxed)).enumerate().any(|held| others(held) != 0)
}

/// The process of a place holds the connection no more. Returns whether none does.
pub fn let_go(e: &ConnEntry, place: usize) -> bool {
    let (word, bit) = word_and_bit(place);
    e.holders[word].fetch_and(!bit, Relaxed);
    e.holders.iter().all(|word| word.load(Relaxed) == 0)
}
