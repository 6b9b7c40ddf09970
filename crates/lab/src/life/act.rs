//! What can happen to a group, and what must be true of it afterwards. No world
//! here: which deeds are possible, and where they lead, is the lab's own knowledge,
//! against which the daemons' words are held.

use crate::testbed::Role;
use holdfast_chance::Rng;

/// How the group must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// Both members stand, this one speaks.
    Pair { current: Role },
    /// This member serves without a backup.
    Solo { survivor: Role },
    /// Nobody serves; this member did last.
    Dead { last: Role },
}

/// What is done in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing but load.
    Quiet,
    /// Others keep both cores busy.
    Busy,
    /// Others take memory, and the edge's disk is full.
    Full,
    /// kill -9 of the current member's server.
    KillServer,
    /// kill -9 of the current member's daemon, and with it of its server.
    KillDaemon,
    /// SIGTERM of the current member's daemon: a planned switchover.
    Switchover,
    /// The current member's link to everybody is cut, and comes back.
    Cut,
    /// kill -9 of the replica.
    KillReplica,
    /// kill -9 of the backup's daemon.
    KillBackup,
    /// SIGTERM of the backup's daemon.
    StopBackup,
    /// The backup's link is cut, and comes back.
    CutBackup,
    /// kill -9 of the edge's daemon, which is started again.
    KillEdge,
    /// SIGTERM of the edge's daemon, which is started again.
    StopEdge,
    /// The edge's host boots anew: daemon, programs and maps are gone.
    RebootEdge,
    /// For a moment the edge reaches neither member.
    Glitch,
    /// A daemon stands still for less than a heartbeat.
    Pause(Role),
    /// The machine's clock jumps, and after a moment back.
    Clock,
    /// A daemon can open nothing more for a moment.
    Scarce(Role),
    /// SIGHUP to a daemon.
    Hup(Role),
    /// The member that was lost is started again; nobody may join yet.
    StartStale,
    /// The documented repair: both members stop, both start.
    Repair,
    /// `holdfast down` everywhere, then a new start.
    DownAndUp,
    /// kill -9 of the last server.
    KillLast,
}

/// The member that is not this one.
pub fn other(member: Role) -> Role {
    if member == Role::Primary { Role::Backup } else { Role::Primary }
}

impl Truth {
    /// A deed that is possible now; rarer ones have smaller weights. Clocks jump only
    /// where they may.
    pub fn draw(self, rng: &mut Rng, clocks: bool) -> Deed {
        const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];
        let host = rng.pick(&HOSTS);
        let clock = if clocks { 3 } else { 0 };
        let pair = [
            (4, Deed::Quiet),
            (5, Deed::Busy),
            (1, Deed::Full),
            (5, Deed::KillServer),
            (4, Deed::KillDaemon),
            (4, Deed::Switchover),
            (3, Deed::Cut),
            (2, Deed::KillReplica),
            (2, Deed::KillBackup),
            (1, Deed::StopBackup),
            (2, Deed::CutBackup),
            (3, Deed::KillEdge),
            (1, Deed::StopEdge),
            (1, Deed::RebootEdge),
            (3, Deed::Glitch),
            (2, Deed::Pause(host)),
            (2, Deed::Scarce(host)),
            (2, Deed::Hup(host)),
            (clock, Deed::Clock),
        ];
        let solo = [
            (2, Deed::Quiet),
            (1, Deed::Busy),
            (2, Deed::KillEdge),
            (2, Deed::StartStale),
            (1, Deed::Hup(host)),
            (9, Deed::Repair),
            (2, Deed::DownAndUp),
            (1, Deed::KillLast),
            (clock, Deed::Clock),
        ];
        let dead = [(3, Deed::Repair), (1, Deed::DownAndUp)];
        match self {
            Truth::Pair { .. } => weighted(rng, &pair),
            Truth::Solo { .. } => weighted(rng, &solo),
            Truth::Dead { .. } => weighted(rng, &dead),
        }
    }

    /// Where a deed leads.
    pub fn after(self, deed: Deed) -> Truth {
        match (deed, self) {
            (
                Deed::KillServer | Deed::KillDaemon | Deed::Switchover | Deed::Cut,
                Truth::Pair { current },
            ) => Truth::Solo { survivor: other(current) },
            (
                Deed::KillReplica | Deed::KillBackup | Deed::StopBackup | Deed::CutBackup,
                Truth::Pair { current },
            ) => Truth::Solo { survivor: current },
            (Deed::KillLast, Truth::Solo { survivor }) => Truth::Dead { last: survivor },
            // Whoever was current last starts the next epoch.
            (
                Deed::Repair | Deed::DownAndUp,
                Truth::Solo { survivor: last } | Truth::Dead { last },
            ) => Truth::Pair { current: last },
            _ => self,
        }
    }

    /// The member that speaks.
    pub fn speaker(self) -> Option<Role> {
        match self {
            Truth::Pair { current } => Some(current),
            Truth::Solo { survivor } => Some(survivor),
            Truth::Dead { .. } => None,
        }
    }
}

impl Deed {
    /// Whether the clients' connections end with it, as documented.
    pub fn ends_connections(self) -> bool {
        matches!(self, Deed::Repair | Deed::DownAndUp | Deed::KillLast)
    }

    /// Whether clients come and go as if nothing were done.
    pub fn disturbs_nobody(self) -> bool {
        matches!(self, Deed::Quiet | Deed::Hup(_))
    }

    /// Whether a member must have taken over.
    pub fn is_takeover(self) -> bool {
        matches!(self, Deed::KillServer | Deed::KillDaemon | Deed::Switchover | Deed::Cut)
    }
}

fn weighted(rng: &mut Rng, choices: &[(u64, Deed)]) -> Deed {
    let total = choices.iter().map(|(weight, _)| weight).sum();
    let mut at = rng.below(total);
    for (weight, deed) in choices {
        match at.checked_sub(*weight) {
            None => return *deed,
            Some(rest) => at = rest,
        }
    }
    Deed::Quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_life_goes_on_and_sees_every_deed() {
        let mut rng = Rng::of_state(1);
        let mut truth = Truth::Pair { current: Role::Primary };
        let mut takeovers = 0;
        for _ in 0..10_000 {
            let deed = truth.draw(&mut rng, true);
            if deed.is_takeover() {
                takeovers += 1;
                let before = truth.speaker();
                assert_ne!(truth.after(deed).speaker(), before, "{deed:?}");
            }
            truth = truth.after(deed);
        }
        assert!(takeovers > 1_000);
    }
}
