//! What a seed draws before a run of a transit group: strings, flows, limits, and
//! faults.

use crate::clock::ClockPlan;
use crate::{Ns, Rng};
use holdfast_edge::strings::Mode;
use holdfast_edge::{HalrLimits, Keeps, PfrcSettings};
use std::fmt;

pub(super) const MS: Ns = 1_000_000;

/// A string: a chain of middleboxes, with the same properties in both directions.
#[derive(Clone, Copy, Debug)]
pub struct StringPlan {
    pub bytes_per_s: u64,
    pub delay: Ns,
    pub queue_bytes: u64,
    pub loss_permille: u64,
}

/// A sender's habits.
#[derive(Clone, Copy, Debug)]
pub struct SenderPlan {
    pub start: Ns,
    /// Number of bytes sent on one connection.
    pub bytes: u64,
    /// Time until the next connection.
    pub think: Ns,
    pub reuses_port: bool,
    /// Whether it stops in the middle of its first connection, without ending it.
    pub vanishes: bool,
    pub sack: bool,
    /// The window that its receiver advertises, in bytes.
    pub window: u32,
}

/// Sizes of tables and queues (law L6).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most flows that have a string of their own, at each edge.
    pub flows_max: usize,
    /// Most flows that are measured and capped.
    pub regulated_max: usize,
    /// Most copies on their way to the cache.
    pub ring_max: usize,
    pub cache: HalrLimits,
}

impl Limits {
    /// The daemons' limits.
    pub const WIDE: Self = Self {
        flows_max: 65_536,
        regulated_max: 65_536,
        ring_max: 4096,
        cache: HalrLimits::STANDARD,
    };

    fn draw(rng: &mut Rng) -> Self {
        let mut limits = Self::WIDE;
        if rng.one_in(4) {
            limits.flows_max = rng.range(1, 8) as usize;
        }
        if rng.one_in(6) {
            limits.regulated_max = rng.range(1, 8) as usize;
        }
        if rng.one_in(6) {
            limits.ring_max = rng.range(4, 64) as usize;
        }
        if rng.one_in(4) {
            limits.cache.flows_max = rng.range(1, 8) as usize;
            limits.cache.memory_bytes = 1 << 20;
        }
        limits
    }
}

/// Direction of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    ToFar,
    ToNear,
}

/// A fault. Edges are 0, the near one, and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    StringFails {
        string: usize,
        ways: Ways,
        lasts: Ns,
    },
    /// All strings fail at once.
    AllFail {
        lasts: Ns,
    },
    Lossy {
        string: usize,
        permille: u64,
        lasts: Ns,
    },
    EdgeDaemon {
        edge: usize,
        lasts: Ns,
    },
    /// The edge's machine is suspended; meanwhile its clock continues, stands still or jumps.
    Freeze {
        edge: usize,
        lasts: Ns,
    },
    ClosedByHand {
        edge: usize,
        lasts: Ns,
    },
    /// A middlebox resends heartbeats that it has seen before.
    Replays {
        string: usize,
        lasts: Ns,
    },
}

/// A mutation: what is deliberately wrong in the model, to prove that a checker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Dead strings are used like others.
    TablesStay,
    /// Resent packets are not what was sent.
    ResendsOther,
    /// The last packet of a flow is resent, again and again.
    ResendsLast,
    /// Windows are cut to the cap, even below what was advertised before.
    ShrinkWindow,
    /// Windows are not capped.
    NeverCapped,
    /// Every other sender gets another window.
    CapsUnfairly,
    /// Held acknowledgements are never sent on.
    KeepsHeld,
    /// The cache has no limit.
    NoLimit,
    /// The status always says that the group is protected.
    ShowsProtected,
    /// Packets of flows go through all strings in turn.
    Sprays,
    /// A table forgets that its edge was closed by hand.
    ForgetsClosed,
}

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub period: Ns,
    pub mode: Mode,
    pub return_all: bool,
    pub strings: Vec<StringPlan>,
    pub senders: Vec<SenderPlan>,
    pub limits: Limits,
    pub keeps: Keeps,
    pub always: bool,
    /// Rate control; `None`: windows are never capped.
    pub regulate: Option<PfrcSettings>,
    /// One-way delay between senders and the near edge, and between receivers and the far
    /// one.
    pub access: Ns,
    pub clocks: [ClockPlan; 2],
    pub load_until: Ns,
    /// When the run ends, even if connections are open.
    pub stops_at: Option<Ns>,
    /// Faults, in the order of their times.
    pub faults: Vec<(Ns, Fault)>,
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 61);
        let count = rng.range(2, 5) as usize;
        let mut faults = Vec::new();
        let mut at = rng.range(1500 * MS, 3000 * MS);
        for _ in 0..rng.pick(&[0, 1, 1, 2, 3, 4]) {
            faults.push((at, draw_fault(&mut rng, count)));
            // Some faults begin at the same time.
            at += if rng.one_in(4) { 0 } else { rng.spread(MS, 3000 * MS) };
        }
        Self {
            seed,
            period: rng.pick(&[18, 20, 50]) * MS,
            mode: rng.pick(&[Mode::ActiveBackup, Mode::ActiveActive]),
            return_all: rng.one_in(2),
            strings: (0..count).map(|_| StringPlan::draw(&mut rng)).collect(),
            senders: (0..rng.range(3, 12)).map(|_| SenderPlan::draw(&mut rng)).collect(),
            limits: Limits::draw(&mut rng),
            keeps: rng.pick(&[
                Keeps::HeadTail,
                Keeps::HeadTail,
                Keeps::HeadTail,
                Keeps::Head,
                Keeps::All,
                Keeps::Syns,
                Keeps::Nothing,
            ]),
            always: rng.one_in(3),
            regulate: (!rng.one_in(4)).then_some(PfrcSettings::STANDARD),
            access: rng.spread(MS / 10, 10 * MS),
            clocks: [(); 2].map(|()| ClockPlan::draw(&mut rng)),
            load_until: at + 2000 * MS,
            stops_at: None,
            faults,
            mutation: None,
        }
    }
}

impl StringPlan {
    fn draw(rng: &mut Rng) -> Self {
        let bytes_per_s = rng.pick(&[500_000, 1_000_000, 2_000_000]);
        Self {
            bytes_per_s,
            delay: rng.spread(MS / 2, 10 * MS),
            queue_bytes: rng.pick(&[30_000, 60_000, 150_000]),
            loss_permille: rng.pick(&[0, 0, 0, 2]),
        }
    }
}

impl SenderPlan {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            start: rng.range(100 * MS, 1200 * MS),
            bytes: rng.pick(&[500, 20_000, 300_000, 50_000_000]),
            think: rng.spread(MS, 300 * MS),
            reuses_port: rng.one_in(4),
            vanishes: rng.one_in(8),
            sack: !rng.one_in(4),
            window: rng.pick(&[64_000, 200_000, 1_000_000]),
        }
    }
}

fn draw_fault(rng: &mut Rng, strings: usize) -> Fault {
    let lasts = rng.spread(10 * MS, 4000 * MS);
    let string = rng.below(strings as u64) as usize;
    let edge = rng.below(2) as usize;
    match rng.below(16) {
        0..=6 => {
            let ways = rng.pick(&[Ways::Both, Ways::Both, Ways::ToFar, Ways::ToNear]);
            Fault::StringFails { string, ways, lasts }
        }
        7 => Fault::AllFail { lasts },
        8..=9 => Fault::Lossy { string, permille: rng.pick(&[20, 300, 900]), lasts },
        10..=11 => Fault::EdgeDaemon { edge, lasts: rng.spread(MS, 1500 * MS) },
        12 => Fault::Freeze { edge, lasts: rng.spread(MS, 1500 * MS) },
        13 => Fault::ClosedByHand { edge, lasts },
        _ => Fault::Replays { string, lasts },
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, heartbeats every {} ms, {:?}, all flows return: {}, keeps {:?}, always: {}, \
             {:?}, {:?}, access {} µs, load until {} ms",
            self.seed,
            self.period / MS,
            self.mode,
            self.return_all,
            self.keeps,
            self.always,
            self.regulate,
            self.limits,
            self.access / 1000,
            self.load_until / MS
        )?;
        for (number, string) in self.strings.iter().enumerate() {
            writeln!(f, "string {number}: {string:?}")?;
        }
        for (number, sender) in self.senders.iter().enumerate() {
            writeln!(f, "sender {number}: {sender:?}")?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "fault: {fault:?} at {} ms", at / MS)?;
        }
        Ok(())
    }
}
