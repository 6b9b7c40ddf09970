//! The pieces of a stream beyond its first hole. Neighbours are one piece, and a
//! byte is moved only when its piece joins one that is at least as long. So no
//! order of segments costs more than logarithmic time per byte.

use std::collections::{BTreeMap, VecDeque};

/// Disjoint pieces that do not touch, by offset.
#[derive(Clone, Debug, Default)]
pub(super) struct Beyond {
    pieces: BTreeMap<u64, VecDeque<u8>>,
    bytes: usize,
    /// Number of pieces and bytes that were looked at or moved.
    #[cfg(test)]
    pub(super) steps: u64,
}

impl Beyond {
    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Where the first piece begins.
    pub(super) fn first(&self) -> Option<u64> {
        self.pieces.first_key_value().map(|(start, _)| *start)
    }

    /// Takes the first piece out, if it begins at or before `at`.
    pub(super) fn take_up_to(&mut self, at: u64) -> Option<(u64, VecDeque<u8>)> {
        let entry = self.pieces.first_entry().filter(|entry| *entry.key() <= at)?;
        let (start, piece) = entry.remove_entry();
        self.bytes -= piece.len();
        Some((start, piece))
    }

    /// The first part of `[at, end)` that is in no piece.
    pub(super) fn hole(&mut self, mut at: u64, end: u64) -> Option<(u64, u64)> {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        if let Some((start, piece)) = self.pieces.range(..=at).next_back() {
            at = at.max(start + piece.len() as u64);
        }
        // Pieces do not touch: a piece that begins here lies behind a hole.
        let next = self.pieces.range(at..).next().map_or(end, |(start, _)| (*start).min(end));
        (at < next).then_some((at, next))
    }

    /// Whether a piece at `[at, end)` joins another one.
    pub(super) fn joins(&self, at: u64, end: u64) -> bool {
        self.pieces.contains_key(&end) || self.left_of(at).is_some()
    }

    /// The piece that ends at `at`.
    fn left_of(&self, at: u64) -> Option<u64> {
        let (start, piece) = self.pieces.range(..at).next_back()?;
        (start + piece.len() as u64 == at).then_some(*start)
    }

    /// Puts bytes into a [`hole`](Self::hole).
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes += bytes.len();
        let left = self.left_of(at).and_then(|start| self.pieces.remove_entry(&start));
        let (start, piece) = match left {
            Some((start, mut piece)) => {
                piece.extend(bytes);
                (start, piece)
            }
            None => (at, bytes.iter().copied().collect()),
        };
        let piece = match self.pieces.remove(&(at + bytes.len() as u64)) {
            Some(right) => self.concat(piece, right),
            None => piece,
        };
        self.pieces.insert(start, piece);
    }

    /// Joins two pieces; the shorter one is moved.
    fn concat(&mut self, mut left: VecDeque<u8>, mut right: VecDeque<u8>) -> VecDeque<u8> {
        let is_long = left.len() >= right.len();
        #[cfg(test)]
        {
            self.steps += if is_long { right.len() } else { left.len() } as u64;
        }
        if is_long {
            left.append(&mut right);
            return left;
        }
        right.reserve(left.len());
        while let Some(byte) = left.pop_back() {
            right.push_front(byte);
        }
        right
    }

    /// Checks that the pieces are disjoint, do not touch, and are counted
    /// right.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut last = None;
        for (start, piece) in &self.pieces {
            assert!(last.is_none_or(|end| *start > end) && !piece.is_empty());
            last = Some(start + piece.len() as u64);
        }
        assert_eq!(self.bytes, self.pieces.values().map(VecDeque::len).sum::<usize>());
    }
}
