//! GFNI with AVX-512: a cell of up to 64 bytes is one masked register, so no
//! length is special.

use super::task::{Divisors, OUTPUTS_MAX, Task};
use crate::code::ROWS;
use crate::field::DIVIDE_BITS;
use core::arch::x86_64::{
    __m512i, __mmask64, _mm512_gf2p8affine_epi64_epi8, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512,
};
use core::mem::MaybeUninit;

const VECTOR_BYTES: usize = 64;
/// Length of a cell, in bytes, from which on it is less work to look the matrices of
/// all divisors up beforehand.
const LONG_BYTES: usize = 512;
/// Truth table of `a + b + c`.
const SUM_OF_THREE: i32 = 0x96;

/// # Safety
/// The processor must have GFNI, AVX-512F and AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(super) unsafe fn run<D: Divisors>(task: &Task<'_, D>) {
    // SAFETY: the same instructions, and as many outputs as there are places. The
    // vectors at once leave room for two cells in 32 registers.
    unsafe {
        match task.places.len() {
            1 => outputs::<1, 4, D>(task),
            2 => outputs::<2, 4, D>(task),
            3 => outputs::<3, 4, D>(task),
            4 => outputs::<4, 4, D>(task),
            5 => outputs::<5, 2, D>(task),
            6 => outputs::<6, 2, D>(task),
            7 => outputs::<7, 2, D>(task),
            _ => outputs::<8, 2, D>(task),
        }
    }
}

/// # Safety
/// As [`run`]; the task has `R` places. Long cells are taken `W` vectors at once.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn outputs<const R: usize, const W: usize, D: Divisors>(task: &Task<'_, D>) {
    if task.cell_len >= LONG_BYTES {
        // SAFETY: the same conditions.
        return unsafe { long_outputs::<R, W, D>(task) };
    }
    let divisors = task.divisors.local::<R>(0);
    let matrix_of = |o, k, column| DIVIDE_BITS[divisors.divisor(o, k, column)];
    // SAFETY: the same conditions.
    unsafe { cells::<R, 2, D>(task, 0, matrix_of) }
}

/// The outputs of long cells; apart from the others, which then need no room on
/// the stack.
///
/// # Safety
/// As [`outputs`]; cells are longer than a vector.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn long_outputs<const R: usize, const W: usize, D: Divisors>(task: &Task<'_, D>) {
    // Never all of it is written, and none of it is worth being cleared.
    let mut room = [const { MaybeUninit::<[u64; R]>::uninit() }; ROWS];
    for (k, (matrices, &column)) in room.iter_mut().zip(task.columns).enumerate() {
        let matrix = |o| DIVIDE_BITS[task.divisors.divisor(o, k, column)];
        matrices.write(core::array::from_fn(matrix));
    }
    // Where all cells begin alike, a part of a vector makes the others whole
    // lines of the cache; a vector across two lines is read twice.
    let are_alike = task.cell_len.is_multiple_of(VECTOR_BYTES);
    let head = if are_alike { task.source.align_offset(VECTOR_BYTES) } else { 0 };
    // SAFETY: the same conditions; matrices were written for all columns, and no
    // others are asked for.
    unsafe { cells::<R, W, D>(task, head, |o, k, _| room[k].assume_init_ref()[o]) }
}

/// All byte columns, `W` vectors at once, except for the first `head` bytes and
/// the end. `matrix_of` knows the matrix of an output, the number of a source and
/// its cell.
///
/// # Safety
/// As [`outputs`]; `head` is less than a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn cells<const R: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    head: usize,
    matrix_of: impl Fn(usize, usize, u8) -> u64,
) {
    let mut at = 0;
    if head > 0 {
        // SAFETY: a long cell is longer than a vector.
        unsafe { column::<R, 1, D>(task, 0, ones(head), &matrix_of) };
        at = head;
    }
    while task.cell_len - at >= W * VECTOR_BYTES {
        // SAFETY: so many bytes from `at` on are within a cell.
        unsafe { column::<R, W, D>(task, at, !0, &matrix_of) };
        at += W * VECTOR_BYTES;
    }
    while at < task.cell_len {
        let left = (task.cell_len - at).min(VECTOR_BYTES);
        // SAFETY: the mask has a bit for each of the bytes that are left.
        unsafe { column::<R, 1, D>(task, at, ones(left), &matrix_of) };
        at += left;
    }
}

/// A mask of 1 to 64 bytes.
#[inline]
fn ones(bytes: usize) -> __mmask64 {
    !0 >> (VECTOR_BYTES - bytes)
}

/// The byte columns from `at` on: `W` vectors, in each the bytes of `mask`.
///
/// # Safety
/// As [`outputs`]; those bytes are within a cell.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn column<const R: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    at: usize,
    mask: __mmask64,
    matrix_of: impl Fn(usize, usize, u8) -> u64,
) {
    let mut sums = [[_mm512_setzero_si512(); W]; R];
    if let Some(first) = task.first {
        for (o, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `first` holds a cell for every place.
            *sum = unsafe { load(first.add(o * task.cell_len + at), mask) };
        }
    }
    let cell = |column: u8| -> [__m512i; W] {
        // SAFETY: every column is a cell at `source`.
        unsafe { load(task.source.add(usize::from(column) * task.cell_len + at), mask) }
    };
    // Two sources at once: one instruction adds both quotients.
    let (pairs, odd) = task.columns.as_chunks::<2>();
    for (k, &[one, other]) in pairs.iter().enumerate() {
        let (one_cell, other_cell) = (cell(one), cell(other));
        for (o, sum) in sums.iter_mut().enumerate() {
            let one_matrix = _mm512_set1_epi64(matrix_of(o, 2 * k, one) as i64);
            let other_matrix = _mm512_set1_epi64(matrix_of(o, 2 * k + 1, other) as i64);
            for ((sum, one), other) in sum.iter_mut().zip(one_cell).zip(other_cell) {
                let one = _mm512_gf2p8affine_epi64_epi8::<0>(one, one_matrix);
                let other = _mm512_gf2p8affine_epi64_epi8::<0>(other, other_matrix);
                *sum = _mm512_ternarylogic_epi64::<SUM_OF_THREE>(*sum, one, other);
            }
        }
    }
    if let &[last] = odd {
        let vectors = cell(last);
        for (o, sum) in sums.iter_mut().enumerate() {
            add_quotient(sum, &vectors, matrix_of(o, task.columns.len() - 1, last));
        }
    }
    if let Some(mix) = task.mix {
        sums = mixed(&sums, mix);
    }
    for (o, sum) in sums.iter().enumerate() {
        for (w, vector) in sum.iter().enumerate() {
            let place = usize::from(task.places[o]) * task.cell_len + at + w * VECTOR_BYTES;
            // SAFETY: every place is a cell at `target`, borrowed for writing.
            unsafe { _mm512_mask_storeu_epi8(task.target.add(place).cast(), mask, *vector) };
        }
    }
}

/// # Safety
/// The bytes of `mask` in `W` vectors from `from` on must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load<const W: usize>(from: *const u8, mask: __mmask64) -> [__m512i; W] {
    let mut vectors = [_mm512_setzero_si512(); W];
    for (w, vector) in vectors.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the bytes of the mask; no other is read.
        *vector = unsafe { _mm512_maskz_loadu_epi8(mask, from.add(w * VECTOR_BYTES).cast()) };
    }
    vectors
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn add_quotient<const W: usize>(sum: &mut [__m512i; W], cell: &[__m512i; W], matrix: u64) {
    let matrix = _mm512_set1_epi64(matrix as i64);
    for (sum, vector) in sum.iter_mut().zip(cell) {
        let quotient = _mm512_gf2p8affine_epi64_epi8::<0>(*vector, matrix);
        *sum = _mm512_xor_si512(*sum, quotient);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn mixed<const R: usize, const W: usize>(
    sums: &[[__m512i; W]; R],
    mix: &[[u8; OUTPUTS_MAX]; OUTPUTS_MAX],
) -> [[__m512i; W]; R] {
    let mut mixed = [[_mm512_setzero_si512(); W]; R];
    for (sum, divisors) in sums.iter().zip(mix) {
        for (out, divisor) in mixed.iter_mut().zip(divisors) {
            add_quotient(out, sum, DIVIDE_BITS[usize::from(*divisor)]);
        }
    }
    mixed
}
