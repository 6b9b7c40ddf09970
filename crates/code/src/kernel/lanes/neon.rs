//! NEON: the two nibbles of every byte are looked up with TBL.

use super::{Divisors, Lanes, Task, outputs, runner};
use crate::field::DIVIDE_NIBBLES;
use core::arch::aarch64::*;

runner! {
    /// # Safety
    /// The processor must have NEON.
    run_neon, "neon", [Table]
}

#[derive(Clone, Copy)]
struct Table(uint8x16_t);

// SAFETY (all methods): their callers run where NEON was found, and vouch for
// the pointers.
impl Lanes for Table {
    const BYTES: usize = 16;
    /// Low and high nibbles.
    type Prepared = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn prepare(self) -> Self::Prepared {
        unsafe { (vandq_u8(self.0, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(self.0)) }
    }

    #[inline(always)]
    unsafe fn add_quotient(self, (low, high): Self::Prepared, divisor: usize) -> Self {
        unsafe {
            let table = DIVIDE_NIBBLES[divisor].as_ptr();
            let low = vqtbl1q_u8(vld1q_u8(table), low);
            let high = vqtbl1q_u8(vld1q_u8(table.add(16)), high);
            Self(veorq_u8(self.0, veorq_u8(low, high)))
        }
    }
}
