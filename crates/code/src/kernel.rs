//! Sums of quotients over cells, as fast as the processor can: everything that
//! touches the bytes of cells, and all of the crate's `unsafe`.
//!
//! A kernel computes, for several outputs o at once and for every byte column,
//!
//! ```text
//! acc[o] = first[o] + Σ over sources k of  source[column[k]] / divisor(o, k)
//! ```
//!
//! and, where a mix is given, stores Σ over a of `acc[a] / mix[o, a]` instead. All
//! kernels give the same bytes.

#[cfg(target_arch = "x86_64")]
mod gfni512;
#[cfg(any(target_arch = "x86_64", all(feature = "shuffle", target_arch = "aarch64")))]
mod lanes;
mod portable;
mod task;
#[cfg(test)]
mod tests;

pub(crate) use task::{Cauchy, Divisors, EVERY, Explicit, OUTPUTS_MAX, Task};

/// Which instructions work on the cells.
///
/// A value of this type exists only for what this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Isa);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    #[cfg(target_arch = "x86_64")]
    Gfni512,
    #[cfg(target_arch = "x86_64")]
    Gfni256,
    #[cfg(all(feature = "shuffle", target_arch = "x86_64"))]
    Avx2,
    #[cfg(all(feature = "shuffle", target_arch = "aarch64"))]
    Neon,
    Portable,
}

/// Kernels, the fastest first.
const ALL: &[Isa] = &[
    #[cfg(target_arch = "x86_64")]
    Isa::Gfni512,
    #[cfg(target_arch = "x86_64")]
    Isa::Gfni256,
    #[cfg(all(feature = "shuffle", target_arch = "x86_64"))]
    Isa::Avx2,
    #[cfg(all(feature = "shuffle", target_arch = "aarch64"))]
    Isa::Neon,
    Isa::Portable,
];

impl Kernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self(Isa::Portable))
    }

    /// All kernels that this processor has, the fastest first. The portable one is
    /// the last.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.iter().copied().filter(|isa| isa.is_present()).map(Self)
    }

    /// `gfni-avx512`, `gfni-avx2`, `avx2`, `neon` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Isa::Gfni512 => "gfni-avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Gfni256 => "gfni-avx2",
            #[cfg(all(feature = "shuffle", target_arch = "x86_64"))]
            Isa::Avx2 => "avx2",
            #[cfg(all(feature = "shuffle", target_arch = "aarch64"))]
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    /// Carries the task out.
    #[inline]
    pub(crate) fn run<D: Divisors>(self, task: &Task<'_, D>) {
        match self.0 {
            // SAFETY: a `Kernel` exists only for instructions that were found
            // present, and the constructors of `Task` checked every index.
            #[cfg(target_arch = "x86_64")]
            Isa::Gfni512 => unsafe { gfni512::run(task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Gfni256 => unsafe { lanes::x86::run_gfni256(task) },
            // SAFETY: as above.
            #[cfg(all(feature = "shuffle", target_arch = "x86_64"))]
            Isa::Avx2 => unsafe { lanes::x86::run_avx2(task) },
            // SAFETY: as above.
            #[cfg(all(feature = "shuffle", target_arch = "aarch64"))]
            Isa::Neon => unsafe { lanes::neon::run_neon(task) },
            Isa::Portable => portable::run(task),
        }
    }
}

impl Isa {
    #[cfg(feature = "std")]
    fn is_present(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512 => {
                std::is_x86_feature_detected!("gfni")
                    && std::is_x86_feature_detected!("avx512f")
                    && std::is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Gfni256 => {
                std::is_x86_feature_detected!("gfni") && std::is_x86_feature_detected!("avx2")
            }
            #[cfg(all(feature = "shuffle", target_arch = "x86_64"))]
            Self::Avx2 => std::is_x86_feature_detected!("avx2"),
            #[cfg(all(feature = "shuffle", target_arch = "aarch64"))]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Portable => true,
        }
    }

    /// Whether the processor has these instructions; unknown without the
    /// standard library.
    #[cfg(not(feature = "std"))]
    fn is_present(self) -> bool {
        self == Self::Portable
    }
}
