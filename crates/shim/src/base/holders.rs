//! Which processes of a family hold a connection: one bit in its table entry for each process, by
//! the process's place in the group.

use crate::base::state;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::group::holder;
use holdfast_wire::shm::ConnEntry;

/// Notes that the process of this place holds the connection, too.
pub fn add(e: &ConnEntry, place: usize) {
    let (word, bit) = holder(place);
    e.holders[word].fetch_or(bit, Relaxed);
}

/// Notes that only this process holds the connection.
pub fn hold_alone(e: &ConnEntry) {
    e.holders.iter().for_each(|word| word.store(0, Relaxed));
    let (word, bit) = holder(state::place());
    e.holders[word].store(bit, Relaxed);
}

/// Whether another process of the family holds the connection, too.
pub fn is_shared(e: &ConnEntry) -> bool {
    let (own, bit) = holder(state::place());
    let others = |(word, held): (usize, u64)| if word == own { held & !bit } else { held };
    e.holders.iter().map(|word| word.load(Relaxed)).enumerate().any(|held| others(held) != 0)
}
