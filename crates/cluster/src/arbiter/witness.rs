//! The witness: an arbiter of our own on any third computer, for many groups.
//!
//! It forgets nothing that it has answered: a record is written, then true. What it cannot
//! know by itself is that its disk is an old one (a restored snapshot, a copied machine, a
//! new disk). Then a record that it granted may be unknown to it, and to the member that
//! would ask next; only the member that owns it knows, and speaks. So a witness whose disk
//! may be old grants nothing before *both* members have told it what they know, and takes
//! the newest of what it was told and what it has. "May be old" is: its host was started
//! since the file was last found to be the newest, or a member knows more. Corosync's
//! `wait_for_all` is the same caution.
//!
//! Each time, the group gets a later *lineage*: a count, and a number of the host's boot.
//! Members ask one lineage and never an earlier one again, and are told to a lineage by
//! both before it grants anything. So of two witnesses in one name only one can grant: when
//! a second lineage does, both members have left the first, and have said what it granted.
//! Two that are asked in turn outbid each other, and grant nothing.
//!
//! A record is changed only for a member who hears this witness now: every reply has a
//! ticket, which says when it was made and for which life, and a change needs one that is
//! young. The witness keeps nothing of them: whoever repeats an old question gets a ticket
//! that only its member could use, and takes nobody's away.
//!
//! What is left to trust: a disk that is put back under a witness whose host is not started
//! again, and whose owner is not heard before the other member asks; and a copy of a member,
//! if the original cannot be heard, or if the disk is an old one as well.

use super::stored::{GroupState, is_pair};
use super::{Asker, Mode, Record, Refusal, Reply, Request, rank_of};
use crate::Nanos;
use crate::state::is_member_name;
use std::collections::BTreeMap;

/// Sizes and times of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessLimits {
    /// Most groups.
    pub groups_max: usize,
    /// Time for which the owner's life must not have been heard before another life of the
    /// same name gets its record. Members ask several times a second.
    pub owner_quiet: Nanos,
    /// Time for which a ticket is good. A change that was asked for and came late is not made.
    pub ticket_age: Nanos,
}

impl WitnessLimits {
    /// What a witness has unless its file says something else.
    pub const STANDARD: Self = Self {
        groups_max: 1024,
        owner_quiet: Nanos::from_ms(3500),
        ticket_age: Nanos::from_ms(500),
    };
}

/// What is to be done about a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Make this durable, then call [`Witness::handle_persisted`], and answer with what that
    /// returns.
    Persist(GroupState),
    Answer(Reply),
}

/// How often what was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes of records.
    pub changes: u64,
    pub refusals: u64,
    /// Members that knew more than the disk.
    pub behind: u64,
    pub conflicts: u64,
    /// Questions that were meant for another lineage.
    pub misdirected: u64,
    /// Requests of another life of an owner that lives.
    pub copies: u64,
    /// Changes that were not made for want of a ticket.
    pub unproven: u64,
}

#[derive(Clone, Debug)]
struct Group {
    state: GroupState,
    /// The lineage that both members are waited for in, or that is settled.
    lineage: u64,
    /// Whether the record is the newest for all that the members know.
    settled: bool,
    /// Whether a member has known more.
    behind: bool,
    /// What each member has said that it knows, since it is not settled.
    told: [Option<Option<Record>>; 2],
    /// What is being written, and the life that has asked for it.
    pending: Option<(GroupState, u64)>,
    /// When the owner's life was last heard.
    owner_heard: Nanos,
}

/// The witness; see the module.
///
/// # Contract
/// * After [`Decision::Persist`] write and sync the state, then call `handle_persisted`, then
///   answer. If writing fails, call `handle_persist_failed`, and answer with that. Other
///   questions may come meanwhile.
/// * `boot` is drawn at random, not 0, once per boot of the host, and kept where it does not outlive
///   that: a witness that is started again in the same boot has nothing to wait for.
/// * `run` is drawn at random once per `Witness`: no ticket outlives it.
#[derive(Clone, Debug)]
pub struct Witness {
    boot: u32,
    run: u64,
    limits: WitnessLimits,
    groups: BTreeMap<String, Group>,
    counts: Counts,
}

impl Witness {
    /// A witness with what its disk has.
    #[must_use]
    pub fn new(
        now: Nanos,
        (boot, run): (u32, u64),
        limits: WitnessLimits,
        stored: impl IntoIterator<Item = GroupState>,
    ) -> Self {
        assert!(boot != 0, "0 is the boot of a group that was never settled");
        let group = |state: GroupState| (state.group.clone(), Group::new(now, state, boot));
        let groups = stored.into_iter().map(group).collect();
        Self { boot, run, limits, groups, counts: Counts::default() }
    }

    /// How often what was met.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The record of a group, as far as it is durable.
    #[must_use]
    pub fn record(&self, group: &str) -> Option<&Record> {
        self.groups.get(group)?.state.record.as_ref()
    }

    /// Whether the group's record is the newest for all that the members know.
    #[must_use]
    pub fn is_settled(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| group.settled)
    }

    /// Takes a question of a member, which the group's key has proven.
    pub fn handle_question(&mut self, now: Nanos, asker: &Asker, request: &Request) -> Decision {
        let said = self.consider(now, asker, request);
        match said {
            Ok(None) => {
                let outcome = Ok(self.record(&asker.group).cloned());
                Decision::Answer(self.reply(now, &asker.group, asker.from.life, outcome))
            }
            Ok(Some(persist)) => {
                let group = self.groups.get_mut(&asker.group);
                group.expect("it was considered").pending =
                    Some((persist.clone(), asker.from.life));
                Decision::Persist(persist)
            }
            Err(refusal) => {
                Decision::Answer(self.refuse(now, &asker.group, asker.from.life, refusal))
            }
        }
    }

    fn reply(
        &self,
        now: Nanos,
        group: &str,
        life: u64,
        outcome: Result<Option<Record>, Refusal>,
    ) -> Reply {
        let lineage = self.groups.get(group).map_or(0, |group| group.lineage);
        Reply { lineage, ticket: self.tickets_of(life).wrapping_add(now.0), outcome }
    }

    /// The number from which tickets of this life count: far from those of any other life, and
    /// of any other run.
    fn tickets_of(&self, life: u64) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        (self.run ^ life).wrapping_mul(ODD)
    }

    /// Whether the asker has had a reply a moment ago.
    fn is_proven(&self, now: Nanos, asker: &Asker) -> bool {
        let at = asker.ticket.wrapping_sub(self.tickets_of(asker.from.life));
        asker.ticket != 0 && at <= now.0 && now.0 - at < self.limits.ticket_age.0
    }

    fn refuse(&mut self, now: Nanos, group: &str, life: u64, refusal: Refusal) -> Reply {
        self.counts.refusals += 1;
        match refusal {
            Refusal::Conflict => self.counts.conflicts += 1,
            Refusal::OtherLineage => self.counts.misdirected += 1,
            Refusal::OwnerLives => self.counts.copies += 1,
            Refusal::Unproven => self.counts.unproven += 1,
            _ => {}
        }
        self.reply(now, group, life, Err(refusal))
    }

    /// What is to be written, `None` if the record is the answer.
    fn consider(
        &mut self,
        now: Nanos,
        asker: &Asker,
        request: &Request,
    ) -> Result<Option<GroupState>, Refusal> {
        let is_proven = self.is_proven(now, asker);
        let Asker { group: name, from, peer, lineage, known, .. } = asker;
        let mut members = [from.name.clone(), peer.clone()];
        members.sort();
        if !is_member_name(name) || !is_pair(&members[0], &members[1]) || from.life == 0 {
            return Err(Refusal::Name);
        }
        if !self.groups.contains_key(name) {
            if self.groups.len() >= self.limits.groups_max {
                return Err(Refusal::TooManyGroups);
            }
            let (group, members) = (name.clone(), members.clone());
            let state = GroupState { group, members, lineage: 0, record: None };
            self.groups.insert(name.clone(), Group::new(now, state, self.boot));
        }
        let group = self.groups.get_mut(name).expect("it is there by now");
        if group.state.members != members {
            return Err(Refusal::Stranger);
        }
        // A question that was under way while this witness's host was started again says
        // what its asker knew then, not what it knows.
        if *lineage != group.lineage {
            if *lineage > group.lineage {
                group.begin_lineage(*lineage, self.boot);
            }
            return Err(Refusal::OtherLineage);
        }
        if group.state.record.as_ref().is_some_and(|record| record.owner == *from) {
            group.owner_heard = now;
        }
        if group.settled && group.is_behind(known.as_ref()) {
            self.counts.behind += 1;
            group.begin_lineage(group.lineage, self.boot);
            group.behind = true;
            return Err(Refusal::Behind);
        }
        if !group.settled {
            let index = usize::from(members[1] == from.name);
            return group.settle(index, known.clone()).map(Some);
        }
        match request {
            Request::Read => Ok(None),
            Request::Swap { expected, next } => {
                let quiet = now.since(group.owner_heard) >= self.limits.owner_quiet;
                let change = group.swap(asker, expected.as_ref(), next, quiet)?;
                if change.is_some() && !is_proven {
                    return Err(Refusal::Unproven);
                }
                Ok(change)
            }
        }
    }

    /// Notes that what the last [`Decision::Persist`] of this group said is on disk. Returns
    /// the answer to the question that led to it; `None` if nothing was being written.
    pub fn handle_persisted(&mut self, now: Nanos, name: &str) -> Option<Reply> {
        let group = self.groups.get_mut(name)?;
        let (pending, life) = group.pending.take()?;
        let before = rank_of(group.state.record.as_ref());
        let after = rank_of(pending.record.as_ref());
        assert!(after >= before, "L3: an epoch is taken back");
        self.counts.changes += u64::from(after > before);
        group.state = pending;
        if group.state.lineage != group.lineage {
            // Somebody who knows more, or asks a later lineage, has come meanwhile.
            let refusal = group.waits();
            return Some(self.refuse(now, name, life, refusal));
        }
        (group.settled, group.behind, group.told) = (true, false, [None, None]);
        let outcome = Ok(group.state.record.clone());
        Some(self.reply(now, name, life, outcome))
    }

    /// Notes that writing failed: everything is as before. Returns the answer to the
    /// question; `None` if nothing was being written.
    pub fn handle_persist_failed(&mut self, now: Nanos, name: &str) -> Option<Reply> {
        let (_, life) = self.groups.get_mut(name)?.pending.take()?;
        Some(self.refuse(now, name, life, Refusal::NotWritten))
    }
}

impl Group {
    fn new(now: Nanos, state: GroupState, boot: u32) -> Self {
        // Its lower half says in which boot the record was last settled.
        let (lineage, settled) = (state.lineage, state.lineage as u32 == boot);
        let (behind, told, pending, owner_heard) = (false, [None, None], None, now);
        let mut group = Self { state, lineage, settled, behind, told, pending, owner_heard };
        if !settled {
            group.begin_lineage(lineage, boot);
        }
        group
    }

    /// Begins a lineage after this one: both members have to say what they know.
    fn begin_lineage(&mut self, after: u64, boot: u32) {
        let count = (after >> 32).saturating_add(1).min(u64::from(u32::MAX));
        self.lineage = (count << 32 | u64::from(boot)).max(self.lineage);
        (self.settled, self.behind, self.told) = (false, false, [None, None]);
    }

    /// Whether a member knows what this record does not.
    fn is_behind(&self, known: Option<&Record>) -> bool {
        let Some(known) = known else { return false };
        let is_news = |record: &Record| known.rank() > record.rank() || known.contradicts(record);
        self.state.record.as_ref().is_none_or(is_news)
    }

    /// What a member is told that waits for the other one.
    fn waits(&self) -> Refusal {
        if self.behind { Refusal::Behind } else { Refusal::Settling }
    }

    /// Notes what a member knows, while this is not settled. Returns what settles it.
    fn settle(&mut self, index: usize, known: Option<Record>) -> Result<GroupState, Refusal> {
        self.told[index] = Some(known);
        let [Some(one), Some(other)] = &self.told else { return Err(self.waits()) };
        if self.pending.is_some() {
            return Err(Refusal::Busy);
        }
        let all = [one.as_ref(), other.as_ref(), self.state.record.as_ref()];
        let newest = all.into_iter().flatten().max_by_key(|record| record.rank());
        let differs = |it: &Record| newest.is_some_and(|newest| it.contradicts(newest));
        if all.into_iter().flatten().any(differs) {
            return Err(Refusal::Conflict);
        }
        let (lineage, record) = (self.lineage, newest.cloned());
        Ok(GroupState { lineage, record, ..self.state.clone() })
    }

    /// What a compare-and-swap writes; `None` if it changes nothing. `quiet`: whether the
    /// owner's life has not been heard for long enough.
    fn swap(
        &self,
        asker: &Asker,
        expected: Option<&Record>,
        next: &Record,
        quiet: bool,
    ) -> Result<Option<GroupState>, Refusal> {
        if self.pending.is_some() {
            return Err(Refusal::Busy);
        }
        let record = self.state.record.as_ref();
        // Won already: the answer was lost, and the asker asks again.
        if record == Some(next) || record != expected {
            return Ok(None);
        }
        if next.owner != asker.from || !next.may_follow(record) {
            return Err(Refusal::Change);
        }
        if let Some(record) = record {
            let is_same_member = record.owner.name == next.owner.name;
            if record.mode == Mode::Solo && !is_same_member {
                return Err(Refusal::Barred);
            }
            if is_same_member && record.owner.life != next.owner.life && !quiet {
                return Err(Refusal::OwnerLives);
            }
        }
        let (lineage, record) = (self.lineage, Some(next.clone()));
        Ok(Some(GroupState { lineage, record, ..self.state.clone() }))
    }
}

#[cfg(test)]
mod tests;
