//! A member's host: its clock, its kernel, and the daemon's machine.

use super::own;
use super::plan::{MS, Mutation, Plan};
use super::witness::GROUP;
use super::world::Event;
use crate::Ns;
use crate::clock::Clock;
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::client::ClientSettings;
use holdfast_cluster::arbiter::own::{Own, Way};
use holdfast_cluster::arbiter::{Arbiter, Asker, Call, Owner, Record, Request};
use holdfast_cluster::lease::{Kept, Kind, Lease, LeaseOutput, Message, Note, Setup, Timing};

/// Names of the two members.
pub const NAMES: [&str; 2] = ["a", "b"];
/// Time between two reads of the record.
pub const POLL: Ns = 50 * MS;

/// Number of questions whose times are remembered.
pub const ASKS: usize = 16;

/// What a machine wants done, in order.
pub enum Deed {
    Store(u64),
    Send(Message),
    Ask(Call, Box<(Asker, Request)>),
    Heard(Message),
    Keep(Kept),
    Note(Note),
}

/// What a machine wanted in one call.
#[derive(Default)]
pub struct Deeds(pub Vec<Deed>);

impl Arbiter for Deeds {
    fn read(&mut self, call: Call, asker: &Asker) {
        self.0.push(Deed::Ask(call, Box::new((asker.clone(), Request::Read))));
    }
    fn compare_and_swap(
        &mut self,
        call: Call,
        asker: &Asker,
        expected: Option<&Record>,
        next: &Record,
    ) {
        let request = Request::Swap { expected: expected.cloned(), next: next.clone() };
        self.0.push(Deed::Ask(call, Box::new((asker.clone(), request))));
    }
}

impl LeaseOutput for Deeds {
    fn store(&mut self, deadline: u64) {
        self.0.push(Deed::Store(deadline));
    }
    fn send(&mut self, message: &Message) {
        self.0.push(Deed::Send(*message));
    }
    fn heard(&mut self, _: Nanos, message: &Message) {
        self.0.push(Deed::Heard(*message));
    }
    fn keep(&mut self, kept: &Kept) {
        self.0.push(Deed::Keep(kept.clone()));
    }
    fn note(&mut self, note: Note) {
        self.0.push(Deed::Note(note));
    }
}

/// How a host stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Still {
    /// Its processes do.
    Processes,
    /// All of it does.
    Machine,
    /// All of it, and its clock.
    Clock,
}

/// A host.
pub struct Member {
    /// Which of the two members it is, or is a copy of.
    pub side: usize,
    pub clock: Clock,
    pub machine: Option<Lease>,
    /// Whether the machine is on.
    pub alive: bool,
    /// Since when it stands still.
    pub still: Option<(Ns, Still)>,
    /// What waits in its sockets.
    pub waits: Vec<Event>,
    /// Number of its daemon's life.
    pub life: u32,
    /// The deadline in the kernel.
    pub deadline: u64,
    /// Whether nothing arrives at it.
    pub is_deaf: bool,
    /// Number of the newest question that it has sent, and when the latest ones were.
    pub asked: u64,
    pub asks: [Ns; ASKS],
    /// When the newest one was sent whose grant has arrived.
    pub granted: Ns,
    /// When the last question of the other one arrived.
    pub heard: Ns,
    /// When it last asked for the record, to go on alone.
    pub claimed: Option<Ns>,
    pub wakes: Option<Ns>,
    /// Since when it has been seen resigned.
    pub resigned: Option<Ns>,
    /// Epoch of the record when the kernel was last told.
    pub spoken: u64,
    /// What its machine has kept on its disk.
    pub kept: Kept,
    /// The record that it keeps itself, where there is no third party.
    pub own: Option<Own>,
    /// Whether its host comes back, if that is off.
    pub returns: bool,
    /// What its daemon's life has drawn.
    pub drawn: u64,
    /// The life that holds all that a backup needs, whatever it believes; 0: none does.
    pub holds: u64,
    /// When it went on after it had stood still with its clock.
    pub thawed: Option<Ns>,
}

impl Member {
    pub fn new(number: usize, plan: &Plan) -> Self {
        Self {
            side: number,
            clock: Clock::new(plan.clocks[number]),
            machine: None,
            alive: true,
            still: None,
            waits: Vec::new(),
            life: 0,
            deadline: 0,
            is_deaf: false,
            asked: 0,
            asks: [0; ASKS],
            granted: 0,
            heard: 0,
            claimed: None,
            wakes: None,
            resigned: None,
            spoken: 0,
            kept: Kept::default(),
            own: None,
            returns: false,
            drawn: 0,
            holds: 0,
            thawed: None,
        }
    }

    pub fn now(&self, at: Ns) -> Nanos {
        Nanos(self.clock.shows(at))
    }

    /// Whether this life of its daemon holds all that a backup needs.
    pub fn holds(&self) -> bool {
        self.holds != 0 && self.holds == self.drawn
    }

    /// Notes what arrives.
    pub fn notes(&mut self, at: Ns, message: &Message) {
        match message.kind {
            Kind::Ask => self.heard = at,
            Kind::Grant => {
                let sent = self.asks[message.echo.number as usize % ASKS];
                self.granted = self.granted.max(sent);
            }
            Kind::Resign | Kind::Word => {}
        }
    }

    /// Whether its daemon runs.
    pub fn is_up(&self) -> bool {
        self.alive && self.machine.is_some() && self.still.is_none()
    }

    /// Whether its kernel lets packets of the service pass.
    pub fn speaks(&self, at: Ns) -> bool {
        let is_on = self.still.is_none_or(|(_, still)| still == Still::Processes);
        self.alive && is_on && self.clock.shows(at) < self.deadline
    }

    /// The true time at which its kernel falls silent, as things are; `at` if it is.
    pub fn speaks_until(&self, at: Ns) -> Ns {
        match self.deadline {
            _ if !self.speaks(at) => at,
            u64::MAX => Ns::MAX,
            deadline => self.clock.when(deadline),
        }
    }

    /// Another life of the daemon; `life` is what it draws.
    pub fn starts(&mut self, at: Ns, plan: &Plan, life: u64, deeds: &mut Deeds) {
        let arbiter = ClientSettings {
            endpoints: 1,
            // A disk is no path on which something is lost.
            try_out: Nanos(plan.way.map_or(plan.try_out, |_| 4 * plan.try_out)),
            pause: Nanos(if plan.way.is_some() { 5 * MS } else { 2 * MS }),
            poll: Nanos(POLL),
        };
        let timing = Timing::new(Nanos(plan.period), Nanos(plan.lease), Nanos(0));
        let sides = if self.side == 0 { [1, 2] } else { [2, 1] };
        let setup = Setup {
            group: GROUP.to_owned(),
            me: Owner { name: NAMES[self.side].to_owned(), life },
            peer: NAMES[1 - self.side].to_owned(),
            sides,
            kept: self.kept.clone(),
            preferred: self.side == 0,
            timing: timing.expect("the plan's times fit"),
            arbiter,
        };
        (self.life, self.drawn, self.wakes) = (self.life + 1, life, None);
        self.own = plan.way.map(|way| {
            let is_misled = plan.mutation == Some(Mutation::FilesDiffer) && self.side == 0;
            let way = if is_misled { Way::Nobody } else { way };
            let settings = own::settings(setup.me.clone(), &setup.peer, setup.preferred, way);
            Own::new(settings, self.kept.record.clone())
        });
        self.machine = Some(Lease::new(self.now(at), setup, deeds));
    }

    /// The daemon ends, and what waits for it.
    pub fn ends(&mut self) {
        (self.machine, self.own) = (None, None);
        self.waits.clear();
    }
}
