//! One client's byte stream, put together from segments in any order.
//!
//! Offsets count bytes since the byte after the SYN and are 64 bit, so streams
//! of any length keep exact positions. The first copy of a byte wins, until the
//! primary says what its server really read.

mod beyond;

use crate::limits::Limits;
use beyond::Beyond;
use std::collections::VecDeque;

/// The outcome of [`Stream::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// Every byte was known before, in the contiguous part or beyond a hole.
    Old,
    /// The contiguous part is longer now.
    Grown,
    /// New bytes are kept beyond a hole.
    Beyond,
    /// A limit was reached; part of the bytes or all of them were refused.
    Full,
}

/// One client's stream; see the module.
#[derive(Clone, Debug)]
pub struct Stream {
    limits: Limits,
    /// Offset of the first byte in `bytes`; everything before was consumed.
    base: u64,
    bytes: VecDeque<u8>,
    /// Pieces that lie above `end()`.
    beyond: Beyond,
}

impl Stream {
    /// An empty stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::from(0, limits)
    }

    /// A stream of which everything before `base` was consumed elsewhere.
    #[must_use]
    pub fn from(base: u64, limits: Limits) -> Self {
        Self { limits, base, bytes: VecDeque::new(), beyond: Beyond::default() }
    }

    /// Offset of the oldest byte still held.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Offset after the last byte of the contiguous part.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Where the first piece beyond a hole begins.
    #[must_use]
    pub fn next_piece(&self) -> Option<u64> {
        self.beyond.first()
    }

    /// Bytes in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.len() + self.beyond.bytes()
    }

    /// Bytes in memory that lie beyond a hole.
    #[must_use]
    pub fn beyond_bytes(&self) -> usize {
        self.beyond.bytes()
    }

    /// Number of pieces and bytes looked at or moved beyond holes.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.beyond.steps
    }

    /// The bytes `[from, from + len)` in two pieces, if they are held.
    #[must_use]
    pub fn range(&self, from: u64, len: usize) -> Option<[&[u8]; 2]> {
        let skip = usize::try_from(from.checked_sub(self.base)?).ok()?;
        let until = skip.checked_add(len)?;
        if until > self.bytes.len() {
            return None;
        }
        let (head, tail) = self.bytes.as_slices();
        Some(match head.len() {
            h if until <= h => [&head[skip..until], &[]],
            h if skip >= h => [&tail[skip - h..until - h], &[]],
            h => [&head[skip..], &tail[..until - h]],
        })
    }

    /// Takes in a client's bytes at `start`; bytes known before are not changed.
    pub fn insert(&mut self, start: u64, bytes: &[u8]) -> Inserted {
        let end = start.saturating_add(bytes.len() as u64);
        if end <= self.end() {
            return Inserted::Old;
        }
        let limit = self.base + self.limits.stream_bytes_max as u64;
        let (from, until) = (start.max(self.end()), end.min(limit));
        if from >= until {
            return Inserted::Full;
        }
        let new = &bytes[(from - start) as usize..(until - start) as usize];
        if from == self.end() {
            self.append(new);
            return Inserted::Grown;
        }
        match self.fill_holes(from, new) {
            Filled { full: false, any: true } if until == end => Inserted::Beyond,
            Filled { full: false, any: false } if until == end => Inserted::Old,
            Filled { .. } => Inserted::Full,
        }
    }

    /// Adds `new` to the contiguous part, except where a piece has the first
    /// copy. Always taken: it frees the pieces behind it.
    fn append(&mut self, new: &[u8]) {
        let until = self.end() + new.len() as u64;
        while self.end() < until {
            let stop = self.beyond.first().map_or(until, |next| next.min(until));
            let rest = &new[new.len() - (until - self.end()) as usize..];
            self.bytes.extend(&rest[..(stop - self.end()) as usize]);
            self.join();
        }
    }

    /// Puts `new` into the holes of `[from, from + new.len())`, all of them beyond
    /// the first.
    fn fill_holes(&mut self, from: u64, new: &[u8]) -> Filled {
        let (end, mut at) = (from + new.len() as u64, from);
        let mut any = false;
        while let Some((start, stop)) = self.beyond.hole(at, end) {
            let is_full = self.beyond.bytes() >= self.limits.beyond_bytes_max
                || (self.beyond.count() >= self.limits.beyond_pieces_max
                    && !self.beyond.joins(start, stop));
            if is_full {
                return Filled { any, full: true };
            }
            self.beyond.put(start, &new[(start - from) as usize..(stop - from) as usize]);
            let pieces_max = self.limits.beyond_pieces_max.max(1);
            assert!(self.beyond.count() <= pieces_max, "L6: more pieces than the limit");
            any = true;
            at = stop;
        }
        Filled { any, full: false }
    }

    /// Moves pieces that now touch the contiguous part into it.
    fn join(&mut self) {
        while let Some((start, mut piece)) = self.beyond.take_up_to(self.end()) {
            let known = (self.end() - start) as usize;
            piece.drain(..known.min(piece.len()));
            self.bytes.append(&mut piece);
        }
        let is_behind_a_hole = |first| first > self.end();
        assert!(self.beyond.first().is_none_or(is_behind_a_hole), "L1: what is held has no hole");
    }

    /// The primary's server read `bytes` at `from`: that is what the client
    /// sent, whatever the tap said (decision 3). False if the tap had said
    /// something else.
    pub fn overwrite(&mut self, from: u64, bytes: &[u8]) -> bool {
        if from < self.base || from > self.end() {
            return true;
        }
        let skip = (from - self.base) as usize;
        let known = (self.bytes.len() - skip).min(bytes.len());
        let mut agreed = true;
        for (old, new) in self.bytes.range_mut(skip..skip + known).zip(bytes) {
            agreed &= *old == *new;
            *old = *new;
        }
        self.bytes.extend(&bytes[known..]);
        self.join();
        agreed
    }

    /// Forgets everything before `offset`, as far as it is held contiguously.
    pub fn consume_to(&mut self, offset: u64) {
        let count = offset.min(self.end()).saturating_sub(self.base);
        self.bytes.drain(..count as usize);
        self.base += count;
        if self.bytes.is_empty() {
            // Start over at the front, where the cache is warm.
            self.bytes.clear();
        }
    }
}

/// The outcome of [`Stream::fill_holes`].
struct Filled {
    /// Whether there was a hole.
    any: bool,
    /// Whether a limit was reached.
    full: bool,
}

#[cfg(test)]
mod tests;
