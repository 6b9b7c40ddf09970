//! What can happen to a group, and what must be true of it afterwards. This file knows no testbed:
//! which deeds are possible, and where they lead, is the lab's own knowledge, with which the
//! daemons' words are compared.

use crate::testbed::Role;
use holdfast_chance::Rng;

/// The state in which the group must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// Both members run, and `current` serves.
    Pair { current: Role },
    /// The member `survivor` serves without a backup, and the other one's daemon does not run; it
    /// joins when it is started.
    Solo { survivor: Role },
    /// Nobody serves; `last` was the last member that did.
    Dead { last: Role },
}

/// What is done in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Only load.
    Quiet,
    /// Other programs keep both cores busy.
    Busy,
    /// Other programs take memory, and the edge's disk is full.
    Full,
    /// kill -9 of the current member's server; the member joins by itself.
    KillServer,
    /// kill -9 of the current member's daemon, and with it of its server.
    KillDaemon,
    /// SIGTERM of the current member's daemon: it hands over, and ends.
    StopPrimary,
    /// `holdfast switchover`: the members swap.
    Switchover,
    /// The current member's link to everybody is cut, and comes back; the member joins
    /// by itself.
    Cut,
    /// kill -9 of the replica; the member joins again by itself.
    KillReplica,
    /// kill -9 of the backup's daemon.
    KillBackup,
    /// SIGTERM of the backup's daemon.
    StopBackup,
    /// The backup's link is cut, and comes back; it joins again by itself.
    CutBackup,
    /// kill -9 of the edge's daemon, which is started again.
    KillEdge,
    /// SIGTERM of the edge's daemon, which is started again.
    StopEdge,
    /// The edge's host boots anew: daemon, programs and maps are gone.
    RebootEdge,
    /// For a moment the edge reaches neither member.
    Glitch,
    /// A daemon stops for less than a heartbeat.
    Pause(Role),
    /// The machine's clock jumps, and jumps back after a moment.
    Clock,
    /// A daemon can open no more descriptors for a moment.
    Scarce(Role),
    /// A daemon gets a SIGHUP.
    Hup(Role),
    /// The member that was lost is started again, and joins.
    Join,
    /// The lost member is started again, and something breaks while it joins.
    BreakJoin(Break),
    /// The lost member is started again, and the server that it joins dies, perhaps a moment after
    /// it has a backup again; then both members are stopped and started.
    DieJoined,
    /// kill -9 of the daemon of a server that speaks alone; the server lives on, and the daemon
    /// that is started again takes it up.
    Orphan,
    /// The documented repair of a server that cannot be joined: both members are stopped, and both
    /// are started.
    Repair,
    /// `holdfast down` everywhere, then a new start.
    DownAndUp,
    /// kill -9 of the last server.
    KillLast,
}

/// What breaks while a member joins. The join comes about, however far it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// kill -9 of the joiner's daemon, which is started again.
    Joiner,
    /// kill -9 of the server that was built from the image.
    Copy,
    /// The joiner's link is cut, and comes back.
    Link,
    /// kill -9 of the edge's daemon, which is started again.
    Edge,
}

impl Truth {
    /// Draws a deed that is possible now, by its weight. Clocks jump only if `clocks` says so.
    pub fn draw(self, rng: &mut Rng, clocks: bool) -> Deed {
        const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];
        let host = rng.pick(&HOSTS);
        let broken = rng.pick(&[Break::Joiner, Break::Copy, Break::Link, Break::Edge]);
        let clock = if clocks { 3 } else { 0 };
        let pair = [
            (4, Deed::Quiet),
            (5, Deed::Busy),
            (1, Deed::Full),
            (5, Deed::KillServer),
            (4, Deed::KillDaemon),
            (3, Deed::StopPrimary),
            (4, Deed::Switchover),
            (3, Deed::Cut),
            (1, Deed::KillReplica),
            (2, Deed::KillBackup),
            (1, Deed::StopBackup),
            (1, Deed::CutBackup),
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
            (1, Deed::Hup(host)),
            (14, Deed::Join),
            (6, Deed::BreakJoin(broken)),
            (1, Deed::DieJoined),
            (4, Deed::Orphan),
            (1, Deed::Repair),
            (1, Deed::DownAndUp),
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

    /// The state to which a deed leads.
    pub fn after(self, deed: Deed) -> Truth {
        match (deed, self) {
            (Deed::KillServer | Deed::Switchover | Deed::Cut, Truth::Pair { current }) => {
                Truth::Pair { current: current.other() }
            }
            (Deed::KillDaemon | Deed::StopPrimary, Truth::Pair { current }) => {
                Truth::Solo { survivor: current.other() }
            }
            (Deed::KillBackup | Deed::StopBackup, Truth::Pair { current }) => {
                Truth::Solo { survivor: current }
            }
            (Deed::Join | Deed::BreakJoin(_), Truth::Solo { survivor }) => {
                Truth::Pair { current: survivor }
            }
            (Deed::KillLast, Truth::Solo { survivor }) => Truth::Dead { last: survivor },
            // The member that was the last to be current starts the next epoch.
            (
                Deed::Repair | Deed::DownAndUp | Deed::DieJoined,
                Truth::Solo { survivor: last } | Truth::Dead { last },
            ) => Truth::Pair { current: last },
            _ => self,
        }
    }

    /// The member that serves.
    pub fn speaker(self) -> Option<Role> {
        match self {
            Truth::Pair { current } => Some(current),
            Truth::Solo { survivor } => Some(survivor),
            Truth::Dead { .. } => None,
        }
    }
}

impl Deed {
    /// Whether the clients' connections end with the deed, as documented.
    pub fn ends_connections(self) -> bool {
        matches!(self, Deed::Repair | Deed::DownAndUp | Deed::KillLast | Deed::DieJoined)
    }

    /// Whether the pair stays protected during the deed, and every host says so.
    pub fn keeps_protection(self) -> bool {
        matches!(
            self,
            Deed::Quiet
                | Deed::Busy
                | Deed::Full
                | Deed::Pause(_)
                | Deed::Scarce(_)
                | Deed::Hup(_)
                | Deed::Clock
        )
    }

    /// Whether clients come and go as if nothing had been done.
    pub fn disturbs_nobody(self) -> bool {
        matches!(self, Deed::Quiet | Deed::Hup(_))
    }

    /// Whether a member must have taken over.
    pub fn is_takeover(self) -> bool {
        self.is_takeover_that_heals() || matches!(self, Deed::KillDaemon | Deed::StopPrimary)
    }

    fn is_takeover_that_heals(self) -> bool {
        matches!(self, Deed::KillServer | Deed::Switchover | Deed::Cut)
    }

    /// Whether the group loses its backup for a while, and then has one again without the loss of a
    /// connection.
    pub fn heals(self) -> bool {
        self.is_takeover_that_heals()
            || self.gives_up()
            || matches!(self, Deed::Join | Deed::BreakJoin(_))
    }

    /// Whether the backup gives up, and pauses longer before it joins than after an earlier time.
    pub fn gives_up(self) -> bool {
        matches!(self, Deed::KillReplica | Deed::CutBackup)
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
        let (mut takeovers, mut heals) = (0, 0);
        for _ in 0..10_000 {
            let deed = truth.draw(&mut rng, true);
            if deed.is_takeover() {
                takeovers += 1;
                let before = truth.speaker();
                assert_ne!(truth.after(deed).speaker(), before, "{deed:?}");
            }
            truth = truth.after(deed);
            if deed.heals() {
                heals += 1;
                assert!(matches!(truth, Truth::Pair { .. }), "{deed:?}");
                assert!(!deed.ends_connections(), "{deed:?}");
            }
        }
        assert!(takeovers > 1_000 && heals > 1_000, "{takeovers} {heals}");
    }

    #[test]
    fn what_is_drawn_does_not_depend_on_who_is_current() {
        let draw = |truth: Truth| {
            let mut rng = Rng::of_state(7);
            (0..100).map(|_| truth.draw(&mut rng, false)).collect::<Vec<_>>()
        };
        let pair = |current| Truth::Pair { current };
        assert_eq!(draw(pair(Role::Primary)), draw(pair(Role::Backup)));
    }
}
