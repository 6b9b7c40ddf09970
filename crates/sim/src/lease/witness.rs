//! The witness's host: its disk, which takes time, and the daemon's machine.

use super::member::NAMES;
use super::plan::{MS, Mutation};
use super::world::{Event, World};
use crate::Ns;
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::stored::GroupState;
use holdfast_cluster::arbiter::witness::{Decision, Witness, WitnessLimits};
use holdfast_cluster::arbiter::{Asker, Record, Reply, Request};

/// Name of the group.
pub const GROUP: &str = "g";
/// Limits that fit the length of a run.
const LIMITS: WitnessLimits = WitnessLimits {
    owner_quiet: Nanos(3 * super::member::POLL + 30 * MS),
    ..WitnessLimits::STANDARD
};

/// A witness's host.
pub struct WitnessHost {
    pub machine: Option<Witness>,
    /// What its host has drawn in this boot.
    pub boot: u32,
    pub life: u32,
    /// The group's file, and what it was before.
    pub disk: Option<String>,
    pub earlier: Vec<String>,
}

impl WitnessHost {
    /// A host with this file, whose daemon does not run yet.
    pub fn new(disk: Option<String>) -> Self {
        Self { machine: None, boot: 0, life: 0, disk, earlier: Vec::new() }
    }

    /// Starts the daemon in this boot of the host.
    pub fn starts(&mut self, at: Ns, boot: u32, run: u64) {
        let parse = |text: &String| GroupState::parse(text.as_bytes()).expect("a whole file");
        let stored = self.disk.as_ref().map(parse);
        (self.boot, self.life) = (boot, self.life + 1);
        self.machine = Some(Witness::new(Nanos(at), (boot, run), LIMITS, stored));
    }

    /// A file is on the disk.
    pub fn writes(&mut self, text: String) {
        self.earlier.extend(self.disk.replace(text));
    }

    /// The file as it is on the disk.
    pub fn stored(&self) -> Option<GroupState> {
        GroupState::parse(self.disk.as_ref()?.as_bytes()).ok()
    }
}

impl World {
    /// Starts a witness; `booted`: its host too.
    pub fn witness_starts(&mut self, witness: usize, booted: bool) {
        let is_naive = self.plan.mutation == Some(Mutation::TrustsItsDisk);
        let stored = self.witnesses[witness].stored().map(|state| state.lineage as u32);
        let boot = match stored {
            Some(stored) if is_naive && booted => stored,
            _ if booted => self.rng.draw() as u32 | 1,
            _ => self.witnesses[witness].boot,
        };
        self.say(|| format!("witness {witness} starts, boot {boot:x}"));
        self.waiting[witness] = None;
        let run = self.rng.draw();
        self.witnesses[witness].starts(self.now, boot, run);
    }

    pub fn questioned(
        &mut self,
        witness: usize,
        from: (usize, u32, u64),
        asked: &(Asker, Request),
    ) {
        let now = Nanos(self.now);
        let host = &mut self.witnesses[witness];
        let Some(machine) = &mut host.machine else { return };
        let (mut asker, request) = asked.clone();
        if self.plan.mutation == Some(Mutation::NoTickets)
            && let Decision::Answer(reply) =
                machine.clone().handle_question(now, &asker, &Request::Read)
        {
            asker.ticket = reply.ticket;
        }
        match machine.handle_question(now, &asker, &request) {
            Decision::Answer(reply) => self.replies(from, reply),
            Decision::Persist(state) if self.plan.mutation == Some(Mutation::AnswersFirst) => {
                let reply = machine.handle_persisted(now, GROUP).expect("it is being written");
                self.writes(witness, state);
                self.replies(from, reply);
            }
            Decision::Persist(state) => {
                self.waiting[witness] = Some(from);
                self.writes(witness, state);
            }
        }
    }

    fn writes(&mut self, witness: usize, state: GroupState) {
        let (life, delay) =
            (self.witnesses[witness].life, self.rng.spread(MS / 20, self.plan.disk));
        self.schedule(delay, Event::Written(witness, life, Box::new(state)));
    }

    pub fn written(&mut self, witness: usize, state: &GroupState) {
        self.judge_record(witness, state);
        let host = &mut self.witnesses[witness];
        host.writes(state.to_string());
        self.say(|| format!("witness {witness} has written {:?}", state.record));
        let machine = self.witnesses[witness].machine.as_mut();
        let now = Nanos(self.now);
        let reply = machine.and_then(|machine| machine.handle_persisted(now, GROUP));
        if let (Some(reply), Some(from)) = (reply, self.waiting[witness].take()) {
            self.replies(from, reply);
        }
    }

    fn judge_record(&mut self, witness: usize, state: &GroupState) {
        let stored = self.witnesses[witness].stored();
        // What a witness whose host was started learns from its members, it has not granted.
        let is_learnt = stored.as_ref().is_none_or(|stored| stored.lineage != state.lineage);
        let before = stored.and_then(|stored| stored.record);
        let Some(record) = state.record.as_ref().filter(|_| !is_learnt) else { return };
        self.reached.records += 1;
        let owner = |record: &Record| NAMES.iter().position(|name| *name == record.owner.name);
        let (old, new) = (before.as_ref().and_then(owner), owner(record).unwrap_or(0));
        let moves = old.is_some_and(|old| old != new);
        self.reached.takeovers += u64::from(moves);
        let holds = !moves || self.members[new].holds == record.owner.life || self.is_copied();
        self.check.recorded(self.now, before.as_ref(), record, holds);
    }

    pub fn is_copied(&self) -> bool {
        self.members[2].alive || self.witnesses.len() > 1
    }

    fn replies(&mut self, (host, life, number): (usize, u32, u64), reply: Reply) {
        if self.cut_arbiter[self.members[host].side] || self.is_lost() {
            return;
        }
        let delay = self.delay(MS / 2, 9 * MS / 2);
        self.schedule(delay, Event::Answer(host, life, number, reply));
    }

    /// Adds what a witness's machine has counted, before it ends.
    pub fn count_witness(&mut self, witness: usize) {
        let Some(machine) = &self.witnesses[witness].machine else { return };
        let counts = machine.counts();
        self.reached.behind += counts.behind;
        self.reached.copies += counts.copies;
        self.reached.unticketed += counts.unproven;
    }
}
