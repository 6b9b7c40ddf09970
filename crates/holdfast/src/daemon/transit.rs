//! The daemon of an edge of a transit group: the host of the state machine that tells by
//! heartbeats through every string (path) whether the other edge is reachable, and writes the
//! table of usable strings.
//!
//! The data path is eBPF and does not need this process: while it is dead, flows stay where they
//! are, and no string is declared dead here.

pub mod beat;
mod lines;
mod look;
mod report;
mod wire;

use super::clock::Clock;
use super::intact::{Intact, note_removed};
use super::kept::Kept;
use super::looker::Looker;
use super::reload::{Ended, Life, Reader, Reloads};
use super::{asked, service_manager, trace};
use crate::admin::{AdminSocket, NO_PRIMARY, Request, TraceRequest, refusal};
use crate::config::Settings as _;
use crate::config::transit::{Return, Side, TransitConfig};
use crate::leavings;
use crate::poll::{Interest, Poll, Signals};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_edge::strings::STRINGS_MAX;
use holdfast_linux::bpf::{FlowSweeper, StringPort, Transit};
use holdfast_linux::priority;
use holdfast_member::transit::{Setup, TransitMachine};
use lines::Lines;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::Wire;

/// Real-time priority: above ordinary servers, below the kernel's own threads.
const PRIORITY: i32 = 20;
/// Time between two sweeps of the flow table for flows that are over.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

const ADMIN: u64 = 0;
const SIGNALS: u64 = 1;
const RECOVER: u64 = 2;
/// First token of the strings: string `i` has `STRINGS + i`.
const STRINGS: u64 = 3;

/// Number of flows on each string, by the last sweep.
type FlowCounts = Arc<[AtomicU64; STRINGS_MAX]>;

struct TransitDaemon<'a> {
    poll: Poll,
    machine: TransitMachine,
    wire: Wire<'a>,
    kept: Kept,
    intact: Intact,
    looker: Looker<look::Found>,
    reloads: Reloads,
}

/// Runs one edge until a signal ends it. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &TransitConfig, side: Side, life: &mut Life<'_>) -> Result<Ended> {
    let signals = Signals::block()?;
    // First of all: two daemons of one role must never touch the same maps.
    let admin = AdminSocket::of_daemon(&config.common(), side.name()).context("admin socket")?;
    let mut admin = admin.with_pins(config.pin_dir(side));
    // Before the programs are loaded: until they are, flows do not leave a dead string.
    if let Err(error) = priority::set_realtime(PRIORITY) {
        tracing::warn!("no real-time priority: {error}; strings may be suspected under load");
    }
    let mut daemon = TransitDaemon::start(config, side, life)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals)
}

impl<'a> TransitDaemon<'a> {
    fn start(config: &'a TransitConfig, side: Side, life: &mut Life<'_>) -> Result<Self> {
        let key = config.keyring(side.name())?;
        // Flows stay on their strings, so that it may be another one after a change of keys.
        let other = key.with(side.other().name());
        let earlier = leavings::earlier(&["transit"], &config.pin_dir(side));
        let mut bpf = Transit::attach(&bpf_config(config, side, other.first().flows_seed()))?;
        let mut events = life.events();
        note_removed(&leavings::remove_earlier_edge(&earlier)?, &mut events);
        let (recoverer, regulator) = wire::components(config, &mut bpf)?;
        let left = wire::left(&bpf)?;
        let poll = Poll::new()?;
        let lines = Lines::open(config, side, &key)?;
        for (index, socket) in lines.sockets().enumerate() {
            poll.add(socket, STRINGS + index as u64, Interest::Read)?;
        }
        poll.add(&recoverer.fd(), RECOVER, Interest::Read)?;
        let flows = FlowCounts::default();
        sweep_in_background(bpf.sweeper()?, &flows)?;
        let mut wire = Wire {
            config,
            side,
            bpf,
            recoverer,
            regulator,
            lines,
            exits: wire::exits(config, side)?,
            flows,
            events,
            clock: Clock::new(Instant::now()),
        };
        let mut machine = TransitMachine::new(setup(config, side), left, Nanos(0));
        let intact = Intact::open(Instant::now()).context("a netlink socket")?;
        let looker = look::looker(config, side, wire.bpf.programs())?;
        machine.handle_start(side.name(), &mut wire)?;
        let reloads = life.begin((Reader::Edge, &key), &mut wire.events);
        let kept = Kept::default();
        Ok(Self { poll, machine, wire, kept, intact, looker, reloads })
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<Ended> {
        loop {
            let (recover, regulate) = self.wire.deadlines();
            let judge = Some(self.wire.clock.instant(self.machine.next_deadline()));
            let look = Some(self.intact.deadline());
            let deadline = [judge, recover, regulate, look].into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            self.turn(now, ready.contains(&RECOVER))?;
            self.look(now);
            self.note(now);
            service_manager::turn(|| service_manager::line(&self.head()));
            if ready.contains(&ADMIN) {
                let look = admin.serve(|request| self.answer(&request));
                let run_dir = &self.wire.config.group.run_dir;
                self.kept.take(look, run_dir, &mut self.wire.events);
            }
            let signalled = asked(signals, ready.contains(&SIGNALS));
            let goes_on = "flows stay on their strings without me";
            let ended = self.reloads.heed(signalled, goes_on, &mut self.wire.events);
            if let Some(ended) = ended.or_else(|| self.reloads.take(&mut self.wire.events)) {
                return Ok(ended);
            }
        }
    }

    /// Takes heartbeats that have arrived, and only then decides which strings are silent: a
    /// heartbeat that waits in a socket does not count as missing.
    fn turn(&mut self, now: Instant, is_readable: bool) -> Result<()> {
        let Self { machine, wire, .. } = self;
        let at = wire.clock.nanos(now);
        wire.lines.receive(at, machine);
        machine.handle_timeout(at, wire)?;
        if is_readable {
            wire.recoverer.on_readable(now);
        }
        wire.recoverer.poll(now);
        wire.poll_regulator(now, machine)?;
        machine.handle_turned(wire)
    }

    /// Notes now and then whether the state has changed, for events and hooks.
    fn note(&mut self, now: Instant) {
        if self.wire.events.is_due(now) {
            let head = self.head();
            self.wire.events.note_status(&head);
        }
    }

    fn answer(&mut self, request: &Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.wire.events.answer(*since),
            Request::Switchover { .. } | Request::Takeover => refusal(NO_PRIMARY),
            Request::Show => self.show(),
            Request::Fence { .. } => self.by_hand(true),
            Request::Unfence => self.by_hand(false),
            Request::Trace(question) => self.trace(question),
            Request::Reload { dry_run } => self.reloads.handle(*dry_run, &mut self.wire.events),
            Request::Drain { .. } => refusal("strings are not drained; spread groups' hosts are"),
        }
    }

    fn trace(&self, question: &TraceRequest) -> Value {
        if question.from.is_ipv4() != question.to.is_ipv4() {
            return refusal("both ends must be of one address family");
        }
        let name = |string| self.machine.name(usize::from(string));
        match self.wire.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => trace::answer(question, &traced, name),
            Err(error) => refusal(&error.to_string()),
        }
    }

    fn by_hand(&mut self, close: bool) -> Value {
        match self.machine.handle_hand(close, &mut self.wire) {
            Err(error) => refusal(&error.to_string()),
            Ok(epoch) => json!({ "epoch": epoch }),
        }
    }
}

fn setup(config: &TransitConfig, side: Side) -> Setup {
    Setup {
        names: config.strings.iter().map(|string| string.name.clone()).collect(),
        other: side.other().name(),
        strings: config.strings_config(),
        period: Nanos::from_ms(config.group.heartbeat_ms),
    }
}

/// Sweeps the flow table in a thread, since it may be large and heartbeats must not wait.
fn sweep_in_background(mut sweeper: FlowSweeper, flows: &FlowCounts) -> Result<()> {
    let flows = Arc::downgrade(flows);
    // A daemon that begins anew has another thread.
    let sweep = move || {
        while let Some(flows) = flows.upgrade() {
            for (count, now) in flows.iter().zip(sweeper.sweep()) {
                count.store(now, Ordering::Relaxed);
            }
            drop(flows);
            std::thread::sleep(SWEEP_PERIOD);
        }
    };
    std::thread::Builder::new().name("sweep".to_owned()).spawn(sweep)?;
    Ok(())
}

fn bpf_config(config: &TransitConfig, side: Side, seed: u32) -> holdfast_linux::bpf::TransitConfig {
    let port = |string: &crate::config::transit::TransitString| {
        let end = string.end(side);
        StringPort {
            interface: end.interface.clone(),
            next_hop4: end.next_hop4(),
            next_hop6: end.next_hop6(),
        }
    };
    holdfast_linux::bpf::TransitConfig {
        group: config.group.name.clone(),
        outside: config.edge(side).outside.clone(),
        strings: config.strings.iter().map(port).collect(),
        leads: side == Side::Near,
        return_all: config.group.returns == Return::All,
        seed,
        pin_dir: config.pin_dir(side),
        flows_max: config.group.flows_max,
    }
}
