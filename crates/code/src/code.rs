//! The code itself: which rows there are, and the two linear maps.

use crate::field::{divide, multiply};
use crate::inverse::{CauchyInverse, VandermondeInverse};
use crate::kernel::{Cauchy, EVERY, Explicit, Kernel, OUTPUTS_MAX, Task};

/// Rows of every code: the elements of GF(2^8).
pub const ROWS: usize = 256;
/// Longest cell, in bytes.
pub const CELL_LEN_MAX: usize = 64 << 10;
/// Number of missing cells up to which decoding leaves the rows' cells as they are;
/// decoding more uses them up.
pub const KEPT_MAX: usize = OUTPUTS_MAX;
/// Most cells that can be missing or replaced in a systematic code: there are `m`
/// cells and 256 - `m` other rows.
const REPAIRS_MAX: usize = ROWS / 2;

/// Number of columns that are copied at once.
const NEAR: usize = 32;

/// How rows are made of a segment's cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dispersal {
    /// The rows below `m` are the cells themselves, row r ≥ m is
    /// Σ cell\[j\] / (r + j), a row of a Cauchy matrix. Every square part of a
    /// Cauchy matrix can be inverted, hence any `m` rows do.
    #[default]
    Systematic,
    /// Row r is Σ cell\[j\] · r^j (Rabin, J. ACM 36(2), 1989, with a Vandermonde
    /// matrix): no row is plain, and even without loss all must be decoded.
    Rabin,
}

/// A code for segments of one shape: `m` cells of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    cells: usize,
    cell_len: usize,
    dispersal: Dispersal,
    kernel: Kernel,
}

/// A shape that no code has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// Too few or too many cells.
    #[error("a segment has 1 to {ROWS} cells, not {0}: cut it into longer cells")]
    Cells(usize),
    /// Too short or too long a cell.
    #[error("a cell has 1 to {CELL_LEN_MAX} bytes, not {0}: cut the segment into more cells")]
    CellLen(usize),
}

/// Why nothing was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The segment is not `m` cells long.
    #[error("the segment has {actual} bytes instead of {expected}: pad it")]
    SegmentLen { expected: usize, actual: usize },
    /// The room for the rows has another size than the rows.
    #[error("there is room for {actual} bytes, the rows asked for have {expected}")]
    RoomLen { expected: usize, actual: usize },
}

/// Why nothing was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The segment is not `m` cells long.
    #[error("the segment has {actual} bytes instead of {expected}: pass all its cells")]
    SegmentLen { expected: usize, actual: usize },
    /// Not as many rows as missing cells.
    #[error("{missing} cells are missing, and {rows} rows are given: give one for each")]
    Count { missing: usize, rows: usize },
    /// The rows' cells have another size than the rows.
    #[error("{actual} bytes of cells are given, the rows have {expected}")]
    CellsLen { expected: usize, actual: usize },
    /// A missing cell that the segment does not have, or that is named twice.
    #[error("cell {0} cannot be missing: it is named twice, or it is none of the segment's")]
    Missing(u8),
    /// A row that is given twice, or that is one of the segment's own cells.
    #[error("row {0} is of no use: it is given twice, or it belongs into the segment")]
    Row(u8),
    /// Rabin's dispersal has no plain rows that could be present.
    #[error("without plain rows all {0} cells are missing: name them all")]
    NothingIsPlain(usize),
}

impl Code {
    /// A systematic code for `cells` cells of `cell_len` bytes.
    ///
    /// # Errors
    /// If there are no such cells: [`ROWS`] and [`CELL_LEN_MAX`] are the limits.
    pub fn new(cells: usize, cell_len: usize) -> Result<Self, CodeError> {
        if !(1..=ROWS).contains(&cells) {
            return Err(CodeError::Cells(cells));
        }
        if !(1..=CELL_LEN_MAX).contains(&cell_len) {
            return Err(CodeError::CellLen(cell_len));
        }
        Ok(Self { cells, cell_len, dispersal: Dispersal::Systematic, kernel: Kernel::best() })
    }

    /// The same shape, dispersed another way.
    #[must_use]
    pub fn with_dispersal(self, dispersal: Dispersal) -> Self {
        Self { dispersal, ..self }
    }

    /// The same code, worked by other instructions.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Self { kernel, ..self }
    }

    /// Number of cells of a segment, the `m` of the papers.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Bytes of a cell.
    #[must_use]
    pub fn cell_len(&self) -> usize {
        self.cell_len
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.cells * self.cell_len
    }

    /// How rows are made.
    #[must_use]
    pub fn dispersal(&self) -> Dispersal {
        self.dispersal
    }

    /// The instructions that do the work.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Whether this row is one of the segment's own cells.
    #[must_use]
    pub fn is_plain(&self, row: u8) -> bool {
        self.dispersal == Dispersal::Systematic && usize::from(row) < self.cells
    }

    /// Makes `rows` of the segment and writes them to `out`, one behind the
    /// other.
    ///
    /// # Errors
    /// If `segment` is not [`Code::segment_len`] bytes long, or `out` has not
    /// `cell_len` bytes for every row. Nothing is written then.
    #[inline]
    pub fn encode(&self, segment: &[u8], rows: &[u8], out: &mut [u8]) -> Result<(), EncodeError> {
        let expected = self.segment_len();
        if segment.len() != expected {
            return Err(EncodeError::SegmentLen { expected, actual: segment.len() });
        }
        let expected = rows.len() * self.cell_len;
        if out.len() != expected {
            return Err(EncodeError::RoomLen { expected, actual: out.len() });
        }
        match self.dispersal {
            Dispersal::Systematic => self.encode_systematic(segment, rows, out),
            Dispersal::Rabin => self.encode_rabin(segment, rows, out),
        }
        Ok(())
    }

    /// Restores the cells `missing` of `segment` from as many other `rows`, whose
    /// `cells` lie one behind the other. What stands in the missing places does
    /// not matter. With more than [`KEPT_MAX`] missing cells, `cells` holds other
    /// bytes afterwards.
    ///
    /// In Rabin's dispersal every cell of the segment counts as missing.
    ///
    /// # Errors
    /// If lengths or counts do not fit, or a cell or row is named twice or is not
    /// possible. Nothing is changed then. Wrong bytes in `cells` are not noticed.
    #[inline]
    pub fn decode(
        &self,
        segment: &mut [u8],
        missing: &[u8],
        rows: &[u8],
        cells: &mut [u8],
    ) -> Result<(), DecodeError> {
        self.check_decode(segment, missing, rows, cells)?;
        match self.dispersal {
            Dispersal::Rabin => self.decode_rabin(segment, rows, cells),
            Dispersal::Systematic => match missing.len() {
                0 => {}
                1 => self.decode_few::<1>(segment, missing, rows, cells),
                2 => self.decode_few::<2>(segment, missing, rows, cells),
                3 => self.decode_few::<3>(segment, missing, rows, cells),
                4 => self.decode_few::<4>(segment, missing, rows, cells),
                5..=OUTPUTS_MAX => self.decode_few::<OUTPUTS_MAX>(segment, missing, rows, cells),
                _ => self.decode_many(segment, missing, rows, cells),
            },
        }
        Ok(())
    }

    #[inline]
    fn check_decode(
        &self,
        segment: &[u8],
        missing: &[u8],
        rows: &[u8],
        cells: &[u8],
    ) -> Result<(), DecodeError> {
        let expected = self.segment_len();
        if segment.len() != expected {
            return Err(DecodeError::SegmentLen { expected, actual: segment.len() });
        }
        if missing.len() != rows.len() {
            return Err(DecodeError::Count { missing: missing.len(), rows: rows.len() });
        }
        let expected = rows.len() * self.cell_len;
        if cells.len() != expected {
            return Err(DecodeError::CellsLen { expected, actual: cells.len() });
        }
        let mut seen = RowSet::default();
        for &cell in missing {
            if usize::from(cell) >= self.cells || !seen.insert(cell) {
                return Err(DecodeError::Missing(cell));
            }
        }
        match self.dispersal {
            // Cells and rows are different numbers: one set serves for both.
            Dispersal::Systematic => {}
            Dispersal::Rabin if missing.len() == self.cells => seen = RowSet::default(),
            Dispersal::Rabin => return Err(DecodeError::NothingIsPlain(self.cells)),
        }
        for &row in rows {
            if self.is_plain(row) || !seen.insert(row) {
                return Err(DecodeError::Row(row));
            }
        }
        Ok(())
    }

    #[inline]
    fn encode_systematic(&self, segment: &[u8], rows: &[u8], out: &mut [u8]) {
        let (mut rows, mut out) = (rows, out);
        while let Some(&row) = rows.first() {
            let mut count = 1;
            if self.is_plain(row) {
                let start = usize::from(row) * self.cell_len;
                out[..self.cell_len].copy_from_slice(&segment[start..start + self.cell_len]);
            } else {
                let block = &rows[..rows.len().min(OUTPUTS_MAX)];
                count = block.iter().take_while(|row| !self.is_plain(**row)).count();
                self.kernel.run(&Task::disperse_first(
                    self.cell_len,
                    segment,
                    self.cells,
                    Cauchy::new(&block[..count]),
                    out,
                    count,
                ));
            }
            rows = &rows[count..];
            out = &mut out[count * self.cell_len..];
        }
    }

    fn encode_rabin(&self, segment: &[u8], rows: &[u8], out: &mut [u8]) {
        let columns = self.cells;
        let blocks = out.chunks_mut(OUTPUTS_MAX * self.cell_len);
        for (rows, out) in rows.chunks(OUTPUTS_MAX).zip(blocks) {
            let mut divisors = [[0; OUTPUTS_MAX]; ROWS];
            for (o, point) in rows.iter().enumerate() {
                let mut power = 1;
                for of_column in &mut divisors[..self.cells] {
                    of_column[o] = divide(1, power);
                    power = multiply(power, *point);
                }
            }
            let divisors = Explicit(&divisors);
            let task =
                Task::disperse_first(self.cell_len, segment, columns, divisors, out, rows.len());
            self.kernel.run(&task);
        }
    }

    /// Up to eight erasures stay in registers: syndromes, their e×e solution and
    /// the restored cells are one pass over the segment. `E` is their number, or
    /// 8: short loops of known length are worth their code.
    fn decode_few<const E: usize>(
        &self,
        segment: &mut [u8],
        missing: &[u8],
        rows: &[u8],
        cells: &[u8],
    ) {
        let count = if E < OUTPUTS_MAX { E } else { missing.len() };
        let (missing, rows) = (&missing[..count], &rows[..count]);
        let present = Present::new(self.cells, missing);
        let inverse = CauchyInverse::<E>::new(rows, missing);
        let mut mix = [[0; OUTPUTS_MAX]; OUTPUTS_MAX];
        for (a, of_row) in mix[..count].iter_mut().enumerate() {
            for (b, divisor) in of_row[..count].iter_mut().enumerate() {
                *divisor = inverse.divisor(b, a);
            }
        }
        self.kernel.run(&Task::repair(
            self.cell_len,
            segment,
            present.columns(),
            missing,
            Cauchy::new(rows),
            cells,
            &mix,
        ));
    }

    /// More erasures: the rows become their syndromes in place, then these are
    /// solved for the missing cells.
    fn decode_many(&self, segment: &mut [u8], missing: &[u8], rows: &[u8], cells: &mut [u8]) {
        let present = Present::new(self.cells, missing);
        let blocks = cells.chunks_mut(OUTPUTS_MAX * self.cell_len);
        for (rows, sums) in rows.chunks(OUTPUTS_MAX).zip(blocks) {
            self.kernel.run(&Task::accumulate(
                self.cell_len,
                segment,
                present.columns(),
                Cauchy::new(rows),
                sums,
                rows.len(),
            ));
        }
        let inverse = CauchyInverse::<REPAIRS_MAX>::new(rows, missing);
        for (block, places) in missing.chunks(OUTPUTS_MAX).enumerate() {
            let mut divisors = [[0; OUTPUTS_MAX]; REPAIRS_MAX];
            for (a, of_row) in divisors[..rows.len()].iter_mut().enumerate() {
                for (b, divisor) in of_row[..places.len()].iter_mut().enumerate() {
                    *divisor = inverse.divisor(block * OUTPUTS_MAX + b, a);
                }
            }
            let divisors = Explicit(&divisors);
            let columns = &EVERY[..rows.len()];
            let task = Task::place(self.cell_len, cells, columns, divisors, segment, places);
            self.kernel.run(&task);
        }
    }

    fn decode_rabin(&self, segment: &mut [u8], rows: &[u8], cells: &[u8]) {
        let mut inverse = VandermondeInverse::new(rows);
        let columns = &EVERY[..rows.len()];
        loop {
            let mut divisors = [[0; OUTPUTS_MAX]; ROWS];
            let (mut places, mut count) = ([0; OUTPUTS_MAX], 0);
            while count < OUTPUTS_MAX
                && let Some(place) = inverse.next_row()
            {
                for (k, of_point) in divisors[..rows.len()].iter_mut().enumerate() {
                    of_point[count] = inverse.divisor(k);
                }
                places[count] = place;
                count += 1;
            }
            if count == 0 {
                return;
            }
            let divisors = Explicit(&divisors);
            let places = &places[..count];
            let task = Task::place(self.cell_len, cells, columns, divisors, segment, places);
            self.kernel.run(&task);
        }
    }
}

/// A set of rows or cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowSet([u64; 4]);

impl RowSet {
    /// False if it was there already.
    #[inline]
    pub fn insert(&mut self, row: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(row >> 6)], 1 << (row & 63));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    #[inline]
    pub fn contains(&self, row: u8) -> bool {
        self.0[usize::from(row >> 6)] & 1 << (row & 63) != 0
    }
}

/// The columns that are not missing, in no particular order.
struct Present {
    columns: [u8; ROWS],
    count: usize,
}

impl Present {
    /// The first columns, in which the missing ones are replaced by later
    /// columns that are present: work for the missing ones only.
    #[inline(always)]
    fn new(cells: usize, missing: &[u8]) -> Self {
        let mut present = Self { columns: [0; ROWS], count: cells - missing.len() };
        // In parts of a known length, which need no call of memcpy.
        let (every, _) = EVERY.as_chunks::<NEAR>();
        let (columns, _) = present.columns.as_chunks_mut::<NEAR>();
        for (columns, every) in columns.iter_mut().zip(every).take(cells.div_ceil(NEAR)) {
            *columns = *every;
        }
        let mut absent = RowSet::default();
        for &cell in missing {
            absent.insert(cell);
        }
        let mut behind = present.count;
        for &cell in missing.iter().filter(|cell| usize::from(**cell) < present.count) {
            while absent.contains(behind as u8) {
                behind += 1;
            }
            present.columns[usize::from(cell)] = behind as u8;
            behind += 1;
        }
        present
    }

    #[inline]
    fn columns(&self) -> &[u8] {
        &self.columns[..self.count]
    }
}

#[cfg(test)]
mod tests;
