//! What a member without a third party has beside its lease: the record on its own disk, a command
//! that switches the other host off, a gateway, and an operator.

use super::member::NAMES;
use super::plan::{Fault, MS, Mutation};
use super::world::{Event, World};
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::own::{LINEAGE, Own, Settings, Way};
use holdfast_cluster::arbiter::{Call, Mode, Owner, Record, Reply, Request};
use holdfast_cluster::lease::{Message, Role};

/// Times that fit the length of a run.
pub fn settings(me: Owner, peer: &str, founds: bool, way: Way) -> Settings {
    let patience = match way {
        Way::Nobody | Way::Command => [60 * MS, 120 * MS],
        Way::Gateway => [100 * MS, 120 * MS],
    };
    let (peer, retry) = (peer.to_owned(), Nanos(60 * MS));
    Settings { me, peer, founds, way, patience: patience.map(Nanos), retry }
}

impl World {
    fn own(&mut self, host: usize) -> Option<(Nanos, &mut Own)> {
        let member = &mut self.members[host];
        let now = member.now(self.now);
        member.own.as_mut().map(|own| (now, own))
    }

    pub fn asks_own(&mut self, host: usize, call: Call, request: Request) {
        self.say(|| format!("{host} > itself {} {request:?}", call.number));
        let life = self.members[host].life;
        let unasked = match self.plan.mutation {
            Some(Mutation::TakesOverUnasked) => Some(1),
            Some(Mutation::AloneUnasked) => Some(0),
            _ => None,
        };
        if let Request::Swap { expected: Some(_), next } = &request
            && unasked == Some(host)
        {
            let reply = Reply { lineage: LINEAGE, ticket: 1, outcome: Ok(Some(next.clone())) };
            return self.schedule(0, Event::Answer(host, life, call.number, reply));
        }
        let is_needless = self.plan.mutation == Some(Mutation::WordUngiven);
        let Some((now, own)) = self.own(host) else { return };
        own.handle_request(now, call.number, request);
        if is_needless {
            own.handle_word(now);
        }
        self.serves(host);
    }

    pub fn heard_own(&mut self, host: usize, message: &Message) {
        let Some((now, own)) = self.own(host) else { return };
        own.handle_heard(now, message);
        let (is_contested, is_alive) = (own.is_contested(), own.is_contested_alive());
        self.reached.contested += u64::from(is_contested);
        self.serves(host);
        let is_owner = |role| matches!(role, Role::Solo | Role::Paired | Role::Pairing);
        let role = self.members[host].machine.as_ref().map(|machine| machine.role());
        if is_alive && role.is_some_and(is_owner) {
            self.drive(host, |machine, deeds| machine.handle_resign(now, deeds));
        }
    }

    /// Does what the record's machine wants.
    fn serves(&mut self, host: usize) {
        let Some((_, own)) = self.own(host) else { return };
        let (reply, write, proof) = (own.poll_reply(), own.poll_write(), own.poll_proof());
        let life = self.members[host].life;
        if let Some((number, reply)) = reply {
            self.schedule(0, Event::Answer(host, life, number, reply));
        }
        if let Some(record) = write {
            if self.plan.mutation == Some(Mutation::AnswersFirst) {
                self.schedule(0, Event::StoredTold(host, life));
            }
            let delay = self.rng.spread(MS / 20, self.plan.disk);
            self.schedule(delay, Event::Stored(host, life, record));
        }
        if proof {
            self.seeks_proof(host);
        }
    }

    /// A record is on a member's disk.
    pub fn stored(&mut self, host: usize, life: u32, record: Record) {
        let member = &mut self.members[host];
        if member.life != life || member.own.is_none() {
            return;
        }
        self.say(|| format!("{host} has stored {record:?}"));
        let member = &mut self.members[host];
        // What a life with an empty disk learns of earlier ones it only remembers.
        let known = member.own.as_ref().and_then(|own| own.record().cloned());
        let before = member.kept.record.replace(record.clone());
        let before = before.or(known.filter(|known| *known != record));
        if record.owner.life == self.members[host].drawn {
            self.judge_own(host, before.as_ref(), &record);
        }
        if self.plan.mutation != Some(Mutation::AnswersFirst) {
            let delay = self.rng.below(MS);
            self.schedule(delay, Event::StoredTold(host, life));
        }
    }

    pub fn stored_told(&mut self, host: usize, life: u32) {
        if self.members[host].life != life {
            return;
        }
        let Some((now, own)) = self.own(host) else { return };
        own.handle_written(now, true);
        self.serves(host);
    }

    /// A member has changed the record itself. An epoch has one owner.
    fn judge_own(&mut self, host: usize, before: Option<&Record>, record: &Record) {
        self.reached.records += 1;
        let moves = before.is_some_and(|before| before.owner.name != record.owner.name);
        self.reached.takeovers += u64::from(moves);
        let is_excused = self.is_record_lost();
        let holds = !moves || self.members[host].holds() || is_excused;
        self.check.recorded(self.now, before, record, holds);
        let owner = record.owner.clone();
        let first = self.begun.entry(record.epoch).or_insert(owner);
        if *first != record.owner && !is_excused {
            let what = format!("epoch {} is of {first:?} and of {:?}", record.epoch, record.owner);
            self.check.violation(self.now, "epoch", what);
        }
    }

    /// Whether a gateway is no proof now, and nobody can know: the path between the members is cut
    /// (and two that both went on then may not have met since), or one of them stands still or has no daemon, and its kernel may speak.
    pub fn is_split(&self) -> bool {
        let is_mute = self.members.iter().any(|member| member.alive && !member.is_up());
        let is_apart = self.was_cut || is_mute || self.check.by_gateway > 0;
        self.plan.way == Some(Way::Gateway) && is_apart
    }

    fn has_lost_disk(&self) -> bool {
        self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::DiskLost { .. }))
    }

    /// Whether an epoch may come again, though no two are its owners at one time.
    pub fn is_record_lost(&self) -> bool {
        self.members[2].alive
            || self.plan.way == Some(Way::Gateway)
            || self.has_lost_disk() && self.plan.faults.len() > 1
    }

    // Proofs.

    fn reaches_third(&self, host: usize) -> bool {
        let member = &self.members[host];
        let is_away = self.witnesses[0].machine.is_none();
        member.is_up() && !member.is_deaf && !self.cut_arbiter[member.side] && !is_away
    }

    fn seeks_proof(&mut self, host: usize) {
        self.reached.proofs += 1;
        self.say(|| format!("{host} seeks a proof"));
        let life = self.members[host].life;
        let reaches = self.reaches_third(host);
        let is_command = self.plan.way == Some(Way::Command);
        let delay = if is_command { self.rng.range(5 * MS, 120 * MS) } else { 30 * MS };
        let fails = !reaches || is_command && self.rng.one_in(8);
        if is_command && !fails && self.plan.mutation != Some(Mutation::FalseProof) {
            // What the switch was told it does, whatever becomes of who told it.
            let done = self.rng.below(delay);
            self.schedule(done, Event::Shoots(1 - self.members[host].side));
        }
        if !fails {
            self.lasts_longer(delay);
        }
        self.schedule(delay, Event::Proved(host, life, !fails));
    }

    pub fn shoots(&mut self, host: usize) {
        self.say(|| format!("{host} is switched off"));
        self.reached.shot += 1;
        let boots = self.rng.one_in(2);
        self.goes_off(host, boots);
        if boots {
            let delay = self.rng.range(150 * MS, 300 * MS);
            self.lasts_longer(delay);
            self.schedule(delay, Event::Boots(host));
        }
        self.look();
    }

    pub fn proved(&mut self, host: usize, life: u32, ok: bool) {
        let ok = ok && (self.plan.way == Some(Way::Command) || self.reaches_third(host));
        self.say(|| format!("{host} has a proof: {ok}"));
        if self.members[host].life != life {
            return;
        }
        let Some((now, own)) = self.own(host) else { return };
        own.handle_proof(now, ok);
        self.serves(host);
    }

    /// In one half of the runs somebody sees after a while that a host is off for good.
    pub fn calls_operator(&mut self, host: usize) {
        if self.plan.way == Some(Way::Nobody) && host < 2 && self.plan.seed.is_multiple_of(2) {
            let delay = self.rng.range(150 * MS, 400 * MS);
            self.lasts_longer(delay);
            self.schedule(delay, Event::Word(1 - host));
        }
    }

    /// An operator gives the word where it is true: the other host is off and stays so, and has
    /// not gone on alone.
    pub fn gives_word(&mut self, host: usize) {
        let (member, other) = (&self.members[host], &self.members[1 - host]);
        let is_true = !other.alive && !other.returns && other.kept.record == member.kept.record;
        let now = member.now(self.now);
        if !is_true || !member.is_up() {
            return;
        }
        if self.own(host).is_some_and(|(_, own)| own.handle_word(now)) {
            self.say(|| format!("{host} has the operator's word"));
            self.reached.words += 1;
        }
    }

    /// Why somebody has to speak at the end.
    pub fn should_speak_alone(&self, way: Way) -> Option<&'static str> {
        let is_well = |host: usize| self.members[host].is_up() && !self.members[host].is_deaf;
        if way == Way::Gateway && self.reached.contested > 0 {
            // Both have owned one epoch, and nothing settles that but an operator.
            return None;
        }
        if self.has_lost_disk() && (way == Way::Nobody || self.plan.faults.len() > 1) {
            // What its disk knew nobody knows: that waits for an operator.
            return None;
        }
        if is_well(0) && is_well(1) && !self.cut[0] && !self.cut[1] {
            return Some("both are well");
        }
        let has_way = |host: usize| way == Way::Nobody || self.reaches_third(host);
        for host in 0..2 {
            let (member, other) = (&self.members[host], &self.members[1 - host]);
            let Some(record) = member.kept.record.as_ref().filter(|_| is_well(host)) else {
                continue;
            };
            let role = member.machine.as_ref().map(|machine| machine.role());
            let is_mine = record.owner.life == member.drawn && role != Some(Role::Resigned);
            let is_restarted = matches!(role, Some(Role::Restarting | Role::Claiming));
            if is_mine && !is_restarted && has_way(host) {
                return Some("the owner is well");
            }
            let is_backup = record.owner.name != NAMES[member.side] && record.mode == Mode::Pair;
            let is_its = other.kept.record.as_ref() == Some(record);
            if is_backup && member.holds() && is_its && !other.alive {
                let (proves, has_word) =
                    (way != Way::Nobody && has_way(host), self.reached.words > 0);
                if proves || has_word {
                    return Some("the backup is well, and has a proof");
                }
            }
        }
        None
    }
}
