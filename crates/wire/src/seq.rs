//! TCP sequence arithmetic (RFC 9293 §3.4): numbers modulo 2^32.

/// A TCP sequence number. Ordering is only meaningful between numbers that are
/// less than 2^31 apart, so there is deliberately no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct SeqNo(pub u32);

impl SeqNo {
    /// `self + bytes`, modulo 2^32. `bytes` may be a whole stream offset.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes as u32))
    }

    /// How far `self` lies behind (`< 0`) or ahead of (`> 0`) `other`.
    #[must_use]
    pub fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// `self > other` in sequence space.
    #[must_use]
    pub fn after(self, other: Self) -> bool {
        self.since(other) > 0
    }

    /// The later of the two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.after(other) { self } else { other }
    }

    /// The 64-bit stream offset nearest to `near` whose sequence number, counted
    /// from `origin`, is `self`. Streams longer than 4 GiB keep exact offsets.
    #[must_use]
    pub fn offset_near(self, origin: Self, near: u64) -> u64 {
        let delta = self.since(origin.plus(near));
        near.saturating_add_signed(i64::from(delta))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_across_the_wrap() {
        let (before, behind) = (SeqNo(u32::MAX - 1), SeqNo(3));
        assert_eq!(before.plus(5), behind);
        assert_eq!((behind.since(before), before.since(behind)), (5, -5));
        assert!(behind.after(before) && !before.after(behind) && !behind.after(behind));
        assert_eq!((behind.max(before), before.max(behind)), (behind, behind));
    }

    #[test]
    fn an_offset_is_exact_after_many_wraps() {
        let origin = SeqNo(4_000_000_000);
        for offset in [0, 1, 1 << 31, (1 << 32) + 7, (5 << 32) - 1] {
            let number = origin.plus(offset);
            for near in [offset, offset + 1000, offset.saturating_sub(1000)] {
                assert_eq!(number.offset_near(origin, near), offset);
            }
        }
        // A number before the stream counts as its beginning.
        assert_eq!(SeqNo(origin.0 - 1).offset_near(origin, 0), 0);
    }
}
