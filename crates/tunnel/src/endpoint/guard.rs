//! Redundancy ahead of the loss.
//!
//! Symbols of class `now` that are sent within a budget form a group; when the budget of the first is
//! nearly over, as many rows over all of them follow as the plan asks for. A group is closed by
//! *time*, never by a count that a slow flow does not reach. A lone packet that is long is cut into
//! cells instead (TCP Boston's AIDA), and a lone one on a path that loses in bursts has its copies
//! spread over the budget. Small messages of class `soon` ride once more in the next datagram.

use super::send::Sender;
use crate::frame::{CODED_LENGTH_BYTES, REPAIR_BYTES, REPAIR_COUNT_MAX};
use crate::outbound::{Due, Job, Symbol};
use crate::plan::{CUT_BYTES_MIN, Cells, Condition, Extra, LOSS_MIN};
use crate::{Class, Config};
use std::time::Duration;

/// What is left of a budget when the rows are sent, for wake-ups that are late.
const MARGIN: Duration = Duration::from_micros(150);
/// Symbols that one group has at most.
const GROUP_MAX: u8 = 64;
/// Symbols that come within this part of the budget and are followed by none are one message.
const BURST_PART: u32 = 4;
/// Symbols that are a message if they come together.
const BURST_MIN: u8 = 4;
/// Longest symbol that rides again in the next datagram.
pub(super) const RIDER_BYTES_MAX: usize = 128;
/// Rows per symbol on a bulk lane with spare capacity, in multiples of the loss; at least so many that a
/// hole is filled within ten symbols, before an inner TCP takes the delay for a queue; and at most.
const SPARE_FACTOR: f64 = 2.0;
const SPARE_MIN: f64 = 0.1;
const SPARE_MAX: f64 = 0.5;
/// Symbols that such a row covers.
const SPARE_WINDOW: u64 = 40;
/// Symbols that follow each other within this time may share acknowledgements, which are `ACK_EVERY` apart;
/// a little more than that, for wake-ups that are late.
const BUSY_GAP: Duration = Duration::from_millis(3);
/// Bytes of redundancy that may be saved up.
pub(super) const TOKENS_MAX: f64 = 65_536.0;
/// And that a new tunnel has.
pub(super) const TOKENS_FIRST: f64 = 4096.0;

/// The symbols of a lane that have no redundancy yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guard {
    first: u64,
    count: u8,
    since: Duration,
    latest: Duration,
    /// Rows owed on a bulk lane.
    credit: f64,
}

impl Guard {
    fn closes_at(&self, budget: Duration) -> Duration {
        self.since + budget.saturating_sub(MARGIN)
    }

    /// Whether something was sent on the lane just before.
    pub(super) fn is_busy(&self, now: Duration) -> bool {
        self.latest + BUSY_GAP > now
    }

    pub(super) fn wake_at(&self, budget: Duration) -> Option<Duration> {
        (self.count > 0).then(|| self.closes_at(budget))
    }
}

impl Sender {
    /// Whether the cap leaves room for so many bytes more.
    pub(super) fn can_afford(&self, bytes: usize) -> bool {
        self.tokens >= bytes as f64
    }

    fn draw(&mut self, extra: Extra) -> usize {
        extra.rows + usize::from(self.rng.chance(extra.one_more))
    }

    /// A new symbol of class `now` was sent.
    pub(super) fn guard(&mut self, class: Class, seq: u64, config: &Config, now: Duration) {
        let path = self.path();
        let guard = &mut self.guards[class.index()];
        let was = guard.latest;
        guard.latest = now;
        if path.loss < LOSS_MIN {
            guard.count = 0;
            return;
        }
        let budget = config.budgets.now;
        let is_lone = guard.count == 0 && now.saturating_sub(was) > budget;
        if is_lone && path.is_bursty() {
            self.spread_copies(class, seq, config, now);
            return;
        }
        let guard = &mut self.guards[class.index()];
        if guard.count == 0 {
            (guard.first, guard.since) = (seq, now);
        }
        guard.count = (seq - guard.first + 1).min(u64::from(u8::MAX)) as u8;
        if guard.count >= GROUP_MAX {
            self.close_group(class, config, now);
        }
    }

    /// Copies back to back are worth nothing on a path that fades.
    fn spread_copies(&mut self, class: Class, seq: u64, config: &Config, now: Duration) {
        let (path, eps) = (self.path(), config.budgets.late_max);
        // Spread over the budget, copies meet nearly independent states of the channel.
        let spread = crate::plan::Path::independent(path.loss);
        let Some(extra) = self.planner.extra(spread, 1, eps, Condition::Symbol) else { return };
        let copies = self.draw(extra) as u32;
        let budget = config.budgets.now.saturating_sub(MARGIN);
        for copy in 1..=copies {
            let at = now + budget * copy / copies;
            self.lanes[class.index()].schedule(Due {
                at,
                job: Job::Symbol(seq),
                is_redundant: true,
            });
        }
    }

    /// Sends the rows of groups whose time is over.
    pub(super) fn close_groups(&mut self, config: &Config, now: Duration) {
        let class = Class::Now;
        let guard = &self.guards[class.index()];
        if guard.count > 0 && guard.closes_at(config.budgets.now) <= now {
            self.close_group(class, config, now);
        }
    }

    fn close_group(&mut self, class: Class, config: &Config, now: Duration) {
        let path = self.path();
        let guard = &mut self.guards[class.index()];
        let (first, count) = (guard.first, guard.count);
        guard.count = 0;
        let within = guard.latest.saturating_sub(guard.since);
        let is_burst = count >= BURST_MIN && within < config.budgets.now / BURST_PART;
        let condition = if is_burst { Condition::Message } else { Condition::Symbol };
        let k = usize::from(count);
        let Some(extra) = self.planner.extra(path, k, config.budgets.late_max, condition) else {
            return;
        };
        let rows = self.draw(extra);
        let job = if count == 1 { Job::Symbol(first) } else { Job::Row { first, count } };
        for _ in 0..rows {
            self.lanes[class.index()].schedule(Due { at: now, job, is_redundant: true });
        }
    }

    /// How a packet of class `now` that is alone is cut; `None` if it is better sent whole.
    pub(super) fn cut(
        &mut self,
        class: Class,
        bytes: usize,
        config: &Config,
        now: Duration,
    ) -> Option<Cells> {
        let path = self.path();
        let guard = &self.guards[class.index()];
        let is_lone = guard.count == 0 && now.saturating_sub(guard.latest) > config.budgets.now;
        if class != Class::Now || !is_lone || bytes < CUT_BYTES_MIN || path.loss < LOSS_MIN {
            return None;
        }
        let cells = self.planner.cells(path, bytes, config.budgets.late_max)?;
        let around = REPAIR_BYTES + CODED_LENGTH_BYTES + crate::item::CELL_BYTES;
        let extra_bytes = cells.extra * (bytes.div_ceil(cells.needed) + around);
        (cells.needed > 1 && self.can_afford(extra_bytes)).then_some(cells)
    }

    /// Notes that something of this lane was sent outside of groups.
    pub(super) fn sent_cells(&mut self, class: Class, needed: u8, extra: usize, now: Duration) {
        let lane = &mut self.lanes[class.index()];
        let first = lane.next().saturating_sub(u64::from(needed));
        let job = Job::Row { first, count: needed };
        for _ in 0..extra {
            lane.schedule(Due { at: now, job, is_redundant: true });
        }
        self.guards[class.index()].latest = now;
    }

    /// A new symbol of class `bulk` was sent: redundancy that costs nobody time while there is
    /// nothing else to send. It spares an inner TCP the delay of repairs, which ends its slow start.
    pub(super) fn spare(&mut self, seq: u64, is_backlogged: bool, now: Duration) {
        let path = self.path();
        let guard = &mut self.guards[Class::Bulk.index()];
        if path.loss < LOSS_MIN || is_backlogged {
            guard.credit = 0.0;
            return;
        }
        guard.credit += (SPARE_FACTOR * path.loss).clamp(SPARE_MIN, SPARE_MAX);
        if guard.credit < 1.0 {
            return;
        }
        guard.credit -= 1.0;
        let lane = &mut self.lanes[Class::Bulk.index()];
        let kept = lane.next() - lane.span() as u64;
        let first = (seq + 1).saturating_sub(SPARE_WINDOW).max(kept);
        let count = (seq + 1 - first).min(REPAIR_COUNT_MAX as u64) as u8;
        if count > 0 {
            let job = Job::Row { first, count };
            lane.schedule(Due { at: now, job, is_redundant: true });
        }
    }

    /// How many of the symbols before `seq` are to ride in its datagram at most.
    pub(super) fn riders(&mut self, class: Class, config: &Config) -> u64 {
        let path = self.path();
        if class != Class::Soon || path.loss < LOSS_MIN {
            return 0;
        }
        let extra = self.planner.extra(path, 1, config.budgets.late_max, Condition::Symbol);
        // At least one: without any, an acknowledgement would have to be asked for, which is dearer.
        extra.map_or(0, |extra| self.draw(extra).max(1) as u64)
    }

    /// Whether a symbol is small, young and missing.
    pub(super) fn may_ride(&self, class: Class, seq: u64, config: &Config, now: Duration) -> bool {
        let lane = &self.lanes[class.index()];
        let is_fit = |symbol: &Symbol| {
            symbol.bytes.len() <= RIDER_BYTES_MAX
                && now.saturating_sub(symbol.born) <= self.rider_gap_max(config)
        };
        lane.is_open(seq) && lane.symbol(seq).is_some_and(is_fit)
    }

    /// The longest gap between messages for which riding is sooner than a retransmission, which is
    /// dearer by an acknowledgement and has the better tail.
    fn rider_gap_max(&self, config: &Config) -> Duration {
        self.rate.rtt().smoothed() / 2 + config.budgets.soon
    }

    /// Whether the next symbol of the lane is likely to come soon enough to carry this one.
    pub(super) fn expects_rider(
        &self,
        class: Class,
        len: usize,
        config: &Config,
        now: Duration,
    ) -> bool {
        let guard = &self.guards[class.index()];
        let gap = now.saturating_sub(guard.latest);
        class == Class::Soon
            && len <= RIDER_BYTES_MAX
            && gap <= self.rider_gap_max(config)
            && self.can_afford(len)
    }

    /// Notes when a symbol was sent, for [`Sender::expects_rider`].
    pub(super) fn note_symbol(&mut self, class: Class, now: Duration) {
        self.guards[class.index()].latest = now;
    }
}
