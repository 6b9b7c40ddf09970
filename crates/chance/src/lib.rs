//! The one source of chance of simulators and laboratory: a seed draws plans,
//! delays, losses and schedules. Nothing that serves clients draws from it.
#![forbid(unsafe_code)]
#![no_std]

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, every seed is good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator determined by `seed`; `stream` tells several generators of one
    /// seed apart.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        rng.draw();
        rng
    }

    /// A generator with exactly this state.
    pub fn of_state(state: u64) -> Self {
        Self(state)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `from..until`.
    pub fn range(&mut self, from: u64, until: u64) -> u64 {
        from + self.below(until - from)
    }

    /// True once in `n` times; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a f64 holds exactly.
        probability > 0.0 && ((self.draw() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A duration between the two; short ones are as likely as long ones.
    pub fn spread(&mut self, from: u64, until: u64) -> u64 {
        let doublings = (until / from.max(1)).max(1).ilog2();
        let from = from << self.below(u64::from(doublings) + 1);
        from + self.below(from)
    }

    /// One element of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
