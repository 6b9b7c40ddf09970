//! What is sent next: the most urgent thing that the rate and the window let go.

use super::Endpoint;
use super::pack::Ready;
use super::send::{Sender, symbol_bytes_max};
use crate::Class;
use crate::frame::{DATA_BYTES, REPAIR_BYTES};
use crate::outbound::{Due, Job, Piece};
use crate::stream::Streams;
use std::time::Duration;

/// The one frame that decides that a datagram is sent.
pub(super) enum Main {
    New {
        lane: usize,
        symbol: Vec<u8>,
        pieces: Vec<Piece>,
        closes: Option<(u8, usize)>,
        is_cut: bool,
    },
    Again {
        lane: usize,
        seq: u64,
        is_redundant: bool,
    },
    Row {
        lane: usize,
        first: u64,
        count: u8,
        row: u8,
        coded: Vec<u8>,
        is_redundant: bool,
    },
    Nothing,
}

impl Main {
    pub(super) fn len(&self, sender: &Sender) -> usize {
        match self {
            Self::New { symbol, .. } => DATA_BYTES + symbol.len(),
            Self::Again { lane, seq, .. } => {
                DATA_BYTES + sender.lanes[*lane].symbol(*seq).map_or(0, |it| it.bytes.len())
            }
            Self::Row { coded, .. } => REPAIR_BYTES + coded.len(),
            Self::Nothing => 0,
        }
    }
}

impl Endpoint {
    /// The most urgent thing that may be sent now.
    pub(super) fn choose(&mut self, now: Duration) -> Main {
        for class in Class::ALL {
            let lane = class.index();
            if self.sender.may_send_at(class) > now {
                if class != Class::Bulk && self.sender.has_new(class, &self.streams) {
                    self.sender.held_at = Some(now);
                }
                continue;
            }
            while let Some(due) = self.sender.lanes[lane].due(now) {
                self.sender.lanes[lane].pop_due();
                if let Some(main) = self.sender.main_of(lane, due, symbol_bytes_max(&self.config)) {
                    return main;
                }
            }
            let is_open = self.sender.lanes[lane].is_open_for_new(&self.config.limits)
                && self.sender.may_send_new_at(class) <= now;
            if is_open && let Some(main) = self.new_symbol(class, now) {
                return main;
            }
        }
        Main::Nothing
    }

    fn new_symbol(&mut self, class: Class, now: Duration) -> Option<Main> {
        let (lane, symbol_max) = (class.index(), symbol_bytes_max(&self.config));
        let (mut symbol, mut pieces) = (Vec::new(), Vec::new());
        let has_stream = self.streams.has_something(class);
        let sender = &mut self.sender;
        if has_stream && (sender.streams_next || !sender.has_packets(class)) {
            sender.streams_next = false;
            self.streams.fill(class, symbol_max, &mut symbol, &mut pieces);
            if !symbol.is_empty() {
                return Some(Main::New { lane, symbol, pieces, closes: None, is_cut: false });
            }
        }
        sender.streams_next = true;
        if sender.ready[lane].is_empty() {
            sender.pack(class, &self.config, &mut symbol, &mut pieces, now);
        }
        if symbol.is_empty() {
            let ready = sender.ready[lane].pop_front()?;
            let Ready { bytes, closes, is_cut } = ready;
            return Some(Main::New { lane, symbol: bytes, pieces, closes, is_cut });
        }
        Some(Main::New { lane, symbol, pieces, closes: None, is_cut: false })
    }
}

impl Sender {
    fn has_packets(&self, class: Class) -> bool {
        self.queue.peek_len(class).is_some() || !self.ready[class.index()].is_empty()
    }

    /// Whether something waits that was not sent before.
    pub(super) fn has_new(&self, class: Class, streams: &Streams) -> bool {
        self.has_packets(class) || streams.has_something(class)
    }

    /// From when on the rate lets this class send.
    pub(super) fn may_send_at(&self, class: Class) -> Duration {
        match class {
            Class::Bulk => self.rate.opens_at(),
            Class::Now | Class::Soon => self.rate.urgent_at(),
        }
    }

    /// And when a symbol that was not sent before.
    pub(super) fn may_send_new_at(&self, class: Class) -> Duration {
        match class {
            Class::Bulk => self.rate.opens_for_new_at(),
            Class::Now | Class::Soon => self.rate.urgent_at(),
        }
    }

    fn main_of(&mut self, lane: usize, due: Due, symbol_max: usize) -> Option<Main> {
        let outbound = &mut self.lanes[lane];
        let is_redundant = due.is_redundant;
        if outbound.is_stale(due.job) {
            return None;
        }
        match due.job {
            Job::Symbol(seq) => {
                let len = outbound.symbol(seq)?.bytes.len();
                let may = !is_redundant || self.can_afford(len);
                may.then_some(Main::Again { lane, seq, is_redundant })
            }
            Job::Row { first, count } => {
                // What arrived at the window's edges need not be in it.
                let end = first + u64::from(count);
                let first = (first..end).find(|seq| outbound.is_open(*seq))?;
                let end = (first..end).rfind(|seq| outbound.is_open(*seq))? + 1;
                let count = (end - first) as u8;
                let len = outbound.longest(first, end - first);
                if len > symbol_max || is_redundant && !self.can_afford(len) {
                    return None;
                }
                let (row, coded) = self.lanes[lane].encode(first, count)?;
                Some(Main::Row { lane, first, count, row, coded, is_redundant })
            }
        }
    }
}
