//! An output of a switch: a FIFO of cells, and what happens when it is full. The fabric in front of
//! it is as fast as all inputs together (output buffering).

use super::cell::Cell;
use super::scenario::Policy;
use std::collections::VecDeque;

/// The packet that a connection is sending.
#[derive(Clone, Copy, Debug, Default)]
struct Passing {
    pdu: u32,
    /// Number of its cells that were accepted and not dropped later.
    taken: u32,
    /// Whether the rest is dropped.
    dropping: bool,
    /// Whether its end is dropped, too: nothing of the packet has left, so no end is needed.
    whole: bool,
}

pub(super) struct Output {
    policy: Policy,
    limit: usize,
    threshold: usize,
    queue: VecDeque<Cell>,
    passing: Vec<Passing>,
    pub dropped: u64,
}

impl Output {
    pub fn new(policy: Policy, buffer_cells: u32, sources: u16) -> Self {
        let limit = buffer_cells as usize;
        let threshold = match policy {
            Policy::EpdThreshold(share) => (limit as f64 * share) as usize,
            _ => limit,
        };
        let none = Passing { pdu: u32::MAX, ..Passing::default() };
        Self {
            policy,
            limit,
            threshold,
            queue: VecDeque::with_capacity(limit),
            passing: vec![none; usize::from(sources)],
            dropped: 0,
        }
    }

    /// Takes a cell that arrives through the fabric.
    #[inline]
    pub fn offer(&mut self, cell: Cell) {
        if self.policy == Policy::Ubr {
            if self.queue.len() < self.limit {
                self.queue.push_back(cell);
            } else {
                self.dropped += 1;
            }
        } else {
            self.offer_in_packet(cell);
        }
    }

    fn offer_in_packet(&mut self, cell: Cell) {
        let full = self.queue.len() >= self.limit;
        let early = self.queue.len() >= self.threshold;
        let it = &mut self.passing[usize::from(cell.flow)];
        if it.pdu != cell.pdu {
            let refused = matches!(self.policy, Policy::EpdThreshold(_)) && early;
            *it = Passing { pdu: cell.pdu, taken: 0, dropping: refused, whole: refused };
        }
        if full && !it.dropping {
            it.dropping = true;
            if self.policy == Policy::EpdPurge {
                return self.purge(&cell);
            }
        }
        let may_pass = !it.dropping || (cell.is_end && !it.whole);
        if may_pass && !full {
            it.taken += 1;
            self.queue.push_back(cell);
        } else {
            self.dropped += 1;
        }
    }

    /// Drops the waiting cells of the cell's packet, and the cell itself.
    fn purge(&mut self, cell: &Cell) {
        let before = self.queue.len();
        self.queue.retain(|it| it.flow != cell.flow || it.pdu != cell.pdu);
        let purged = before - self.queue.len();
        let it = &mut self.passing[usize::from(cell.flow)];
        it.whole = it.taken as usize == purged;
        self.dropped += purged as u64;
        if cell.is_end && !it.whole {
            // Cells that have left need an end.
            self.queue.push_back(*cell);
        } else {
            self.dropped += 1;
        }
    }

    /// Takes the cell that leaves in this slot.
    #[inline]
    pub fn take(&mut self) -> Option<Cell> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers `before` cells of another connection, then a packet of 6 cells, during which the
    /// buffer is served `served` times; returns the cells of the packet that are left.
    fn left(policy: Policy, before: u16, served: usize) -> Vec<u16> {
        let mut output = Output::new(policy, 8, 2);
        let cell = |flow, index, is_end| Cell {
            flow,
            index,
            is_end,
            is_again: false,
            pdu: 0,
            segment: 0,
            order: 0,
        };
        (0..before).for_each(|index| output.offer(cell(0, index, false)));
        let mut out = Vec::new();
        for index in 0..6 {
            output.offer(cell(1, index, index == 5));
            if index == 4 {
                out.extend((0..served).filter_map(|_| output.take()));
            }
        }
        out.extend(std::iter::from_fn(|| output.take()));
        out.iter().filter(|it| it.flow == 1).map(|it| it.index).collect()
    }

    #[test]
    fn each_policy_drops_what_it_says() {
        // There is room for 3 of the packet's cells until two are served before its end.
        assert_eq!(left(Policy::Ubr, 5, 2), [0, 1, 2, 5]);
        assert_eq!(left(Policy::Scd, 5, 2), [0, 1, 2, 5]);
        assert_eq!(left(Policy::EpdThreshold(0.8), 5, 2), [0, 1, 2, 5]);
        assert_eq!(left(Policy::EpdThreshold(0.5), 5, 2), [] as [u16; 0]);
        assert_eq!(left(Policy::EpdPurge, 5, 2), [] as [u16; 0]);
        // There is room again after cell 4 was dropped; only UBR goes on with the packet.
        let mid = |policy| {
            let mut output = Output::new(policy, 2, 1);
            let cell = |index| Cell {
                flow: 0,
                index,
                is_end: index == 9,
                is_again: false,
                pdu: 3,
                segment: 0,
                order: 0,
            };
            let mut out = Vec::new();
            for index in 0..10 {
                output.offer(cell(index));
                if index >= 4 || index == 0 {
                    out.extend(output.take().map(|it| it.index));
                }
            }
            out.extend(std::iter::from_fn(|| output.take()).map(|it| it.index));
            (out, output.dropped)
        };
        assert_eq!(mid(Policy::Ubr), (vec![0, 1, 2, 5, 6, 7, 8, 9], 2));
        assert_eq!(mid(Policy::Scd), (vec![0, 1, 2, 9], 6));
        // Cell 0 had left before the drop, so the end is kept for it.
        assert_eq!(mid(Policy::EpdPurge), (vec![0, 9], 8));
    }
}
