//! What is possible: the least redundancy that keeps a deadline.
//!
//! `k` symbols are sent together with `alpha` rows, any k of which give all of them. A symbol that
//! is lost itself is late when more than `alpha` of the k + alpha datagrams are lost, so with the
//! chance P(j) of losing exactly j of n = k + alpha
//!
//! ```text
//! a symbol is late:          Σ for j > alpha of P(j) · j / n
//! some symbol is late:       Σ for j > alpha of P(j)
//! ```
//!
//! `holdfast_code::planner` plans TCP Boston's segments: they are late when *any* cell is missing,
//! and they have time for rounds. A tunnel's packets are late each for itself, and bursts matter.

use crate::Class;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;

/// Bytes of a datagram around a symbol: IPv4 and UDP 28, the sealing 24 (kind 1, receiver 3,
/// number 4, tag 16), the DATA frame and the item 5.
pub const WIRE_BYTES: usize = 28 + 24 + 5;
/// Bytes that a cell needs beyond that.
const CELL_BYTES: usize = 6;
/// Cells into which a lone packet is cut at most.
pub const CELLS_MAX: usize = 12;
/// A packet below this is not worth cutting: copies cost less than the cells' own headers.
pub const CUT_BYTES_MIN: usize = 300;
/// Loss below which nothing is sent ahead.
pub const LOSS_MIN: f64 = 0.001;
/// Loss above which nothing is planned: the path is down.
pub const LOSS_MAX: f64 = 0.6;
/// The part of what may be late that repairs may use up; acknowledgements get lost too.
const LOST_LATE_SHARE: f64 = 0.6;
/// Redundancy beyond this many rows per symbol is no use: the path is dead, not lossy.
const EXTRA_PER_SYMBOL_MAX: usize = 6;
/// Most rows that are considered.
const EXTRA_MAX: usize = 120;
/// Runs of loss up to this much longer than independent losses give count as independent.
const INDEPENDENT_BURST: f64 = 1.25;

/// How datagrams are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Share that is lost, 0 to 1.
    pub loss: f64,
    /// Lost in a row on average; less than independent losses give counts as independent.
    pub burst_packets: f64,
}

impl Path {
    /// Independent losses.
    #[must_use]
    pub fn independent(loss: f64) -> Self {
        Self { loss, burst_packets: 1.0 }
    }

    /// Whether losses come in bursts.
    #[must_use]
    pub fn is_bursty(&self) -> bool {
        self.burst_packets * (1.0 - self.loss) > INDEPENDENT_BURST
    }

    /// The losses of `n` datagrams.
    fn losses(&self, n: usize) -> Losses {
        let mut losses = Losses::new(self);
        for _ in 0..n {
            losses.step();
        }
        losses
    }

    /// The chance that a symbol of `k` with `alpha` rows is late.
    #[must_use]
    pub fn symbol_late(&self, k: usize, alpha: usize) -> f64 {
        self.losses(k + alpha).symbol_late(alpha)
    }

    /// The chance that not all of `k` symbols with `alpha` rows are there.
    #[must_use]
    pub fn message_late(&self, k: usize, alpha: usize) -> f64 {
        self.losses(k + alpha).message_late(alpha)
    }
}

/// The probabilities of losing exactly 0, 1, … of some datagrams (Gilbert 1960: a channel that loses
/// all or nothing and changes between two datagrams with fixed probabilities).
struct Losses {
    enter: f64,
    leave: f64,
    /// By losses so far: the last datagram arrived, the last one was lost.
    good: Vec<f64>,
    bad: Vec<f64>,
    sent: usize,
}

impl Losses {
    fn new(path: &Path) -> Self {
        let rate = path.loss.clamp(0.0, 0.99);
        let leave = if path.is_bursty() { 1.0 / path.burst_packets } else { 1.0 - rate };
        let enter = (leave * rate / (1.0 - rate)).min(1.0);
        // The channel is in its stationary state when the first one comes.
        Self { enter, leave, good: vec![1.0 - rate], bad: vec![rate], sent: 0 }
    }

    /// One datagram more.
    fn step(&mut self) {
        let (to_bad, to_good) = if self.sent == 0 { (0.0, 0.0) } else { (self.enter, self.leave) };
        self.sent += 1;
        self.good.push(0.0);
        self.bad.push(0.0);
        for lost in (0..self.sent).rev() {
            let (good, bad) = (self.good[lost], self.bad[lost]);
            self.good[lost] = good * (1.0 - to_bad) + bad * to_good;
            self.bad[lost + 1] = good * to_bad + bad * (1.0 - to_good);
        }
        self.bad[0] = 0.0;
    }

    /// The chances of more than `alpha` losses, and their numbers.
    fn more_than(&self, alpha: usize) -> impl Iterator<Item = (f64, f64)> {
        let all = self.good.iter().zip(&self.bad).enumerate().skip(alpha + 1);
        all.map(|(lost, (good, bad))| (lost as f64, good + bad))
    }

    fn symbol_late(&self, alpha: usize) -> f64 {
        self.more_than(alpha).map(|(lost, chance)| chance * lost).sum::<f64>() / self.sent as f64
    }

    fn message_late(&self, alpha: usize) -> f64 {
        self.more_than(alpha).map(|(_, chance)| chance).sum()
    }
}

/// Whose condition is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Each symbol for itself.
    Symbol,
    /// All symbols together: cells of one packet, packets of one frame.
    Message,
    /// Each symbol for itself, all of which were lost before: late is what was lost and whose
    /// repair fails.
    Lost,
}

/// So many rows, and one more with some probability: the mix that misses the deadline exactly as
/// often as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extra {
    /// Rows that are sent in any case.
    pub rows: usize,
    /// Probability of one more.
    pub one_more: f64,
    /// Share that is late then.
    pub late: f64,
}

impl Extra {
    /// Rows on average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.rows as f64 + self.one_more
    }
}

/// The least redundancy for `k` symbols of which the share `eps` may be late; `None` if there is
/// no sensible amount.
#[must_use]
pub fn extra(path: Path, k: usize, eps: f64, condition: Condition) -> Option<Extra> {
    if path.loss > LOSS_MAX || k == 0 {
        return None;
    }
    let mut losses = path.losses(k);
    let most = (k * EXTRA_PER_SYMBOL_MAX).min(EXTRA_MAX);
    let mut before: Option<f64> = None;
    for alpha in 0..=most {
        let now = match condition {
            Condition::Symbol => losses.symbol_late(alpha),
            Condition::Message => losses.message_late(alpha),
            Condition::Lost => path.loss * losses.symbol_late(alpha) / LOST_LATE_SHARE,
        };
        losses.step();
        if now <= eps {
            let Some(before) = before else {
                return Some(Extra { rows: 0, one_more: 0.0, late: now });
            };
            let one_more = ((before - eps) / (before - now)).clamp(0.0, 1.0);
            let late = before + (now - before) * one_more;
            return Some(Extra { rows: alpha - 1, one_more, late });
        }
        before = Some(now);
    }
    None
}

/// AIDA for one packet: cells and rows beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Cells that are needed; 1 means that the packet is not cut.
    pub needed: usize,
    /// Sent beyond them.
    pub extra: usize,
}

impl Cells {
    /// Bytes on the wire for a packet of `bytes` bytes.
    #[must_use]
    pub fn wire_bytes(&self, bytes: usize) -> usize {
        let around = WIRE_BYTES + if self.needed > 1 { CELL_BYTES } else { 0 };
        (self.needed + self.extra) * (bytes.div_ceil(self.needed) + around)
    }
}

/// The cheapest way to have a lone packet of `bytes` bytes complete but for the share `eps`.
#[must_use]
pub fn cells(path: Path, bytes: usize, eps: f64) -> Option<Cells> {
    if path.loss > LOSS_MAX {
        return None;
    }
    let most = if bytes < CUT_BYTES_MIN { 1 } else { CELLS_MAX };
    let with = |needed: usize| {
        let most = EXTRA_PER_SYMBOL_MAX * needed;
        let extra = (0..=most).find(|extra| path.message_late(needed, *extra) <= eps)?;
        Some(Cells { needed, extra })
    };
    (1..=most).filter_map(with).min_by_key(|cells| cells.wire_bytes(bytes))
}

/// Plans that were made for the present state of a path, all for the same share of late ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planner {
    /// Loss and burst in units of [`Planner::quantum`].
    key: (u32, u32),
    groups: HashMap<(usize, Condition), Option<Extra>>,
    cut: HashMap<usize, Option<Cells>>,
}

/// Steps of loss and burst length that are told apart.
const LOSS_STEP: f64 = 0.001;
const BURST_STEP: f64 = 0.25;
/// Steps of packet sizes that are told apart when cutting, in bytes.
const SIZE_STEP: usize = 64;

impl Planner {
    fn path(&mut self, path: Path) -> Path {
        let burst = if path.is_bursty() { path.burst_packets } else { 0.0 };
        let key = ((path.loss / LOSS_STEP).round() as u32, (burst / BURST_STEP).round() as u32);
        if key != self.key {
            *self = Self { key, ..Self::default() };
        }
        let burst_packets = f64::from(key.1) * BURST_STEP;
        Path { loss: f64::from(key.0) * LOSS_STEP, burst_packets }
    }

    /// [`extra`], remembered.
    pub fn extra(&mut self, path: Path, k: usize, eps: f64, condition: Condition) -> Option<Extra> {
        let path = self.path(path);
        *self.groups.entry((k, condition)).or_insert_with(|| extra(path, k, eps, condition))
    }

    /// [`cells`], remembered.
    pub fn cells(&mut self, path: Path, bytes: usize, eps: f64) -> Option<Cells> {
        let path = self.path(path);
        let bytes = bytes.next_multiple_of(SIZE_STEP);
        *self.cut.entry(bytes).or_insert_with(|| cells(path, bytes, eps))
    }
}

/// What a workload costs on a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Packets that are protected together: those within the budget.
    pub group: usize,
    /// Rows sent beyond them on average; a fraction is a mix of two numbers.
    pub extra: f64,
    /// Bytes sent beyond those of the packets, per byte: 0.3 is 30 %.
    pub overhead: f64,
    /// Share of packets that is later than the budget.
    pub late: f64,
    /// For a lone packet that is better cut into cells: their number, and how many more are sent.
    pub cells: Option<(usize, usize)>,
    /// What to do, as a sentence.
    pub why: String,
}

/// The row for packets of `bytes` bytes, `rate_per_s` of them per second, on a path that loses
/// the share `loss` of its datagrams with a round trip of `rtt`, if at most the share `eps` may
/// come more than `budget` later than the path's own delay.
#[must_use]
pub fn row(
    loss: f64,
    rtt: Duration,
    rate_per_s: f64,
    bytes: usize,
    budget: Duration,
    eps: f64,
) -> Row {
    let path = Path::independent(loss.clamp(0.0, 0.99));
    let group = ((rate_per_s * budget.as_secs_f64() + 1e-9) as usize).clamp(1, EXTRA_MAX);
    let percent = loss * 100.0;
    let budget_ms = budget.as_secs_f64() * 1e3;
    if loss < LOSS_MIN || loss <= eps {
        let why = format!("{percent:.1} % loss is allowed: nothing is sent ahead");
        return Row { group, late: loss, why, ..Row::default() };
    }
    if budget >= rtt {
        let why = format!("{budget_ms:.0} ms are time for a retransmission: nothing is sent ahead");
        let overhead = path.loss / (1.0 - path.loss);
        return Row { group, overhead, late: path.loss * path.loss, why, ..Row::default() };
    }
    if let Some(cells) = cells(path, bytes, eps).filter(|cells| group == 1 && cells.needed > 1) {
        return cut_row(path, bytes, cells);
    }
    let Some(extra) = extra(path, group, eps, Condition::Symbol) else {
        let why = format!("no redundancy keeps {budget_ms:.0} ms at {percent:.1} % loss");
        return Row { group, late: loss, why, ..Row::default() };
    };
    let (mean, overhead) = (extra.mean(), extra.mean() / group as f64);
    let why = format!(
        "{percent:.1} % loss, {group} packet(s) within {budget_ms:.0} ms: {mean:.2} more sent at once"
    );
    Row { group, extra: mean, overhead, late: extra.late, cells: None, why }
}

fn cut_row(path: Path, bytes: usize, cells: Cells) -> Row {
    let Cells { needed, extra } = cells;
    let why =
        format!("a lone packet is cut into {needed} cells, and {extra} more are sent at once");
    Row {
        group: 1,
        extra: extra as f64,
        overhead: cells.wire_bytes(bytes) as f64 / (bytes + WIRE_BYTES) as f64 - 1.0,
        late: path.message_late(needed, extra),
        cells: Some((needed, extra)),
        why,
    }
}

/// Why a class gets what it gets, in words.
pub(crate) fn why(class: Class, path: Path, share: f64) -> String {
    let percent = path.loss * 100.0;
    if path.loss < LOSS_MIN {
        return format!("{percent:.2} % seen: nothing is sent ahead");
    }
    let bursts = if path.is_bursty() {
        format!(" in bursts of {:.1}", path.burst_packets)
    } else {
        String::new()
    };
    let share = share * 100.0;
    match class {
        Class::Now => {
            format!(
                "{percent:.1} % seen{bursts}, no time for a round trip: {share:.0} % of its own bytes more"
            )
        }
        Class::Soon => {
            format!(
                "{percent:.1} % seen{bursts}, time for one round trip: {share:.0} % of its own bytes more"
            )
        }
        Class::Bulk => {
            format!(
                "{percent:.1} % seen{bursts}, {share:.0} % of its own bytes more while there is spare capacity"
            )
        }
    }
}

#[cfg(test)]
mod tests;
