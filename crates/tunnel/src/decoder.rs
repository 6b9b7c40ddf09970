//! The receiving half of a lane's sliding window: symbols as they come, and rows over several of
//! them that are solved step by step.
//!
//! A repair's row r over symbols s gives Σ symbol\[s\] / (r + (s mod 128)), so a symbol has the same
//! column in every window that covers it, and rows of *different* windows can be combined. As long
//! as all windows cover all that is missing, the matrix is a Cauchy matrix and any e rows solve e
//! symbols; with windows that do not, it is singular about once in 256 times and one more row
//! helps.
//!
//! Rows are kept fully reduced: the pivot of a row is a missing symbol that occurs in no other row.
//! So whatever can be known is known at once (a row with a single symbol gives that symbol), and a
//! row that arrives costs as many additions as rows wait. A solve from scratch at each arrival
//! costs the square of it, which stalls a receiver at 20 % loss.
//!
//! TCP Boston's `holdfast_code::Decoder` collects one segment of fixed shape; a window that slides
//! needs this one.

use crate::frame::{CODED_LENGTH_BYTES, REPAIR_COUNT_MAX};
use holdfast_code::{Kernel, product, quotient};
use std::collections::VecDeque;

/// Known symbols behind the cumulative one that are kept, for repairs that still cover them.
const KEPT_BEHIND: u64 = 2 * REPAIR_COUNT_MAX as u64;
const COLUMN_MASK: u64 = REPAIR_COUNT_MAX as u64 - 1;

/// How a symbol became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    Decoded,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    Missing,
    /// Given up by the sender: late arrivals are welcome, nobody waits.
    GivenUp,
    Known(Vec<u8>),
}

/// A row: Σ coefficient · symbol = coded, over missing symbols only.
#[derive(Clone, Debug)]
struct Row {
    /// In the order of symbols; no coefficient is 0.
    terms: Vec<(u64, u8)>,
    pivot: u64,
    coded: Vec<u8>,
}

impl Row {
    fn coefficient(&self, seq: u64) -> Option<u8> {
        let found = self.terms.binary_search_by_key(&seq, |term| term.0);
        found.ok().map(|at| self.terms[at].1)
    }

    /// Adds `factor` times another row.
    fn add(&mut self, other: &Row, factor: u8, kernel: Kernel) {
        let mine = std::mem::take(&mut self.terms);
        let (mut a, mut b) = (mine.into_iter().peekable(), other.terms.iter().copied().peekable());
        loop {
            let (seq, coefficient) = match (a.peek().copied(), b.peek().copied()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    a.next();
                    b.next();
                    (x.0, x.1 ^ product(factor, y.1))
                }
                (Some(x), y) if y.is_none_or(|y| x.0 < y.0) => {
                    a.next();
                    x
                }
                (_, Some(y)) => {
                    b.next();
                    (y.0, product(factor, y.1))
                }
                _ => break,
            };
            if coefficient != 0 {
                self.terms.push((seq, coefficient));
            }
        }
        if self.coded.len() < other.coded.len() {
            self.coded.resize(other.coded.len(), 0);
        }
        kernel.add_quotient(&mut self.coded, &other.coded, quotient(1, factor));
    }

    /// Removes a symbol that became known.
    fn substitute(&mut self, seq: u64, symbol: &[u8], kernel: Kernel) {
        let Ok(at) = self.terms.binary_search_by_key(&seq, |term| term.0) else { return };
        let (_, coefficient) = self.terms.remove(at);
        add_symbol(&mut self.coded, symbol, quotient(1, coefficient), kernel);
    }
}

/// Adds symbol / divisor as it is coded: its length, its bytes, zeros.
pub(crate) fn add_symbol(sum: &mut Vec<u8>, symbol: &[u8], divisor: u8, kernel: Kernel) {
    let len = CODED_LENGTH_BYTES + symbol.len();
    if sum.len() < len {
        sum.resize(len, 0);
    }
    let (length, bytes) = sum.split_at_mut(CODED_LENGTH_BYTES);
    for (sum, byte) in length.iter_mut().zip((symbol.len() as u16).to_be_bytes()) {
        *sum ^= quotient(byte, divisor);
    }
    kernel.add_quotient(bytes, symbol, divisor);
}

/// The divisor of a symbol in a row.
pub(crate) fn divisor(row: u8, seq: u64) -> u8 {
    row ^ (seq & COLUMN_MASK) as u8
}

/// What a decoder may keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecoderLimits {
    pub symbols: usize,
    pub bytes: usize,
    pub rows: usize,
}

/// What a decoder has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecoderCounts {
    /// Symbols that came twice, and rows that told nothing new.
    pub useless: u64,
    pub useless_bytes: u64,
    /// Rows that contradict what is known: a broken sender.
    pub contradictory: u64,
    /// Rows and symbols thrown away because a limit was reached.
    pub limited: u64,
    /// Symbols that were neither received nor decoded when the window left them.
    pub missed: u64,
    /// Those of them that the sender has not given up: its window is longer than this one.
    pub overrun: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    limits: DecoderLimits,
    kernel: Kernel,
    /// The symbol of the first slot.
    base: u64,
    slots: VecDeque<Slot>,
    /// All symbols before it are known or given up.
    cumulative: u64,
    rows: Vec<Row>,
    bytes: usize,
    /// Symbols that became known and were not asked for yet.
    learned: VecDeque<(u64, How)>,
    pub counts: DecoderCounts,
}

impl Decoder {
    pub fn new(limits: DecoderLimits) -> Self {
        Self {
            limits,
            kernel: Kernel::best(),
            base: 0,
            slots: VecDeque::new(),
            cumulative: 0,
            rows: Vec::new(),
            bytes: 0,
            learned: VecDeque::new(),
            counts: DecoderCounts::default(),
        }
    }

    /// All symbols before this one are known or given up.
    pub fn cumulative(&self) -> u64 {
        self.cumulative
    }

    /// One behind the highest symbol heard of.
    pub fn top(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Rows that wait for others.
    pub fn rows_waiting(&self) -> usize {
        self.rows.len()
    }

    /// Bytes kept.
    #[cfg(any(test, fuzzing))]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A symbol that is kept.
    pub fn symbol(&self, seq: u64) -> Option<&[u8]> {
        match self.slot(seq)? {
            Slot::Known(symbol) => Some(symbol),
            _ => None,
        }
    }

    pub fn is_known(&self, seq: u64) -> bool {
        matches!(self.slot(seq), Some(Slot::Known(_)))
    }

    /// Whether a symbol before `seq` may still come and is waited for.
    pub fn waits_before(&self, seq: u64) -> bool {
        self.cumulative < seq.min(self.top())
    }

    /// The next symbol that became known. Ask until there is none, take the symbols, then
    /// [`Decoder::prune`].
    pub fn poll_learned(&mut self) -> Option<(u64, How)> {
        self.learned.pop_front()
    }

    /// Forgets what neither a repair that still comes nor the limits want to be kept.
    pub fn prune(&mut self) {
        self.forget_before(self.cumulative.saturating_sub(KEPT_BEHIND));
        while self.bytes > self.limits.bytes && !self.slots.is_empty() {
            self.counts.limited += 1;
            self.forget_before(self.base + 1);
        }
    }

    fn slot(&self, seq: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    /// Takes a symbol; whether it was news.
    pub fn symbol_arrives(&mut self, seq: u64, symbol: &[u8]) -> bool {
        let is_old = seq < self.base;
        if is_old || self.is_known(seq) {
            self.counts.useless += 1;
            self.counts.useless_bytes += symbol.len() as u64;
            return false;
        }
        self.reach(seq + 1);
        self.learn(seq, symbol.to_vec(), How::Plain);
        self.settle();
        true
    }

    /// Takes a row over the symbols `first..first + count`; whether it was news.
    pub fn row_arrives(&mut self, first: u64, count: u8, row: u8, coded: &[u8]) -> bool {
        let end = first + u64::from(count);
        self.reach(end);
        let mut new = Row { terms: Vec::new(), pivot: 0, coded: coded.to_vec() };
        let mut has_all = first >= self.base;
        for seq in first.max(self.base)..end {
            let divisor = divisor(row, seq);
            match &self.slots[(seq - self.base) as usize] {
                Slot::Known(symbol) => {
                    // A symbol longer than the coded bytes was no part of them.
                    has_all &= CODED_LENGTH_BYTES + symbol.len() <= coded.len();
                    add_symbol(&mut new.coded, symbol, divisor, self.kernel);
                }
                _ => new.terms.push((seq, quotient(1, divisor))),
            }
        }
        let is_news = has_all && self.insert(new);
        if !is_news {
            self.counts.useless += 1;
            self.counts.useless_bytes += coded.len() as u64;
        }
        self.settle();
        is_news
    }

    /// Older symbols are not sent any more: nobody waits for them.
    pub fn give_up_before(&mut self, seq: u64) {
        self.reach(seq);
        let end = (seq.saturating_sub(self.base) as usize).min(self.slots.len());
        for slot in self.slots.iter_mut().take(end) {
            if *slot == Slot::Missing {
                *slot = Slot::GivenUp;
            }
        }
        self.settle();
    }

    /// Makes room for the symbols before `end`, and forgets the oldest.
    fn reach(&mut self, end: u64) {
        let most = self.limits.symbols as u64;
        if end > self.top() + most {
            // Nothing of what is kept can be of use any more.
            self.forget_before(self.top());
            self.base = end - most;
            self.cumulative = self.cumulative.max(self.base);
        }
        while self.top() < end {
            self.slots.push_back(Slot::Missing);
        }
        if self.slots.len() > self.limits.symbols {
            self.counts.limited += 1;
            self.forget_before(end - most);
        }
    }

    fn forget_before(&mut self, seq: u64) {
        if seq <= self.base {
            return;
        }
        while self.base < seq {
            match self.slots.pop_front() {
                Some(Slot::Known(symbol)) => self.bytes -= symbol.len(),
                Some(Slot::GivenUp) => self.counts.missed += 1,
                Some(Slot::Missing) => {
                    self.counts.missed += 1;
                    self.counts.overrun += 1;
                }
                None => break,
            }
            self.base += 1;
        }
        self.cumulative = self.cumulative.max(self.base);
        let base = self.base;
        let is_kept = |row: &Row| row.terms.first().is_some_and(|term| term.0 >= base);
        let dropped: usize =
            self.rows.iter().filter(|row| !is_kept(row)).map(|row| row.coded.len()).sum();
        self.bytes -= dropped;
        self.rows.retain(is_kept);
        while self.learned.front().is_some_and(|learned| learned.0 < base) {
            self.learned.pop_front();
        }
    }

    /// Reduces a row by those that wait, and them by it; whether it was news.
    fn insert(&mut self, mut new: Row) -> bool {
        for row in &self.rows {
            if let Some(coefficient) = new.coefficient(row.pivot) {
                let own = row.coefficient(row.pivot).unwrap_or(1);
                new.add(row, quotient(coefficient, own), self.kernel);
            }
        }
        let Some(&(pivot, own)) = new.terms.first() else {
            if new.coded.iter().any(|byte| *byte != 0) {
                self.contradiction();
            }
            return false;
        };
        new.pivot = pivot;
        if self.rows.len() >= self.limits.rows {
            let oldest = (0..self.rows.len()).min_by_key(|at| self.rows[*at].pivot).unwrap_or(0);
            if self.rows.is_empty() {
                self.counts.limited += 1;
                return false;
            }
            self.bytes -= self.rows.swap_remove(oldest).coded.len();
            self.counts.limited += 1;
        }
        for row in &mut self.rows {
            if let Some(coefficient) = row.coefficient(pivot) {
                self.bytes -= row.coded.len();
                row.add(&new, quotient(coefficient, own), self.kernel);
                self.bytes += row.coded.len();
            }
        }
        self.bytes += new.coded.len();
        self.rows.push(new);
        true
    }

    /// A row that is wrong may have spoilt all others that wait.
    fn contradiction(&mut self) {
        self.counts.contradictory += 1;
        for row in self.rows.drain(..) {
            self.bytes -= row.coded.len();
        }
    }

    fn learn(&mut self, seq: u64, symbol: Vec<u8>, how: How) {
        self.bytes += symbol.len();
        let mut freed = None;
        for (at, row) in self.rows.iter_mut().enumerate() {
            self.bytes -= row.coded.len();
            row.substitute(seq, &symbol, self.kernel);
            self.bytes += row.coded.len();
            if row.pivot == seq {
                freed = Some(at);
            }
        }
        if let Some(slot) = self.slots.get_mut((seq - self.base) as usize) {
            *slot = Slot::Known(symbol);
            self.learned.push_back((seq, how));
        }
        // A row without its pivot is a row about the others.
        if let Some(at) = freed {
            let row = self.rows.swap_remove(at);
            self.bytes -= row.coded.len();
            self.insert(row);
        }
    }

    /// Takes what rows with a single symbol say, and moves on.
    fn settle(&mut self) {
        while let Some(at) = self.rows.iter().position(|row| row.terms.len() == 1) {
            let row = self.rows.swap_remove(at);
            self.bytes -= row.coded.len();
            let (seq, coefficient) = row.terms[0];
            let mut coded = vec![0; row.coded.len()];
            self.kernel.add_quotient(&mut coded, &row.coded, coefficient);
            match symbol_of(coded) {
                Some(symbol) => self.learn(seq, symbol, How::Decoded),
                None => self.contradiction(),
            }
        }
        while self.cumulative < self.top()
            && *self.slot(self.cumulative).unwrap_or(&Slot::GivenUp) != Slot::Missing
        {
            self.cumulative += 1;
        }
    }
}

/// A symbol of what was coded for it: a length, as many bytes, zeros.
fn symbol_of(mut coded: Vec<u8>) -> Option<Vec<u8>> {
    let (length, bytes) = coded.split_first_chunk::<CODED_LENGTH_BYTES>()?;
    let len = usize::from(u16::from_be_bytes(*length));
    let (_, padding) = bytes.split_at_checked(len)?;
    if len == 0 || padding.iter().any(|byte| *byte != 0) {
        return None;
    }
    coded.truncate(CODED_LENGTH_BYTES + len);
    coded.drain(..CODED_LENGTH_BYTES);
    Some(coded)
}

#[cfg(test)]
mod tests;
