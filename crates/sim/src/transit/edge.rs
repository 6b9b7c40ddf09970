//! One edge of the strings: the host of its machine, and of the machines for caching and
//! for rate control that it uses. It makes no decisions.

use super::path::{Copies, DataPath, NO_STRING};
use super::plan::{Mutation, Plan};
use crate::Ns;
use crate::clock::Clock;
use holdfast_cluster::Nanos;
use holdfast_edge::strings::{StringsConfig, Table};
use holdfast_edge::{Halr, HalrConfig, Pfrc, PfrcConfig, PfrcHost, Slabs, Slot};
use holdfast_member::transit::beat::{Beat, Beats};
use holdfast_member::transit::{Left, Setup, TransitHost, TransitMachine, Way};
use std::convert::Infallible;

pub const NAMES: [&str; 2] = ["near", "far"];

/// The machine's host interface: the data path, the cache and the heartbeats.
pub struct Wire {
    pub now: Nanos,
    pub path: DataPath,
    pub halr: Option<Halr<Copies>>,
    pub pfrc: Pfrc,
    enabled: bool,
    /// Creates and checks heartbeats.
    beats: Beats,
    /// Heartbeats to be sent, each with its string.
    pub beating: Vec<(usize, Beat)>,
    capped: Vec<usize>,
    pub notes: Vec<(&'static str, String)>,
    pub resends: Vec<(Vec<Way>, usize)>,
    pub rejected: u64,
    /// The epoch in the table.
    epoch: u32,
    /// Whether the table says that the edge was closed by hand.
    is_closed: bool,
}

/// The edge; see the module.
pub struct Edge {
    pub number: usize,
    pub wire: Wire,
    pub machine: Option<TransitMachine>,
    inbox: Vec<(usize, Beat)>,
    pub clock: Clock,
    pub frozen: Option<Ns>,
    /// Whether the last order of an operator that its daemon has received was to close.
    pub is_ordered_closed: bool,
    pub was_frozen: bool,
    pub life: u32,
    pub wakes: Option<Ns>,
    setup: Setup,
    cache: HalrConfig,
    pfrc: PfrcConfig,
}

impl Edge {
    pub fn new(number: usize, plan: &Plan) -> Self {
        let config = PfrcConfig::shipped(
            &plan.regulate.unwrap_or(holdfast_edge::PfrcSettings::STANDARD),
            plan.limits.regulated_max,
        );
        let setup = Setup {
            names: (0..plan.strings.len()).map(|string| format!("s{string}")).collect(),
            other: NAMES[1 - number],
            strings: StringsConfig {
                mode: plan.mode,
                capacities_bytes_per_s: plan.strings.iter().map(|it| it.bytes_per_s).collect(),
            },
            period: Nanos(plan.period),
        };
        let mut limits = plan.limits.cache;
        if plan.mutation == Some(Mutation::NoLimit) {
            limits.flows_max = usize::MAX;
        }
        let wire = Wire {
            now: Nanos(0),
            path: DataPath::new(plan, number == 0),
            halr: None,
            pfrc: Pfrc::new(config),
            enabled: plan.regulate.is_some(),
            beats: Beats::new([number as u8, 1 - number as u8], 1),
            beating: Vec::new(),
            capped: Vec::new(),
            notes: Vec::new(),
            resends: Vec::new(),
            rejected: 0,
            epoch: 0,
            is_closed: false,
        };
        Self {
            number,
            wire,
            machine: None,
            inbox: Vec::new(),
            clock: Clock::new(plan.clocks[number]),
            frozen: None,
            is_ordered_closed: false,
            was_frozen: false,
            life: 0,
            wakes: None,
            setup,
            pfrc: config,
            cache: HalrConfig::shipped(plan.keeps, plan.always, &limits),
        }
    }

    /// Starts the daemon; programs and maps are loaded already.
    pub fn starts(&mut self, now: Ns) {
        self.life += 1;
        self.wakes = None;
        let session = u64::from(self.life) * 2 + self.number as u64;
        let wire = &mut self.wire;
        wire.now = Nanos(self.clock.shows(now));
        wire.path.copies.set_now(wire.now.0);
        wire.beats = Beats::new([self.number as u8, 1 - self.number as u8], session);
        let mut halr = Halr::new(self.cache, Slabs::new(self.cache.slabs_bytes()));
        let Ok(()) = halr.handle_start(wire.now.0, &mut wire.path.copies);
        wire.halr = Some(halr);
        // No window is capped until the machine asks for it again.
        wire.pfrc = Pfrc::new(self.pfrc);
        let Ok(()) = wire.path.regulated.uncap();
        let left = match &wire.path.table {
            Some(table) => {
                Left { epoch: wire.epoch, usable: table.usable, is_closed: wire.is_closed }
            }
            None => Left::NOTHING,
        };
        let mut machine = TransitMachine::new(self.setup.clone(), left, wire.now);
        let Ok(()) = machine.handle_start(NAMES[self.number], wire);
        self.machine = Some(machine);
    }

    pub fn dies(&mut self) -> u64 {
        self.machine = None;
        self.wire.halr = None;
        self.wire.beating.clear();
        self.inbox.clear();
        self.wire.path.copies.daemon_dies()
    }

    /// Handles a heartbeat that has arrived through a string.
    pub fn take(&mut self, string: usize, beat: Beat) {
        if self.machine.is_some() {
            self.inbox.push((string, beat));
        }
    }

    /// Does a turn, in the order of the real daemon.
    pub fn turn(&mut self, now: Ns) {
        let Self { wire, machine: Some(machine), clock, inbox, .. } = self else { return };
        wire.now = Nanos(clock.shows(now));
        wire.path.copies.set_now(wire.now.0);
        for (string, beat) in inbox.drain(..) {
            match wire.beats.receive(wire.now.0, string, &beat) {
                Ok(fresh) => machine.handle_beat(string, &fresh, wire.now),
                Err(_) => wire.rejected += 1,
            }
        }
        let Ok(()) = machine.handle_timeout(wire.now, wire);
        wire.turn_caches(machine);
        let Ok(()) = machine.handle_turned(wire);
    }

    pub fn deadline(&self) -> Option<Ns> {
        let machine = self.machine.as_ref()?;
        let halr = self.wire.halr.as_ref().and_then(Halr::poll_timeout).map(Nanos);
        let pfrc = self.wire.pfrc.poll_timeout().map(Nanos);
        let due = halr.into_iter().chain(pfrc).fold(machine.next_deadline(), Nanos::min);
        Some(self.clock.when(due.0))
    }
}

impl Wire {
    fn turn_caches(&mut self, machine: &mut TransitMachine) {
        let Self { halr: Some(halr), path, pfrc, capped, now, .. } = self else { return };
        if path.copies.is_waiting() {
            halr.handle_copies(now.0, &mut path.copies);
        }
        halr.handle_timeout(now.0, &mut path.copies);
        if pfrc.poll_timeout().is_some_and(|due| due <= now.0) {
            path.regulated.queue_bytes = machine.queue_bytes(capped);
            let Ok(()) = pfrc.handle_timeout(now.0, &mut path.regulated);
        }
    }
}

impl TransitHost for Wire {
    type Error = Infallible;

    fn now(&self) -> Nanos {
        self.now
    }

    fn beat(&mut self, lost: u32) {
        for string in 0..self.path.traffic.len() {
            let beat = self.beats.send(self.now.0, string, lost);
            self.beating.push((string, beat));
        }
    }

    fn traffic(&mut self) -> Vec<u64> {
        self.path.traffic.clone()
    }

    fn table(&mut self) -> Result<Option<Table>, Infallible> {
        Ok(self.path.table.clone())
    }

    fn set_table(&mut self, epoch: u32, table: &Table, is_closed: bool) -> Result<(), Infallible> {
        self.epoch = epoch;
        self.is_closed = is_closed && !self.path.is_forgetful();
        let mut table = table.clone();
        if self.path.is_stubborn() {
            table.usable = (1 << self.path.traffic.len()) - 1;
        }
        self.path.table = Some(table);
        Ok(())
    }

    fn mark(&mut self) {
        let Self { halr: Some(halr), path, now, .. } = self else { return };
        halr.look(now.0, &mut path.copies);
    }

    fn set_cache(&mut self, on: bool) -> Result<bool, Infallible> {
        let Self { halr: Some(halr), path, now, .. } = self else { return Ok(false) };
        if on {
            halr.handle_suspected(now.0, &mut path.copies)
        } else {
            halr.handle_trusted(&mut path.copies)
        }
    }

    fn resend(&mut self, ways: &[Way], usable: u32) -> usize {
        let Self { halr: Some(halr), path, now, .. } = self else { return 0 };
        let number = |way: &Way| way.from.map_or(NO_STRING, |string| string as u16);
        for string in (0..path.traffic.len()).filter(|string| usable >> string & 1 == 1) {
            path.copies.exits.insert(string as u16, string);
        }
        path.copies.exits.extend(ways.iter().map(|way| (number(way), way.into)));
        let since =
            |slot: &Slot| ways.iter().find(|way| number(way) == slot.tag).map(|way| way.sound.0);
        let flows = halr.handle_restored(now.0, since, &mut path.copies);
        self.resends.push((ways.to_vec(), flows));
        flows
    }

    fn cap(&mut self, strings: &[usize], bytes_per_s: u64) -> Result<Option<usize>, Infallible> {
        if !self.enabled || bytes_per_s == 0 {
            return Ok(None);
        }
        strings.clone_into(&mut self.capped);
        let flows = self.path.flows();
        let Self { pfrc, path, now, .. } = self;
        pfrc.handle_failure(now.0, bytes_per_s, flows, &mut path.regulated)?;
        Ok(Some(flows))
    }

    fn uncap(&mut self) -> Result<bool, Infallible> {
        let Self { pfrc, path, .. } = self;
        pfrc.handle_repair(&mut path.regulated)
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.notes.push((what, words));
    }
}
