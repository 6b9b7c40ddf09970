//! The sending half of a lane: symbols that are on their way, what acknowledgements say of them,
//! and what must be sent again.
//!
//! A symbol is lost when a datagram that was sent after the last one that carried it is settled at
//! the receiver and the symbol is not known there. For e lost symbols of which the receiver holds r
//! rows, e - r datagrams are due: the symbols themselves, or, if rows are there that we cannot
//! know the use of, fresh rows over them. TCP Boston's sender counts *Pending* per segment; here it
//! is counted per window.

use crate::Limits;
use crate::decoder::{add_symbol, divisor};
use crate::frame::{BITMAP_BYTES_MAX, LaneAck, REPAIR_COUNT_MAX, ROW_MIN};
use crate::wire::completed_24;
use holdfast_code::Kernel;
use std::collections::VecDeque;
use std::time::Duration;

/// How often the wait for an answer is doubled, after many that were in vain, and the time beyond which it
/// is not: a path that was slow before it fell silent is asked all the same whether it is there again.
const BACKOFF_MAX: u32 = 6;
const BACKOFF_WAIT_MAX: Duration = Duration::from_secs(1);
/// Symbols that are sent again per timeout: without any news they only ask for some.
const RESENT_PER_TIMEOUT: usize = 4;

/// Something inside a symbol of which one wants to know whether it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The stream's number, or the header's.
    pub stream: u64,
    pub kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Data {
        offset: u64,
        len: usize,
        end: bool,
    },
    Credit,
    Reset,
    /// The definition of a header.
    Header,
}

/// A symbol that was made and is not known to be there.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub bytes: Vec<u8>,
    pub pieces: Vec<Piece>,
    /// When it was sent first.
    pub born: Duration,
    last_at: Duration,
    /// The last datagram that carried it, alone or in a row.
    last_number: u64,
    state: State,
    /// It was lost once, and is repaired.
    is_again: bool,
    slack: Slack,
}

/// How much later than at once a symbol's acknowledgement may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slack {
    /// It was asked for, and may take so long beyond a round trip.
    Asked(Duration),
    /// The same of a dense flow: what follows tells of it, so its wait doubles from the first answer that is
    /// missing on.
    Dense(Duration),
    /// It comes when the receiver has something to tell, or has heard nothing more for a while; at
    /// the latest so long beyond a round trip.
    Patient(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sent,
    /// Waits for being sent again.
    Queued,
    Known,
    GivenUp,
}

/// Something to send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// The symbol as it is.
    Symbol(u64),
    /// A row over `count` symbols from `first` on.
    Row { first: u64, count: u8 },
}

/// Rows and symbols to be sent at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub at: Duration,
    pub job: Job,
    /// More than what was lost: counts against the cap.
    pub is_redundant: bool,
}

/// What a lane waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From sending to the answer, when it is given at once.
    pub answer: Duration,
    /// Age at which a symbol without pieces of streams is given up.
    pub give_up: Duration,
    /// When the receiver's answer is there if nothing more is sent.
    pub quiet_at: Duration,
}

impl Patience {
    /// When a symbol that was carried `at` is overdue, after so many timeouts.
    fn until(self, at: Duration, slack: Slack, backoff: u32) -> Duration {
        let backed_off = |wait: Duration, times: u32| {
            let doubled = wait * (1 << times.min(BACKOFF_MAX));
            doubled.min(wait.max(BACKOFF_WAIT_MAX))
        };
        let later = backoff.saturating_sub(1);
        match slack {
            Slack::Asked(slack) => at + backed_off(self.answer + slack, later),
            Slack::Dense(slack) => at + backed_off(self.answer + slack, backoff),
            Slack::Patient(slack) => {
                let more = backed_off(self.answer, later) - self.answer;
                (at + self.answer + slack).min(self.quiet_at) + more
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    kernel: Kernel,
    /// The number of the first symbol that is kept.
    first: u64,
    symbols: VecDeque<Symbol>,
    row: u8,
    /// Sorted by time.
    due: VecDeque<Due>,
    /// When to look for symbols without an answer.
    check_at: Option<Duration>,
    backoff: u32,
    /// The receiver knows that nothing before this symbol comes any more.
    floor_told: u64,
    bytes: usize,
    pub given_up: u64,
}

/// What an acknowledgement asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// Lost symbols, and how many of them the receiver can restore with rows it holds.
    pub lost: Vec<u64>,
    pub rows: usize,
    /// Pieces of streams that arrived, and the length of the longest symbol that did.
    pub arrived: Vec<Piece>,
    pub longest: usize,
}

impl Outbound {
    pub fn new() -> Self {
        Self {
            kernel: Kernel::best(),
            first: 0,
            symbols: VecDeque::new(),
            row: ROW_MIN,
            due: VecDeque::new(),
            check_at: None,
            backoff: 0,
            floor_told: 0,
            bytes: 0,
            given_up: 0,
        }
    }

    /// The number of the next new symbol.
    pub fn next(&self) -> u64 {
        self.first + self.symbols.len() as u64
    }

    /// Symbols from the oldest that is not known to the newest.
    pub fn span(&self) -> usize {
        self.symbols.len()
    }

    /// Whether the window takes another symbol: it is no more than the receiver keeps.
    pub fn is_open_for_new(&self, limits: &Limits) -> bool {
        self.span() < limits.window_symbols && self.bytes < limits.window_bytes / 4 * 3
    }

    pub fn symbol(&self, seq: u64) -> Option<&Symbol> {
        self.symbols.get(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    fn symbol_mut(&mut self, seq: u64) -> Option<&mut Symbol> {
        self.symbols.get_mut(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    /// Whether the receiver lacks the symbol, as far as is known.
    pub fn is_open(&self, seq: u64) -> bool {
        self.symbol(seq).is_some_and(|it| matches!(it.state, State::Sent | State::Queued))
    }

    /// Appends a symbol that is sent now in datagram `number`.
    pub fn push(
        &mut self,
        bytes: Vec<u8>,
        pieces: Vec<Piece>,
        number: u64,
        slack: Slack,
        now: Duration,
    ) -> u64 {
        let seq = self.next();
        self.bytes += bytes.len();
        self.symbols.push_back(Symbol {
            bytes,
            pieces,
            born: now,
            last_at: now,
            last_number: number,
            state: State::Sent,
            is_again: false,
            slack,
        });
        seq
    }

    /// Notes that datagram `number` carries the symbols that are open among these.
    pub fn carried(&mut self, first: u64, count: u64, number: u64, now: Duration) {
        for seq in first..first + count {
            if let Some(symbol) = self.symbol_mut(seq)
                && matches!(symbol.state, State::Sent | State::Queued)
            {
                symbol.state = State::Sent;
                (symbol.last_number, symbol.last_at) = (number, now);
            }
        }
    }

    /// Notes how long the acknowledgement of a symbol may take from now on.
    pub fn set_slack(&mut self, seq: u64, slack: Slack) {
        if let Some(symbol) = self.symbol_mut(seq) {
            symbol.slack = slack;
        }
    }

    /// A fresh row over these symbols: its number, and its bytes behind those of `out`. `None` if
    /// not all of them are kept.
    pub fn encode(&mut self, first: u64, count: u8) -> Option<(u8, Vec<u8>)> {
        let end = first + u64::from(count);
        if first < self.first || end > self.next() {
            return None;
        }
        let row = self.row;
        self.row = if row == u8::MAX { ROW_MIN } else { row + 1 };
        let mut coded = Vec::new();
        for seq in first..end {
            let symbol = self.symbol(seq)?;
            add_symbol(&mut coded, &symbol.bytes, divisor(row, seq), self.kernel);
        }
        Some((row, coded))
    }

    /// Asks for something to be sent at a time.
    pub fn schedule(&mut self, due: Due) {
        let at = self.due.partition_point(|other| other.at <= due.at);
        self.due.insert(at, due);
    }

    /// The next thing to send, if its time has come.
    pub fn due(&self, now: Duration) -> Option<Due> {
        self.due.front().copied().filter(|due| due.at <= now)
    }

    pub fn pop_due(&mut self) {
        self.due.pop_front();
    }

    /// How much is scheduled.
    #[cfg(test)]
    pub fn due_count(&self) -> usize {
        self.due.len()
    }

    pub fn due_at(&self) -> Option<Duration> {
        self.due.front().map(|due| due.at)
    }

    /// Whether something scheduled is of no use any more.
    pub fn is_stale(&self, job: Job) -> bool {
        match job {
            Job::Symbol(seq) => !self.is_open(seq),
            Job::Row { first, count } => {
                !(first..first + u64::from(count)).any(|seq| self.is_open(seq))
            }
        }
    }

    /// Takes what the receiver knows of this lane; all datagrams before `settled` have arrived
    /// there or are lost. `is_new` says that the receiver sent it after all earlier ones.
    pub fn acknowledged(
        &mut self,
        ack: &LaneAck<'_>,
        settled: u64,
        is_new: bool,
        patience: Patience,
        now: Duration,
    ) -> Verdict {
        let cumulative = completed_24(ack.cumulative, self.next());
        let mut verdict = Verdict { rows: usize::from(ack.rows), ..Verdict::default() };
        if cumulative > self.next() {
            return verdict;
        }
        self.backoff = 0;
        let known_before = cumulative.saturating_sub(self.first) as usize;
        for symbol in self.symbols.iter_mut().take(known_before) {
            know(symbol, &mut verdict);
        }
        for (at, byte) in ack.bitmap.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                let seq = cumulative + 1 + (at * 8 + bit) as u64;
                if let Some(symbol) = self.symbol_mut(seq) {
                    know(symbol, &mut verdict);
                }
            }
        }
        self.floor_told = self.floor_told.max(cumulative);
        if is_new {
            let told = (cumulative + 1).saturating_sub(self.first) as usize + BITMAP_BYTES_MAX * 8;
            for at in 0..self.symbols.len().min(told) {
                let symbol = &self.symbols[at];
                if symbol.state == State::Sent && symbol.last_number < settled {
                    if self.is_too_old(at, patience, now) {
                        self.give_up(at);
                    } else {
                        verdict.lost.push(self.first + at as u64);
                    }
                }
            }
        }
        self.forget();
        // Rows that wait for symbols which are on their way again help no others.
        let is_repaired =
            |it: &&Symbol| it.is_again && matches!(it.state, State::Sent | State::Queued);
        let repaired = self.symbols.iter().filter(is_repaired).count();
        let lost_again =
            verdict.lost.iter().filter(|seq| self.symbol(**seq).is_some_and(|it| it.is_again));
        let on_the_way = repaired - lost_again.count();
        verdict.rows = verdict.rows.saturating_sub(on_the_way);
        verdict
    }

    fn is_too_old(&self, at: usize, patience: Patience, now: Duration) -> bool {
        let symbol = &self.symbols[at];
        let is_lossy = symbol.pieces.iter().all(|piece| piece.kind == PieceKind::Header);
        is_lossy && now > symbol.born + patience.give_up
    }

    fn give_up(&mut self, at: usize) {
        self.symbols[at].state = State::GivenUp;
        self.given_up += 1;
    }

    /// Forgets symbols at the front that nobody needs.
    fn forget(&mut self) {
        while self
            .symbols
            .front()
            .is_some_and(|it| matches!(it.state, State::Known | State::GivenUp))
        {
            if let Some(symbol) = self.symbols.pop_front() {
                self.bytes -= symbol.bytes.len();
                self.first += 1;
            }
        }
        if self.symbols.is_empty() {
            self.check_at = None;
        }
    }

    /// Marks lost symbols as waiting for their repair.
    pub fn queue(&mut self, lost: &[u64]) {
        for seq in lost {
            if let Some(symbol) = self.symbol_mut(*seq) {
                (symbol.state, symbol.is_again) = (State::Queued, true);
            }
        }
    }

    /// Looks for symbols without any news; those to send again. Call it when
    /// [`Outbound::check_at`] has come, and after sending.
    pub fn check(&mut self, patience: Patience, now: Duration) -> Vec<u64> {
        let mut overdue = Vec::new();
        if self.check_at.is_some_and(|at| at > now) {
            return overdue;
        }
        let mut next = None;
        for at in 0..self.symbols.len() {
            if self.symbols[at].state != State::Sent {
                continue;
            }
            let symbol = &self.symbols[at];
            let until = patience.until(symbol.last_at, symbol.slack, self.backoff);
            if until > now {
                next = Some(next.map_or(until, |next: Duration| next.min(until)));
            } else if self.is_too_old(at, patience, now) {
                self.give_up(at);
            } else if overdue.len() < RESENT_PER_TIMEOUT {
                overdue.push(self.first + at as u64);
            } else {
                let later = now + patience.answer;
                next = Some(next.map_or(later, |next: Duration| next.min(later)));
            }
        }
        if !overdue.is_empty() {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX + 1);
        }
        self.check_at = next;
        self.forget();
        overdue
    }

    pub fn check_at(&self) -> Option<Duration> {
        self.check_at
    }

    /// Makes sure that there will be a look at what is sent now.
    pub fn expect_answer(&mut self, patience: Patience, slack: Slack, now: Duration) {
        let until = patience.until(now, slack, 0);
        self.check_at = Some(self.check_at.map_or(until, |at| at.min(until)));
    }

    /// The first symbol that may still come, if the receiver must be told that.
    pub fn floor(&self) -> Option<u64> {
        (self.first > self.floor_told).then_some(self.first)
    }

    /// The longest of these symbols: a row over them must fit into a datagram.
    pub fn longest(&self, first: u64, count: u64) -> usize {
        (first..first + count)
            .filter_map(|seq| self.symbol(seq))
            .map(|it| it.bytes.len())
            .max()
            .unwrap_or(0)
    }

    /// Takes symbols that do not fit into a datagram any more out of the window; the pieces of
    /// streams in them.
    pub fn drop_longer(&mut self, bytes_max: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for at in 0..self.symbols.len() {
            let symbol = &mut self.symbols[at];
            if symbol.bytes.len() > bytes_max && matches!(symbol.state, State::Sent | State::Queued)
            {
                pieces.append(&mut symbol.pieces);
                self.give_up(at);
            }
        }
        self.forget();
        pieces
    }

    /// Splits numbers of lost symbols into spans that one row can cover.
    pub fn spans(lost: &[u64]) -> impl Iterator<Item = &[u64]> {
        lost.chunk_by(|a, b| a / SPAN == b / SPAN)
    }
}

/// Symbols are repaired together within blocks of this many.
const SPAN: u64 = REPAIR_COUNT_MAX as u64;

fn know(symbol: &mut Symbol, verdict: &mut Verdict) {
    if symbol.state != State::Known {
        symbol.state = State::Known;
        verdict.arrived.append(&mut symbol.pieces);
        verdict.longest = verdict.longest.max(symbol.bytes.len());
    }
}

#[cfg(test)]
mod tests;
