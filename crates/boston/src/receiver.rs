//! One direction's receiving half: collects cells, opens segments, delivers them
//! in order, and says what is pending.

use crate::frame::{Ack, AckEntry, Cell, Shape, expand};
use crate::{Nanos, segment};
use holdfast_code::{Code, Decoder, Dispersal, Progress};
use std::collections::VecDeque;

/// Longest time for which an acknowledgement waits for more cells.
pub(crate) const ACK_DELAY: Nanos = Nanos::from_ms(10);
/// Most cells for which an acknowledgement waits.
const ACK_CELLS: usize = 32;
/// Number of orders behind the highest in which a duplicate is recognised.
const ORDERS_KEPT: u64 = 1024;
/// Distance ahead, in cells, at which a cell does not belong to this
/// connection.
const ORDERS_AHEAD_MAX: u64 = 1 << 20;
/// Number of spoilt attempts at one segment after which the path is given up.
pub(crate) const ATTEMPTS_MAX: u8 = 200;

/// A segment of which cells have come.
#[derive(Clone, Debug)]
enum Incoming {
    Collecting { attempt: u8, decoder: Option<Box<Decoder>> },
    Complete { data: Vec<u8>, is_end: bool },
}

/// The path corrupts more cells than a segment survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoilt;

/// One direction's receiving half; see the module.
///
/// It holds at most `window` segments of twice their length, and as much data
/// that was not read.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    shape: Shape,
    dispersal: Dispersal,
    window: usize,
    /// Number of the first segment that is not delivered, and the segments from
    /// it on.
    next: u64,
    incoming: VecDeque<Option<Incoming>>,
    /// Data delivered but not read, per segment, so that the window counts
    /// segments.
    ready: VecDeque<Vec<u8>>,
    /// Bytes of the first of them that were read.
    read: usize,
    /// Whether the whole stream is delivered.
    is_ended: bool,
    /// The last limit that was announced; it never shrinks.
    limit: u64,
    orders: Orders,
    /// When the cell with the highest order came.
    seen_at: Nanos,
    unacknowledged: usize,
    ack_at: Option<Nanos>,
}

impl Receiver {
    /// A receiver for a peer that sends `shape`, and at most `window` segments
    /// ahead.
    pub fn new(shape: Shape, dispersal: Dispersal, window: usize) -> Self {
        Self {
            shape,
            dispersal,
            window,
            next: 0,
            incoming: (0..window).map(|_| None).collect(),
            ready: VecDeque::new(),
            read: 0,
            is_ended: false,
            limit: window as u64,
            orders: Orders::default(),
            seen_at: Nanos::default(),
            unacknowledged: 0,
            ack_at: None,
        }
    }

    /// Takes a cell.
    ///
    /// # Errors
    /// If its segment was spoilt too often.
    pub fn handle_cell(&mut self, now: Nanos, cell: &Cell) -> Result<(), Spoilt> {
        let order = expand(cell.order, self.orders.seen);
        if order > self.orders.seen + ORDERS_AHEAD_MAX {
            return Ok(());
        }
        if self.orders.insert(order) && order + 1 == self.orders.seen {
            self.seen_at = now;
        }
        let number = expand(cell.segment, self.next);
        let completes = match number.checked_sub(self.next) {
            // It was delivered: the answer to it was lost.
            None => true,
            Some(_) if number >= self.limit => false,
            Some(offset) => self.collect(number, offset as usize, cell)?,
        };
        self.deliver();
        self.unacknowledged += 1;
        let is_urgent = completes || cell.is_last || self.unacknowledged >= ACK_CELLS;
        let at = if is_urgent { now } else { now.plus(ACK_DELAY) };
        self.ack_at = Some(self.ack_at.map_or(at, |earlier| earlier.min(at)));
        Ok(())
    }

    /// Takes a cell of a segment; true if the segment is complete now.
    fn collect(&mut self, number: u64, offset: usize, cell: &Cell) -> Result<bool, Spoilt> {
        let Some(slot) = self.incoming.get_mut(offset) else { return Ok(false) };
        let slot = slot.get_or_insert(Incoming::Collecting { attempt: 0, decoder: None });
        let Incoming::Collecting { attempt, decoder } = slot else { return Ok(true) };
        if cell.attempt != *attempt || cell.cells > self.shape.cells {
            return Ok(false);
        }
        if decoder.is_none() {
            let Ok(code) = Code::new(cell.cells, self.shape.cell_len) else { return Ok(false) };
            *decoder = Some(Box::new(Decoder::new(code.with_dispersal(self.dispersal))));
        }
        let Some(decoder) = decoder.as_mut().filter(|it| it.code().cells() == cell.cells) else {
            return Ok(false);
        };
        if decoder.insert(cell.row, &cell.payload) != Ok(Progress::Complete) {
            return Ok(false);
        }
        match decoder.segment().and_then(|bytes| segment::open(number, bytes)) {
            Some((data, is_end)) => {
                *slot = Incoming::Complete { data: data.to_vec(), is_end };
            }
            None if *attempt >= ATTEMPTS_MAX => return Err(Spoilt),
            None => *slot = Incoming::Collecting { attempt: *attempt + 1, decoder: None },
        }
        Ok(true)
    }

    fn deliver(&mut self) {
        while let Some(Some(Incoming::Complete { .. })) = self.incoming.front() {
            let Some(Some(Incoming::Complete { data, is_end })) = self.incoming.pop_front() else {
                return;
            };
            self.incoming.push_back(None);
            self.next += 1;
            self.is_ended |= is_end;
            if !data.is_empty() {
                self.ready.push_back(data);
            }
        }
    }

    /// Reads what is delivered; 0 if there is nothing.
    pub fn read(&mut self, now: Nanos, out: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < out.len()
            && let Some(first) = self.ready.front()
        {
            let part = &first[self.read..];
            let count = part.len().min(out.len() - copied);
            out[copied..copied + count].copy_from_slice(&part[..count]);
            copied += count;
            self.read += count;
            if self.read == first.len() {
                self.ready.pop_front();
                self.read = 0;
            }
        }
        // A sender that had to stop hears about the room at once.
        if copied > 0 && self.limit <= self.next {
            self.ack_at = Some(now);
        }
        copied
    }

    /// Whether there is something to read.
    pub fn is_readable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether everything was delivered, to the end of the stream.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Takes the peer's question.
    pub fn handle_ping(&mut self, now: Nanos) {
        self.ack_at = Some(now);
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        self.ack_at
    }

    /// The acknowledgement that is due.
    pub fn poll(&mut self, now: Nanos) -> Option<Ack> {
        self.ack_at.filter(|at| *at <= now)?;
        self.ack_at = None;
        self.unacknowledged = 0;
        let free = self.window.saturating_sub(self.ready.len()) as u64;
        self.limit = self.limit.max(self.next + free);
        let entries = self.incoming.iter().enumerate().filter_map(|(offset, slot)| {
            let (pending, attempt) = match slot.as_ref()? {
                Incoming::Complete { .. } => (0, 0),
                Incoming::Collecting { attempt, decoder: None } => (self.shape.cells, *attempt),
                Incoming::Collecting { attempt, decoder: Some(decoder) } => {
                    match decoder.progress() {
                        Progress::Pending(pending) => (pending, *attempt),
                        Progress::Complete => (0, *attempt),
                    }
                }
            };
            Some(AckEntry { offset: offset as u8, pending: pending as u8, attempt })
        });
        Some(Ack {
            seen: self.orders.seen as u32,
            received: self.orders.received as u32,
            next: self.next as u32,
            limit: self.limit as u32,
            held_us: u32::try_from(now.since(self.seen_at).0 / 1000).unwrap_or(u32::MAX),
            entries: entries.collect(),
        })
    }
}

/// Which cells came: the highest order plus 1, how many different ones, and which
/// of the last [`ORDERS_KEPT`].
#[derive(Clone, Debug, Default)]
struct Orders {
    seen: u64,
    received: u64,
    recent: [u64; (ORDERS_KEPT / 64) as usize],
}

impl Orders {
    /// Notes an order; false if it came before, or so long ago that nobody
    /// knows.
    fn insert(&mut self, order: u64) -> bool {
        if order + ORDERS_KEPT < self.seen {
            return false;
        }
        // Orders between the highest so far and this one have not come.
        let skipped_from = self.seen.max((order + 1).saturating_sub(ORDERS_KEPT));
        for skipped in skipped_from..=order {
            *self.word(skipped) &= !(1 << (skipped % 64));
        }
        self.seen = self.seen.max(order + 1);
        let bit = 1 << (order % 64);
        let is_new = *self.word(order) & bit == 0;
        *self.word(order) |= bit;
        self.received += u64::from(is_new);
        is_new
    }

    fn word(&mut self, order: u64) -> &mut u64 {
        &mut self.recent[(order % ORDERS_KEPT / 64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::seal;

    #[test]
    fn duplicates_do_not_count_and_gaps_do_not_either() {
        let mut orders = Orders::default();
        for order in [0, 1, 5, 5, 3, 1, 2000, 2000, 1999, 5] {
            orders.insert(order);
        }
        assert_eq!((orders.seen, orders.received), (2001, 6));
        assert!(!orders.insert(900));
        assert!(orders.insert(977));
    }

    /// The sender goes on repeating a segment whose answer was lost.
    #[test]
    fn a_cell_of_a_delivered_segment_is_answered_at_once() {
        let shape = Shape { cells: 30, cell_len: 48 };
        let mut receiver = Receiver::new(shape, Dispersal::Systematic, 4);
        let cell = |order| {
            let payload = seal(shape, 0, b"data", false);
            Cell { cells: 1, row: 0, attempt: 0, is_last: false, segment: 0, order, payload }
        };
        assert_eq!(receiver.handle_cell(Nanos(0), &cell(0)), Ok(()));
        assert_eq!(receiver.poll(Nanos(0)).map(|ack| ack.next), Some(1));
        let later = Nanos::from_ms(5000);
        assert_eq!(receiver.handle_cell(later, &cell(1)), Ok(()));
        assert_eq!(receiver.next_deadline(), Some(later));
        assert_eq!(receiver.poll(later).map(|ack| (ack.next, ack.received)), Some((1, 2)));
    }
}
