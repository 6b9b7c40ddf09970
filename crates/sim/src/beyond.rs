//! A receiver's out-of-order queue: bytes beyond a hole, which it reports by SACK (RFC 2018).

use crate::packet::Packet;
use holdfast_wire::packet::Flags;
use std::collections::BTreeMap;

/// Most SACK blocks in an ACK that also has timestamps (RFC 2018 §3).
const BLOCKS_MAX: usize = 3;

/// The queue; see the module.
#[derive(Clone, Debug, Default)]
pub struct Beyond {
    /// Pieces by stream offset; they may overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Offset of the FIN, if that has arrived.
    fin: Option<u64>,
    /// Offset of the newest piece: its block is reported first (RFC 2018 §4).
    newest: u64,
}

impl Beyond {
    /// Keeps the bytes of `p`, which begin at stream offset `start`, up to the right edge `edge`.
    pub fn keep(&mut self, start: u64, edge: u64, p: &Packet) {
        let len = p.payload.len().min(edge.saturating_sub(start) as usize);
        if len > 0 {
            let piece = self.pieces.entry(start).or_default();
            // The first copy of a byte counts.
            piece.extend_from_slice(p.payload[..len].get(piece.len()..).unwrap_or_default());
            self.newest = start;
        }
        if p.is(Flags::FIN) && len == p.payload.len() {
            self.fin.get_or_insert(start + len as u64);
        }
    }

    /// Takes the bytes from offset `next` on, once the hole before them is filled; returns also
    /// whether the FIN follows them.
    pub fn take(&mut self, next: u64) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        while let Some((start, piece)) = self.pieces.pop_first() {
            let at = next + bytes.len() as u64;
            if start > at {
                self.pieces.insert(start, piece);
                break;
            }
            bytes.extend_from_slice(piece.get((at - start) as usize..).unwrap_or_default());
        }
        let ends = self.fin == Some(next + bytes.len() as u64);
        (bytes, ends)
    }

    /// The pieces as `[left, right)`, the newest first.
    pub fn blocks(&self) -> Vec<(u64, u64)> {
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for (start, piece) in &self.pieces {
            let end = start + piece.len() as u64;
            match blocks.last_mut() {
                Some((_, right)) if *start <= *right => *right = end.max(*right),
                _ => blocks.push((*start, end)),
            }
        }
        let has_newest = |(left, right): &(u64, u64)| (*left..*right).contains(&self.newest);
        if let Some(first) = blocks.iter().position(has_newest) {
            blocks[..=first].rotate_right(1);
        }
        blocks.truncate(BLOCKS_MAX);
        blocks
    }
}
