//! Redundancy control (TCP Boston §2.2): how many cells beyond the needed ones a
//! transmission gets.

use holdfast_code::planner::{Loss, Planner};

/// Number of cells after which the loss estimate is moved.
const SAMPLE_CELLS: u64 = 64;
/// Weight with which the estimate follows a rise; it follows a fall by an
/// eighth.
const RISE: f64 = 0.5;
const FALL: f64 = 0.125;
/// Loss below which redundancy is waste.
const LOSS_MIN: f64 = 0.001;
/// Highest loss for which redundancy is planned.
const LOSS_MAX: f64 = 0.6;

/// How much redundancy a sender adds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Redundancy {
    /// Boston-BP: none.
    BandwidthPreserving,
    /// Boston-FEC: shares of the segment's cells, rounded up; the paper (§3.2) has
    /// 1/30 at first and 1/10 on retransmissions.
    Fixed { first: f64, retransmit: f64 },
    /// As little as keeps the share of segments that need more than
    /// `within_rounds` round trips at or below `late_max`, at the loss that
    /// acknowledgements report.
    Planned { within_rounds: usize, late_max: f64 },
}

impl Redundancy {
    /// Boston-FEC as in the paper.
    pub const PAPER_FEC: Self = Self::Fixed { first: 1.0 / 30.0, retransmit: 0.1 };
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    redundancy: Redundancy,
    cells: usize,
    loss: f64,
    /// Counts of the sample that is being taken.
    expected: u64,
    arrived: u64,
    /// Plan for a loss in percent: cells at first, cells on retransmissions.
    planned: Option<(u32, usize, usize)>,
}

impl Control {
    /// A controller for segments of `cells` cells.
    pub fn new(redundancy: Redundancy, cells: usize) -> Self {
        Self { redundancy, cells, loss: 0.0, expected: 0, arrived: 0, planned: None }
    }

    /// Notes that `arrived` of `expected` more cells came.
    pub fn report(&mut self, expected: u64, arrived: u64) {
        self.expected += expected;
        self.arrived += arrived;
        if self.expected < SAMPLE_CELLS {
            return;
        }
        let lost = self.expected.saturating_sub(self.arrived) as f64 / self.expected as f64;
        let gain = if lost > self.loss { RISE } else { FALL };
        self.loss += (lost - self.loss) * gain;
        (self.expected, self.arrived) = (0, 0);
    }

    /// Extra cells for a segment of `cells` cells.
    pub fn extra(&mut self, cells: usize, is_first: bool) -> usize {
        match self.redundancy {
            Redundancy::BandwidthPreserving => 0,
            Redundancy::Fixed { first, retransmit } => {
                let share = if is_first { first } else { retransmit };
                // 30 cells times 1/30 is one cell, whatever the rounding says.
                ((cells as f64 * share - 1e-9).ceil().max(0.0) as usize).min(cells)
            }
            Redundancy::Planned { within_rounds, late_max } => {
                let (first, retransmit) = self.plan(within_rounds, late_max);
                if is_first { first.min(cells) } else { retransmit.min(cells) }
            }
        }
    }

    /// Plans anew only when the loss has changed by a percent.
    fn plan(&mut self, within_rounds: usize, late_max: f64) -> (usize, usize) {
        if self.loss < LOSS_MIN {
            return (0, 0);
        }
        let percent = (self.loss.min(LOSS_MAX) * 100.0).ceil() as u32;
        if let Some((known, first, retransmit)) = self.planned
            && known == percent
        {
            return (first, retransmit);
        }
        let choice = Loss::new(f64::from(percent) / 100.0, None)
            .and_then(|loss| Planner::new(self.cells, loss, within_rounds))
            .ok()
            .and_then(|planner| planner.choose(late_max));
        let (first, retransmit) =
            choice.map_or((0, 0), |choice| (choice.alpha_first, choice.alpha_retransmit));
        self.planned = Some((percent, first, retransmit));
        (first, retransmit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_shares_are_one_cell_in_thirty_and_a_tenth() {
        let mut control = Control::new(Redundancy::PAPER_FEC, 30);
        assert_eq!((control.extra(30, true), control.extra(30, false)), (1, 3));
        assert_eq!((control.extra(192, true), control.extra(192, false)), (7, 20));
        let mut control = Control::new(Redundancy::BandwidthPreserving, 30);
        assert_eq!((control.extra(30, true), control.extra(30, false)), (0, 0));
    }

    #[test]
    fn planned_redundancy_follows_the_loss_and_costs_nothing_without() {
        let plan = Redundancy::Planned { within_rounds: 1, late_max: 0.01 };
        let mut control = Control::new(plan, 30);
        control.report(1000, 1000);
        assert_eq!((control.extra(30, true), control.extra(30, false)), (0, 0));
        for _ in 0..20 {
            control.report(100, 90);
        }
        assert!((8..=10).contains(&control.extra(30, true)));
        for _ in 0..100 {
            control.report(100, 100);
        }
        assert_eq!(control.extra(30, true), 0);
    }
}
