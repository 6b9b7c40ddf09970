//! No takeover without a cause: a member is taken for dead, given up or replaced only
//! after a fault has struck that can be held against it.
//!
//! No cause are: loss, repeats and reordering on clients' paths and of copies, a server
//! that pauses, a disk that fails, clients of any kind, a slow backup, an edge's daemon
//! that is away, and a member that stands still for less than the shipped patience.

use crate::member::HEARTBEAT;
use crate::plan::Fault;
use crate::world::NAMES;
use crate::{Ns, ns};
use holdfast_cluster::detector::DECLARE_AFTER;

/// Longest standstill for which a member may not be taken for dead, in ns: the last
/// heartbeat may have come a period before; the rest is for timers and links.
const BRIEF: Ns = (DECLARE_AFTER - 1) * HEARTBEAT - ns(std::time::Duration::from_millis(2));
/// Time after its end for which a fault still counts, in ns: channels that it has broken
/// are given up after 3 s, opened again after 2 s, and trusted after 1 s.
const AFTERMATH: Ns = 6_000_000_000;

/// The causes; see the module.
#[derive(Debug, Default)]
pub struct Causes {
    /// Until when something may be held against each member.
    until: [Ns; 2],
    struck: u32,
    /// A pair parts without anybody's fault.
    parts_by_itself: bool,
    /// Whether the pair has been parted for a cause: each member may then give
    /// up the other.
    parted: bool,
}

impl Causes {
    /// Notes that pairs part by themselves: no shim attaches to their server, or their spool
    /// fills up.
    pub fn parts_by_itself(&mut self) {
        (self.parts_by_itself, self.until) = (true, [Ns::MAX; 2]);
    }

    /// Notes that a fault strikes, which can be held against `whom`.
    pub fn strikes(&mut self, now: Ns, fault: &Fault, whom: [bool; 2]) {
        self.struck += 1;
        let stands = matches!(fault, Fault::FreezeHost { .. });
        if stands && fault.lasts() < BRIEF {
            return;
        }
        let passes = fault.lasts() > 0 && !matches!(fault, Fault::KillDaemon { .. });
        let until = if passes { now + fault.lasts() + AFTERMATH } else { Ns::MAX };
        for (member, _) in whom.iter().enumerate().filter(|(_, blamed)| **blamed) {
            self.until[member] = self.until[member].max(until);
        }
    }

    /// Number of faults that have struck.
    pub fn struck(&self) -> u32 {
        self.struck
    }

    /// Notes that members pair anew.
    pub fn pair_begins(&mut self) {
        self.parted = false;
    }

    /// Notes that a member has joined: what was dead is alive again.
    pub fn joined(&mut self, now: Ns) {
        self.parted = false;
        if self.parts_by_itself {
            return;
        }
        for until in &mut self.until {
            *until = if *until == Ns::MAX { now + AFTERMATH } else { *until };
        }
    }

    /// Judges that the edge misses a member.
    pub fn missed(&self, now: Ns, member: usize) -> Option<String> {
        let wrong = now > self.until[member];
        wrong.then(|| format!("the edge takes {} for dead, for no cause", NAMES[member]))
    }

    /// Judges that a member is given up, by itself or by the other one: the
    /// pair is parted.
    pub fn given_up(&mut self, now: Ns, member: usize, why: &str) -> Option<String> {
        if self.parted {
            return None;
        }
        self.parted = true;
        let wrong = now > self.until[member];
        wrong.then(|| format!("{} is given up, for no cause: {why}", NAMES[member]))
    }

    /// Judges that a member is let speak in an epoch that is not the first.
    pub fn granted(&self, now: Ns, member: usize) -> Option<String> {
        let wrong = self.until.iter().all(|until| now > *until);
        wrong.then(|| format!("{} is let speak anew, for no cause", NAMES[member]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_that_fills_up_is_a_cause_after_every_join() {
        for (parts, is_cause) in [(true, true), (false, false)] {
            let mut causes = Causes::default();
            if parts {
                causes.parts_by_itself();
            }
            causes.joined(0);
            let found = causes.given_up(AFTERMATH + 1, 1, "a new image is due");
            assert_eq!(found.is_none(), is_cause, "{found:?}");
        }
    }
}
