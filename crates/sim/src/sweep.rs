//! A sweep: the same short run, repeated with a fault right after each of its boundaries in
//! turn. A boundary is a record of the first primary's log, or the arrival of a message
//! between the members. Each case has a name by which it can be run again.

use crate::plan::{Fault, Plan, Ways, When};
use crate::{Ns, Rng};
use std::fmt;
use std::str::FromStr;

const MS: Ns = 1_000_000;
/// Number of clients in a short run: enough to mix records of different connections.
const CLIENTS: usize = 3;
/// Duration of temporary faults, in ns: longer than the time-out for a silence that has
/// only one witness, so that a member is declared dead.
const LASTS: Ns = 150 * MS;
/// Time for which a run continues when its clients are done, in ns: a little longer than
/// the shown status may be out of date.
const REST: Ns = 250 * MS;
/// Duration of brief faults, in ns: so short that nobody may be declared dead.
const BRIEF: Ns = 15 * MS;

/// The faults of a sweep, with their names in a case.
const BREAKS: [(&str, Fault); 16] = [
    ("host", Fault::HostDies { member: 0 }),
    ("server", Fault::KillServer { member: 0 }),
    ("mistake", Fault::Mistake),
    ("daemon", Fault::KillDaemon { member: 0, again: None }),
    ("daemon-again", Fault::KillDaemon { member: 0, again: Some(5 * MS) }),
    ("freeze", Fault::FreezeHost { member: 0, lasts: LASTS }),
    ("blink", Fault::FreezeHost { member: 0, lasts: BRIEF }),
    ("cut", Fault::CutPair { ways: Ways::Both, lasts: LASTS }),
    ("cut-to", Fault::CutPair { ways: Ways::To, lasts: LASTS }),
    ("cut-from", Fault::CutPair { ways: Ways::From, lasts: LASTS }),
    ("edge-cut", Fault::CutEdge { member: 0, ways: Ways::Both, lasts: LASTS }),
    ("edge-daemon", Fault::EdgeDaemon { lasts: BRIEF }),
    ("backup-host", Fault::HostDies { member: 1 }),
    ("backup-daemon", Fault::KillDaemon { member: 1, again: None }),
    ("replica", Fault::KillServer { member: 1 }),
    ("backup-cut", Fault::CutEdge { member: 1, ways: Ways::Both, lasts: LASTS }),
];

/// Irregularities on the paths between the members, in permille.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uneven {
    /// Copies that arrive late, after the log's records about them.
    pub copies_late_permille: u64,
    /// Messages between the members that arrive late, but in order.
    pub messages_late_permille: u64,
    /// Records that find the replica's ring full at first.
    pub ring_full_permille: u64,
}

impl Uneven {
    /// Copies are often later than the log, messages are often late, and the ring is
    /// sometimes full.
    pub const ROUGH: Self =
        Self { copies_late_permille: 150, messages_late_permille: 120, ring_full_permille: 25 };
}

/// A case of a sweep: a fault right after a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    name: &'static str,
    fault: Fault,
    when: When,
}

impl Case {
    /// All faults of a sweep at this boundary.
    pub fn all(when: When) -> impl Iterator<Item = Self> {
        BREAKS.into_iter().map(move |(name, fault)| Self { name, fault, when })
    }

    /// Name of the fault.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            When::Record(n) => write!(f, "{}@record:{n}", self.name),
            When::Message(n) => write!(f, "{}@message:{n}", self.name),
            When::At(ns) | When::After(ns) => write!(f, "{}@ns:{ns}", self.name),
            When::Join(step) => write!(f, "{}@{step:?}", self.name),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not WHAT@record:N, WHAT@message:N or WHAT@ns:N");
        let (name, at) = text.split_once('@').ok_or_else(form)?;
        let (kind, number) = at.split_once(':').ok_or_else(form)?;
        let number = number.parse().map_err(|_| form())?;
        let when = match kind {
            "record" => When::Record(number),
            "message" => When::Message(number),
            "ns" => When::At(number),
            _ => return Err(form()),
        };
        let names = || BREAKS.map(|(known, _)| known).join(", ");
        let known = Self::all(when).find(|case| case.name == name);
        known.ok_or_else(|| format!("`{name}` is none of {}", names()))
    }
}

impl Plan {
    /// A short run drawn from `seed`, without faults except for irregular paths.
    #[must_use]
    pub fn short(seed: u64) -> Self {
        let mut plan = Self::draw(seed);
        let mut rng = Rng::new(seed, 5);
        plan.faults.clear();
        let first = plan.clients[0].clone();
        plan.clients.resize(CLIENTS, first);
        for (number, client) in plan.clients.iter_mut().enumerate() {
            client.start = rng.range(15 * MS, 20 * MS);
            client.requests = rng.range(2, 4) as u8;
            client.think = MS;
            // One client sends requests without waiting for replies.
            client.pipeline = if number == 1 { 4 } else { client.pipeline };
            client.filler_max = client.filler_max.min(200);
            client.bulk_max = client.bulk_max.min(100);
            client.lies = false;
            client.looks_away = None;
            client.vanishes_at = None;
        }
        plan.path.delay = rng.range(100_000, 400_000);
        plan.copy_loss_permille = 100;
        plan.server_pause = Some(25 * MS);
        plan.uneven = Uneven::ROUGH;
        plan.load_until = 45 * MS;
        plan.rest = REST;
        plan
    }

    /// Like [`Plan::short`], with the fault of `case`.
    #[must_use]
    pub fn swept(seed: u64, case: Case) -> Self {
        let mut plan = Self::short(seed);
        plan.faults = vec![(case.when, case.fault)];
        plan.case = Some(case);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for when in [When::Record(37), When::Message(2), When::At(5)] {
            for case in Case::all(when) {
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
        for wrong in ["host", "host@record", "host@record:x", "host@day:1", "house@record:1"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }
}
