//! Bytes and numbers: reading that cannot fail badly, truncated numbers.

/// Bits of truncated sequence and datagram numbers.
pub(crate) const TRUNCATED_BITS: u32 = 24;

/// Reads from the front of a slice; `None` where it is too short.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*bytes))
    }

    pub fn u24(&mut self) -> Option<u32> {
        let bytes = self.take(3)?;
        Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    pub fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    /// A number of 7 bits per byte, the lowest first, at most 63 bits; in its shortest form only,
    /// so that a number has one encoding.
    pub fn varint(&mut self) -> Option<u64> {
        const BYTES_MAX: u32 = 9;
        let mut value = 0;
        for i in 0..BYTES_MAX {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return (byte != 0 || i == 0).then_some(value);
            }
        }
        None
    }
}

/// The largest number that [`put_varint`] writes.
pub(crate) const VARINT_MAX: u64 = (1 << 63) - 1;

pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut value = value.min(VARINT_MAX);
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`put_varint`] writes.
pub(crate) fn varint_len(value: u64) -> usize {
    let bits = (u64::BITS - value.leading_zeros()).max(1);
    bits.div_ceil(7) as usize
}

/// The low 24 bits.
pub(crate) fn put_u24(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes()[1..]);
}

/// The low 24 bits of a number.
pub(crate) fn truncated(number: u64) -> u32 {
    number as u32 & ((1 << TRUNCATED_BITS) - 1)
}

/// The number with these low bits that is nearest to `near` (RFC 9000 §A.3).
pub(crate) fn completed(low: u64, bits: u32, near: u64) -> u64 {
    let span = 1u64 << bits;
    let candidate = (near & !(span - 1)) | (low & (span - 1));
    if candidate.checked_add(span / 2).is_some_and(|it| it <= near) {
        candidate.checked_add(span).unwrap_or(candidate)
    } else if candidate > near.saturating_add(span / 2) && candidate >= span {
        candidate - span
    } else {
        candidate
    }
}

/// [`completed`] for 24 bits.
pub(crate) fn completed_24(low: u32, near: u64) -> u64 {
    completed(u64::from(low), TRUNCATED_BITS, near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_varint_is_read_as_it_was_written(value in 0..=VARINT_MAX) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn a_truncated_number_is_completed(near in 0..u64::MAX / 4, offset in -8_000_000i64..8_000_000) {
            let number = near.saturating_add_signed(offset);
            prop_assert_eq!(completed_24(truncated(number), near), number);
        }
    }

    #[test]
    fn a_long_form_of_a_small_number_is_refused() {
        assert_eq!(Reader::new(&[0x80, 0]).varint(), None);
        assert_eq!(Reader::new(&[0xff; 12]).varint(), None);
    }
}
