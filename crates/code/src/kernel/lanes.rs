//! Vectors without masks, two at a time where the cells are long enough. A
//! cell's ragged end is one more vector that overlaps the last whole one; the two
//! are a pair whose sums are made before either is stored, because a cell may be
//! both what a sum starts with and where it goes. Cells shorter than the shortest
//! vector are left to the portable kernel.

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::task::{Divisors, OUTPUTS_MAX, Task};

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
    unsafe fn add_quotient(self, prepared: Self::Prepared, divisor: usize) -> Self;
}

/// All byte columns of a task with `A + B` places. More than four sums of two
/// vectors do not fit into sixteen registers, so there are two groups of places.
///
/// # Safety
/// The processor has the instructions of `V`; the task has `A + B` places, and its
/// cells are at least as long as a vector.
#[inline(always)]
unsafe fn outputs<V: Lanes, const A: usize, const B: usize, D: Divisors>(task: &Task<'_, D>) {
    let mut at = 0;
    while at < task.cell_len {
        let left = task.cell_len - at;
        // SAFETY: in every branch all vectors are within a cell.
        at += unsafe {
            if left >= 3 * V::BYTES || left == 2 * V::BYTES {
                columns::<V, A, B, 2, D>(task, [at, at + V::BYTES]);
                2 * V::BYTES
            } else if left > 2 * V::BYTES || left == V::BYTES {
                columns::<V, A, B, 1, D>(task, [at]);
                V::BYTES
            } else {
                columns::<V, A, B, 2, D>(task, [at, task.cell_len - V::BYTES]);
                left
            }
        };
    }
}

/// The byte columns of `W` vectors, which begin at `at`.
///
/// # Safety
/// As [`outputs`]; the vectors are within a cell.
#[inline(always)]
unsafe fn columns<V: Lanes, const A: usize, const B: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    at: [usize; W],
) {
    // SAFETY: the same conditions.
    unsafe {
        let some = sums::<V, A, W, D>(task, 0, at);
        let others = sums::<V, B, W, D>(task, A, at);
        let Some(mix) = task.mix else {
            put(task, 0, at, some);
            put(task, A, at, others);
            return;
        };
        put(task, 0, at, mixed::<V, A, A, B, W>(0, &some, &others, mix));
        put(task, A, at, mixed::<V, B, A, B, W>(A, &some, &others, mix));
    }
}

/// The sums of the `R` places from the `start`-th on.
///
/// # Safety
/// As [`columns`].
#[inline(always)]
unsafe fn sums<V: Lanes, const R: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    start: usize,
    at: [usize; W],
) -> [[V; W]; R] {
    // SAFETY: `first` holds a cell per place, every column is a cell at `source`.
    unsafe {
        let mut sums = [[V::zero(); W]; R];
        if R == 0 {
            return sums;
        }
        if let Some(first) = task.first {
            for (o, sum) in sums.iter_mut().enumerate() {
                for (sum, at) in sum.iter_mut().zip(at) {
                    *sum = V::load(first.add((start + o) * task.cell_len + at));
                }
            }
        }
        let divisors = task.divisors.local::<R>(start);
        for (k, &column) in task.columns.iter().enumerate() {
            let cell = task.source.add(usize::from(column) * task.cell_len);
            let mut parts = [V::zero().prepare(); W];
            for (part, at) in parts.iter_mut().zip(at) {
                *part = V::load(cell.add(at)).prepare();
            }
            for (o, sum) in sums.iter_mut().enumerate() {
                let divisor = divisors.divisor(start + o, k, column);
                for (sum, part) in sum.iter_mut().zip(parts) {
                    *sum = sum.add_quotient(part, divisor);
                }
            }
        }
        sums
    }
}

/// The `R` mixed sums from the `start`-th on.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn mixed<V: Lanes, const R: usize, const A: usize, const B: usize, const W: usize>(
    start: usize,
    some: &[[V; W]; A],
    others: &[[V; W]; B],
    mix: &[[u8; OUTPUTS_MAX]; OUTPUTS_MAX],
) -> [[V; W]; R] {
    // SAFETY: no memory but the arrays is touched.
    unsafe {
        let mut mixed = [[V::zero(); W]; R];
        for (sum, divisors) in some.iter().chain(others).zip(mix) {
            for (o, out) in mixed.iter_mut().enumerate() {
                for (out, sum) in out.iter_mut().zip(sum) {
                    *out = out.add_quotient(sum.prepare(), usize::from(divisors[start + o]));
                }
            }
        }
        mixed
    }
}

/// Stores the sums of the `R` places from the `start`-th on.
///
/// # Safety
/// As [`columns`].
#[inline(always)]
unsafe fn put<V: Lanes, const R: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    start: usize,
    at: [usize; W],
    sums: [[V; W]; R],
) {
    for (o, sum) in sums.iter().enumerate() {
        let place = usize::from(task.places[start + o]) * task.cell_len;
        for (sum, at) in sum.iter().zip(at) {
            // SAFETY: every place is a cell at `target`, borrowed for writing.
            unsafe { sum.store(task.target.add(place + at)) };
        }
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
                        1 => outputs::<$lanes, 1, 0, D>(task),
                        2 => outputs::<$lanes, 2, 0, D>(task),
                        3 => outputs::<$lanes, 3, 0, D>(task),
                        4 => outputs::<$lanes, 4, 0, D>(task),
                        5 => outputs::<$lanes, 3, 2, D>(task),
                        6 => outputs::<$lanes, 3, 3, D>(task),
                        7 => outputs::<$lanes, 4, 3, D>(task),
                        _ => outputs::<$lanes, 4, 4, D>(task),
                    }
                };
            })+
            crate::kernel::portable::run(task);
        }
    };
}
use runner;
