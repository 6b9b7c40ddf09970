//! One direction's sending half: cuts the stream into segments, codes them, and
//! keeps as many cells of each under way as the receiver lacks.

use crate::flow::Flow;
use crate::frame::{Ack, AckEntry, Cell, Shape, expand};
use crate::redundancy::Control;
use crate::rtt::Rtt;
use crate::{Config, Nanos, SEND_BUFFER_MAX, WINDOW_SEGMENTS_MAX, segment};
use holdfast_code::{Code, Dispersal};
use std::collections::VecDeque;

/// Number of later cells that must have overtaken one before it counts as lost.
const REORDER_CELLS: u64 = 8;

/// Counts of what a sender did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Segments that were cut.
    pub segments: u64,
    /// Cells of these segments, without redundancy.
    pub cells_needed: u64,
    /// Cells that were sent, including repairs and redundancy.
    pub cells_sent: u64,
    /// Bursts of repairs: rounds beyond the first of a segment.
    pub repairs: u64,
    /// Segments that corrupt cells spoilt, each time.
    pub spoilt: u64,
    /// Times that the congestion window was cut for lost cells.
    pub cuts: u64,
    /// Single cells that asked whether the last ones were lost.
    pub probes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}

/// A segment that the receiver does not have yet.
#[derive(Clone, Debug)]
struct Outgoing {
    number: u64,
    code: Code,
    /// The bytes that are coded.
    sealed: Vec<u8>,
    attempt: u8,
    /// The next row, modulo 256: a fresh one until all were sent.
    next_row: u8,
    /// Number of different cells that the receiver still needs, by its last
    /// report.
    pending: usize,
    /// Number of cells of this attempt that may still arrive.
    under_way: usize,
    /// Number of cells of the present burst that wait for the window.
    to_send: usize,
    bursts: u32,
}

/// A cell that may still arrive.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    order: u64,
    at: Nanos,
    segment: u64,
    attempt: u8,
    /// Whether it belongs to a segment's first burst.
    is_first: bool,
}

/// One direction's sending half; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    shape: Shape,
    is_interleaved: bool,
    dispersal: Dispersal,
    control: Control,
    flow: Flow,
    rtt: Rtt,
    /// Bytes written, not yet cut.
    buffer: VecDeque<u8>,
    /// Whether no more will be written.
    is_ended: bool,
    /// Whether the segment that says so was cut.
    end_is_cut: bool,
    segments: VecDeque<Outgoing>,
    /// The segment that sent the last cell.
    last_turn: u64,
    /// The number of the next segment.
    next_segment: u64,
    /// Number of the first segment that the receiver does not take.
    limit: u64,
    next_order: u64,
    under_way: VecDeque<UnderWay>,
    /// The receiver's last report: the highest order plus 1, and cells that
    /// came.
    seen: u64,
    received: u64,
    /// Order below which cells are settled: arrived or lost.
    settled: u64,
    /// Number of cells among the settled ones that are known to be lost.
    lost: u64,
    /// When overtaken cells count as lost.
    reorder_at: Option<Nanos>,
    timeout_at: Option<Nanos>,
    /// When a single cell asks whether the last ones were lost.
    probe_at: Option<Nanos>,
    /// Whether it is to be sent, whatever the window says.
    is_probing: bool,
    counters: Counters,
}

impl Sender {
    /// A sender of segments of this end's shape to a receiver that takes `window` of
    /// them.
    pub fn new(config: &Config, window: usize) -> Self {
        Self {
            shape: config.shape,
            is_interleaved: config.is_interleaved,
            dispersal: config.dispersal,
            control: Control::new(config.redundancy, config.shape.cells),
            flow: Flow::new(config.flow, config.shape.cells, window),
            rtt: Rtt::default(),
            buffer: VecDeque::new(),
            is_ended: false,
            end_is_cut: false,
            segments: VecDeque::new(),
            last_turn: 0,
            next_segment: 0,
            limit: window as u64,
            next_order: 0,
            under_way: VecDeque::new(),
            seen: 0,
            received: 0,
            settled: 0,
            lost: 0,
            reorder_at: None,
            timeout_at: None,
            probe_at: None,
            is_probing: false,
            counters: Counters::default(),
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes as many bytes as there is room for.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let room = SEND_BUFFER_MAX - self.buffer.len();
        let taken = if self.is_ended { 0 } else { bytes.len().min(room) };
        self.buffer.extend(&bytes[..taken]);
        taken
    }

    /// Notes that nothing more will be written.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether everything that was written, and the end, have arrived.
    pub fn is_done(&self) -> bool {
        self.end_is_cut && self.segments.is_empty()
    }

    /// Whether something waits, and the receiver takes no more segments.
    pub fn is_blocked(&self) -> bool {
        self.has_more() && self.next_segment >= self.limit && self.segments.is_empty()
    }

    /// How long to wait for an answer now.
    pub fn timeout(&self) -> Nanos {
        self.rtt.timeout()
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        [self.reorder_at, self.probe_at, self.timeout_at].into_iter().flatten().min()
    }

    /// Takes an acknowledgement. Old ones and impossible ones change nothing.
    pub fn handle_ack(&mut self, now: Nanos, ack: &Ack) {
        let limit = expand(ack.limit, self.limit);
        let [seen, received] = [(ack.seen, self.seen), (ack.received, self.received)]
            .map(|(low, near)| expand(low, near));
        let first = self.segments.front().map_or(self.next_segment, |segment| segment.number);
        let next = expand(ack.next, first);
        // Received never shrinks, so it orders acknowledgements that overtook
        // one another.
        let is_possible = seen <= self.next_order && received <= seen && next <= self.next_segment;
        if !is_possible || received < self.received || seen < self.seen || next < first {
            return;
        }
        self.limit = self.limit.max(limit.min(next + WINDOW_SEGMENTS_MAX as u64));
        let is_progress = seen > self.seen || next > first;
        if seen > self.seen {
            self.measure(now, seen, Nanos(u64::from(ack.held_us) * 1000));
            self.rtt.progress();
        }
        self.control.report(seen - self.seen, received - self.received);
        let arrived = received - self.received;
        (self.seen, self.received) = (seen, received);
        self.segments.retain(|segment| segment.number >= next);
        for entry in &ack.entries {
            self.note(next, entry);
        }
        self.settle(seen.saturating_sub(REORDER_CELLS));
        self.flow.arrived(arrived, self.settled, self.next_order);
        let is_overtaken = self.under_way.front().is_some_and(|cell| cell.order < self.seen);
        let reorder_at = self.reorder_at.unwrap_or(now.plus(self.rtt.reordering()));
        self.reorder_at = is_overtaken.then_some(reorder_at);
        if is_progress || self.under_way.is_empty() {
            self.arm_timeout(now);
        }
    }

    /// Notes what the receiver says about one segment.
    fn note(&mut self, next: u64, entry: &AckEntry) {
        let number = next + u64::from(entry.offset);
        if entry.pending == 0 {
            self.segments.retain(|segment| segment.number != number);
            return;
        }
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number)
        else {
            return;
        };
        if entry.attempt > segment.attempt {
            // A cell was corrupt: everything of this segment is void.
            self.counters.spoilt += 1;
            segment.attempt = entry.attempt;
            segment.under_way = 0;
            segment.to_send = 0;
            segment.next_row = 0;
            segment.pending = segment.code.cells();
        }
        if entry.attempt == segment.attempt {
            segment.pending = usize::from(entry.pending).min(segment.code.cells());
        }
    }

    /// Takes the round trip of the cell that the receiver saw last.
    fn measure(&mut self, now: Nanos, seen: u64, held: Nanos) {
        let at = self.under_way.partition_point(|cell| cell.order + 1 < seen);
        let Some(cell) = self.under_way.get(at).filter(|cell| cell.order + 1 == seen) else {
            return;
        };
        let rtt = Nanos(now.since(cell.at).since(held).0.max(1));
        self.rtt.sample(rtt);
        self.flow.round_trip(rtt, cell.is_first);
    }

    /// Settles orders below `until`: they have arrived or never will.
    fn settle(&mut self, until: u64) {
        while let Some(cell) = self.under_way.front().filter(|cell| cell.order < until) {
            let (number, attempt) = (cell.segment, cell.attempt);
            let found = self.segments.iter_mut().find(|segment| segment.number == number);
            if let Some(segment) = found.filter(|segment| segment.attempt == attempt) {
                segment.under_way = segment.under_way.saturating_sub(1);
            }
            self.under_way.pop_front();
        }
        self.settled = self.settled.max(until);
        let lost = self.settled.saturating_sub(self.received);
        if lost > self.lost {
            self.counters.cuts += u64::from(self.flow.lost(self.settled - 1, self.next_order));
        }
        // Cells that came but are not settled make the difference smaller than
        // the losses are; without such cells it is exact.
        self.lost = if self.settled >= self.seen { lost } else { self.lost.max(lost) };
    }

    fn arm_timeout(&mut self, now: Nanos) {
        let is_waiting = !self.under_way.is_empty();
        self.timeout_at = is_waiting.then(|| now.plus(self.rtt.timeout()));
        let probe = self.rtt.probe_timeout().filter(|_| is_waiting);
        self.probe_at = probe.map(|patience| now.plus(patience));
    }

    /// Notes that time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.reorder_at.is_some_and(|at| at <= now) {
            self.reorder_at = None;
            self.settle(self.seen);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.is_probing = !self.segments.is_empty();
        }
        if self.timeout_at.is_some_and(|at| at <= now) {
            // An entire window is missing (TCP Boston §2.2, case 3), or its answers.
            self.counters.timeouts += 1;
            self.settle(self.next_order);
            self.flow.timed_out(self.next_order);
            self.rtt.timed_out();
            self.reorder_at = None;
            (self.timeout_at, self.probe_at, self.is_probing) = (None, None, false);
            for segment in &mut self.segments {
                segment.to_send = 0;
            }
        }
    }

    /// The next cell, if the window and the receiver let one go.
    pub fn poll(&mut self, now: Nanos) -> Option<Cell> {
        if std::mem::take(&mut self.is_probing)
            && let Some(first) = self.segments.front_mut()
        {
            first.to_send += 1;
            self.counters.probes += 1;
            return Some(Cell { is_last: true, ..self.send(now, 0) });
        }
        if self.under_way.len() >= self.flow.window() {
            return None;
        }
        if self.is_interleaved {
            while self.cells_planned() < self.flow.window() && self.cut() {}
        }
        let at = match self.choose() {
            Some(at) => at,
            None if self.cut() => self.choose()?,
            None => return None,
        };
        Some(self.send(now, at))
    }

    /// The next cell of the segment at `at`, which waits to be sent.
    fn send(&mut self, now: Nanos, at: usize) -> Cell {
        let order = self.next_order;
        self.next_order += 1;
        self.counters.cells_sent += 1;
        let segment = &mut self.segments[at];
        segment.to_send -= 1;
        segment.under_way += 1;
        self.last_turn = segment.number;
        self.under_way.push_back(UnderWay {
            order,
            at: now,
            segment: segment.number,
            attempt: segment.attempt,
            is_first: segment.bursts == 1,
        });
        let cell = segment.next_cell(order);
        if self.timeout_at.is_none() {
            self.arm_timeout(now);
        }
        cell
    }

    /// Number of cells that are under way or wait for the window.
    fn cells_planned(&self) -> usize {
        self.under_way.len() + self.segments.iter().map(|segment| segment.to_send).sum::<usize>()
    }

    /// Begins bursts for segments that need more cells than are under way, and
    /// says whose turn it is. TCP Boston §3.2: losses come in bundles, so with
    /// interleaving neighbours on the line belong to different segments.
    fn choose(&mut self) -> Option<usize> {
        for segment in &mut self.segments {
            self.counters.repairs += u64::from(segment.begin_burst(&mut self.control));
        }
        let is_waiting = |segment: &Outgoing| segment.to_send > 0;
        let after = self.segments.iter().position(|segment| {
            self.is_interleaved && segment.number > self.last_turn && is_waiting(segment)
        });
        after.or_else(|| self.segments.iter().position(is_waiting))
    }

    /// Makes a segment from what was written: a full one, the last one, or,
    /// when nothing else is on its way, whatever there is (as in Nagle, RFC
    /// 896).
    fn cut(&mut self) -> bool {
        let is_room = self.next_segment < self.limit && self.segments.len() < WINDOW_SEGMENTS_MAX;
        let full = segment::capacity(self.shape);
        let is_worth = self.buffer.len() >= full || self.is_ended || self.segments.is_empty();
        if !(is_room && is_worth && self.has_more()) {
            return false;
        }
        let data: Vec<u8> = self.buffer.drain(..full.min(self.buffer.len())).collect();
        let is_end = self.is_ended && self.buffer.is_empty();
        let sealed = segment::seal(self.shape, self.next_segment, &data, is_end);
        let cells = sealed.len() / self.shape.cell_len;
        let Ok(code) = Code::new(cells, self.shape.cell_len) else { return false };
        self.end_is_cut |= is_end;
        let mut outgoing = Outgoing {
            number: self.next_segment,
            code: code.with_dispersal(self.dispersal),
            sealed,
            attempt: 0,
            next_row: 0,
            pending: cells,
            under_way: 0,
            to_send: 0,
            bursts: 0,
        };
        outgoing.begin_burst(&mut self.control);
        self.segments.push_back(outgoing);
        self.counters.segments += 1;
        self.counters.cells_needed += cells as u64;
        self.next_segment += 1;
        true
    }

    /// Whether there is anything that is in no segment yet.
    fn has_more(&self) -> bool {
        !self.buffer.is_empty() || self.is_ended && !self.end_is_cut
    }
}

impl Outgoing {
    /// If more cells are pending than are under way, plans a burst of as many as
    /// are lacking and the redundancy (TCP Boston §2.2, case 2: no timeout). True
    /// if it did.
    fn begin_burst(&mut self, control: &mut Control) -> bool {
        let is_lacking = self.to_send == 0 && self.under_way < self.pending;
        if is_lacking {
            let extra = control.extra(self.code.cells(), self.bursts == 0);
            self.to_send = self.pending - self.under_way + extra;
            self.bursts += 1;
        }
        is_lacking
    }

    /// The cell of the next row: a fresh one until all 256 were sent.
    fn next_cell(&mut self, order: u64) -> Cell {
        let mut payload = vec![0; self.code.cell_len()];
        // The segment was sealed to the code's length, and there is room for a cell.
        let encoded = self.code.encode(&self.sealed, &[self.next_row], &mut payload);
        debug_assert_eq!(encoded, Ok(()));
        let row = self.next_row;
        self.next_row = row.wrapping_add(1);
        Cell {
            cells: self.code.cells(),
            row,
            attempt: self.attempt,
            is_last: self.to_send == 0,
            segment: self.number as u32,
            order: order as u32,
            payload,
        }
    }
}
