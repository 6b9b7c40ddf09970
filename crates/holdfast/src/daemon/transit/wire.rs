//! The machine of a transit group's edge acts through this: the programs' table, the cache that
//! resends (HALR), and the cap on windows (PFRC).

use super::FlowCounts;
use super::lines::Lines;
use crate::admin::Events;
use crate::config::transit::{Side, TransitConfig};
use crate::daemon::clock::Clock;
use crate::daemon::recover::{self, Exit, Recoverer};
use crate::daemon::regulate::Regulator;
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_edge::HalrConfig;
use holdfast_edge::strings::Table;
use holdfast_linux::bpf::{NO_STRING, Transit, TransitState};
use holdfast_linux::link::Link;
use holdfast_linux::raw::RawSender;
use holdfast_member::transit::{Left, TransitHost, TransitMachine, Way};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The parts of the daemon that the machine acts upon.
pub(super) struct Wire<'a> {
    pub config: &'a TransitConfig,
    pub side: Side,
    pub bpf: Transit,
    pub recoverer: Recoverer,
    pub regulator: Regulator,
    pub lines: Lines,
    /// How resent packets leave, by string.
    pub exits: Vec<Rc<Exit>>,
    pub flows: FlowCounts,
    pub events: Events,
    pub clock: Clock,
}

pub(super) fn components(
    config: &TransitConfig,
    bpf: &mut Transit,
) -> Result<(Recoverer, Regulator)> {
    let now = Instant::now();
    let copies = bpf.take_copies().context("the copies are taken")?;
    let regulated = bpf.take_regulated().context("the cap is taken")?;
    let recoverer = Recoverer::new(&config.recover, HalrConfig::shipped, copies, now)?;
    Ok((recoverer, Regulator::new(&config.regulate, regulated, now)?))
}

/// The state that an earlier daemon has left in the programs' table.
pub(super) fn left(bpf: &Transit) -> Result<Left> {
    let left = |TransitState { epoch, usable, is_closed, .. }| Left { epoch, usable, is_closed };
    Ok(bpf.state()?.map_or(Left::NOTHING, left))
}

/// How resent packets leave by each string: by the routes through its interface.
pub(super) fn exits(config: &TransitConfig, side: Side) -> Result<Vec<Rc<Exit>>> {
    config.strings.iter().map(|string| exit(&string.end(side).interface)).collect()
}

/// How resent packets leave by the string at this interface.
pub(super) fn exit(interface: &str) -> Result<Rc<Exit>> {
    let ifindex = Link::by_name(interface)?.index;
    Ok(Rc::new(Exit::Routed { raw: RawSender::open_on(interface)?, ifindex }))
}

impl Wire<'_> {
    /// When the cache and the cap on windows are next due.
    pub fn deadlines(&self) -> (Option<Instant>, Option<Instant>) {
        (self.recoverer.deadline(), self.regulator.deadline())
    }

    pub fn flow_counts(&self) -> Vec<u64> {
        let counts = self.flows.iter().take(self.config.strings.len());
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Ends a measuring interval of the cap on windows, if it is over.
    pub fn poll_regulator(&mut self, now: Instant, machine: &mut TransitMachine) -> Result<()> {
        Ok(self.regulator.poll(now, |strings| machine.queue_bytes(strings))?)
    }
}

impl TransitHost for Wire<'_> {
    type Error = anyhow::Error;

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn beat(&mut self, lost: u32) {
        self.lines.send(self.clock.now(), lost);
    }

    fn traffic(&mut self) -> Vec<u64> {
        self.bpf.traffic().into_iter().map(|(_, out)| out.packets).collect()
    }

    fn table(&mut self) -> Result<Option<Table>> {
        let state = self.bpf.state()?;
        Ok(state.map(|TransitState { usable, slots, .. }| Table { usable, slots }))
    }

    fn set_table(&mut self, epoch: u32, table: &Table, is_closed: bool) -> Result<()> {
        let Table { usable, slots } = *table;
        Ok(self.bpf.set_state(&TransitState { epoch, usable, slots, is_closed })?)
    }

    fn mark(&mut self) {
        self.recoverer.look(Instant::now());
    }

    fn set_cache(&mut self, on: bool) -> Result<bool> {
        let changed = if on { self.recoverer.start(Instant::now()) } else { self.recoverer.stop() };
        Ok(changed?)
    }

    fn resend(&mut self, ways: &[Way], usable: u32) -> usize {
        let of = |way: &Way| recover::Way {
            way: way.from.map_or(NO_STRING, |string| string as u16),
            sound: self.clock.instant(way.sound),
            exit: Rc::clone(&self.exits[way.into]),
        };
        let ways: Vec<recover::Way> = ways.iter().map(of).collect();
        for string in (0..self.exits.len()).filter(|string| usable >> string & 1 == 1) {
            self.recoverer.has_way(string as u16, &self.exits[string]);
        }
        self.recoverer.restored(Instant::now(), &ways)
    }

    fn cap(&mut self, strings: &[usize], bytes_per_s: u64) -> Result<Option<usize>> {
        let flows = self.flow_counts().iter().sum::<u64>() as usize;
        let began = self.regulator.start(Instant::now(), strings, bytes_per_s, flows)?;
        Ok(began.then_some(flows))
    }

    fn uncap(&mut self) -> Result<bool> {
        Ok(self.regulator.stop()?)
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.events.add(what, words);
    }
}
