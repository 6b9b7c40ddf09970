//! Who holds V, and what becomes of the frames that come for it.

use super::{
    CLAIMS_MAX, MISSED, Nanos, Other, RETRY_MAX, RETRY_MIN, Relay, Says, Segment, UNANSWERED_CLAIM,
    UNANSWERED_MAX, UNSEEN_CLAIM, UNSEEN_MAX, View,
};
use holdfast_wire::segment::Mode;

impl Segment {
    /// Decides what this member says of itself. `before`: what was known at the last turn.
    pub(super) fn decide(&mut self, now: Nanos, before: View) {
        let view = self.view;
        let sees = self.unseen < UNSEEN_MAX;
        let able = view.follows && view.has_link && !self.parted;
        let offers = self.offers(now);
        self.says = Says { offers, able, sees, ..self.says };
        let speaks = view.leads && view.speaks;
        let holds = match self.mode {
            Mode::Flood => speaks && self.claims(now, before),
            Mode::Clone => speaks,
            Mode::Chain if view.follows => able && self.other.is_some_and(|it| it.says.offers),
            Mode::Chain => speaks && !self.is_chained(),
        };
        self.says.holds = holds;
    }

    /// Whether the other member holds V, as this one wants it.
    pub(super) fn is_chained(&self) -> bool {
        self.says.offers && self.other.is_some_and(|it| it.says.holds)
    }

    /// Whether the other member is to hold V: if it could, and hands on what comes.
    fn offers(&mut self, now: Nanos) -> bool {
        let View { leads, hears_other, .. } = self.view;
        if self.mode != Mode::Chain || !leads || !hears_other {
            (self.broken, self.retry_after) = (false, Nanos(0));
            self.retry_at = now;
            return false;
        }
        if self.is_chained() && self.unanswered >= UNANSWERED_MAX {
            let longer = Nanos(self.retry_after.0.saturating_mul(2));
            (self.broken, self.retry_after) = (true, longer.max(RETRY_MIN).min(RETRY_MAX));
            self.retry_at = now.plus(self.retry_after);
        }
        // It has held for as long as it had been given up.
        let holds_since = self.since.plus(self.retry_after);
        if self.is_chained() && self.unanswered < UNANSWERED_MAX && now > holds_since {
            (self.broken, self.retry_after) = (false, Nanos(0));
        }
        self.fresh(now).is_some_and(|other| other.says.able) && now >= self.retry_at
    }

    /// Whether this member, which speaks, has to take V although the segment ought to flood.
    fn claims(&mut self, now: Nanos, before: View) -> bool {
        let begins = !(before.leads && before.speaks);
        if begins {
            self.claims = 0;
        }
        // One whose link is cut misses no flood.
        let lost = self.heard.and(self.fresh(now)).is_some()
            && self.unseen >= UNSEEN_CLAIM
            && self.unanswered >= UNANSWERED_CLAIM;
        self.claims += u32::from(lost && !self.claiming);
        self.claiming = lost;
        // Who takes over may do so where the switch knows V at the port of the one that is gone.
        lost || self.claims >= CLAIMS_MAX || begins && !self.says.sees
    }

    /// What the kernel does with frames to V besides giving them to a member that speaks.
    pub(super) fn relay(&self, now: Nanos) -> Relay {
        let View { leads, follows, hears_other, .. } = self.view;
        let (fresh, is_there) = (self.fresh(now), leads && hears_other);
        // A flood is needed no more than by one who does not see it.
        let blind = fresh.filter(|other| !other.says.sees);
        match self.mode {
            Mode::Chain if follows => self.other.map_or(Relay::Nothing, |it| Relay::HandOn(it.mac)),
            Mode::Clone if is_there => fresh.map_or(Relay::Nothing, |it| Relay::Copy(it.mac)),
            Mode::Flood if is_there => blind.map_or(Relay::Nothing, |it| Relay::Copy(it.mac)),
            Mode::Flood if follows => blind.map_or(Relay::Nothing, |it| Relay::HandOn(it.mac)),
            Mode::Flood | Mode::Chain | Mode::Clone => Relay::Nothing,
        }
    }

    /// The other member, if it was heard here of late.
    fn fresh(&self, now: Nanos) -> Option<Other> {
        self.other.filter(|other| now.since(other.at) <= MISSED)
    }
}
