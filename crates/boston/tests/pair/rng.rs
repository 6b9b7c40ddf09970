//! The generator of all random numbers of a run.

/// A SplitMix64 generator (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `from..until`.
    pub fn range(&mut self, from: u64, until: u64) -> u64 {
        from + ((u128::from(self.draw()) * u128::from(until - from)) >> 64) as u64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.draw() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.range(0, all.len() as u64) as usize]
    }
}
