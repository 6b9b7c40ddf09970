//! Plans of joins: members that come back, and faults while they join.

use super::{Fault, MS, Ways, When};
use crate::{Ns, Rng};

/// A step of a join, or of the renewal of a cold backup's image, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The members have met.
    Prepares,
    /// The image was taken.
    Image,
    /// Half of the image has arrived.
    Half,
    /// The copy runs.
    Runs,
    /// Output waits for the joiner, and the joiner was told.
    Commits,
    Closes,
    /// The joiner says that it is in step.
    InStep,
    /// The primary has heard it.
    Joined,
    /// A cold backup asks for a new image.
    Renews,
    /// The new image was taken.
    RenewedImage,
    /// Half of the new image has arrived.
    HalfRenewed,
    /// The new image has replaced the old one.
    Renewed,
}

impl Step {
    pub const RENEWAL: [Self; 4] =
        [Self::Renews, Self::RenewedImage, Self::HalfRenewed, Self::Renewed];

    pub const ALL: [Self; 8] = [
        Self::Prepares,
        Self::Image,
        Self::Half,
        Self::Runs,
        Self::Commits,
        Self::Closes,
        Self::InStep,
        Self::Joined,
    ];
}

/// Which part of a member dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Daemon,
    Server,
    Host,
}

/// How joins go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinPlan {
    /// Size of a server's image, at least the eight bytes of its name.
    pub image_bytes: u64,
    /// Permille of images that cannot be taken.
    pub untaken_permille: u64,
    /// Permille of images of which no copy can be made.
    pub unmade_permille: u64,
    /// What the server has written over its books: so many bytes would have been written to each
    /// client.
    pub out_bytes_said: Option<u64>,
}

impl JoinPlan {
    pub const SMOOTH: Self = Self {
        image_bytes: 100_000,
        untaken_permille: 0,
        unmade_permille: 0,
        out_bytes_said: None,
    };

    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self {
            image_bytes: rng.spread(8, 3_000_000),
            untaken_permille: rng.pick(&[0, 0, 0, 300]),
            unmade_permille: rng.pick(&[0, 0, 0, 300]),
            out_bytes_said: None,
        }
    }
}

/// What a cold backup keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdPlan {
    /// Most bytes of log that it keeps; beyond that it gives up, and joins again.
    pub log_max: u64,
    /// Permille of takeovers that find the image or the log damaged.
    pub damaged_permille: u64,
    /// Shortest time that building the server takes, in ns.
    pub build_min: Ns,
}

impl ColdPlan {
    pub const ROOMY: Self = Self { log_max: u64::MAX, damaged_permille: 0, build_min: 0 };

    /// Draws a cold backup for one seed in six.
    pub(super) fn draw(rng: &mut Rng) -> Option<Self> {
        let log_max = rng.pick(&[u64::MAX, u64::MAX, 1 << 20, 64 << 10]);
        let is_cold = rng.one_in(6);
        let damaged_permille = rng.pick(&[0, 0, 500]);
        let build_min = rng.pick(&[0, 0, 400 * MS]);
        is_cold.then_some(Self { log_max, damaged_permille, build_min })
    }
}

/// What happens to a server that is rebuilt on its own host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    GoesOn,
    /// It falls again at the same place, the end of its log.
    FallsAgain,
}

/// In half of the runs, starts dead members again, a few times, and adds faults in between.
/// Returns by how much longer clients must continue for that, in ns.
pub(super) fn draw_joins(rng: &mut Rng, faults: &mut Vec<(When, Fault)>) -> Ns {
    if rng.one_in(2) {
        return 0;
    }
    let rounds = rng.range(1, 4);
    for round in 0..rounds {
        if round > 0 {
            let when = match rng.below(3) {
                0 => When::After(rng.spread(MS, 1500 * MS)),
                _ => When::Join(rng.pick(&Step::ALL)),
            };
            faults.push((when, draw_fault(rng)));
        }
        if round == 0 && rng.one_in(2) {
            let how = rng.pick(&[How::Daemon, How::Host]);
            let when = if faults.is_empty() { When::At(150 * MS) } else { When::After(300 * MS) };
            faults.push((when, Fault::Dies { speaks: false, how }));
        }
        let after = rng.spread(MS, 300 * MS);
        let when = if faults.is_empty() { When::At(200 * MS) } else { When::After(after) };
        let first = rng.below(2) as usize;
        faults.push((when, Fault::Starts { member: first }));
        faults.push((When::After(rng.spread(MS, 30 * MS)), Fault::Starts { member: 1 - first }));
    }
    rng.range(300 * MS, 1000 * MS) * rounds
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let lasts = rng.spread(10 * MS, 500 * MS);
    let ways = rng.pick(&[Ways::Both, Ways::To, Ways::From]);
    let (member, speaks) = (rng.below(2) as usize, rng.one_in(2));
    match rng.below(10) {
        0..=4 => {
            Fault::Dies { speaks, how: rng.pick(&[How::Daemon, How::Server, How::Host, How::Host]) }
        }
        5 => Fault::CutPair { ways, lasts },
        6 => Fault::CutEdge { member, ways, lasts },
        7 => Fault::FreezeHost { member, lasts },
        8 => Fault::TapLoss { lasts },
        _ => Fault::SlowPair { lasts },
    }
}
