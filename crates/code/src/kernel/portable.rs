//! Eight bytes at a time in ordinary registers, on every processor.

use super::task::{Divisors, OUTPUTS_MAX, Task};
use crate::field::DIVIDE_BIT;

const WORD_BYTES: usize = 8;
/// The lowest bit of every byte.
const LOWEST: u64 = 0x0101_0101_0101_0101;

pub(super) fn run<D: Divisors>(task: &Task<'_, D>) {
    for at in (0..task.cell_len).step_by(WORD_BYTES) {
        word_column(task, at, WORD_BYTES.min(task.cell_len - at));
    }
}

/// The byte columns `at..at + len` of all cells.
fn word_column<D: Divisors>(task: &Task<'_, D>, at: usize, len: usize) {
    let outputs = task.places.len();
    let mut sums = [0u64; OUTPUTS_MAX];
    if let Some(first) = task.first {
        for (o, sum) in sums[..outputs].iter_mut().enumerate() {
            // SAFETY: `first` holds a cell for every place, and `at + len` is
            // at most the length of a cell.
            *sum = unsafe { load(first.add(o * task.cell_len + at), len) };
        }
    }
    for (k, &column) in task.columns.iter().enumerate() {
        // SAFETY: every column is a cell at `source`.
        let word = unsafe { load(task.source.add(usize::from(column) * task.cell_len + at), len) };
        for (o, sum) in sums[..outputs].iter_mut().enumerate() {
            *sum ^= divided(word, task.divisors.divisor(o, k, column));
        }
    }
    if let Some(mix) = task.mix {
        sums = mixed(&sums[..outputs], mix);
    }
    for (sum, &place) in sums.iter().zip(task.places) {
        // SAFETY: every place is a cell at `target`, which is borrowed for writing.
        unsafe { store(task.target.add(usize::from(place) * task.cell_len + at), *sum, len) };
    }
}

fn mixed(sums: &[u64], mix: &[[u8; OUTPUTS_MAX]; OUTPUTS_MAX]) -> [u64; OUTPUTS_MAX] {
    let mut mixed = [0; OUTPUTS_MAX];
    for (sum, divisors) in sums.iter().zip(mix) {
        for (out, divisor) in mixed.iter_mut().zip(divisors) {
            *out ^= divided(*sum, usize::from(*divisor));
        }
    }
    mixed
}

/// Every byte of `word` divided: bit b of a byte brings in 2^b / divisor. The
/// products of 0 or 1 and a byte do not carry into their neighbours.
fn divided(word: u64, divisor: usize) -> u64 {
    let quotients = &DIVIDE_BIT[divisor];
    quotients
        .iter()
        .enumerate()
        .fold(0, |sum, (bit, quotient)| sum ^ ((word >> bit & LOWEST) * u64::from(*quotient)))
}

/// The `len` ≤ 8 bytes at `from`, zeros behind them.
///
/// # Safety
/// They must be readable.
unsafe fn load(from: *const u8, len: usize) -> u64 {
    let mut bytes = [0; WORD_BYTES];
    // SAFETY: the caller vouches for `from`; `len` is at most the array's length.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    u64::from_le_bytes(bytes)
}

/// Writes the first `len` ≤ 8 bytes of `word` to `to`.
///
/// # Safety
/// They must be writable.
unsafe fn store(to: *mut u8, word: u64, len: usize) {
    let bytes = word.to_le_bytes();
    // SAFETY: the caller vouches for `to`; `len` is at most the array's length.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len) };
}
