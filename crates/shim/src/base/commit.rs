//! Output commit (decision 7): nothing leaves before the backup holds what it could depend on.

use crate::base::state::header;
use crate::base::{direct, log, ring, token};
use core::sync::atomic::Ordering::Acquire;

/// Number of polls for the backup's confirmation before the thread sleeps.
const SPIN: u32 = 200;

/// Waits until the backup holds every event that output could depend on, of those that the group's
/// `buffering` waits for. Where threads run one at a time another one runs meanwhile, so the caller
/// must not hold the log.
pub fn commit() {
    let waits_in_turns = token::is_chosen() && !log::is_committed();
    token::apart_if(waits_in_turns, || commit_to(log::needed()));
}

/// Like [`commit`], for everything logged so far: the end of a connection must
/// be known to the gate before the kernel sends it (decision 11).
pub fn commit_all() {
    commit_to(ring::tail());
}

fn commit_to(need: u64) {
    if log::holds(need) || direct::commit(need) {
        return;
    }
    let h = header();
    ring::kick();
    for _ in 0..SPIN {
        if h.stable.0.load(Acquire) >= need {
            return;
        }
        core::hint::spin_loop();
    }
    loop {
        let seen = h.stable_futex.0.load(Acquire);
        if log::holds(need) {
            return;
        }
        ring::kick();
        ring::sleep_shared(&h.stable_futex.0, seen, 0);
    }
}
