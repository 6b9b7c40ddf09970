//! The judges of a pair with leases. They see kernels, disks and the truth of every fault,
//! and nothing of what the machines believe.

use crate::Ns;
use crate::check::Violation;
use holdfast_cluster::arbiter::{Mode, Record, rank_of};

/// Most violations that are kept.
const VIOLATIONS_MAX: usize = 5;

/// What one host's kernel does at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Speaks {
    pub now: bool,
    /// When it falls silent, as things are.
    pub until: Ns,
    /// Whether its clock has stood still shortly before.
    pub clock_stood: bool,
    /// Epoch of its daemon's record, and the daemon's life.
    pub epoch: u64,
    pub life: u64,
}

/// What a run has that nobody can bear.
#[derive(Clone, Copy, Debug)]
pub struct Excuse {
    /// A member was copied, and that is not all that is wrong.
    pub copied: bool,
    /// The members' proof is a gateway, and they do not hear each other.
    pub split: bool,
    /// Nobody can keep two from owning one epoch, one after the other.
    pub records: bool,
}

/// All judges.
#[derive(Debug, Default)]
pub struct Checkers {
    pub violations: Vec<Violation>,
    /// Time for which two spoke because a clock had stood still.
    pub by_clock: Ns,
    /// Whether two spoke because a member was copied, while something else was wrong, too.
    pub by_copy: bool,
    /// Longest time for which two spoke because a gateway that both reach was their proof, while
    /// the path between them was cut.
    pub by_gateway: Ns,
    /// When the service was first there; nobody is missed before.
    begun: bool,
    /// Time until which somebody speaks, as things are.
    covered: Ns,
    pub longest_silence: Ns,
    pub silences: u64,
    /// The latest epoch in which somebody has spoken, and which life it was.
    spoken: (u64, u64),
}

impl Checkers {
    pub fn violation(&mut self, at: Ns, law: &'static str, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { law, at, what });
        }
    }

    /// Looks at all kernels; called after each change to any of them.
    pub fn look(&mut self, at: Ns, hosts: [Speaks; 3], excuse: Excuse) {
        let mut speakers = hosts.iter().enumerate().filter(|(_, host)| host.now);
        let (first, second) = (speakers.next(), speakers.next());
        if let (Some((one, first)), Some((other, second))) = (first, second) {
            let both = first.until.min(second.until).saturating_sub(at);
            if first.clock_stood || second.clock_stood {
                self.by_clock = self.by_clock.max(both);
            } else if excuse.copied {
                self.by_copy = true;
            } else if excuse.split {
                self.by_gateway = self.by_gateway.max(both).max(1);
            } else {
                let what = format!("{one} and {other} speak, for {:.3} ms", both as f64 / 1e6);
                self.violation(at, "L3", what);
            }
        }
        let Some((_, speaker)) = first else {
            self.covered = self.covered.min(at);
            return;
        };
        if !self.begun {
            (self.begun, self.covered) = (true, at);
        }
        if at > self.covered {
            self.longest_silence = self.longest_silence.max(at - self.covered);
            self.silences += 1;
        }
        let until = hosts.iter().map(|host| host.until).max().unwrap_or(at);
        self.covered = until;
        let (epoch, life) = self.spoken;
        let is_anothers = speaker.epoch == epoch && speaker.life != life;
        let is_excused = speaker.clock_stood || self.by_copy || excuse.records;
        if (speaker.epoch < epoch || is_anothers) && !is_excused {
            let what = format!("epoch {} speaks after epoch {epoch} of another", speaker.epoch);
            self.violation(at, "epoch", what);
        }
        self.spoken = self.spoken.max((speaker.epoch, speaker.life));
    }

    /// A record is on the witness's disk, which it has granted. An epoch begins with one who
    /// is alone, and is the same life's when that is a pair. `holds`: whether the owner has
    /// all that the one before had, or is that one.
    pub fn recorded(&mut self, at: Ns, before: Option<&Record>, after: &Record, holds: bool) {
        let follows = match after.mode {
            Mode::Solo => after.epoch == rank_of(before).0 + 1,
            Mode::Pair => {
                before.is_some_and(|it| *it == Record { mode: Mode::Solo, ..after.clone() })
            }
        };
        if !follows {
            self.violation(at, "epoch", format!("{after:?} is recorded after {before:?}"));
        }
        if !holds {
            let what = "a member that does not hold the connections takes over".to_owned();
            self.violation(at, "step", what);
        }
    }

    /// The end of the run. `should`: why somebody has to speak.
    pub fn ends(&mut self, at: Ns, should: Option<&str>) -> bool {
        let speaks = self.begun && self.covered >= at;
        if !speaks {
            let since = if self.begun { self.covered } else { 0 };
            self.longest_silence = self.longest_silence.max(at - since);
        }
        if let Some(why) = should.filter(|_| !speaks) {
            self.violation(at, "liveness", format!("nobody speaks, and {why}"));
        }
        speaks
    }
}
