//! Vectors without masks. A cell's ragged end is one more vector that overlaps
//! the last whole one; its sums are made before anything is stored, because a
//! cell may be both what a sum starts with and where it goes. Cells shorter than
//! the shortest vector are left to the portable kernel.

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::task::{Divisors, Task};

/// A register full of bytes.
///
/// # Safety
/// The methods may be called only where the processor has the instructions of
/// the implementing module.
trait Lanes: Copy {
    const BYTES: usize;
    /// A vector that is prepared for being divided.
    type Prepared: Copy;

    unsafe fn zero() -> Self;
    /// `from` must be readable for [`Self::BYTES`].
    unsafe fn load(from: *const u8) -> Self;
    /// `to` must be writable for [`Self::BYTES`].
    unsafe fn store(self, to: *mut u8);
    unsafe fn prepare(self) -> Self::Prepared;
    /// `self + prepared / divisor`.
    unsafe fn add_quotient(self, prepared: Self::Prepared, divisor: u8) -> Self;
}

/// All byte columns of a task with `R` places.
///
/// # Safety
/// The processor has the instructions of `V`; the task has `R` places, and its
/// cells are at least as long as a vector.
#[inline(always)]
unsafe fn outputs<V: Lanes, const R: usize, D: Divisors>(task: &Task<'_, D>) {
    let ragged = task.cell_len % V::BYTES;
    // SAFETY (all calls): the vector at `at` is within a cell.
    let end = task.cell_len - V::BYTES;
    let last = if ragged == 0 { None } else { Some(unsafe { column::<V, R, D>(task, end) }) };
    let mut at = 0;
    while at + V::BYTES <= task.cell_len {
        unsafe { put(task, at, column::<V, R, D>(task, at)) };
        at += V::BYTES;
    }
    if let Some(sums) = last {
        unsafe { put(task, end, sums) };
    }
}

/// The sums of the byte columns from `at` on.
///
/// # Safety
/// As [`outputs`]; `at + V::BYTES` is at most the length of a cell.
#[inline(always)]
unsafe fn column<V: Lanes, const R: usize, D: Divisors>(task: &Task<'_, D>, at: usize) -> [V; R] {
    // SAFETY: `first` holds a cell per place, every column is a cell at `source`.
    unsafe {
        let mut sums = [V::zero(); R];
        if let Some(first) = task.first {
            for (o, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(first.add(o * task.cell_len + at));
            }
        }
        for (k, &column) in task.columns.iter().enumerate() {
            let from = task.source.add(usize::from(column) * task.cell_len + at);
            let cell = V::load(from).prepare();
            for (o, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add_quotient(cell, task.divisors.divisor(o, k, column));
            }
        }
        if task.mix.is_empty() { sums } else { mixed(sums, task.mix) }
    }
}

/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn mixed<V: Lanes, const R: usize>(sums: [V; R], mix: &[u8]) -> [V; R] {
    // SAFETY: no memory but the arrays is touched.
    unsafe {
        let mut mixed = [V::zero(); R];
        for (a, sum) in sums.iter().enumerate() {
            let sum = sum.prepare();
            for (o, out) in mixed.iter_mut().enumerate() {
                *out = out.add_quotient(sum, mix[o * R + a]);
            }
        }
        mixed
    }
}

/// Stores the sums of the byte columns from `at` on.
///
/// # Safety
/// As [`column`].
#[inline(always)]
unsafe fn put<V: Lanes, const R: usize, D: Divisors>(task: &Task<'_, D>, at: usize, sums: [V; R]) {
    for (o, sum) in sums.iter().enumerate() {
        let place = usize::from(task.places[o]) * task.cell_len + at;
        // SAFETY: every place is a cell at `target`, borrowed for writing.
        unsafe { sum.store(task.target.add(place)) };
    }
}

/// Makes `$name`, which runs a task with the vector type that fits its cells.
macro_rules! runner {
    ($(#[$doc:meta])* $name:ident, $features:literal, [$($lanes:ty),+]) => {
        $(#[$doc])*
        #[target_feature(enable = $features)]
        pub(in crate::kernel) unsafe fn $name<D: Divisors>(task: &Task<'_, D>) {
            $(if task.cell_len >= <$lanes>::BYTES {
                // SAFETY: the caller vouches for the instructions; the cells
                // are long enough, and the task has as many places as named.
                return unsafe {
                    match task.places.len() {
                        1 => outputs::<$lanes, 1, D>(task),
                        2 => outputs::<$lanes, 2, D>(task),
                        3 => outputs::<$lanes, 3, D>(task),
                        4 => outputs::<$lanes, 4, D>(task),
                        5 => outputs::<$lanes, 5, D>(task),
                        6 => outputs::<$lanes, 6, D>(task),
                        7 => outputs::<$lanes, 7, D>(task),
                        _ => outputs::<$lanes, 8, D>(task),
                    }
                };
            })+
            crate::kernel::portable::run(task);
        }
    };
}
use runner;
