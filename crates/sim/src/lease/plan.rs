//! What a seed draws before a run of a pair with leases: times, clocks, paths, and faults.

use crate::clock::ClockPlan;
use crate::{Ns, Rng};
use holdfast_cluster::arbiter::own::Way;
use std::fmt;

pub(super) const MS: Ns = 1_000_000;
/// Time by which a group has begun and become a pair, if nothing was lost.
const BEGUN: Ns = 250 * MS;
/// How far a clock's rate may be from true time.
const PPM_MAX: u64 = 500;

/// Direction between the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    /// What member 0 sends does not arrive.
    FromFirst,
    /// What member 1 sends does not arrive.
    FromSecond,
}

/// A fault. Member 0 is the primary at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The arbiter is away, for good or for this long; its disk is as it was.
    ArbiterDies { again: Option<Ns> },
    /// The arbiter's host is started again, and has its disk, or one of an earlier time.
    ArbiterBoots { old: bool, again: Ns },
    /// A copy of the arbiter answers, too.
    ArbiterCopied,
    /// The whole machine dies, and comes back after this time.
    HostDies { member: usize, again: Option<Ns> },
    /// The paths between the members are cut.
    Cut { ways: Ways, lasts: Option<Ns> },
    /// A member and the arbiter do not reach each other.
    CutArbiter { member: usize, lasts: Ns },
    /// Nothing arrives at a member, neither from the other one nor from the arbiter; what it
    /// sends does.
    Deaf { member: usize, lasts: Option<Ns> },
    /// No process of the machine runs; its kernel goes on.
    Frozen { member: usize, lasts: Ns },
    /// The machine is suspended, and its clock goes on.
    Suspended { member: usize, lasts: Ns },
    /// The machine is suspended with its clock: more than the lease allows for.
    ClockStands { member: usize, lasts: Ns },
    /// Only the daemon dies, and comes back after this time; the other member may be told
    /// at once.
    DaemonDies { member: usize, told: bool, again: Option<Ns> },
    /// The member's server dies, or an operator hands over.
    Resigns { member: usize },
    /// Somebody repeats messages, and sends some that nobody has made.
    Forger { lasts: Ns },
    /// A copy of the member's disk is started beside it.
    MemberCopied { member: usize },
    /// The whole machine dies, and comes back with an empty disk.
    DiskLost { member: usize, again: Ns },
}

impl Fault {
    /// A short name of its kind, the row of a table.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::ArbiterDies { again: None } => "arbiter dies",
            Self::ArbiterDies { again: Some(_) } => "arbiter restarts",
            Self::ArbiterBoots { old: false, .. } => "arbiter's host restarts",
            Self::ArbiterBoots { old: true, .. } => "arbiter's old disk is put back",
            Self::ArbiterCopied => "arbiter copied",
            Self::HostDies { member: 0, again: None } => "primary's host dies",
            Self::HostDies { member: 0, again: Some(_) } => "primary's host restarts",
            Self::HostDies { again: None, .. } => "backup's host dies",
            Self::HostDies { again: Some(_), .. } => "backup's host restarts",
            Self::Cut { ways: Ways::Both, .. } => "members cut off both ways",
            Self::Cut { .. } => "members cut off one way",
            Self::CutArbiter { .. } => "member cut off from the arbiter",
            Self::Deaf { member: 0, .. } => "primary hears nothing",
            Self::Deaf { .. } => "backup hears nothing",
            Self::Frozen { member: 0, .. } => "primary's processes stand still",
            Self::Frozen { .. } => "backup's processes stand still",
            Self::Suspended { .. } => "machine suspended, clock runs",
            Self::ClockStands { .. } => "machine suspended with its clock",
            Self::DaemonDies { member: 0, told: true, again: None } => {
                "primary's daemon dies, backup told"
            }
            Self::DaemonDies { again: None, .. } => "daemon dies",
            Self::DaemonDies { .. } => "daemon restarts",
            Self::Resigns { .. } => "resigns",
            Self::Forger { .. } => "replayed and forged messages",
            Self::MemberCopied { .. } => "member copied",
            Self::DiskLost { .. } => "member's disk lost",
        }
    }
}

/// A mutation: what is deliberately wrong in the model of a host, to prove that a judge sees
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The kernel lets packets pass as soon as the record is won, promised or not.
    PromiseIgnored,
    /// A lease is counted from when its grant is received.
    CountedFromReceipt,
    /// The backup takes over without asking the arbiter.
    TakesOverUnasked,
    /// The primary goes on alone without asking the arbiter.
    AloneUnasked,
    /// The witness answers before the record is on its disk.
    AnswersFirst,
    /// A witness whose host was started again takes its disk for the newest.
    TrustsItsDisk,
    /// A grant counts for the newest question, whichever it is for.
    OldGrantForNew,
    /// A member resigns, and falls silent a little later.
    ResignsFirst,
    /// A member that runs alone speaks without grants until it has been told that the record
    /// is a pair's.
    PairsUnleased,
    /// A backup's requests for the record never arrive.
    NeverClaims,
    /// Members are said to be in step that are not.
    JoinsTooEarly,
    /// What is kept for another life is not.
    KeepsNothing,
    /// The witness asks for no ticket.
    NoTickets,
    /// Without a third party: somebody gives an operator's word whenever it is needed.
    WordUngiven,
    /// The command succeeds, and switches nothing off.
    FalseProof,
    /// The primary's file says that no proof is needed, its backup's that one is.
    FilesDiffer,
    /// Everybody takes for granted that the other one yields.
    YieldAssumed,
    /// A primary with an empty disk takes for granted that the other one's is empty, too.
    FoundsUnasked,
}

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub period: Ns,
    pub lease: Ns,
    pub try_out: Ns,
    pub clocks: [ClockPlan; 3],
    /// Probability that a message is lost.
    pub loss: f64,
    /// Longest time that the witness's disk takes to write.
    pub disk: Ns,
    pub faults: Vec<(Ns, Fault)>,
    /// How the members do without a third party; `None`: they have a witness.
    pub way: Option<Way>,
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 71);
        let mut clock = || ClockPlan {
            since: rng.below(86_400_000) * MS,
            ppm: rng.below(2 * PPM_MAX + 1) as i64 - PPM_MAX as i64,
            wrong: 0,
        };
        let clocks = [clock(), clock(), clock()];
        let mut faults = Vec::new();
        let mut at = BEGUN + rng.below(200 * MS);
        for _ in 0..rng.pick(&[0, 1, 1, 1, 1, 1, 2, 2, 2, 3]) {
            faults.push((at, draw_fault(&mut rng)));
            at += rng.spread(MS, 300 * MS);
        }
        let period = 20 * MS;
        Self {
            seed,
            period,
            lease: if rng.one_in(8) { 5 * period } else { 3 * period },
            try_out: rng.pick(&[15, 20, 30]) * MS,
            clocks,
            loss: if rng.one_in(3) { rng.below(30_001) as f64 / 1e6 } else { 0.0 },
            disk: if rng.one_in(4) { 60 * MS } else { 3 * MS },
            faults,
            way: None,
            mutation: None,
        }
    }

    /// The same seed's plan for a pair without a third party: what befalls the arbiter befalls the
    /// switch of the command, or the gateway; a copy of it is a member's disk that is lost.
    #[must_use]
    pub fn draw_own(seed: u64, way: Way) -> Self {
        let mut plan = Self::draw(seed);
        for (_, fault) in &mut plan.faults {
            if *fault == Fault::ArbiterCopied {
                let member = usize::from(seed.is_multiple_of(3));
                *fault = Fault::DiskLost { member, again: 50 * MS + seed % 100 * MS };
            }
        }
        Self { way: Some(way), ..plan }
    }
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let member = usize::from(rng.one_in(3));
    let lasts = rng.spread(5 * MS, 400 * MS);
    let again = rng.one_in(2).then_some(lasts);
    match rng.below(34) {
        0..=2 => Fault::ArbiterDies { again },
        3 => Fault::ArbiterBoots { old: false, again: lasts },
        4..=5 => Fault::ArbiterBoots { old: true, again: lasts },
        6 => Fault::ArbiterCopied,
        7..=11 => Fault::HostDies { member, again },
        12..=15 => {
            let ways = rng.pick(&[Ways::Both, Ways::Both, Ways::FromFirst, Ways::FromSecond]);
            Fault::Cut { ways, lasts: again }
        }
        16..=17 => Fault::CutArbiter { member, lasts },
        18..=21 => Fault::Frozen { member, lasts },
        22..=23 => Fault::Suspended { member, lasts },
        24 => Fault::ClockStands { member, lasts },
        25..=27 => Fault::DaemonDies { member, told: !rng.one_in(3), again },
        28..=29 => Fault::Resigns { member: 0 },
        30 => Fault::Forger { lasts },
        31 => Fault::MemberCopied { member },
        _ => Fault::Deaf { member, lasts: again },
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, a question every {} ms for a lease of {} ms, tries of {} ms, {:.2} % lost, disk up to {} ms, {:?}",
            self.seed,
            self.period / MS,
            self.lease / MS,
            self.try_out / MS,
            self.loss * 100.0,
            self.disk / MS,
            self.clocks,
        )?;
        for (at, fault) in &self.faults {
            writeln!(f, "fault: {fault:?} at {:.3} ms", *at as f64 / MS as f64)?;
        }
        Ok(())
    }
}
