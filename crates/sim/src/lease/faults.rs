//! What faults do to the world, and how they end.

use super::member::{NAMES, Still};
use super::plan::{Fault, MS, Ways};
use super::witness::{GROUP, WitnessHost};
use super::world::{Event, World};
use crate::Ns;
use crate::clock::Pause;
use holdfast_cluster::arbiter::Mode;
use holdfast_cluster::lease::Kept;

/// Time for which a claim may be under way.
const CLAIMED: Ns = 100 * MS;

impl World {
    pub fn strikes(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        self.say(|| format!("fault: {fault:?}"));
        if let Some(delay) = self.strike(fault) {
            self.lasts_longer(delay);
            self.schedule(delay, Event::Ends(number));
        }
        self.look();
    }

    /// Does it. Returns when it ends.
    fn strike(&mut self, fault: Fault) -> Option<Ns> {
        match fault {
            Fault::ArbiterDies { again } => {
                self.witness_ends();
                again
            }
            Fault::ArbiterBoots { again, .. } => {
                self.witness_ends();
                Some(again)
            }
            Fault::ArbiterCopied => {
                self.copies_witness();
                None
            }
            Fault::HostDies { member, again } => {
                self.goes_off(member, again.is_some());
                again
            }
            Fault::DiskLost { member, again } => {
                self.goes_off(member, true);
                self.members[member].kept = Kept::default();
                Some(again)
            }
            Fault::Cut { ways, lasts } => {
                self.set_cut(ways, true);
                lasts
            }
            Fault::CutArbiter { member, lasts } => {
                self.cut_arbiter[member] = true;
                Some(lasts)
            }
            Fault::Deaf { member, lasts } => {
                self.survivor = self.survives(member);
                self.members[member].is_deaf = true;
                lasts
            }
            Fault::Frozen { member, lasts } => self.stands(member, Still::Processes, lasts),
            Fault::Suspended { member, lasts } => self.stands(member, Still::Machine, lasts),
            Fault::ClockStands { member, lasts } => self.stands(member, Still::Clock, lasts),
            Fault::DaemonDies { member, told, again } => {
                let was_up = self.members[member].machine.is_some();
                self.count(member);
                self.members[member].ends();
                if told && was_up {
                    self.schedule(MS, Event::ToldGone(1 - member));
                }
                again
            }
            Fault::Resigns { member } => {
                let now = self.members[member].now(self.now);
                self.drive(member, |machine, deeds| machine.handle_resign(now, deeds));
                None
            }
            Fault::Forger { lasts } => {
                self.forges_until = self.now + lasts;
                self.schedule(0, Event::Forges);
                None
            }
            Fault::MemberCopied { member } => {
                self.members[2].side = member;
                self.members[2].alive = true;
                self.members[2].kept = self.members[member].kept.clone();
                self.starts(2);
                None
            }
        }
    }

    /// A machine is off from now on; `returns`: not for good.
    pub fn goes_off(&mut self, host: usize, returns: bool) {
        self.count(host);
        let member = &mut self.members[host];
        member.ends();
        (member.alive, member.returns) = (false, returns);
        if !returns {
            self.calls_operator(host);
        }
    }

    /// A machine that was off is on again.
    pub fn comes_back(&mut self, host: usize) {
        let member = &mut self.members[host];
        if !member.alive {
            (member.alive, member.still, member.deadline) = (true, None, 0);
            self.starts(host);
        }
    }

    /// Who has to go on when this member alone becomes deaf; nobody if it doubts already that it
    /// hears anything, or has just asked for the record: then it has heard the witness since,
    /// and no more than the answer is missing. No protocol can tell that from a lost answer.
    fn survives(&self, deaf: usize) -> Option<usize> {
        if self.plan.way.is_some() {
            return None;
        }
        let record = self.witnesses[0].machine.as_ref()?.record(GROUP)?;
        let other = 1 - deaf;
        let is_others = record.owner.name == NAMES[other];
        let holds = record.mode == Mode::Pair && self.members[other].holds();
        let member = &self.members[deaf];
        // A millisecond covers what clocks and waits for a processor make of it.
        let (heard, patience) = if is_others { (member.heard, 4) } else { (member.granted, 3) };
        let doubts = self.now - heard + MS > patience * self.plan.period / 2
            || member.claimed.is_some_and(|at| self.now - at < CLAIMED);
        (self.plan.faults.len() == 1 && !doubts && (is_others || holds)).then_some(other)
    }

    fn copies_witness(&mut self) {
        if self.witnesses.len() == 1 {
            self.witnesses.push(WitnessHost::new(self.witnesses[0].disk.clone()));
            self.witness_starts(1, true);
        }
    }

    fn stands(&mut self, member: usize, still: Still, lasts: Ns) -> Option<Ns> {
        let host = &mut self.members[member];
        if !host.alive || host.still.is_some() {
            return None;
        }
        host.still = Some((self.now, still));
        Some(lasts)
    }

    fn set_cut(&mut self, ways: Ways, yes: bool) {
        self.was_cut = true;
        if ways != Ways::FromSecond {
            self.cut[0] = yes;
        }
        if ways != Ways::FromFirst {
            self.cut[1] = yes;
        }
    }

    fn witness_ends(&mut self) {
        self.count_witness(0);
        self.witnesses[0].machine = None;
        self.witnesses[0].life += 1;
    }

    pub fn ends(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        self.say(|| format!("over: {fault:?}"));
        match fault {
            Fault::ArbiterDies { .. } => {
                if self.witnesses[0].machine.is_none() {
                    self.witness_starts(0, false);
                }
            }
            Fault::ArbiterBoots { old, .. } => self.witness_boots(old),
            Fault::HostDies { member, .. } | Fault::DiskLost { member, .. } => {
                self.comes_back(member);
            }
            Fault::Cut { ways, .. } => self.set_cut(ways, false),
            Fault::CutArbiter { member, .. } => self.cut_arbiter[member] = false,
            Fault::Deaf { member, .. } => {
                self.survivor = None;
                self.members[member].is_deaf = false;
            }
            Fault::Frozen { member, .. }
            | Fault::Suspended { member, .. }
            | Fault::ClockStands { member, .. } => self.thaws(member),
            Fault::DaemonDies { member, .. } => {
                let host = &self.members[member];
                if host.alive && host.machine.is_none() && host.still.is_none() {
                    self.starts(member);
                }
            }
            Fault::ArbiterCopied
            | Fault::Resigns { .. }
            | Fault::Forger { .. }
            | Fault::MemberCopied { .. } => {}
        }
        self.look();
    }

    fn witness_boots(&mut self, old: bool) {
        if self.witnesses[0].machine.is_some() {
            return;
        }
        let count = self.witnesses[0].earlier.len() as u64;
        if old && count > 0 {
            let index = self.rng.below(count) as usize;
            self.witnesses[0].disk = Some(self.witnesses[0].earlier[index].clone());
        }
        self.witness_starts(0, true);
    }

    fn thaws(&mut self, member: usize) {
        let host = &mut self.members[member];
        let Some((since, still)) = host.still.take() else { return };
        if still == Still::Clock {
            host.clock.paused(since, self.now, Pause::Stands);
            host.thawed = Some(self.now);
        }
        self.look();
        // What waits in sockets is read first.
        for event in std::mem::take(&mut self.members[member].waits) {
            self.handle(event);
        }
        self.turns(member);
    }
}
