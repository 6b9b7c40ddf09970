//! Output of a connection from before its member joined: the replica has none of it, and the
//! kernel that has it may be gone when the client asks for it.

/// The kept output; see the module.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Stream offset of the first byte.
    from: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Earlier {
    /// Takes the next piece; false if it does not follow the one before it.
    pub(crate) fn take(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if self.bytes.is_empty() {
            self.from = offset;
        }
        let follows = self.end() == offset;
        if follows {
            self.bytes.extend_from_slice(bytes);
        }
        follows
    }

    fn end(&self) -> u64 {
        self.from.saturating_add(self.bytes.len() as u64)
    }

    /// Forgets the output once the client has all of it; returns how many bytes
    /// that were.
    pub(crate) fn forget(&mut self, acked: u64) -> usize {
        if acked < self.end() {
            return 0;
        }
        std::mem::take(&mut self.bytes).len()
    }

    /// The output from `from` up to `until`, where the replica's own output begins; `None`
    /// if some of it is not here.
    pub(crate) fn range(&self, from: u64, until: u64) -> Option<&[u8]> {
        if from >= until {
            return Some(&[]);
        }
        let at = |place: u64| usize::try_from(place.checked_sub(self.from)?).ok();
        self.bytes.get(at(from)?..at(until)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_and_are_forgotten_when_the_client_has_them() {
        let mut earlier = Earlier::default();
        assert_eq!(earlier.range(7, 7), Some(&[][..]), "nothing is needed");
        assert_eq!(earlier.range(6, 7), None);
        assert!(earlier.take(5, b"abc") && !earlier.take(9, b"x") && earlier.take(8, b"de"));
        assert_eq!(earlier.range(6, 10), Some(&b"bcde"[..]));
        for (from, until) in [(4, 10), (6, 11), (u64::MAX - 1, u64::MAX)] {
            assert_eq!(earlier.range(from, until), None, "{from} to {until}");
        }
        assert_eq!((earlier.forget(9), earlier.forget(10), earlier.forget(11)), (0, 5, 0));
        assert!(earlier.take(u64::MAX, b"ab") && !earlier.take(0, b"c"), "no place beyond");
    }
}
