//! The sink's end of a connection. TCP has AAL5 and an acknowledgement for each packet, Boston an
//! AAL that delivers incomplete packets, and reports of pending cells.

use super::aal5::Intact;
use super::cell::Cell;
use super::scenario::{Scenario, WINDOW_PACKETS_MAX};

const RECORDS: usize = 2 * WINDOW_PACKETS_MAX as usize;
/// Most segments whose state one acknowledgement reports.
const REPORTS_MAX: usize = 4;

/// An acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ack {
    /// Number before which everything has arrived.
    pub cumulative: u32,
    /// Whether a whole packet arrived; otherwise a part of one did.
    pub has_arrived: bool,
    /// Whether a segment is complete although cells before its last one were
    /// lost.
    pub has_recovered: bool,
    /// Number after the order of the newest cell, and number of all cells that arrived.
    pub seen: u32,
    pub received: u32,
    reports: [(u32, u16); REPORTS_MAX],
    count: u8,
}

impl Ack {
    /// Segments, each with its number of pending cells (TCP Boston §2.2).
    pub fn reports(&self) -> &[(u32, u16)] {
        &self.reports[..usize::from(self.count)]
    }
}

/// The effect of a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    /// The segment that became complete.
    pub completed: Option<u32>,
    /// Whether the segment of the packet is complete, now or before.
    pub is_usable: bool,
    /// Whether no cell of its packet arrived before it.
    pub is_first: bool,
    pub ack: Option<Ack>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u32,
    cells: u16,
    /// Number of cells of the segment's latest transmission, which is packet `pdu`.
    latest_cells: u16,
    pdu: u32,
    is_done: bool,
    /// Whether the segment has to be reported.
    is_dirty: bool,
}

/// The record of no segment.
const NONE: Segment = Segment {
    number: u32::MAX,
    cells: 0,
    latest_cells: 0,
    pdu: u32::MAX,
    is_done: false,
    is_dirty: false,
};

pub(super) struct Receiver {
    m: u16,
    is_boston: bool,
    intact: Intact,
    segments: Box<[Segment; RECORDS]>,
    next: u32,
    seen: u32,
    received: u32,
    dirty: Vec<u32>,
    /// The latest packets of which a cell arrived.
    noticed: Box<[u32; RECORDS]>,
}

impl Receiver {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            m: scenario.cells_per_packet(),
            is_boston: scenario.protocol.is_boston(),
            intact: Intact::default(),
            segments: Box::new([NONE; RECORDS]),
            next: 0,
            seen: 0,
            received: 0,
            dirty: Vec::with_capacity(RECORDS),
            noticed: Box::new([u32::MAX; RECORDS]),
        }
    }

    #[inline]
    pub fn handle_cell(&mut self, cell: &Cell) -> Arrived {
        let noticed = &mut self.noticed[cell.pdu as usize % RECORDS];
        let is_first = std::mem::replace(noticed, cell.pdu) != cell.pdu;
        let arrived = if self.is_boston { self.handle_row(cell) } else { self.handle_part(cell) };
        Arrived { is_first, ..arrived }
    }

    /// TCP: only an intact packet counts.
    fn handle_part(&mut self, cell: &Cell) -> Arrived {
        if !self.intact.push(cell.pdu, cell.index, cell.is_end, self.m) {
            return Arrived::default();
        }
        let is_known = cell.segment < self.next || self.segment(cell.segment).is_done;
        let completed = (!is_known).then_some(cell.segment);
        if completed.is_some() {
            self.complete(cell);
        }
        let ack = Ack { cumulative: self.next, has_arrived: true, ..Ack::default() };
        Arrived { completed, is_usable: true, ack: Some(ack), ..Arrived::default() }
    }

    /// Boston: every row counts until there are m.
    fn handle_row(&mut self, cell: &Cell) -> Arrived {
        self.seen = cell.order + 1;
        self.received += 1;
        let (m, is_old) = (self.m, cell.segment < self.next);
        let segment = self.segment(cell.segment);
        if is_old || segment.is_done {
            // The end of a transmission that was no longer needed is acknowledged. The rest of the
            // one that completed the segment says nothing new.
            let is_spare = segment.number == cell.segment && segment.pdu == cell.pdu;
            let ack = (cell.is_end && !is_spare).then(|| self.ack(true, false));
            return Arrived { is_usable: ack.is_some(), ack, ..Arrived::default() };
        }
        if segment.pdu != cell.pdu {
            (segment.pdu, segment.latest_cells) = (cell.pdu, 0);
        }
        segment.cells += 1;
        segment.latest_cells += 1;
        let has_recovered = segment.cells == m && segment.latest_cells <= cell.index;
        let is_complete = segment.cells == m;
        if !std::mem::replace(&mut segment.is_dirty, true) {
            self.dirty.push(cell.segment);
        }
        if is_complete {
            self.complete(cell);
        }
        let ack = (is_complete || cell.is_end).then(|| self.ack(is_complete, has_recovered));
        let completed = is_complete.then_some(cell.segment);
        Arrived { completed, is_usable: is_complete, ack, ..Arrived::default() }
    }

    /// The record of a segment, which replaces that of one long ago.
    fn segment(&mut self, number: u32) -> &mut Segment {
        let next = self.next;
        let segment = &mut self.segments[number as usize % RECORDS];
        if segment.number != number && number >= next {
            *segment = Segment { number, ..NONE };
        }
        segment
    }

    fn complete(&mut self, cell: &Cell) {
        let segment = self.segment(cell.segment);
        segment.is_done = true;
        while self.segments[self.next as usize % RECORDS].number == self.next
            && self.segments[self.next as usize % RECORDS].is_done
        {
            self.next += 1;
        }
    }

    fn ack(&mut self, has_arrived: bool, has_recovered: bool) -> Ack {
        let mut ack = Ack {
            cumulative: self.next,
            has_arrived,
            has_recovered,
            seen: self.seen,
            received: self.received,
            ..Ack::default()
        };
        let count = self.dirty.len().min(REPORTS_MAX);
        for (entry, number) in ack.reports.iter_mut().zip(self.dirty.drain(..count)) {
            let segment = &mut self.segments[number as usize % RECORDS];
            if segment.number == number {
                segment.is_dirty = false;
                *entry = (number, self.m - segment.cells.min(self.m));
                ack.count += 1;
            }
        }
        ack
    }
}
