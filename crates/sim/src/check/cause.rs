//! No takeover without a cause: a member may be declared dead, given up or replaced only after a
//! fault has struck that it can be blamed for.
//!
//! These are no causes: loss, duplication and reordering on clients' paths and of copies, a server
//! that pauses, a disk that fails, clients of any kind, a slow backup, an edge's daemon that is
//! away, and a member that is suspended for less than the shipped time-out.

use crate::member::HEARTBEAT;
use crate::plan::Fault;
use crate::world::NAMES;
use crate::{Ns, ns};
use holdfast_cluster::detector::DECLARE_AFTER;

/// Longest standstill in ns that is no cause: the last heartbeat may have come a period before
/// it, and 2 ms are for timers and links.
const BRIEF: Ns = (DECLARE_AFTER - 1) * HEARTBEAT - ns(std::time::Duration::from_millis(2));
/// Time after its end for which a fault still counts, in ns: channels that it has broken
/// are given up after 3 s, opened again after 2 s, and trusted after 1 s.
const AFTERMATH: Ns = 6_000_000_000;

/// The causes; see the module.
#[derive(Debug, Default)]
pub struct Causes {
    /// Until when there is a cause against each member.
    until: [Ns; 2],
    struck: u32,
    /// Whether pairs part without a fault.
    parts_by_itself: bool,
    /// Whether the pair is parted: each member may then give up the other without a new cause.
    parted: bool,
}

impl Causes {
    /// Notes that pairs part by themselves: no shim attaches to their server, or their spool
    /// fills up.
    pub fn parts_by_itself(&mut self) {
        (self.parts_by_itself, self.until) = (true, [Ns::MAX; 2]);
    }

    /// Notes that a fault strikes; it is a cause against the members in `whom`.
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

    /// The members form a pair again.
    pub fn pair_begins(&mut self) {
        self.parted = false;
    }

    /// Notes that a member has joined, so that faults without an end are over.
    pub fn joined(&mut self, now: Ns) {
        self.parted = false;
        if self.parts_by_itself {
            return;
        }
        for until in &mut self.until {
            *until = if *until == Ns::MAX { now + AFTERMATH } else { *until };
        }
    }

    /// Judges whether there is a cause for the edge to declare a member dead.
    pub fn missed(&self, now: Ns, member: usize) -> Option<String> {
        let wrong = now > self.until[member];
        wrong.then(|| format!("the edge takes {} for dead, for no cause", NAMES[member]))
    }

    /// Judges whether there is a cause to give up a member, by itself or by the other one. The
    /// pair is parted then.
    pub fn given_up(&mut self, now: Ns, member: usize, why: &str) -> Option<String> {
        if self.parted {
            return None;
        }
        self.parted = true;
        let wrong = now > self.until[member];
        wrong.then(|| format!("{} is given up, for no cause: {why}", NAMES[member]))
    }

    /// Judges whether there is a cause for a grant in an epoch that is not the first.
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
