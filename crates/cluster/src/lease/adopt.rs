//! What follows from the record as it was read. Whether it was won, lost, or changed by a try
//! that had been given up makes no difference: whoever finds its own life in it owns it.

use super::machine::{Lease, LeaseOutput, Note, Role};
use crate::Nanos;
use crate::arbiter::{Mode, Record, rank_of};

impl Lease {
    /// Notes which lineage of the arbiter has answered. False if that is an earlier one: what
    /// it says is not looked at, ever again.
    pub(super) fn follow_lineage(
        &mut self,
        now: Nanos,
        lineage: u64,
        out: &mut impl LeaseOutput,
    ) -> bool {
        let known = self.client.asker().lineage;
        if lineage > known {
            self.client.set_lineage(lineage);
            self.client.poll_now(now);
            out.keep(&self.kept());
            if known != 0 {
                self.counts.lineages += 1;
                out.note(Note::OtherArbiter);
            }
        }
        lineage >= known
    }

    /// Takes a record that was read.
    pub(super) fn adopt(&mut self, now: Nanos, read: Option<&Record>, out: &mut impl LeaseOutput) {
        let known = self.record();
        let order = rank_of(read).cmp(&rank_of(known));
        let differs = read.zip(known).is_some_and(|(read, known)| read.contradicts(known));
        if order.is_lt() || differs {
            self.counts.forgotten += 1;
            out.note(Note::ArbiterForgot);
            return;
        }
        if order.is_eq() && self.is_mine() {
            // What it was before is what a try has not changed yet.
            return;
        }
        if order.is_gt() {
            self.client.set_known(read.expect("a later rank has a record").clone());
            out.keep(&self.kept());
        }
        match read {
            None if self.setup.preferred && self.role == Role::Starting => {
                self.role = Role::Claiming;
            }
            None if self.role == Role::Starting => self.role = Role::Waiting,
            None => {}
            Some(record) if record.owner == self.setup.me => self.own(record, out),
            Some(record) if record.owner.name == self.setup.me.name => {
                self.find_other_life(now, out)
            }
            Some(record) => self.find_peer(record, out),
        }
    }

    /// The record is this life's.
    fn own(&mut self, record: &Record, out: &mut impl LeaseOutput) {
        let before = self.role;
        if matches!(before, Role::Resigned | Role::Restarting) {
            return;
        }
        if before == Role::Claiming && record.mode == Mode::Pair {
            // It has asked for that before it resigned, and has lost its connections since:
            // it goes on claiming.
            return;
        }
        if before == Role::Claiming && self.in_step.is_none() && record.epoch == 1 {
            out.note(Note::Founded);
        } else if !matches!(before, Role::Paired | Role::Pairing | Role::Solo) {
            out.note(Note::TookOver);
        }
        match record.mode {
            Mode::Pair => {
                self.role = Role::Paired;
                out.note(Note::Protected);
            }
            Mode::Solo => {
                self.role = Role::Solo;
                self.in_step = None;
                out.note(Note::Unprotected);
            }
        }
    }

    /// The record is another life's of this name.
    fn find_other_life(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        match self.role {
            // A try of that life may have been granted after this one has read the record.
            Role::Starting | Role::Waiting => self.restart(now),
            Role::Restarting => {}
            Role::Claiming if self.in_step.is_none() => {}
            _ => self.step_down(Note::Copied, out),
        }
    }

    /// The record is the other member's.
    fn find_peer(&mut self, record: &Record, out: &mut impl LeaseOutput) {
        match self.role {
            Role::Starting => self.role = Role::Waiting,
            Role::Waiting => {}
            Role::Paired | Role::Pairing | Role::Solo | Role::Resigned => {
                self.step_down(Note::Deposed, out);
            }
            Role::Restarting => self.step_down(Note::Deposed, out),
            Role::Claiming if self.in_step.is_none() => self.step_down(Note::Deposed, out),
            // A later epoch began with one who was alone: it has dropped what was in step in
            // this one, even if it is a pair's by now.
            Role::Following | Role::Claiming if self.in_step < Some(record.epoch) => {
                self.step_down(Note::Barred, out);
            }
            Role::Claiming if record.mode == Mode::Solo => self.step_down(Note::Barred, out),
            Role::Following | Role::Claiming => {}
        }
    }

    fn step_down(&mut self, why: Note, out: &mut impl LeaseOutput) {
        (self.role, self.in_step) = (Role::Waiting, None);
        out.note(why);
    }
}
