//! Draws faults from a seed.

use super::{Fault, MS, Ways, When};
use crate::world::EDGE;
use crate::{Ns, Rng};

/// Largest change of a host's clock by hand, in ns: three days.
const DAYS: Ns = 3 * 86_400_000 * MS;

pub(super) fn draw_faults(rng: &mut Rng) -> Vec<(When, Fault)> {
    let when = if rng.one_in(2) {
        When::Record(1 + rng.spread(1, 300))
    } else {
        When::At(rng.range(100 * MS, 700 * MS))
    };
    match rng.below(20) {
        0 => Vec::new(),
        1..=8 => vec![(when, draw_fault(rng))],
        _ => {
            let first = draw_fault(rng);
            let after = When::After(rng.spread(100_000, 900 * MS));
            vec![(when, first), (after, draw_fault(rng))]
        }
    }
}

/// Draws a fault of a host or its clock that must not cause a takeover, `alone` or after
/// other faults.
pub(super) fn draw_clock(rng: &mut Rng, alone: bool) -> (When, Fault) {
    let after = rng.spread(MS, 600 * MS);
    let when = if alone { When::At(100 * MS + after) } else { When::After(after) };
    let member = rng.below(2) as usize;
    let fault = match rng.below(3) {
        0 => Fault::FreezeHost { member: EDGE, lasts: rng.spread(MS, 3000 * MS) },
        1 => Fault::FreezeHost { member, lasts: rng.spread(10_000, 20 * MS) },
        _ => {
            let by = rng.spread(10 * MS, DAYS) as i64;
            Fault::SetsClock { member, by: if rng.one_in(2) { by } else { -by } }
        }
    };
    (when, fault)
}

/// Draws a fault caused by an operator or a shim, `alone` or after other faults.
pub(super) fn draw_rare(rng: &mut Rng, alone: bool) -> (When, Fault) {
    let after = rng.spread(MS, 600 * MS);
    let when = if alone { When::At(100 * MS + after) } else { When::After(after) };
    if rng.one_in(3) {
        return (when, Fault::ShimBreaks { member: rng.below(2) as usize });
    }
    let lasts = rng.spread(10 * MS, 1500 * MS);
    (when, Fault::ClosedByHand { until_takeover: rng.one_in(2), lasts })
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let lasts = rng.spread(10 * MS, 4000 * MS);
    let ways = rng.pick(&[Ways::Both, Ways::To, Ways::From]);
    let member = rng.below(2) as usize;
    let again = rng.one_in(2).then(|| rng.spread(MS, 500 * MS));
    match rng.below(22) {
        0..=2 => Fault::FreezeHost { member, lasts },
        3..=4 => Fault::HostDies { member },
        5..=7 => Fault::KillDaemon { member, again },
        8..=9 => Fault::KillServer { member },
        10 => Fault::SlowBackup { lasts },
        11 => Fault::HangReplica,
        12 => Fault::Mistake,
        13..=14 => Fault::CutPair { ways, lasts },
        15..=16 => Fault::CutEdge { member, ways, lasts },
        17 => Fault::TapLoss { lasts },
        18 => Fault::SlowPair { lasts },
        19..=20 => Fault::EdgeDaemon { lasts },
        _ => Fault::EdgeHost { lasts },
    }
}
