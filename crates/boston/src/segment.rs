//! What is coded: `check 4 | flags 1 | length 2 | data | zeros`. The check covers
//! the segment's number, so that stray cells make no other segment.

use crate::frame::Shape;

/// Bytes that are coded along with the data.
pub(crate) const OVERHEAD: usize = 7;
/// Flag: the stream ends behind this segment.
const FLAG_END: u8 = 1;

/// Data bytes of a full segment.
pub(crate) fn capacity(shape: Shape) -> usize {
    shape.cells * shape.cell_len - OVERHEAD
}

/// Number of cells that `data_len` bytes need.
pub(crate) fn cells_for(shape: Shape, data_len: usize) -> usize {
    (OVERHEAD + data_len).div_ceil(shape.cell_len)
}

/// The bytes to disperse: as many cells as the data need.
pub(crate) fn seal(shape: Shape, number: u64, data: &[u8], is_end: bool) -> Vec<u8> {
    let mut bytes = vec![0; cells_for(shape, data.len()) * shape.cell_len];
    bytes[4] = if is_end { FLAG_END } else { 0 };
    bytes[5..7].copy_from_slice(&(data.len() as u16).to_be_bytes());
    bytes[OVERHEAD..OVERHEAD + data.len()].copy_from_slice(data);
    let check = check_of(number, &bytes[4..]);
    bytes[..4].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// The data and whether the stream ends behind them; `None` if a cell was corrupt.
pub(crate) fn open(number: u64, bytes: &[u8]) -> Option<(&[u8], bool)> {
    let (check, rest) = bytes.split_first_chunk::<4>()?;
    if check_of(number, rest) != u32::from_be_bytes(*check) {
        return None;
    }
    let ([flags, high, low], data) = rest.split_first_chunk::<3>()?;
    let data = data.get(..usize::from(u16::from_be_bytes([*high, *low])))?;
    Some((data, flags & FLAG_END != 0))
}

/// The CRC-32 of IEEE 802.3 and AAL5 over the number and what is coded.
fn check_of(number: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_and_nothing_else_does() {
        let shape = Shape { cells: 30, cell_len: 48 };
        for len in [0, 1, 41, 42, 43, capacity(shape)] {
            let data = vec![7; len];
            let sealed = seal(shape, 5, &data, len == 0);
            assert_eq!(sealed.len(), cells_for(shape, len) * 48);
            assert_eq!(open(5, &sealed), Some((&data[..], len == 0)));
            assert_eq!(open(6, &sealed), None);
            for at in 0..sealed.len() {
                let mut wrong = sealed.clone();
                wrong[at] ^= 0x10;
                assert_eq!(open(5, &wrong), None);
            }
        }
        assert_eq!(open(0, &[]), None);
    }
}
