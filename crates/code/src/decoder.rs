//! Collects the cells of one segment as they come.

use crate::code::{Code, DecodeError, Dispersal, ROWS, RowSet};
use alloc::vec;
use alloc::vec::Vec;

/// How far a segment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many different cells are still needed: the *Pending* of TCP Boston
    /// §2.2.
    Pending(usize),
    /// The segment is complete.
    Complete,
}

/// Why a cell was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// The cell has another length than the code's.
    #[error("the cell has {actual} bytes instead of {expected}: both ends must agree on a shape")]
    CellLen { expected: usize, actual: usize },
}

/// Takes the cells of a segment in any order, with duplicates, until it is complete.
///
/// It holds `m` cells and at most as many more, and allocates them when it is made.
#[derive(Clone, Debug)]
pub struct Decoder {
    code: Code,
    /// Plain cells are put in their places at once.
    segment: Vec<u8>,
    /// Cells of other rows, in the order they came.
    spares: Vec<u8>,
    spare_rows: [u8; ROWS],
    spare_count: usize,
    seen: RowSet,
    /// Number of different cells that are still needed.
    pending: usize,
}

impl Decoder {
    /// A decoder that has no cell yet.
    #[must_use]
    pub fn new(code: Code) -> Self {
        let spares_max = match code.dispersal() {
            Dispersal::Systematic => code.cells().min(ROWS - code.cells()),
            Dispersal::Rabin => code.cells(),
        };
        Self {
            code,
            segment: vec![0; code.segment_len()],
            spares: vec![0; spares_max * code.cell_len()],
            spare_rows: [0; ROWS],
            spare_count: 0,
            seen: RowSet::default(),
            pending: code.cells(),
        }
    }

    /// Forgets all cells, to begin another segment of the same shape or the same
    /// one anew.
    pub fn clear(&mut self) {
        self.spare_count = 0;
        self.seen = RowSet::default();
        self.pending = self.code.cells();
    }

    /// The code whose segments it decodes.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The progress so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self.pending {
            0 => Progress::Complete,
            pending => Progress::Pending(pending),
        }
    }

    /// Whether this row was taken.
    #[must_use]
    pub fn has(&self, row: u8) -> bool {
        self.seen.contains(row)
    }

    /// Takes a cell; the last one that was needed makes the segment. A row that
    /// came before and cells behind the last one change nothing.
    ///
    /// # Errors
    /// If the cell is not as long as the code's; it is not taken then.
    pub fn insert(&mut self, row: u8, cell: &[u8]) -> Result<Progress, InsertError> {
        let expected = self.code.cell_len();
        if cell.len() != expected {
            return Err(InsertError::CellLen { expected, actual: cell.len() });
        }
        if self.pending == 0 || !self.seen.insert(row) {
            return Ok(self.progress());
        }
        if self.code.is_plain(row) {
            let start = usize::from(row) * expected;
            self.segment[start..start + expected].copy_from_slice(cell);
        } else {
            let start = self.spare_count * expected;
            self.spares[start..start + expected].copy_from_slice(cell);
            self.spare_rows[self.spare_count] = row;
            self.spare_count += 1;
        }
        self.pending -= 1;
        if self.pending == 0 {
            // As many rows as cells are missing were counted, all different.
            let decoded = self.decode();
            debug_assert_eq!(decoded, Ok(()));
        }
        Ok(self.progress())
    }

    fn decode(&mut self) -> Result<(), DecodeError> {
        let (mut missing, mut count) = ([0; ROWS], 0);
        for row in 0..self.code.cells() {
            let row = row as u8;
            if !(self.code.is_plain(row) && self.seen.contains(row)) {
                missing[count] = row;
                count += 1;
            }
        }
        let rows = &self.spare_rows[..self.spare_count];
        let cells = &mut self.spares[..self.spare_count * self.code.cell_len()];
        self.code.decode(&mut self.segment, &missing[..count], rows, cells)
    }

    /// The segment, once it is complete.
    #[must_use]
    pub fn segment(&self) -> Option<&[u8]> {
        (self.pending == 0).then_some(&self.segment)
    }
}

#[cfg(test)]
mod tests;
