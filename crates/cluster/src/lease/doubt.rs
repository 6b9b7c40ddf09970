//! When a member gives the other one up, and when it begins to doubt what it hears itself.

use super::machine::{Lease, Role};
use crate::Nanos;

impl Lease {
    /// When a primary gives up its backup: once grants are missing, or at once where that one has
    /// said that it is in step no more.
    pub(super) fn solo_at(&self) -> Nanos {
        if let Some(left) = self.left {
            return left;
        }
        let granted = self.granted.unwrap_or_default();
        granted.plus(self.setup.timing.solo()).max(self.excused)
    }

    /// Since when the other member does not hear this one, as far as it says; now if it does.
    pub(super) fn unheard_since(&self, now: Nanos) -> Nanos {
        self.link.unheard_since().unwrap_or(now)
    }

    /// Whether the other member hears this one, as far as it says.
    pub(super) fn is_heard(&self, now: Nanos) -> bool {
        now < self.unheard_since(now).plus(self.setup.timing.declare())
    }

    /// When a backup gives up its owner, which is silent, or deaf: its questions come, and echo
    /// nothing of what was granted, twice and for as long as a silence would have to last. One
    /// that cannot hear will fall silent, and grants would only put off the end of the promise.
    /// Who is deaf to everybody cannot win the record before ([`crate::arbiter::Arbiter`]); who
    /// is deaf to this member alone asks to go on alone half a period earlier, by the same
    /// grants that are missing. So the rule is here, where the echoes are, and needs nothing of
    /// the host.
    pub(super) fn declared_at(&self) -> Nanos {
        let unheard = self.unheard_since(self.heard);
        let twice = Nanos(3 * self.setup.timing.period().0 / 2);
        let is_deaf = self.heard >= unheard.plus(twice);
        let since = if is_deaf { unheard } else { self.heard };
        since.plus(self.setup.timing.declare())
    }

    /// When this member gives up the other one, as things are.
    pub(super) fn gives_up_at(&self) -> Option<Nanos> {
        match self.role {
            Role::Paired | Role::Pairing if self.may_go_solo() => Some(self.solo_at()),
            Role::Following => Some(self.declared_at()),
            _ => None,
        }
    }

    /// When this member doubts that it hears anything: a period before it gives the other one
    /// up. From then on it needs to hear the arbiter, to change the record.
    pub(super) fn doubts_at(&self) -> Nanos {
        let period = self.setup.timing.period();
        self.gives_up_at().map_or(Nanos(0), |at| Nanos(at.0.saturating_sub(period.0)))
    }

    /// Whether it will have to read the record at `doubts_at`, so that the change need not wait
    /// for a ticket then.
    pub(super) fn is_in_the_dark(&self) -> bool {
        let is_idle = !self.client.is_asking() && !self.client.is_changing();
        is_idle && self.gives_up_at().is_some() && !self.client.is_heard_since(self.doubts_at())
    }

    /// Whether the newest grant is one of the last two periods.
    pub(super) fn is_granted_lately(&self, now: Nanos) -> bool {
        let lately = Nanos(2 * self.setup.timing.period().0);
        self.granted.is_some_and(|sent| now.since(sent) <= lately)
    }

    /// Whether the owner's life is the one that is believed, and is not silent: a copy of
    /// the member does not come between.
    pub(super) fn keeps_owner(&self, now: Nanos) -> bool {
        let owner = self.record().map(|record| record.owner.life);
        self.role == Role::Following
            && owner == Some(self.link.believed())
            && now < self.declared_at()
    }
}
