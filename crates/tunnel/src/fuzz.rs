//! The tunnel under hostile input: what `fuzz/` feeds, and property tests too. It is there in those two
//! builds only and no part of what the crate offers.
//!
//! Every function reads from its bytes what an enemy does, in order, so that a fuzzer which changes a
//! byte changes a deed. What is asserted stands with each; that nothing panics, wraps or loops holds for
//! all.

mod decoder;
mod machine;
mod parsers;
#[cfg(test)]
mod tests;

pub use crate::secure::fuzz::secure;
pub use decoder::decoder;
pub use machine::machine;
pub use parsers::{headers, parsers};

/// What is left of an input.
pub(crate) struct Draw<'a>(pub &'a [u8]);

impl<'a> Draw<'a> {
    /// The next byte; `None` at the end, where deeds end.
    pub fn deed(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, and zeros behind the end.
    pub fn byte(&mut self) -> u8 {
        self.deed().unwrap_or(0)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub fn u24(&mut self) -> u32 {
        u32::from_be_bytes([0, self.byte(), self.byte(), self.byte()])
    }

    /// A number near another one or anywhere: small steps are what finds most.
    pub fn near(&mut self, number: u64) -> u64 {
        let step = self.byte();
        match step {
            0..=199 => number.wrapping_add(u64::from(step)).wrapping_sub(100),
            200..=239 => number.wrapping_add(u64::from(self.u16())),
            240..=249 => number.wrapping_sub(u64::from(self.u16())),
            250..=253 => number.wrapping_add(u64::from(self.u24()) << 8),
            _ => u64::from_be_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A length, mostly short, and as many bytes, which are drawn if they are few and else all the same.
    pub fn body(&mut self) -> Vec<u8> {
        match self.byte() {
            len @ 0..=99 => self.bytes(usize::from(len)).to_vec(),
            _ => {
                let len = usize::from(self.u16()) % 2000;
                vec![self.byte(); len]
            }
        }
    }
}
