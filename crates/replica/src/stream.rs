//! One client's byte stream, put together from segments in any order.
//!
//! Offsets count bytes since the byte after the SYN and are 64 bit, so streams
//! of any length keep exact positions. The first copy of a byte wins, until the
//! primary says what its server really read.

use std::collections::{BTreeMap, VecDeque};

/// Bytes of one client that may be held ahead of what the server has read.
/// Beyond it segments are refused: not held, hence never acknowledged.
pub const STREAM_BYTES_MAX: usize = 64 << 20;
/// Pieces beyond a hole that one stream keeps; later ones are refused.
pub const BEYOND_SEGMENTS_MAX: usize = 1024;
/// Bytes beyond a hole that one stream keeps; later ones are refused.
pub const BEYOND_BYTES_MAX: usize = 8 << 20;

/// What [`Stream::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// Every byte was known before.
    Old,
    /// The contiguous part is longer now.
    Grown,
    /// Kept beyond a hole.
    Beyond,
    /// A limit was reached; part of the bytes or all of them were refused.
    Full,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Offset of the first byte in `bytes`; everything before was consumed.
    base: u64,
    bytes: VecDeque<u8>,
    /// Pieces beyond a hole, by offset: disjoint, and all above `end()`.
    beyond: BTreeMap<u64, Vec<u8>>,
    beyond_bytes: usize,
}

impl Stream {
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
        self.beyond.first_key_value().map(|(start, _)| *start)
    }

    /// Bytes in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.len() + self.beyond_bytes
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
        let limit = self.base + STREAM_BYTES_MAX as u64;
        let (from, until) = (start.max(self.end()), end.min(limit));
        if from >= until {
            return Inserted::Full;
        }
        let known = self.end();
        let new = &bytes[(from - start) as usize..(until - start) as usize];
        let kept = if from == known && self.beyond.is_empty() {
            self.bytes.extend(new);
            true
        } else {
            let kept = self.fill_gaps(from, new);
            self.join();
            kept
        };
        if self.end() > known {
            Inserted::Grown
        } else if kept && until == end {
            Inserted::Beyond
        } else {
            Inserted::Full
        }
    }

    /// Puts `new` into the holes of `[from, from + new.len())`; false at a limit.
    fn fill_gaps(&mut self, from: u64, new: &[u8]) -> bool {
        let end = from + new.len() as u64;
        let mut at = from;
        if let Some((start, piece)) = self.beyond.range(..=at).next_back() {
            at = at.max(start + piece.len() as u64);
        }
        while at < end {
            let next =
                self.beyond.range(at..).next().map(|(start, piece)| (*start, piece.len() as u64));
            let stop = next.map_or(end, |(start, _)| start.min(end));
            // What closes the first hole is always taken: it frees the pieces behind it.
            let full =
                self.beyond.len() >= BEYOND_SEGMENTS_MAX || self.beyond_bytes >= BEYOND_BYTES_MAX;
            if stop > at {
                if full && at != self.end() {
                    return false;
                }
                let piece = new[(at - from) as usize..(stop - from) as usize].to_vec();
                self.beyond_bytes += piece.len();
                self.beyond.insert(at, piece);
            }
            at = next.map_or(end, |(start, len)| if start < end { start + len } else { end });
        }
        true
    }

    /// Moves pieces that now touch the contiguous part into it.
    fn join(&mut self) {
        while let Some(entry) = self.beyond.first_entry() {
            let start = *entry.key();
            if start > self.base + self.bytes.len() as u64 {
                return;
            }
            let piece = entry.remove();
            self.beyond_bytes -= piece.len();
            let known = (self.end() - start) as usize;
            if known < piece.len() {
                self.bytes.extend(&piece[known..]);
            }
        }
    }

    /// The primary's server read `bytes` at `from`: that is what the client
    /// sent, whatever the tap said (decision 3).
    pub fn overwrite(&mut self, from: u64, bytes: &[u8]) {
        if from < self.base || from > self.end() {
            return;
        }
        let skip = (from - self.base) as usize;
        let known = (self.bytes.len() - skip).min(bytes.len());
        for (old, new) in self.bytes.range_mut(skip..skip + known).zip(bytes) {
            *old = *new;
        }
        self.bytes.extend(&bytes[known..]);
        self.join();
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

#[cfg(test)]
mod tests;
