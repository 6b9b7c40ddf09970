//! When the machine asks for another record: a backup whose primary is gone, a primary whose
//! backup is, one that runs alone and has found a backup, and one that resigns.

use super::machine::{Lease, LeaseOutput, Note, Role};
use super::message::{Kind, Message};
use crate::Nanos;
use crate::arbiter::{Mode, Record};

/// How often a member says that it leaves.
const LEAVE_WORDS: u32 = 3;

impl Lease {
    /// The host says that the owner's daemon is gone (its channel was closed): that is no
    /// proof of silence, because the owner's kernel speaks until its deadline.
    pub fn handle_peer_gone(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if self.role == Role::Following {
            self.claim(now, Note::PeerSilent, out);
            self.act(now, out);
        }
    }

    /// The host says that this member cannot serve any more (its server died, its clients
    /// are out of reach, an operator hands over): it falls silent, then says so.
    pub fn handle_resign(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if !matches!(self.role, Role::Paired | Role::Pairing | Role::Solo) {
            return;
        }
        // Only a pair is of use to the other one.
        if self.role != Role::Pairing || self.withdraws {
            self.client.give_up(now);
        }
        self.role = Role::Resigned;
        self.store(now, out);
        self.send(now, Kind::Resign, out);
        self.act(now, out);
    }

    /// The host says that this member is to begin a group that has no record.
    pub fn handle_found(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if self.role == Role::Waiting && self.record().is_none() {
            self.role = Role::Claiming;
            self.act(now, out);
        }
    }

    /// The host says that a member which is alone begins another epoch: who might have been its
    /// backup in this one never will be.
    pub fn handle_anew(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        let may = match self.role {
            Role::Solo => self.may_change(),
            Role::Pairing => !self.withdraws,
            _ => false,
        };
        if may {
            self.in_step = None;
            self.withdraws = self.role == Role::Pairing;
            self.change(now, Nanos(0), Mode::Solo);
            self.act(now, out);
        }
    }

    /// The host says that a member which has resigned can serve again, if nobody has taken
    /// over: its connections are lost.
    pub fn handle_resume(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if self.role == Role::Resigned {
            self.restart(now);
            self.act(now, out);
        }
    }

    /// The host says that this member is about to end: its owner need not wait for grants.
    pub fn handle_leave(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if !matches!(self.role, Role::Following | Role::Waiting) {
            return;
        }
        (self.role, self.in_step) = (Role::Waiting, None);
        // One of them may be lost.
        for _ in 0..LEAVE_WORDS {
            self.send(now, Kind::Word, out);
        }
    }

    /// The record is this member's, and its connections are lost: a backup may hold them.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.role = Role::Restarting;
        self.in_step = None;
        self.claim_at = now.plus(self.setup.timing.patience());
    }

    pub(super) fn take_resign(&mut self, now: Nanos, word: &Message, out: &mut impl LeaseOutput) {
        let is_of_now = word.epoch >= self.known_epoch();
        match self.role {
            Role::Following if is_of_now => {
                self.release();
                self.claim(now, Note::PeerResigned, out);
                self.resigned_to = true;
            }
            Role::Claiming if is_of_now && self.claims_as_backup() => {
                self.release();
                self.resigned_to = true;
            }
            // Won, and waiting for its promise to end: the other one does not know that yet.
            Role::Solo if self.deadline() == 0 => self.release(),
            _ => {}
        }
    }

    /// Whether this member takes over what it holds; else it claims a service whose
    /// connections are lost, or that has none yet.
    pub(super) fn claims_as_backup(&self) -> bool {
        self.role == Role::Claiming && self.in_step.is_some()
    }

    pub(super) fn claim(&mut self, now: Nanos, why: Note, out: &mut impl LeaseOutput) {
        // Who has just heard the owner resign does not doubt that it hears.
        let doubted = if why == Note::PeerResigned { Nanos(0) } else { self.doubts_at() };
        (self.role, self.doubted) = (Role::Claiming, doubted.min(now));
        self.resigned_to = false;
        out.note(why);
        // A record of one who ran alone may be a pair's by now.
        if self.record().is_some_and(|record| record.mode == Mode::Solo) {
            self.client.poll_now(now);
        }
    }

    /// Whether a change may be asked for now: the record that is known is not older than what
    /// the other member has said. An arbiter that says otherwise is not the one that the
    /// other one asked. No record follows the last one that there can be.
    fn may_change(&self) -> bool {
        let known = self.known_epoch();
        !self.client.is_changing() && self.peer_epoch <= known && known < u64::MAX
    }

    pub(super) fn may_go_solo(&self) -> bool {
        // A pair that was asked for is withdrawn by asking for something else.
        match self.role {
            Role::Paired => self.may_change(),
            Role::Pairing => !self.withdraws,
            _ => false,
        }
    }

    /// Decides what follows from the time and from what is known.
    pub(super) fn decide(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        if self.is_in_the_dark() && now >= self.doubts_at() {
            self.client.poll_now(now);
        }
        match self.role {
            Role::Following if now >= self.declared_at() => {
                self.claim(now, Note::PeerSilent, out);
            }
            Role::Restarting if now >= self.claim_at => self.role = Role::Claiming,
            Role::Paired | Role::Pairing if now >= self.solo_at() && self.may_go_solo() => {
                let since = self.doubts_at();
                self.withdraws = self.role == Role::Pairing;
                out.note(Note::NoGrants);
                self.change(now, since, Mode::Solo);
            }
            Role::Solo if self.may_pair(now) => {
                // From here on the record may be a pair's: what was said is not unsaid by
                // an answer that does not come.
                (self.role, self.withdraws) = (Role::Pairing, false);
                self.store(now, out);
                self.change(now, Nanos(0), Mode::Pair);
            }
            _ => {}
        }
        if self.role == Role::Claiming && self.is_claimable() && self.may_change() {
            let since = if self.claims_as_backup() { self.doubted } else { now };
            self.change(now, since, Mode::Solo);
        }
    }

    /// A pair is asked for only of an arbiter that answers: until it has, a second fault
    /// stops the service.
    fn may_pair(&self, now: Nanos) -> bool {
        self.in_step == Some(self.known_epoch())
            && self.deadline() == u64::MAX
            && self.is_granted_lately(now)
            && self.client.is_answered()
            && self.may_change()
    }

    /// Whether the record is one that this member may make its own.
    fn is_claimable(&self) -> bool {
        let name = &self.setup.me.name;
        let may = |record: &Record| record.mode == Mode::Pair || record.owner.name == *name;
        self.record().is_none_or(may)
    }

    fn change(&mut self, now: Nanos, since: Nanos, mode: Mode) {
        let expected = self.record().cloned();
        let epoch = match mode {
            Mode::Pair => self.known_epoch(),
            Mode::Solo => self.known_epoch() + 1,
        };
        let next = Record { epoch, owner: self.setup.me.clone(), mode };
        self.client.change(now, since, expected, next);
    }
}
