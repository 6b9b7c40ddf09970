//! Numbers of datagrams: all of their 64 bits from the lower 32, and none of them twice.

use crate::wire::completed;

/// Numbers behind the highest one that may still come. Past that a datagram is too old to tell
/// whether it has come before.
pub(super) const WINDOW: u64 = 4096;
const WORD_BITS: u64 = 64;
/// One word more than the window is long, since the newest word is only partly used.
const WORDS: usize = (WINDOW / WORD_BITS) as usize + 1;

/// The number nearest to the one that is expected next whose lower 32 bits these are (RFC 9000 A.3).
pub(super) fn recover(lower: u32, expected: u64) -> u64 {
    completed(u64::from(lower), u32::BITS, expected)
}

/// Which numbers have come: a ring of bits (RFC 6479).
#[derive(Debug)]
pub(super) struct Window {
    /// The highest number that has come, and one more.
    next: u64,
    words: [u64; WORDS],
}

impl Window {
    /// Nothing has come, and `expected` is probably the first.
    pub(super) fn new(expected: u64) -> Self {
        Self { next: expected, words: [0; WORDS] }
    }

    /// The number that comes next if none is lost.
    pub(super) fn expected(&self) -> u64 {
        self.next
    }

    /// Whether this one is neither too old nor has come before.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            // The last number is never used, so that `next` can always be told.
            return number < u64::MAX;
        }
        let is_recent = self.next - number <= WINDOW;
        is_recent && self.words[Self::word(number)] & Self::bit(number) == 0
    }

    /// Takes a number that [`Self::is_new`]; whether it is the highest so far.
    pub(super) fn take(&mut self, number: u64) -> bool {
        let is_highest = number >= self.next;
        if is_highest {
            self.advance(number);
        }
        self.words[Self::word(number)] |= Self::bit(number);
        is_highest
    }

    /// Empties the words between the highest number and the new one.
    fn advance(&mut self, number: u64) {
        let newest = self.next.saturating_sub(1) / WORD_BITS;
        let skipped = (number / WORD_BITS).saturating_sub(newest).min(WORDS as u64);
        for step in 1..=skipped {
            self.words[((newest + step) % WORDS as u64) as usize] = 0;
        }
        if skipped == WORDS as u64 {
            self.words = [0; WORDS];
        }
        self.next = number + 1;
    }

    fn word(number: u64) -> usize {
        (number / WORD_BITS % WORDS as u64) as usize
    }

    fn bit(number: u64) -> u64 {
        1 << (number % WORD_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// RFC 9000 A.3 has an example with 16 bits; this is its like with 32.
    #[test]
    fn the_nearest_number_is_meant() {
        assert_eq!(recover(0, 0), 0);
        assert_eq!(recover(7, 0), 7);
        assert_eq!(recover(0, 1 << 32), 1 << 32);
        assert_eq!(recover(u32::MAX, 1 << 32), (1 << 32) - 1, "one from before");
        assert_eq!(recover(3, (1 << 32) - 2), (1 << 32) + 3, "one from behind");
        assert_eq!(recover(9, u64::MAX), u64::MAX - u64::from(u32::MAX) + 9);
        for expected in [0, 1, 1 << 31, (5 << 32) + 17, u64::MAX - (1 << 31)] {
            for distance in [0, 1, 1000, (1 << 31) - 1] {
                let ahead: u64 = expected + distance;
                assert_eq!(recover(ahead as u32, expected), ahead);
                if let Some(behind) = expected.checked_sub(distance) {
                    assert_eq!(recover(behind as u32, expected), behind);
                }
            }
        }
    }

    /// Drawn numbers against a set that forgets nothing.
    #[test]
    fn each_number_is_new_once() {
        let (mut window, mut taken) = (Window::new(0), BTreeSet::new());
        let (mut state, mut base) = (1u64, 0u64);
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = state >> 33;
            base += draw % 3;
            let number = match draw % 50 {
                0 => base + draw % 9000,
                1 => base.saturating_sub(draw % 9000),
                _ => base.saturating_sub(draw % 40),
            };
            let highest = taken.last().copied();
            let is_old = highest.is_some_and(|it: u64| it + 1 > number && it + 1 - number > WINDOW);
            let is_new = !is_old && !taken.contains(&number);
            assert_eq!(window.is_new(number), is_new, "{number} after {highest:?}");
            if is_new {
                assert_eq!(window.take(number), highest.is_none_or(|it| number > it));
                taken.insert(number);
                base = base.max(number);
            }
        }
    }

    #[test]
    fn the_last_number_is_never_used() {
        let mut window = Window::new(0);
        assert!(!window.is_new(u64::MAX));
        assert!(window.is_new(u64::MAX - 1));
        assert!(window.take(u64::MAX - 1) && !window.is_new(u64::MAX - 1));
        assert!(!window.is_new(5), "far too old");
    }
}
