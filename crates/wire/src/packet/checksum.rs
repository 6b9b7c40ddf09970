//! The Internet checksum (RFC 1071).

/// A running one's-complement sum. Every piece but the last must have even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds `bytes`; an odd last byte counts as if a zero byte followed.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        // 32-bit words in a 64-bit accumulator cannot overflow below 2^34 bytes,
        // and fold to the same result as 16-bit words (RFC 1071 §2 (C)).
        let mut sum = self.0;
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        // Folded each time, so that any number of pieces stays in range.
        sum += u64::from(u32::from_be_bytes(last));
        Self((sum >> 32) + (sum & 0xffff_ffff))
    }

    /// The checksum field for the bytes added, or 0 if they contain a right one.
    #[must_use]
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }
}

/// The checksum of `bytes`.
#[must_use]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    Sum::default().with(bytes).finish()
}
