//! Who of a server's threads runs, where they run one at a time (decision 34). The thread
//! that holds the token runs the server's code; the others stand in calls.

use crate::shm::Line;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bits of [`Token::word`] that name the holder: its thread number, and one.
pub const HOLDER: u32 = (1 << 17) - 1;
/// What a holder adds to [`Token::word`] with each call, so that who looks at it sees that
/// it has gone on; the counter wraps.
pub const CALL: u32 = 1 << 17;
/// Bits of that counter.
pub const CALLS: u32 = IN_CALL - CALL;
/// Bit of [`Token::word`]: the holder is in the middle of a logged call, where nobody may
/// take the token from it.
pub const IN_CALL: u32 = 1 << 30;
/// Bit of [`Token::word`]: somebody may wait for the token.
pub const WAITED_FOR: u32 = 1 << 31;

/// The token and what is known of its holder. All zero: nobody has it.
#[repr(C)]
pub struct Token {
    /// The holder and the bits above; also a futex word. On the replica, the thread that
    /// has consumed a record and has not come to its next call yet, without those bits.
    pub word: Line<AtomicU32>,
    /// The thread that took the token last, as in `word`, and how often it has gone to
    /// another one.
    pub last: AtomicU32,
    pub passes: AtomicU32,
    /// The holder as /proc names it: the process in the upper half, the thread in the lower.
    pub task: AtomicU64,
}

impl Token {
    /// Nobody has it.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            word: Line(AtomicU32::new(0)),
            last: AtomicU32::new(0),
            passes: AtomicU32::new(0),
            task: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::THREAD_NUMBERS;

    #[test]
    fn every_thread_has_a_name_beside_the_bits() {
        assert!(THREAD_NUMBERS as u32 <= HOLDER);
        assert_eq!(HOLDER | CALLS | IN_CALL | WAITED_FOR, u32::MAX);
        assert_eq!(HOLDER & CALLS | CALLS & IN_CALL | IN_CALL & WAITED_FOR, 0);
    }
}
