//! The lab's random numbers: small, seeded, and the same on every machine, so
//! that a seed names a run.

/// The simulator's generator, with what the lab draws.
#[derive(Clone, Debug)]
pub struct Rng(holdfast_sim::Rng);

impl Rng {
    /// A generator that `seed` determines.
    pub fn new(seed: u64) -> Self {
        Self(holdfast_sim::Rng::of_state(seed))
    }

    /// The simulator's generator, for what both draw.
    pub fn source(&mut self) -> &mut holdfast_sim::Rng {
        &mut self.0
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32
    /// for the bounds used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.chance(probability)
    }
}
