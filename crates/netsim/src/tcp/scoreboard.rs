//! What a SACK sender of ns-2 knows of the segments beyond `snd_una`: which have arrived, which
//! were sent again, and how many are in flight.

use crate::net::packet::SACK_BLOCKS;
use std::collections::VecDeque;

const ARRIVED: u8 = 1;
const RESENT: u8 = 2;

/// Most segments that a scoreboard remembers; segments beyond are not noted, and are resent after a
/// timeout.
pub const MARKS_MAX: usize = 1 << 16;

/// A scoreboard, which is used from the first duplicate on.
#[derive(Debug, Default)]
pub struct Scoreboard {
    base: u32,
    marks: VecDeque<u8>,
    pipe: i64,
}

impl Scoreboard {
    /// Notes the blocks of an acknowledgement.
    pub fn mark(&mut self, snd_una: u32, blocks: &[(u32, u32); SACK_BLOCKS]) {
        self.advance(snd_una);
        for &(first, end) in blocks {
            for seq in first.max(self.base)..end {
                self.set(seq, ARRIVED);
            }
        }
    }

    fn set(&mut self, seq: u32, mark: u8) {
        let at = (seq - self.base) as usize;
        if at >= MARKS_MAX {
            return;
        }
        if at >= self.marks.len() {
            self.marks.resize(at + 1, 0);
        }
        self.marks[at] |= mark;
    }

    /// Forgets everything before `snd_una`.
    pub fn advance(&mut self, snd_una: u32) {
        let passed = (snd_una.saturating_sub(self.base) as usize).min(self.marks.len());
        self.marks.drain(..passed);
        self.base = self.base.max(snd_una);
    }

    /// Enters recovery, in which the first hole is sent.
    pub fn enter(&mut self, snd_una: u32, snd_max: u32, dup_acks: u32) {
        self.advance(snd_una);
        self.pipe = i64::from(snd_max) - i64::from(snd_una) - i64::from(dup_acks);
        self.set(snd_una, RESENT);
        self.pipe += 1;
    }

    /// Notes a duplicate: one segment has left the network.
    pub fn one_left(&mut self) {
        self.pipe -= 1;
    }

    /// Notes a partial acknowledgement: the lost segment and its repetition have left the network.
    pub fn partial_ack(&mut self) {
        self.pipe -= 2;
    }

    /// Notes that a segment was sent in recovery.
    pub fn one_sent(&mut self) {
        self.pipe += 1;
    }

    /// Number of segments in flight, as far as is known.
    #[must_use]
    pub fn pipe(&self) -> i64 {
        self.pipe
    }

    /// The first segment before `recover` that has neither arrived nor been sent again, and behind
    /// which one has arrived; it counts as sent again.
    pub fn next_hole(&mut self, snd_una: u32, recover: u32) -> Option<u32> {
        self.advance(snd_una);
        let last = self.marks.iter().rposition(|mark| mark & ARRIVED != 0)?;
        let at = self.marks.iter().take(last).position(|mark| *mark == 0)?;
        let seq = self.base + at as u32;
        (seq < recover).then(|| {
            self.marks[at] |= RESENT;
            seq
        })
    }

    /// Forgets everything, because of a timeout.
    pub fn clear(&mut self) {
        self.marks.clear();
        self.pipe = 0;
    }
}
