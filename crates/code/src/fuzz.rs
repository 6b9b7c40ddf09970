//! The decoder under hostile input: what `fuzz/` feeds, and a property test too.
//! It is there in those two builds only and no part of what the crate offers.

use crate::{CELL_LEN_MAX, Code, CodeError, Decoder, Dispersal, InsertError, Kernel, ROWS};
use alloc::vec;
use alloc::vec::Vec;

/// Lengths of cells around those at which kernels change their step, in bytes.
const CELL_LENS: [usize; 12] = [1, 7, 31, 33, 63, 64, 65, 255, 257, 1400, 4097, 9180];
/// Most bytes of a segment that is tried: longer cells come in fewer numbers,
/// so that a try stays short.
const SEGMENT_LEN_TRIED_MAX: usize = 40_000;
/// Most rows that a direct call of [`Code::decode`] names.
const NONSENSE_ROWS_MAX: usize = 40;

/// Reads a shape and then rows from `bytes`, and does to decoders on all kernels
/// what an enemy could: any order, duplicates, wrong lengths, too many cells,
/// shapes that do not exist, and direct calls of [`Code::decode`] with wrong
/// counts, indices and bytes. True if a segment was completed.
///
/// # Panics
/// If a decoder is wrong: if it says that it is complete too soon or too late,
/// gives other bytes than were encoded, or other bytes than another kernel.
pub fn decode_hostile(bytes: &[u8]) -> bool {
    let [m, len, flags, rows @ ..] = bytes else { return false };
    refuse_impossible(usize::from(*m), usize::from(*len));
    let cell_len = match flags & 8 {
        0 => 1 + usize::from(*len) % 80,
        _ => CELL_LENS[usize::from(*len) % CELL_LENS.len()],
    };
    let cells_max = if flags & 2 == 0 { 16 } else { ROWS };
    let cells_max = cells_max.min((SEGMENT_LEN_TRIED_MAX / cell_len).max(1));
    let Ok(code) = Code::new(1 + usize::from(*m) % cells_max, cell_len) else { return false };
    let dispersal = if flags & 1 == 0 { Dispersal::Systematic } else { Dispersal::Rabin };
    let code = code.with_dispersal(dispersal);
    let segment: Vec<u8> = (0..code.segment_len()).map(|i| (i * i / 7) as u8 ^ flags).collect();
    decode_nonsense(&code, &segment, rows);
    insert_hostile(&code, &segment, rows, flags & 4 != 0)
}

/// There is a code for every shape within the limits and for no other.
fn refuse_impossible(m: usize, len: usize) {
    let (cells, cell_len) = (m + len, len * 300);
    let expected = if !(1..=ROWS).contains(&cells) {
        Err(CodeError::Cells(cells))
    } else if !(1..=CELL_LEN_MAX).contains(&cell_len) {
        Err(CodeError::CellLen(cell_len))
    } else {
        Ok(cells * cell_len)
    };
    assert_eq!(Code::new(cells, cell_len).map(|code| code.segment_len()), expected);
}

/// Inserts the rows in the order they are named, some of them with a wrong
/// length, on all kernels at once.
fn insert_hostile(code: &Code, segment: &[u8], rows: &[u8], with_wrong_lengths: bool) -> bool {
    let mut decoders: Vec<Decoder> =
        Kernel::available().map(|kernel| Decoder::new(code.with_kernel(kernel))).collect();
    let (expected, mut cell) = (code.cell_len(), vec![0; code.cell_len()]);
    let mut seen = [false; ROWS];
    for (i, &row) in rows.iter().enumerate() {
        if with_wrong_lengths && i % 5 == 4 {
            for wrong in [&vec![row; expected + 1][..], &cell[1..], &[]] {
                let refused = InsertError::CellLen { expected, actual: wrong.len() };
                if wrong.len() != expected {
                    assert!(decoders.iter_mut().all(|it| it.insert(row, wrong) == Err(refused)));
                }
            }
            continue;
        }
        assert!(code.encode(segment, &[row], &mut cell).is_ok());
        seen[usize::from(row)] = true;
        let pending = code.cells().saturating_sub(seen.iter().filter(|seen| **seen).count());
        let expected = match pending {
            0 => crate::Progress::Complete,
            pending => crate::Progress::Pending(pending),
        };
        for decoder in &mut decoders {
            assert_eq!(decoder.insert(row, &cell), Ok(expected));
            assert_eq!(decoder.segment().is_some(), pending == 0);
            assert!(decoder.segment().is_none_or(|decoded| decoded == segment));
        }
    }
    decoders.iter().all(|it| it.segment().is_some())
}

/// Whatever is passed, it is decoded, on all kernels to the same bytes, or refused;
/// refused means unchanged.
fn decode_nonsense(code: &Code, segment: &[u8], bytes: &[u8]) {
    let named = &bytes[..bytes.len().min(2 * NONSENSE_ROWS_MAX)];
    let (missing, rows) = named.split_at(named.len() / 2);
    // As often as not rows that could be right: plain ones are missing, others come.
    let split = code.cells().min(missing.len());
    let plain: Vec<u8> = (0..split).map(|cell| cell as u8).collect();
    let other: Vec<u8> = rows.iter().take(split).map(|row| *row | 128).collect();
    for (missing, rows) in [(missing, rows), (&plain[..], &other[..])] {
        for cells_len in [rows.len() * code.cell_len(), named.len()] {
            let mut first: Option<(bool, Vec<u8>)> = None;
            for kernel in Kernel::available() {
                let mut copy = segment.to_vec();
                let cells: Vec<u8> = (0..cells_len).map(|i| (i * 11) as u8).collect();
                let mut used = cells.clone();
                let code = code.with_kernel(kernel);
                let is_ok = code.decode(&mut copy, missing, rows, &mut used).is_ok();
                assert!(is_ok || (copy == segment && used == cells));
                let got = (is_ok, copy);
                assert!(*first.get_or_insert_with(|| got.clone()) == got, "{kernel:?}");
            }
        }
    }
}
