//! Work for a kernel. The constructors check every index once, so that the
//! kernels need not.

use crate::code::ROWS;
use core::marker::PhantomData;

/// Most outputs that one task computes at once.
pub(crate) const OUTPUTS_MAX: usize = 8;

/// The divisors that tell how outputs are made from sources.
pub(crate) trait Divisors: Copy {
    /// The divisor of output `o` and of the `k`-th source, whose cell is
    /// `column`: a byte, as an index.
    fn divisor(&self, o: usize, k: usize, column: u8) -> usize;
    /// A copy for a loop that asks for the `R` outputs from the `start`-th on.
    #[cfg(any(target_arch = "x86_64", all(feature = "shuffle", target_arch = "aarch64")))]
    fn local<const R: usize>(&self, start: usize) -> Self;
    /// Whether there are divisors for this many sources.
    fn covers(&self, sources: usize) -> bool;
}

/// Rows of the Cauchy matrix 1/(row + column).
#[derive(Clone, Copy)]
pub(crate) struct Cauchy([usize; OUTPUTS_MAX]);

impl Cauchy {
    /// A matrix of at most [`OUTPUTS_MAX`] rows.
    #[inline]
    pub fn new(rows: &[u8]) -> Self {
        let mut all = [0; OUTPUTS_MAX];
        for (all, row) in all.iter_mut().zip(rows) {
            *all = usize::from(*row);
        }
        Self(all)
    }
}

impl Divisors for Cauchy {
    /// Rows in registers of their own. Where the compiler sees that they lie side
    /// by side, it adds the column to all of them in a vector register and takes
    /// the sums out one by one, which costs more than the divisions.
    #[inline(always)]
    #[cfg(any(target_arch = "x86_64", all(feature = "shuffle", target_arch = "aarch64")))]
    fn local<const R: usize>(&self, start: usize) -> Self {
        let mut all = self.0;
        for row in &mut all[start..start + R] {
            // Known to be a byte again: an index that needs no check.
            *row = core::hint::black_box(*row) & 0xff;
        }
        Self(all)
    }

    #[inline(always)]
    fn divisor(&self, o: usize, _k: usize, column: u8) -> usize {
        self.0[o] ^ usize::from(column)
    }

    #[inline(always)]
    fn covers(&self, _sources: usize) -> bool {
        true
    }
}

/// A matrix that is written out: for every source the divisors of all outputs.
#[derive(Clone, Copy)]
pub(crate) struct Explicit<'a>(pub &'a [[u8; OUTPUTS_MAX]]);

impl Divisors for Explicit<'_> {
    #[inline(always)]
    #[cfg(any(target_arch = "x86_64", all(feature = "shuffle", target_arch = "aarch64")))]
    fn local<const R: usize>(&self, _start: usize) -> Self {
        *self
    }

    #[inline(always)]
    fn divisor(&self, o: usize, k: usize, _column: u8) -> usize {
        usize::from(self.0[k][o])
    }

    #[inline(always)]
    fn covers(&self, sources: usize) -> bool {
        sources <= self.0.len()
    }
}

/// One piece of work. Cells lie one behind the other, `cell_len` bytes each.
///
/// Invariants, which the constructors establish: `cell_len` is at least 1; every
/// one of `columns` is a cell at `source`; every one of `places` is a cell at
/// `target` that is no source; there are 1 to [`OUTPUTS_MAX`] places; `first`, if
/// any, holds a cell per place; `divisors` covers the columns. No two of `places` are equal.
pub(crate) struct Task<'a, D> {
    pub cell_len: usize,
    pub source: *const u8,
    pub columns: &'a [u8],
    pub divisors: D,
    /// Start values of the sums; they start with 0 if there are none.
    pub first: Option<*const u8>,
    /// Divisors of the mix: for every sum, those of all outputs.
    pub mix: Option<&'a [[u8; OUTPUTS_MAX]; OUTPUTS_MAX]>,
    pub target: *mut u8,
    pub places: &'a [u8],
    borrowed: PhantomData<&'a mut [u8]>,
}

/// The numbers 0 to 255: all columns, or outputs that lie one behind the other.
pub(crate) static EVERY: [u8; ROWS] = every();

const fn every() -> [u8; ROWS] {
    let mut numbers = [0; ROWS];
    let mut i = 0;
    while i < ROWS {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
}

impl<'a, D: Divisors> Task<'a, D> {
    /// `target[o] = Σ source[columns[k]] / divisor(o, k)` for `outputs` outputs.
    #[inline]
    pub fn disperse(
        cell_len: usize,
        source: &'a [u8],
        columns: &'a [u8],
        divisors: D,
        target: &'a mut [u8],
        outputs: usize,
    ) -> Self {
        check_shape(cell_len, outputs, divisors.covers(columns.len()));
        assert!(target.len() >= outputs * cell_len);
        assert!(are_cells(columns, source.len(), cell_len));
        Self::sums(cell_len, source, columns, divisors, target, &EVERY[..outputs])
    }

    /// The same from the first `columns` cells.
    #[inline]
    pub fn disperse_first(
        cell_len: usize,
        source: &'a [u8],
        columns: usize,
        divisors: D,
        target: &'a mut [u8],
        outputs: usize,
    ) -> Self {
        check_shape(cell_len, outputs, divisors.covers(columns));
        assert!(target.len() >= outputs * cell_len && source.len() >= columns * cell_len);
        let (columns, places) = (&EVERY[..columns], &EVERY[..outputs]);
        Self::sums(cell_len, source, columns, divisors, target, places)
    }

    /// `sums[o] += Σ source[columns[k]] / divisor(o, k)`.
    #[inline]
    pub fn accumulate(
        cell_len: usize,
        source: &'a [u8],
        columns: &'a [u8],
        divisors: D,
        sums: &'a mut [u8],
        outputs: usize,
    ) -> Self {
        let mut task = Self::disperse(cell_len, source, columns, divisors, sums, outputs);
        task.first = Some(task.target);
        task
    }

    /// With `acc[o] = first[o] + Σ segment[columns[k]] / divisor(o, k)`:
    /// `segment[places[o]] = Σ acc[a] / mix[o, a]`. No place is a column.
    #[inline]
    pub fn repair(
        cell_len: usize,
        segment: &'a mut [u8],
        columns: &'a [u8],
        places: &'a [u8],
        divisors: D,
        first: &'a [u8],
        mix: &'a [[u8; OUTPUTS_MAX]; OUTPUTS_MAX],
    ) -> Self {
        check_shape(cell_len, places.len(), divisors.covers(columns.len()));
        assert!(first.len() >= places.len() * cell_len);
        assert!(are_cells(columns, segment.len(), cell_len));
        assert!(are_cells(places, segment.len(), cell_len));
        let target = segment.as_mut_ptr();
        Self {
            cell_len,
            source: target,
            columns,
            divisors,
            first: Some(first.as_ptr()),
            mix: Some(mix),
            target,
            places,
            borrowed: PhantomData,
        }
    }

    /// `target[places[o]] = Σ source[columns[k]] / divisor(o, k)`.
    #[inline]
    pub fn place(
        cell_len: usize,
        source: &'a [u8],
        columns: &'a [u8],
        divisors: D,
        target: &'a mut [u8],
        places: &'a [u8],
    ) -> Self {
        check_shape(cell_len, places.len(), divisors.covers(columns.len()));
        assert!(are_cells(columns, source.len(), cell_len));
        assert!(are_cells(places, target.len(), cell_len));
        Self::sums(cell_len, source, columns, divisors, target, places)
    }

    /// Sums without first and mix, from one buffer to another; the caller has
    /// checked.
    #[inline(always)]
    fn sums(
        cell_len: usize,
        source: &'a [u8],
        columns: &'a [u8],
        divisors: D,
        target: &'a mut [u8],
        places: &'a [u8],
    ) -> Self {
        Self {
            cell_len,
            source: source.as_ptr(),
            columns,
            divisors,
            first: None,
            mix: None,
            target: target.as_mut_ptr(),
            places,
            borrowed: PhantomData,
        }
    }
}

#[inline(always)]
fn check_shape(cell_len: usize, outputs: usize, covered: bool) {
    assert!(cell_len != 0 && (1..=OUTPUTS_MAX).contains(&outputs) && covered);
}

/// Number of values that are compared at once.
const NEAR: usize = 16;

/// Whether every one of `cells` is a whole cell among `len` bytes.
#[inline(always)]
fn are_cells(cells: &[u8], len: usize, cell_len: usize) -> bool {
    let largest = |most: u8, cell: &u8| most.max(*cell);
    // The last numbers twice rather than one by one.
    let most = match cells.last_chunk::<NEAR>() {
        None => cells.iter().fold(0, largest),
        Some(end) => {
            let mut all = *end;
            for near in cells.as_chunks::<NEAR>().0 {
                for (most, cell) in all.iter_mut().zip(near) {
                    *most = (*most).max(*cell);
                }
            }
            all.iter().fold(0, largest)
        }
    };
    cells.is_empty() || (usize::from(most) + 1) * cell_len <= len
}
