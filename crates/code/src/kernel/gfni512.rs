//! GFNI with AVX-512: a cell of up to 64 bytes is one masked register, so no
//! length is special.

use super::task::{Divisors, OUTPUTS_MAX, Task};
use crate::field::DIVIDE_BITS;
use core::arch::x86_64::{
    __m512i, __mmask64, _mm512_gf2p8affine_epi64_epi8, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_xor_si512,
};

const VECTOR_BYTES: usize = 64;

/// # Safety
/// The processor must have GFNI, AVX-512F and AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(super) unsafe fn run<D: Divisors>(task: &Task<'_, D>) {
    // SAFETY: the same instructions, and as many outputs as there are places.
    unsafe {
        match task.places.len() {
            1 => outputs::<1, D>(task),
            2 => outputs::<2, D>(task),
            3 => outputs::<3, D>(task),
            4 => outputs::<4, D>(task),
            5 => outputs::<5, D>(task),
            6 => outputs::<6, D>(task),
            7 => outputs::<7, D>(task),
            _ => outputs::<8, D>(task),
        }
    }
}

/// # Safety
/// As [`run`]; the task has `R` places.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn outputs<const R: usize, D: Divisors>(task: &Task<'_, D>) {
    let mut at = 0;
    while task.cell_len - at >= 2 * VECTOR_BYTES {
        // SAFETY: 128 bytes from `at` on are within a cell.
        unsafe { column::<R, 2, D>(task, at, !0) };
        at += 2 * VECTOR_BYTES;
    }
    while at < task.cell_len {
        let left = (task.cell_len - at).min(VECTOR_BYTES);
        // SAFETY: the mask has a bit for each of the bytes that are left.
        unsafe { column::<R, 1, D>(task, at, !0 >> (VECTOR_BYTES - left)) };
        at += left;
    }
}

/// The byte columns from `at` on: `W` vectors, in each the bytes of `mask`.
///
/// # Safety
/// As [`outputs`]; those bytes are within a cell.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn column<const R: usize, const W: usize, D: Divisors>(
    task: &Task<'_, D>,
    at: usize,
    mask: __mmask64,
) {
    let mut sums = [[_mm512_setzero_si512(); W]; R];
    if let Some(first) = task.first {
        for (o, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `first` holds a cell for every place.
            *sum = unsafe { load(first.add(o * task.cell_len + at), mask) };
        }
    }
    let divisors = task.divisors.local::<R>(0);
    for (k, &column) in task.columns.iter().enumerate() {
        // SAFETY: every column is a cell at `source`.
        let cell: [__m512i; W] =
            unsafe { load(task.source.add(usize::from(column) * task.cell_len + at), mask) };
        for (o, sum) in sums.iter_mut().enumerate() {
            add_quotient(sum, &cell, divisors.divisor(o, k, column));
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
fn add_quotient<const W: usize>(sum: &mut [__m512i; W], cell: &[__m512i; W], divisor: u8) {
    let matrix = _mm512_set1_epi64(DIVIDE_BITS[usize::from(divisor)] as i64);
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
            add_quotient(out, sum, *divisor);
        }
    }
    mixed
}
