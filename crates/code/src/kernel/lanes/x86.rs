//! AVX2, with GFNI if the processor has it, or else with shuffled nibbles.

use super::{Divisors, Lanes, Task, outputs, runner};
use crate::field::DIVIDE_BITS;
#[cfg(feature = "shuffle")]
use crate::field::DIVIDE_NIBBLES;
use core::arch::x86_64::*;

runner! {
    /// # Safety
    /// The processor must have GFNI and AVX2.
    run_gfni256, "avx2,gfni", [Gfni<__m256i>, Gfni<__m128i>]
}

#[cfg(feature = "shuffle")]
runner! {
    /// # Safety
    /// The processor must have AVX2.
    run_avx2, "avx2", [Shuffle<__m256i>, Shuffle<__m128i>]
}

/// Divides with GF2P8AFFINEQB.
#[derive(Clone, Copy)]
struct Gfni<V>(V);

/// Divides the two nibbles of every byte by looking them up with PSHUFB.
#[cfg(feature = "shuffle")]
#[derive(Clone, Copy)]
struct Shuffle<V>(V);

// SAFETY (all methods below): their callers run where AVX2, and for `Gfni` also
// GFNI, was found, and vouch for the pointers.
impl Lanes for Gfni<__m256i> {
    const BYTES: usize = 32;
    type Prepared = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn prepare(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    unsafe fn add_quotient(self, prepared: __m256i, divisor: usize) -> Self {
        unsafe {
            let matrix = _mm256_set1_epi64x(DIVIDE_BITS[divisor] as i64);
            let quotient = _mm256_gf2p8affine_epi64_epi8::<0>(prepared, matrix);
            Self(_mm256_xor_si256(self.0, quotient))
        }
    }
}

impl Lanes for Gfni<__m128i> {
    const BYTES: usize = 16;
    type Prepared = __m128i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn prepare(self) -> __m128i {
        self.0
    }

    #[inline(always)]
    unsafe fn add_quotient(self, prepared: __m128i, divisor: usize) -> Self {
        unsafe {
            let matrix = _mm_set1_epi64x(DIVIDE_BITS[divisor] as i64);
            let quotient = _mm_gf2p8affine_epi64_epi8::<0>(prepared, matrix);
            Self(_mm_xor_si128(self.0, quotient))
        }
    }
}

#[cfg(feature = "shuffle")]
impl Lanes for Shuffle<__m256i> {
    const BYTES: usize = 32;
    /// Low and high nibbles.
    type Prepared = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn prepare(self) -> Self::Prepared {
        unsafe {
            let nibble = _mm256_set1_epi8(0x0f);
            let high = _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), nibble);
            (_mm256_and_si256(self.0, nibble), high)
        }
    }

    #[inline(always)]
    unsafe fn add_quotient(self, (low, high): Self::Prepared, divisor: usize) -> Self {
        unsafe {
            let table: *const __m128i = DIVIDE_NIBBLES[divisor].as_ptr().cast();
            let low_table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
            let high_table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
            let low = _mm256_shuffle_epi8(low_table, low);
            let high = _mm256_shuffle_epi8(high_table, high);
            Self(_mm256_xor_si256(self.0, _mm256_xor_si256(low, high)))
        }
    }
}

#[cfg(feature = "shuffle")]
impl Lanes for Shuffle<__m128i> {
    const BYTES: usize = 16;
    /// Low and high nibbles.
    type Prepared = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn prepare(self) -> Self::Prepared {
        unsafe {
            let nibble = _mm_set1_epi8(0x0f);
            let high = _mm_and_si128(_mm_srli_epi64::<4>(self.0), nibble);
            (_mm_and_si128(self.0, nibble), high)
        }
    }

    #[inline(always)]
    unsafe fn add_quotient(self, (low, high): Self::Prepared, divisor: usize) -> Self {
        unsafe {
            let table: *const __m128i = DIVIDE_NIBBLES[divisor].as_ptr().cast();
            let low = _mm_shuffle_epi8(_mm_loadu_si128(table), low);
            let high = _mm_shuffle_epi8(_mm_loadu_si128(table.add(1)), high);
            Self(_mm_xor_si128(self.0, _mm_xor_si128(low, high)))
        }
    }
}
