//! A pair without an edge in virtual time: two members with leases, and a witness.
//!
//! It runs the machines of `holdfast-cluster` (lease, client, witness) and hosts them:
//! clocks that drift, kernels that let packets pass until a deadline, datagrams that are
//! lost and late, a disk that takes time. Seeds draw faults; judges that know the truth of
//! every host look at who speaks, which epochs are recorded, and whether anybody speaks in
//! the end. The data path is not in it: "speaks" is what a kernel would let pass.
//!
//! Measured with `HOLDFAST_SEEDS=1000000 cargo test --release -p holdfast-sim --test lease_seeds --
//! --nocapture` (135 s of one core), a question every 20 ms, leases of 60 or 100 ms, up to 3 % lost.
//! Two spoke where a machine was suspended with its clock, which no lease bears, and where a member
//! had been copied and something else failed, which the judge excuses; else in no run. "Nobody" is at
//! the end of the run, 900 ms after the last fault; the silence is of all other runs.
//!
//! | fault | runs | two speak | nobody | silence, mean / max ms |
//! |---|---|---|---|---|
//! | none | 100,064 | 0 | 0 | 0.0 / 97.4 |
//! | arbiter copied | 14,867 | 0 | 2 | 0.3 / 452.6 |
//! | arbiter dies | 21,995 | 0 | 0 | 0.0 / 61.4 |
//! | arbiter restarts | 22,100 | 0 | 0 | 0.0 / 75.6 |
//! | arbiter's host restarts | 14,337 | 0 | 0 | 0.1 / 309.4 |
//! | arbiter's old disk is put back | 29,449 | 0 | 0 | 0.0 / 45.7 |
//! | backup hears nothing | 9,966 | 0 | 0 | 2.8 / 110.1 |
//! | backup's host dies | 12,340 | 0 | 0 | 3.4 / 125.2 |
//! | backup's host restarts | 12,344 | 0 | 0 | 3.5 / 119.6 |
//! | backup's processes stand still | 19,803 | 0 | 0 | 1.6 / 113.5 |
//! | daemon dies | 12,213 | 0 | 1 | 7.1 / 142.2 |
//! | daemon restarts | 22,205 | 0 | 0 | 16.3 / 562.3 |
//! | machine suspended with its clock | 14,549 | 5,337 by a clock | 0 | 29.6 / 630.6 |
//! | machine suspended, clock runs | 29,386 | 0 | 0 | 29.8 / 508.9 |
//! | member copied | 14,645 | 0 | 0 | 4.9 / 105.8 |
//! | member cut off from the arbiter | 29,516 | 0 | 0 | 0.0 / 146.4 |
//! | members cut off both ways | 29,618 | 0 | 0 | 2.6 / 120.5 |
//! | members cut off one way | 29,407 | 0 | 0 | 2.5 / 134.1 |
//! | primary hears nothing | 19,511 | 0 | 65 | 56.5 / 626.7 |
//! | primary's daemon dies, backup told | 9,973 | 0 | 10 | 3.5 / 90.9 |
//! | primary's host dies | 24,484 | 0 | 66 | 65.5 / 192.5 |
//! | primary's host restarts | 24,283 | 0 | 0 | 65.7 / 773.8 |
//! | primary's processes stand still | 38,918 | 0 | 0 | 6.7 / 292.7 |
//! | replayed and forged messages | 14,521 | 0 | 0 | 0.0 / 59.2 |
//! | resigns | 29,221 | 0 | 0 | 11.7 / 408.9 |
//! | two faults | 300,472 | 4,163 by a clock, 230 by a copy | 20,522 | 53.5 / 1448.8 |
//! | three faults | 99,813 | 1,457 by a clock, 281 by a copy | 13,560 | 87.5 / 1409.6 |
//!
//! Where the primary hears nothing and nobody speaks, it was no pair's at that time, or had heard
//! the witness after it began to miss grants, and was granted the record at that moment.
//!
//! The same seeds without a third party (`HOLDFAST_SEEDS=30000`): where nobody decides, and where a
//! command switches the other host off, two spoke in no run but those in which a member was
//! copied, whatever its clock did. A primary whose host dies is replaced by an operator's word in one
//! half of the first (nobody speaks in 409 of 777 runs), and always by the command (silent for
//! 258 ms on average, its switch takes up to 120 ms). With a gateway two spoke in about half of the
//! runs in which the paths between the members were cut, and in none of the other single faults but
//! that of a clock that stands still, and of a copy.

mod check;
mod faults;
mod member;
mod own;
mod plan;
mod witness;
mod world;

pub use plan::{Fault, Mutation, Plan, Ways};

use crate::{Ns, Violation};

/// How often a run met what. All fields are counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub grants: u64,
    /// Records that the witness has written.
    pub records: u64,
    /// Takeovers by the other member.
    pub takeovers: u64,
    /// Times that both became a pair.
    pub pairs: u64,
    pub replayed: u64,
    pub unproven: u64,
    pub late_answers: u64,
    pub overslept: u64,
    pub refusals: u64,
    /// Witnesses that a member knew more than.
    pub behind: u64,
    /// Requests of copies.
    pub copies: u64,
    /// Changes that were asked for again with a ticket.
    pub unticketed: u64,
    pub lineages: u64,
    /// Proofs that were sought, and hosts that a command has switched off.
    pub proofs: u64,
    pub shot: u64,
    /// Operator's words that were given.
    pub words: u64,
    /// Messages that named another owner of the same epoch.
    pub contested: u64,
}

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, other: Self) {
        self.grants += other.grants;
        self.records += other.records;
        self.takeovers += other.takeovers;
        self.pairs += other.pairs;
        self.replayed += other.replayed;
        self.unproven += other.unproven;
        self.late_answers += other.late_answers;
        self.overslept += other.overslept;
        self.refusals += other.refusals;
        self.behind += other.behind;
        self.copies += other.copies;
        self.unticketed += other.unticketed;
        self.lineages += other.lineages;
        self.proofs += other.proofs;
        self.shot += other.shot;
        self.words += other.words;
        self.contested += other.contested;
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub events: u64,
    pub virtual_ns: Ns,
    pub reached: Reached,
    /// Longest time for which nobody spoke.
    pub silence: Ns,
    /// Whether somebody speaks at the end.
    pub speaks: bool,
    /// Longest time for which two spoke because a machine's clock had stood still: the limit
    /// of what leases can do.
    pub by_clock: Ns,
    /// Whether two spoke because a member was copied, which needs another fault: nobody can
    /// tell the original from the copy then.
    pub by_copy: bool,
    /// Longest time for which two spoke that both reached a gateway, and not each other.
    pub by_gateway: Ns,
    pub violations: Vec<Violation>,
    /// The trace; empty unless the run was traced.
    pub trace: Vec<String>,
}

impl Outcome {
    /// One line with the first violation and the seed that reproduces it; `None` without
    /// violations.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let (first, seed) = (self.violations.first()?, self.seed);
        let replay = format!(
            "HOLDFAST_TRACE={seed} cargo test -p holdfast-sim --test lease_seeds -- --nocapture"
        );
        Some(format!("seed {seed}: {first}; replay: {replay}"))
    }
}

/// Runs a plan; `traced` keeps a readable trace in the outcome.
#[must_use]
pub fn simulate(plan: Plan, traced: bool) -> Outcome {
    world::World::new(plan, traced).run()
}
