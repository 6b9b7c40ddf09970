//! A source: its flow manager, what it knows of its segments, and the queue of packets in front of
//! its wire.

use super::cell::Cell;
use super::flow::Flow;
use super::outcome::Outcome;
use super::scenario::{Protocol, Scenario, WINDOW_PACKETS_MAX};
use super::sink::Ack;
use crate::{Ns, Rng};
use std::collections::VecDeque;

const RECORDS: usize = 2 * WINDOW_PACKETS_MAX as usize;

/// What the source knows of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Number of cells that the receiver lacks, by its last report.
    pending: u16,
    /// Number of rows of the code that were sent.
    rows: u32,
    /// Order of the last cell of the segment's latest transmission.
    last_order: u32,
    /// Whether a transmission of the segment waits for the wire.
    is_queued: bool,
    first_sent_at: Ns,
}

/// A packet that waits for the wire.
#[derive(Clone, Copy, Debug)]
struct Burst {
    pdu: u32,
    segment: u32,
    next: u16,
    cells: u16,
    is_again: bool,
    /// Time before which the packet may not leave.
    ready_at: Ns,
}

pub(super) struct Source {
    number: u16,
    m: u16,
    protocol: Protocol,
    recovered_is_lost: bool,
    flow: Flow,
    known: Box<[Known; RECORDS]>,
    bursts: VecDeque<Burst>,
    /// Last cells of transmissions that may still be under way: (order, segment).
    under_way: VecDeque<(u32, u32)>,
    next_pdu: u32,
    next_order: u32,
    lost: u32,
    /// Longest time between the decision to send a packet and its first cell, in ns.
    delay_max_ns: Ns,
    ready_at: Ns,
    rng: Rng,
}

impl Source {
    pub fn new(number: u16, scenario: &Scenario) -> Self {
        Self {
            number,
            m: scenario.cells_per_packet(),
            protocol: scenario.protocol,
            recovered_is_lost: scenario.recovered_is_lost,
            flow: Flow::new(scenario),
            known: Box::new([Known::default(); RECORDS]),
            bursts: VecDeque::with_capacity(RECORDS),
            under_way: VecDeque::with_capacity(2 * RECORDS),
            next_pdu: 0,
            next_order: 0,
            lost: 0,
            delay_max_ns: if scenario.is_delayed_at_random {
                scenario.slot_ns(u64::from(scenario.cells_per_packet()))
            } else {
                0
            },
            ready_at: 0,
            rng: Rng::new(scenario.seed, u64::from(number)),
        }
    }

    pub fn deadline(&self) -> Ns {
        self.flow.deadline()
    }

    pub fn timeouts_and_cuts(&self) -> (u64, u64) {
        (self.flow.timeouts, self.flow.cuts)
    }

    pub fn first_sent_at(&self, segment: u32) -> Ns {
        self.known[segment as usize % RECORDS].first_sent_at
    }

    /// Starts the source.
    pub fn start(&mut self, now: Ns, outcome: &mut Outcome) {
        while let Some((segment, is_again)) = self.flow.poll_transmit(now) {
            self.transmit(now, segment, is_again, outcome);
        }
    }

    pub fn handle_timeout(&mut self, now: Ns, outcome: &mut Outcome) {
        self.flow.handle_timeout(now);
        self.under_way.clear();
        self.start(now, outcome);
    }

    pub fn handle_ack(&mut self, now: Ns, ack: &Ack, outcome: &mut Outcome) {
        for (segment, pending) in ack.reports() {
            if *segment >= self.flow.una() {
                self.known[*segment as usize % RECORDS].pending = *pending;
            }
        }
        let at_once = self.protocol.repairs_at_once();
        // With repairs at once, a report of missing cells is no duplicate.
        if ack.has_arrived || !at_once {
            self.flow.handle_ack(now, ack.cumulative);
        }
        if self.protocol.is_boston() {
            let hole = at_once && self.repair(now, ack.seen, outcome);
            let lost = ack.seen - ack.received;
            let is_lost = lost > self.lost;
            let is_told = if at_once {
                is_lost && (hole || self.recovered_is_lost)
            } else {
                ack.has_recovered && self.recovered_is_lost
            };
            if is_told {
                self.flow.handle_loss(now, hole);
            }
            self.lost = lost;
        }
        self.start(now, outcome);
    }

    /// Sends the pending cells of segments whose transmission is over. Cells stay in order, so any
    /// that left before one that was seen has arrived or is lost.
    fn repair(&mut self, now: Ns, seen: u32, outcome: &mut Outcome) -> bool {
        let mut hole = false;
        while let Some((order, segment)) = self.under_way.front().copied()
            && order < seen
        {
            self.under_way.pop_front();
            let known = &self.known[segment as usize % RECORDS];
            let is_latest = known.last_order == order && !known.is_queued;
            if segment >= self.flow.una() && known.pending > 0 && is_latest {
                hole = true;
                self.flow.note_repair(now, segment);
                self.transmit(now, segment, true, outcome);
            }
        }
        hole
    }

    fn transmit(&mut self, now: Ns, segment: u32, is_again: bool, outcome: &mut Outcome) {
        let m = self.m;
        let known = &mut self.known[segment as usize % RECORDS];
        if !is_again {
            *known = Known { pending: m, first_sent_at: now, ..Known::default() };
        }
        let (needed, extra) = match self.protocol {
            Protocol::Tcp => (m, 0),
            // Nothing is missing, or what is missing is about to be sent.
            Protocol::Boston { .. } if known.pending == 0 || known.is_queued => return,
            Protocol::Boston { first, retransmit, .. } => {
                let share = if is_again { retransmit } else { first };
                (known.pending, (f64::from(m) * share).round() as u16)
            }
        };
        known.is_queued = true;
        let cells = needed + extra;
        outcome.transmissions += 1;
        outcome.cells_redundant += u64::from(extra);
        if is_again {
            outcome.cells_again += u64::from(cells);
        }
        if self.protocol.is_boston() {
            let beyond = |rows: u32| u64::from(rows.saturating_sub(ROWS));
            let before = known.rows;
            known.rows += u32::from(cells);
            outcome.rows_beyond_code += beyond(known.rows) - beyond(before);
        }
        let pdu = self.next_pdu;
        self.next_pdu += 1;
        // Packets follow each other, so that none overtakes another of its source.
        self.ready_at = self.ready_at.max(now + self.rng.below(self.delay_max_ns));
        let ready_at = self.ready_at;
        self.bursts.push_back(Burst { pdu, segment, next: 0, cells, is_again, ready_at });
    }

    /// Takes the cell that leaves in this slot.
    #[inline]
    pub fn take(&mut self, now: Ns) -> Option<Cell> {
        let ready = self.bursts.iter().position(|it| it.ready_at <= now)?;
        let mut burst = self.bursts.remove(ready)?;
        let order = self.next_order;
        self.next_order += 1;
        let index = burst.next;
        burst.next += 1;
        let is_end = burst.next == burst.cells;
        let known = &mut self.known[burst.segment as usize % RECORDS];
        if index == 0 && !burst.is_again {
            known.first_sent_at = now;
        }
        if is_end {
            known.last_order = order;
            known.is_queued = false;
            if self.protocol.repairs_at_once() {
                self.under_way.push_back((order, burst.segment));
            }
        } else if matches!(self.protocol, Protocol::Boston { interleaved: true, .. }) {
            self.bursts.push_back(burst);
        } else {
            self.bursts.push_front(burst);
        }
        Some(Cell {
            flow: self.number,
            index,
            is_end,
            is_again: burst.is_again,
            pdu: burst.pdu,
            segment: burst.segment,
            order,
        })
    }
}

/// Number of rows of a code over GF(2⁸).
const ROWS: u32 = 256;
