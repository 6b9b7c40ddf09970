//! The world: virtual time, three hosts that may be members (the third is a copy), two that
//! may be witnesses (the second is a copy), and the paths between them.

use super::check::{Checkers, Excuse, Speaks};
use super::member::{ASKS, Deed, Deeds, Member, NAMES, Still};
use super::plan::{MS, Mutation, Plan};
use super::witness::{GROUP, WitnessHost};
use super::{Outcome, Reached};
use crate::queue::Queue;
use crate::trace::Trace;
use crate::{Ns, Rng};
use holdfast_cluster::arbiter::stored::GroupState;
use holdfast_cluster::arbiter::{Asker, Call, Mode, Owner, Record, Reply, Request};
use holdfast_cluster::lease::{Kind, LEASE_BYTES, Lease, Message, Note, Role};
use std::collections::BTreeMap;

/// Time after the last fault after which everything must have been sorted out.
const REST: Ns = 900 * MS;
/// Time before the end in which nothing is lost or late.
const CALM: Ns = 300 * MS;
const LOOK_EVERY: Ns = 30 * MS;
/// Time after which the server of a member that has resigned is there again.
const BUILDS: Ns = 150 * MS;
/// Most events of a run, more than any run needs.
const EVENTS_MAX: u64 = 100_000;

pub enum Event {
    ToMember(usize, [u8; LEASE_BYTES]),
    Answer(usize, u32, u64, Reply),
    Turn(usize, u32),
    /// At a witness: from which host and life, and the try's number.
    Question(usize, usize, u32, u64, Box<(Asker, Request)>),
    /// A witness's file is on its disk.
    Written(usize, u32, Box<GroupState>),
    /// The kernel is told a little late.
    Silenced(usize),
    Strikes(usize),
    Ends(usize),
    /// The other member is told that this one's daemon is gone.
    ToldGone(usize),
    Looks,
    Forges,
    /// At a member without a third party, and of which life: a record is on its disk, and it is
    /// told so.
    Stored(usize, u32, Record),
    StoredTold(usize, u32),
    /// A host is switched off by the other one's command, and what became of a proof.
    Shoots(usize),
    Proved(usize, u32, bool),
    Boots(usize),
    /// An operator gives the word to this one.
    Word(usize),
}

pub struct World {
    pub plan: Plan,
    pub now: Ns,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub trace: Trace,
    pub check: Checkers,
    pub members: Vec<Member>,
    pub witnesses: Vec<WitnessHost>,
    /// Whether what a member sends to the other one is lost.
    pub cut: [bool; 2],
    /// Whether a member and the witness do not reach each other.
    pub cut_arbiter: [bool; 2],
    /// Whether the paths between the members were ever cut.
    pub was_cut: bool,
    /// Who has begun which epoch, where there is no third party that knows.
    pub begun: BTreeMap<u64, Owner>,
    /// Who has to speak while the other one, and nothing else, is deaf.
    pub survivor: Option<usize>,
    pub forges_until: Ns,
    recorded: Vec<[u8; LEASE_BYTES]>,
    /// Who waits for a witness's disk.
    pub waiting: [Option<(usize, u32, u64)>; 2],
    /// Epoch in which the hosts saw that they could join, when they last looked.
    joinable: Option<u64>,
    pub reached: Reached,
    events: u64,
    end: Ns,
}

impl World {
    pub fn new(plan: Plan, traced: bool) -> Self {
        let last = plan.faults.last().map_or(300 * MS, |fault| fault.0);
        let mut world = Self {
            now: 0,
            rng: Rng::new(plan.seed, 72),
            queue: Queue::default(),
            trace: Trace::new(traced),
            check: Checkers::default(),
            members: (0..3).map(|number| Member::new(number.min(2), &plan)).collect(),
            witnesses: vec![WitnessHost::new(None)],
            cut: [false; 2],
            cut_arbiter: [false; 2],
            was_cut: false,
            begun: BTreeMap::new(),
            survivor: None,
            forges_until: 0,
            recorded: Vec::new(),
            waiting: [None; 2],
            joinable: None,
            reached: Reached::default(),
            events: 0,
            end: last + REST,
            plan,
        };
        world.members[2].alive = false;
        world.witness_starts(0, true);
        world.starts(0);
        world.starts(1);
        for (number, (at, _)) in world.plan.faults.clone().iter().enumerate() {
            world.queue.push(*at, Event::Strikes(number));
        }
        world.schedule(LOOK_EVERY, Event::Looks);
        world
    }

    pub fn run(mut self) -> Outcome {
        while let Some((at, event)) = self.queue.pop() {
            if at > self.end || self.events > EVENTS_MAX {
                break;
            }
            self.now = at;
            self.events += 1;
            self.handle(event);
        }
        self.now = self.end;
        if self.events > EVENTS_MAX {
            self.check.violation(self.now, "storm", "more events than any run needs".to_owned());
        }
        self.look();
        let should = self.should_speak();
        let speaks = self.check.ends(self.now, should);
        if let Some(host) = self.survivor.filter(|host| !self.members[*host].speaks(self.now)) {
            let what = format!("{host} hears, has all that it needs, and does not speak");
            self.check.violation(self.now, "liveness", what);
        }
        (0..3).for_each(|host| self.count(host));
        (0..self.witnesses.len()).for_each(|witness| self.count_witness(witness));
        Outcome {
            seed: self.plan.seed,
            events: self.events,
            virtual_ns: self.now,
            reached: self.reached,
            silence: self.check.longest_silence,
            speaks,
            by_clock: self.check.by_clock,
            by_copy: self.check.by_copy,
            by_gateway: self.check.by_gateway,
            violations: self.check.violations,
            trace: self.trace.into_lines(),
        }
    }

    pub fn schedule(&mut self, delay: Ns, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.add(self.now, line);
    }

    /// Everything goes on for as long after this fault as after the last one.
    pub fn lasts_longer(&mut self, delay: Ns) {
        self.end = self.end.max(self.now + delay + REST);
    }

    pub fn handle(&mut self, event: Event) {
        let Some(event) = self.defer(event) else { return };
        match event {
            Event::ToMember(host, bytes) => self.hears(host, &bytes),
            Event::Answer(host, life, number, reply) => self.answered(host, life, number, &reply),
            Event::Turn(host, life) => {
                let member = &self.members[host];
                if member.life == life && member.wakes.is_some_and(|at| at <= self.now) {
                    self.turns(host);
                }
            }
            Event::Question(witness, from, life, number, question) => {
                self.questioned(witness, (from, life, number), &question);
            }
            Event::Written(witness, life, state) => {
                if self.witnesses[witness].life == life {
                    self.written(witness, &state);
                }
            }
            Event::Silenced(host) => self.store(host, 0),
            Event::Strikes(number) => self.strikes(number),
            Event::Ends(number) => self.ends(number),
            Event::ToldGone(host) => {
                let now = self.members[host].now(self.now);
                self.drive(host, |machine, deeds| machine.handle_peer_gone(now, deeds));
            }
            Event::Looks => self.looks(),
            Event::Forges => self.forges(),
            Event::Stored(host, life, record) => self.stored(host, life, record),
            Event::StoredTold(host, life) => self.stored_told(host, life),
            Event::Shoots(host) => self.shoots(host),
            Event::Proved(host, life, ok) => self.proved(host, life, ok),
            Event::Boots(host) => self.comes_back(host),
            Event::Word(host) => self.gives_word(host),
        }
    }

    /// Keeps an event for processes that stand still; what comes to a machine that does, or
    /// hears nothing, is lost. Returns the event otherwise.
    fn defer(&mut self, event: Event) -> Option<Event> {
        if let Event::Stored(host, ..) | Event::StoredTold(host, _) | Event::Proved(host, ..) =
            event
            && self.members[host].still.is_some()
        {
            // Its own disk and its own processes wait for it.
            self.members[host].waits.push(event);
            return None;
        }
        let host = match event {
            Event::ToMember(host, _)
            | Event::Answer(host, ..)
            | Event::Turn(host, _)
            | Event::ToldGone(host) => host,
            event => return Some(event),
        };
        let member = &mut self.members[host];
        let is_own = matches!(event, Event::Turn(..))
            || self.plan.way.is_some() && matches!(event, Event::Answer(..));
        if member.is_deaf && !is_own {
            return None;
        }
        match member.still {
            Some((_, Still::Processes)) => {
                if !matches!(event, Event::Turn(..)) {
                    member.waits.push(event);
                }
                None
            }
            Some(_) => None,
            None => Some(event),
        }
    }

    // Members.

    /// Starts a member's daemon.
    pub fn starts(&mut self, host: usize) {
        let (life, mut deeds) = (self.rng.draw() | 1, Deeds::default());
        self.members[host].starts(self.now, &self.plan, life, &mut deeds);
        self.say(|| format!("{host}: its daemon starts, life {life:x}"));
        self.carry_out(host, deeds);
        self.turns(host);
    }

    /// Gives a member's machine something, if it runs, and does what it wants.
    pub fn drive(&mut self, host: usize, give: impl FnOnce(&mut Lease, &mut Deeds)) {
        let member = &mut self.members[host];
        if !member.is_up() {
            return;
        }
        let Some(machine) = &mut member.machine else { return };
        let (before, mut deeds) = (machine.role(), Deeds::default());
        give(machine, &mut deeds);
        let after = machine.role();
        if before != after {
            self.say(|| format!("{host}: {before:?} > {after:?}"));
        }
        self.carry_out(host, deeds);
        self.plan_turn(host);
    }

    fn plan_turn(&mut self, host: usize) {
        let member = &mut self.members[host];
        let Some(machine) = &member.machine else { return };
        let due = member.clock.when(machine.next_deadline().0).max(self.now);
        if member.wakes.is_none_or(|at| at > due || at <= self.now) {
            // Nobody is run at the very moment that he asked for.
            let at = due + self.rng.below(150_000);
            member.wakes = Some(at);
            self.queue.push(at, Event::Turn(host, member.life));
        }
    }

    pub fn turns(&mut self, host: usize) {
        let now = self.members[host].now(self.now);
        self.members[host].wakes = None;
        self.drive(host, |machine, deeds| {
            if machine.next_deadline() <= now {
                machine.handle_timeout(now, deeds);
            }
        });
    }

    fn hears(&mut self, host: usize, bytes: &[u8]) {
        let member = &self.members[host];
        let now = member.now(self.now);
        // What was not made with the group's key is thrown away before.
        let Some(mut message) = Message::parse(bytes) else { return };
        message.yields |= self.plan.mutation == Some(Mutation::YieldAssumed);
        let has_none = member.own.as_ref().is_some_and(|own| own.record().is_none());
        if has_none && host == 0 && self.plan.mutation == Some(Mutation::FoundsUnasked) {
            message.tell(None, "");
        }
        if message.kind == Kind::Grant && self.plan.mutation == Some(Mutation::OldGrantForNew) {
            message.echo.number = member.asked;
        }
        self.say(|| format!("{host} < {:?} {} {message:?}", message.kind, message.number));
        self.members[host].notes(self.now, &message);
        self.drive(host, |machine, deeds| machine.handle_message(now, &message, deeds));
        let counts = self.plan.mutation == Some(Mutation::CountedFromReceipt);
        if counts && message.kind == Kind::Grant {
            let member = &self.members[host];
            if member.machine.as_ref().is_some_and(|it| it.role() == Role::Paired) {
                self.store(host, now.0 + self.plan.lease);
            }
        }
    }

    fn answered(&mut self, host: usize, life: u32, number: u64, reply: &Reply) {
        let member = &self.members[host];
        if member.life != life {
            return;
        }
        let now = member.now(self.now);
        self.say(|| format!("{host} < answer {number} {reply:?}"));
        self.drive(host, |machine, deeds| machine.handle_reply(now, number, reply, deeds));
    }

    fn carry_out(&mut self, host: usize, deeds: Deeds) {
        for deed in deeds.0 {
            match deed {
                Deed::Store(deadline) => self.told(host, deadline),
                Deed::Send(message) => self.sends(host, message),
                Deed::Ask(call, question) if self.plan.way.is_some() => {
                    self.asks_own(host, call, question.1);
                }
                Deed::Ask(call, question) => self.asks(host, call, question),
                Deed::Heard(message) => self.heard_own(host, &message),
                Deed::Keep(_) if self.plan.way.is_some() => {}
                Deed::Keep(kept) if self.plan.mutation != Some(Mutation::KeepsNothing) => {
                    self.members[host].kept = kept;
                }
                Deed::Keep(_) => {}
                Deed::Note(note) => self.noted(host, note),
            }
        }
    }

    /// A machine tells its kernel until when it may speak.
    fn told(&mut self, host: usize, deadline: u64) {
        let member = &self.members[host];
        let role = member.machine.as_ref().map(|machine| machine.role());
        match self.plan.mutation {
            Some(Mutation::ResignsFirst) if role == Some(Role::Resigned) => {
                self.schedule(8 * MS, Event::Silenced(host));
            }
            Some(Mutation::PairsUnleased) if role == Some(Role::Pairing) => {}
            _ => self.store(host, deadline),
        }
    }

    pub fn store(&mut self, host: usize, deadline: u64) {
        let member = &mut self.members[host];
        member.deadline = deadline;
        let record = member.machine.as_ref().and_then(|machine| machine.record());
        member.spoken = record.map_or(0, |record| record.epoch);
        self.look();
    }

    /// The judges look at all kernels.
    pub fn look(&mut self) {
        let stood = 2 * self.plan.lease;
        let speaks = |host: usize| {
            let member = &self.members[host];
            Speaks {
                now: member.speaks(self.now),
                until: member.speaks_until(self.now),
                clock_stood: member.thawed.is_some_and(|at| self.now - at <= stood),
                epoch: member.spoken,
                life: member.drawn,
            }
        };
        let is_own = self.plan.way.is_some();
        let copied = self.members[2].alive && (is_own || self.plan.faults.len() > 1);
        let records = is_own && self.is_record_lost();
        let excuse = Excuse { copied, split: self.is_split(), records };
        self.check.look(self.now, [speaks(0), speaks(1), speaks(2)], excuse);
    }

    fn noted(&mut self, host: usize, note: Note) {
        self.say(|| format!("{host}: {}", note.words()));
        let side = self.members[host].side;
        match note {
            Note::Unprotected => {
                // Its log goes nowhere from here on.
                self.members.iter_mut().filter(|it| it.side != side).for_each(|it| it.holds = 0);
                self.members[host].holds = 0;
            }
            Note::Protected => self.reached.pairs += 1,
            Note::Barred => self.members[host].holds = 0,
            _ => {}
        }
        let is_won = note == Note::TookOver || note == Note::Founded;
        if is_won && self.plan.mutation == Some(Mutation::PromiseIgnored) {
            self.store(host, u64::MAX);
        }
    }

    // Paths.

    pub fn delay(&mut self, least: Ns, most: Ns) -> Ns {
        let delay = self.rng.range(least, most);
        let late = if self.now + CALM < self.end && self.rng.one_in(50) {
            self.rng.below(25 * MS)
        } else {
            0
        };
        delay + late
    }

    pub fn is_lost(&mut self) -> bool {
        // What the end is judged by must not hang on the last few packets.
        self.now + CALM < self.end && self.rng.chance(self.plan.loss)
    }

    fn sends(&mut self, host: usize, mut message: Message) {
        let side = self.members[host].side;
        if let Some(own) = &mut self.members[host].own {
            own.mark(&mut message);
        }
        if message.kind == Kind::Ask {
            let member = &mut self.members[host];
            member.asked = message.number;
            member.asks[message.number as usize % ASKS] = self.now;
        }
        if self.cut[side] || self.is_lost() {
            return;
        }
        let bytes = message.build();
        if self.now < self.forges_until {
            self.recorded.push(bytes);
        }
        self.puts(1 - side, bytes);
    }

    /// Sends a message to a member, or, where there is a copy of it, to one of the two.
    fn puts(&mut self, side: usize, bytes: [u8; LEASE_BYTES]) {
        let is_copied = self.members[2].alive && self.members[2].side == side;
        let host = if is_copied && self.rng.one_in(2) { 2 } else { side };
        let delay = self.delay(MS / 10, 9 * MS / 10);
        if self.members[host].alive {
            self.schedule(delay, Event::ToMember(host, bytes));
        }
    }

    fn forges(&mut self) {
        if self.now >= self.forges_until {
            return;
        }
        let side = self.rng.below(2) as usize;
        if !self.recorded.is_empty() {
            let index = self.rng.below(self.recorded.len() as u64) as usize;
            let mut bytes = self.recorded[index];
            if self.rng.one_in(4) {
                // It has no tag of the group's key, and is thrown away.
                bytes[0] ^= 1;
            }
            self.puts(side, bytes);
        }
        let delay = self.rng.range(MS / 5, 3 * MS);
        self.schedule(delay, Event::Forges);
    }

    fn asks(&mut self, host: usize, call: Call, question: Box<(Asker, Request)>) {
        let unasked = match self.plan.mutation {
            Some(Mutation::TakesOverUnasked) => Some(1),
            Some(Mutation::AloneUnasked) => Some(0),
            _ => None,
        };
        let life = self.members[host].life;
        if let (Request::Swap { expected: Some(_), next }, true) =
            (&question.1, unasked == Some(host))
        {
            let (lineage, outcome) = (question.0.lineage, Ok(Some(next.clone())));
            let reply = Reply { lineage, ticket: 0, outcome };
            self.schedule(0, Event::Answer(host, life, call.number, reply));
            return;
        }
        let swaps = matches!(question.1, Request::Swap { expected: Some(_), .. });
        if let Request::Swap { next: Record { mode: Mode::Solo, .. }, .. } = question.1 {
            self.members[host].claimed = Some(self.now);
        }
        if swaps && host == 1 && self.plan.mutation == Some(Mutation::NeverClaims) {
            return;
        }
        self.say(|| format!("{host} > question {} {:?}", call.number, question.1));
        if self.cut_arbiter[self.members[host].side] || self.is_lost() {
            return;
        }
        let witness = self.rng.below(self.witnesses.len() as u64) as usize;
        let delay = self.delay(MS / 2, 9 * MS / 2);
        self.schedule(delay, Event::Question(witness, host, life, call.number, question));
    }

    // What the hosts notice.

    /// Members that could be in step again come into step, after a while.
    fn looks(&mut self) {
        self.schedule(LOOK_EVERY, Event::Looks);
        let epoch = self.joinable_epoch();
        if epoch.is_some() && epoch == self.joinable {
            self.joins(epoch.unwrap_or(0));
        }
        self.joinable = epoch;
        for host in 0..2 {
            let role = self.members[host].machine.as_ref().map(|machine| machine.role());
            let since = *self.members[host].resigned.get_or_insert(self.now);
            if role != Some(Role::Resigned) {
                self.members[host].resigned = None;
            } else if self.now - since >= BUILDS {
                let now = self.members[host].now(self.now);
                self.drive(host, |machine, deeds| machine.handle_resume(now, deeds));
            }
        }
    }

    fn joinable_epoch(&self) -> Option<u64> {
        let [one, other] = [0, 1].map(|host| self.members[host].machine.as_ref());
        let (one, other) = (one?, other?);
        let is_up = self.members[0].is_up() && self.members[1].is_up();
        let is_cut = self.cut[0] || self.cut[1] || self.members[2].alive;
        let is_cut = is_cut || self.members.iter().any(|it| it.is_deaf);
        let owner = match (one.role(), other.role()) {
            (Role::Solo, Role::Waiting) => one,
            (Role::Waiting, Role::Solo) => other,
            _ => return None,
        };
        let epoch = owner.record()?.epoch;
        let knows = [one, other].iter().all(|it| it.record().is_some_and(|it| it.epoch == epoch));
        (is_up && !is_cut && knows && owner.deadline() == u64::MAX).then_some(epoch)
    }

    fn joins(&mut self, epoch: u64) {
        self.say(|| format!("both are in step in epoch {epoch}"));
        for host in 0..2 {
            let now = self.members[host].now(self.now);
            let is_backup = self.members[host].deadline == 0;
            let is_true = is_backup && self.plan.mutation != Some(Mutation::JoinsTooEarly);
            self.members[host].holds = if is_true { self.members[host].drawn } else { 0 };
            self.drive(host, |machine, deeds| {
                machine.handle_in_step(now, epoch, true, deeds);
            });
        }
    }

    // The end.

    /// Why somebody has to speak at the end; `None` if nobody has to.
    fn should_speak(&self) -> Option<&'static str> {
        if self.is_copied() {
            return None;
        }
        if let Some(way) = self.plan.way {
            return self.should_speak_alone(way);
        }
        let reaches = |host: usize| {
            let member = &self.members[host];
            member.is_up() && !member.is_deaf && !self.cut_arbiter[host]
        };
        let witness = &self.witnesses[0];
        let Some(machine) = &witness.machine else {
            let alone = self.plan.faults.len() == 1 && self.plan.loss == 0.0;
            return alone.then_some("only the arbiter is away");
        };
        if !machine.is_settled(GROUP) {
            return (reaches(0) && reaches(1)).then_some("both could settle the record");
        }
        let record = machine.record(GROUP)?;
        let owner = NAMES.iter().position(|name| *name == record.owner.name)?;
        if reaches(owner) {
            return Some("the owner is well");
        }
        let other = 1 - owner;
        let may = record.mode == Mode::Pair && reaches(other) && self.members[other].holds();
        may.then_some("the backup is well")
    }

    /// Adds what a member's machine has counted, before it ends.
    pub fn count(&mut self, host: usize) {
        let Some(machine) = &self.members[host].machine else { return };
        let counts = machine.counts();
        self.reached.grants += counts.grants;
        self.reached.replayed += counts.replayed;
        self.reached.unproven += counts.unproven;
        self.reached.late_answers += counts.late_answers;
        self.reached.overslept += counts.overslept;
        self.reached.refusals += counts.refusals;
        self.reached.lineages += counts.lineages;
    }
}
