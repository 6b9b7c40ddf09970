//! The decoder under hostile input: what `fuzz/` feeds, and a property test too.

use crate::{Code, Dispersal, Progress};
use alloc::vec;
use alloc::vec::Vec;

/// The shape of the longest cells that are tried, bytes.
const CELL_LEN_TRIED_MAX: usize = 80;

/// Reads a shape and then rows from `bytes`, and does to a decoder what an enemy
/// could: any order, duplicates, wrong lengths, too many cells, and direct calls
/// of [`Code::decode`] with nonsense. True if a segment was completed.
///
/// # Panics
/// If the decoder is wrong: if it says that it is complete too soon or too late,
/// or gives other bytes than were encoded.
pub fn decode_hostile(bytes: &[u8]) -> bool {
    let [m, len, flags, rows @ ..] = bytes else { return false };
    let cells = 1 + usize::from(*m) % if flags & 2 == 0 { 16 } else { 256 };
    let cell_len = 1 + usize::from(*len) % CELL_LEN_TRIED_MAX;
    let Ok(code) = Code::new(cells, cell_len) else { return false };
    let dispersal = if flags & 1 == 0 { Dispersal::Systematic } else { Dispersal::Rabin };
    let code = code.with_dispersal(dispersal);
    let segment: Vec<u8> = (0..code.segment_len()).map(|i| (i * i / 7) as u8 ^ flags).collect();
    decode_nonsense(&code, &segment, rows);

    let mut decoder = crate::Decoder::new(code);
    let (mut cell, mut seen) = (vec![0; cell_len], [false; 256]);
    for (i, &row) in rows.iter().enumerate() {
        if flags & 4 != 0 && i % 5 == 4 {
            assert!(decoder.insert(row, &vec![row; cell_len + 1]).is_err());
            assert!(decoder.insert(row, &cell[1..]).is_err());
            continue;
        }
        assert!(code.encode(&segment, &[row], &mut cell).is_ok());
        seen[usize::from(row)] = true;
        let distinct = seen.iter().filter(|seen| **seen).count();
        let expected = match cells.saturating_sub(distinct) {
            0 => Progress::Complete,
            pending => Progress::Pending(pending),
        };
        assert_eq!(decoder.insert(row, &cell), Ok(expected));
        assert_eq!(decoder.segment().is_some(), expected == Progress::Complete);
    }
    decoder.segment().is_some_and(|decoded| {
        assert!(decoded == segment);
        true
    })
}

/// Whatever is passed, it is decoded or refused; refused means unchanged.
fn decode_nonsense(code: &Code, segment: &[u8], bytes: &[u8]) {
    let count = bytes.len().min(20);
    let (missing, rows) = bytes[..count].split_at(count / 2);
    for cells_len in [rows.len() * code.cell_len(), count] {
        let (mut copy, mut cells) = (segment.to_vec(), vec![0; cells_len]);
        if code.decode(&mut copy, missing, rows, &mut cells).is_err() {
            assert!(copy == segment && cells.iter().all(|byte| *byte == 0));
        }
    }
}
