//! The daemon of an edge of a transit group: hears through every string whether
//! the other edge is there, and puts the table of strings in force.
//!
//! The data path is eBPF and does not need this process: while it is dead, flows
//! stay where they are, and no string is declared dead here.

pub mod beat;
mod lines;
mod report;
mod resume;

use super::recover::{Exit, Recoverer};
use super::regulate::Regulator;
use super::trace;
use crate::admin::{AdminSocket, Events, Request, TraceRequest, refusal};
use crate::config::admin_socket;
use crate::config::transit::{Return, Side, TransitConfig};
use crate::poll::{Interest, Poll, Signals, Timers};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_edge::strings::{STRINGS_MAX, Strings, StringsEvent, Table};
use holdfast_linux::bpf::{FlowSweeper, StringPort, Transit, TransitState};
use holdfast_linux::process;
use lines::Lines;
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Real-time priority; above ordinary servers, below the kernel's own threads.
const PRIORITY: i32 = 20;
/// How often flows that are over are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

const ADMIN: u64 = 0;
const SIGNALS: u64 = 1;
const RECOVER: u64 = 2;
/// String `i` has the token `STRINGS + i`.
const STRINGS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A heartbeat on every string.
    Beat,
}

/// Flows on each string, as they were counted last.
type FlowCounts = Arc<[AtomicU64; STRINGS_MAX]>;

struct TransitDaemon<'a> {
    config: &'a TransitConfig,
    side: Side,
    poll: Poll,
    timers: Timers<Timer>,
    lines: Lines,
    machine: Strings,
    bpf: Transit,
    recoverer: Recoverer,
    regulator: Regulator,
    /// By string.
    exits: Vec<Rc<Exit>>,
    epoch: u32,
    flows: FlowCounts,
    events: Events,
    started: Instant,
    /// Closed by the admin socket, until it is opened there.
    closed_by_hand: bool,
}

/// Runs one edge until a signal ends it. The programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &TransitConfig, side: Side) -> Result<()> {
    let signals = Signals::block()?;
    let socket = admin_socket(&config.group.run_dir, side.name());
    // First of all: two daemons of one role must never touch the same maps.
    let mut admin = AdminSocket::bind(&socket).context("admin socket")?;
    // Before the programs are loaded: until they are, no dead string is left.
    if let Err(error) = process::set_realtime(PRIORITY) {
        tracing::warn!("no real-time priority: {error}; strings may be suspected under load");
    }
    let mut daemon = TransitDaemon::start(config, side)?;
    daemon.poll.add(&admin, ADMIN, Interest::Read)?;
    daemon.poll.add(&signals, SIGNALS, Interest::Read)?;
    daemon.run(&mut admin, &signals)
}

impl<'a> TransitDaemon<'a> {
    fn start(config: &'a TransitConfig, side: Side) -> Result<Self> {
        let key = config.key()?;
        let mut bpf = Transit::attach(&bpf_config(config, side, key.flows_seed()))?;
        let (recoverer, regulator) = resume::components(config, &mut bpf)?;
        // What an earlier life has declared dead has to be heard first.
        let known = bpf.state()?;
        let epoch = known.as_ref().map_or(0, |state| state.epoch);
        let usable = known.map_or(u32::MAX, |state| state.usable);
        let started = Instant::now();
        let poll = Poll::new()?;
        let lines = Lines::open(config, side, key.strings_key())?;
        for (index, socket) in lines.sockets().enumerate() {
            poll.add(socket, STRINGS + index as u64, Interest::Read)?;
        }
        poll.add(&recoverer.fd(), RECOVER, Interest::Read)?;
        let flows = FlowCounts::default();
        sweep_in_background(bpf.sweeper()?, Arc::clone(&flows))?;
        let mut daemon = Self {
            config,
            side,
            poll,
            timers: Timers::new(),
            lines,
            machine: Strings::new(config.strings_config(), usable),
            exits: resume::exits(config, side)?,
            bpf,
            recoverer,
            regulator,
            epoch,
            flows,
            events: Events::default(),
            started,
            closed_by_hand: false,
        };
        daemon.events.add("started", format!("{}, {}", side.name(), daemon.in_use()));
        daemon.act()?;
        Ok(daemon)
    }

    fn run(&mut self, admin: &mut AdminSocket, signals: &Signals) -> Result<()> {
        self.timers.set(Timer::Beat, Instant::now());
        loop {
            let judge = self.lines.deadline().map(|at| self.started + Duration::from_nanos(at.0));
            let (recover, regulate) = (self.recoverer.deadline(), self.regulator.deadline());
            let deadline = [self.timers.next(), judge, recover, regulate];
            let deadline = deadline.into_iter().flatten().min();
            let ready: Vec<u64> = self.poll.wait(deadline)?.iter().map(|r| r.token).collect();
            let now = Instant::now();
            self.hear(now)?;
            self.expire(now);
            self.resume(now, ready.contains(&RECOVER))?;
            if ready.contains(&ADMIN) {
                admin.serve(|request| self.answer(&request));
            }
            if ready.contains(&SIGNALS)
                && let Some(signal) = super::ending(signals)
            {
                tracing::info!("signal {signal}: ending; flows stay on their strings without me");
                return Ok(());
            }
        }
    }

    fn nanos(&self, now: Instant) -> Nanos {
        Nanos((now - self.started).as_nanos() as u64)
    }

    /// Takes what has come, and then judges who is silent: what waits in a socket
    /// is not missing.
    fn hear(&mut self, now: Instant) -> Result<()> {
        let at = self.nanos(now);
        self.lines.receive(at, &mut self.machine);
        // Once per heartbeat: that is when each detector is due at least.
        if self.lines.deadline().is_some_and(|due| due <= at) {
            let traffic = self.bpf.traffic().into_iter().map(|(_, out)| out.packets);
            self.lines.count(at, traffic, &mut self.machine);
        }
        self.lines.judge(at, &mut self.machine);
        self.act()
    }

    fn expire(&mut self, now: Instant) {
        while let Some(Timer::Beat) = self.timers.pop(now) {
            self.timers.set(Timer::Beat, now + self.config.heartbeat());
            // What came before the heartbeat is told apart from what comes behind it.
            self.recoverer.look(now);
            self.lines.send(self.nanos(Instant::now()), self.machine.lost());
        }
    }

    /// Does what the machine says.
    fn act(&mut self) -> Result<()> {
        while let Some(event) = self.machine.poll_event() {
            self.do_one(event)?;
        }
        Ok(())
    }

    fn do_one(&mut self, event: StringsEvent) -> Result<()> {
        match event {
            StringsEvent::Suspected(string) => {
                let detail = format!("{}: two heartbeats are missing", self.name(string));
                self.events.add("suspect", detail);
            }
            StringsEvent::Trusted(string) => {
                self.events.add("trust", format!("{}: heard again", self.name(string)));
            }
            StringsEvent::Declared { string, by_peer } => {
                let why = if by_peer {
                    format!("the {} edge does not hear it", self.side.other().name())
                } else {
                    "three heartbeats are missing".to_owned()
                };
                self.events.add("declare", format!("{}: {why}", self.name(string)));
            }
            StringsEvent::Returned(string) => {
                self.events.add("return", self.name(string).to_owned());
            }
            StringsEvent::AllSilent => {
                let other = self.side.other().name();
                let detail = format!("nothing from the {other} edge; its daemon may be dead");
                self.events.add("silent", detail);
            }
            StringsEvent::Renew(string) => self.lines.renew(string, self.nanos(Instant::now())),
            StringsEvent::Table(table) => self.put_in_force(&table)?,
            StringsEvent::Restored { strings } => self.resend(strings),
            StringsEvent::Capacity { bytes_per_s, full_bytes_per_s } => {
                let [now, full] =
                    [bytes_per_s, full_bytes_per_s].map(|bytes| bytes * 8 / 1_000_000);
                self.events.add("capacity", format!("{now} of {full} Mbit/s"));
                self.regulate(bytes_per_s, full_bytes_per_s)?;
            }
        }
        Ok(())
    }

    /// One map update: nothing goes to a string that is out, and its flows go
    /// elsewhere with their next packet.
    fn put_in_force(&mut self, table: &Table) -> Result<()> {
        let before = self.bpf.state()?;
        if before.as_ref().is_some_and(|s| s.usable == table.usable && s.slots == table.slots) {
            return Ok(());
        }
        self.epoch = self.epoch.wrapping_add(1);
        let usable = if self.closed_by_hand { 0 } else { table.usable };
        self.bpf.set_state(&TransitState { epoch: self.epoch, usable, slots: table.slots })?;
        let gone = before.map_or(0, |state| state.usable & !table.usable);
        if gone != 0 {
            let detail = format!("table {}: {} is out", self.epoch, self.names(gone));
            self.events.add("fence", detail);
        }
        self.events.add("switch", format!("table {}: {}", self.epoch, self.in_use()));
        Ok(())
    }

    /// Where new flows go, for people.
    fn in_use(&self) -> String {
        let Table { usable, slots } = self.machine.table();
        if usable == 0 {
            return "no string is left".to_owned();
        }
        let used = slots.iter().fold(0, |mask, slot| mask | 1 << slot);
        format!("flows go by {}", self.names(used))
    }

    fn name(&self, string: usize) -> &str {
        self.config.strings.get(string).map_or("?", |string| &string.name)
    }

    fn names(&self, mask: u32) -> String {
        let of_mask = (0..self.config.strings.len()).filter(|index| mask >> index & 1 == 1);
        of_mask.map(|index| self.name(index)).collect::<Vec<_>>().join(", ")
    }

    fn answer(&mut self, request: &Request) -> Value {
        match request {
            Request::Status => serde_json::to_value(self.status()).unwrap_or_default(),
            Request::Events { since } => self.events.answer(*since),
            Request::Show => self.show(),
            Request::Fence { .. } => self.by_hand(true),
            Request::Unfence => self.by_hand(false),
            Request::Trace(question) => self.trace(question),
            Request::Drain { .. } => refusal("strings are not drained; spread groups' hosts are"),
        }
    }

    fn trace(&self, question: &TraceRequest) -> Value {
        if question.from.is_ipv4() != question.to.is_ipv4() {
            return refusal("both ends must be of one address family");
        }
        match self.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => trace::answer(question, &traced, |string| self.name(usize::from(string))),
            Err(error) => refusal(&error.to_string()),
        }
    }

    fn by_hand(&mut self, close: bool) -> Value {
        self.closed_by_hand = close;
        let Table { usable, slots } = self.machine.table();
        self.epoch = self.epoch.wrapping_add(1);
        let usable = if close { 0 } else { usable };
        match self.bpf.set_state(&TransitState { epoch: self.epoch, usable, slots }) {
            Err(error) => refusal(&error.to_string()),
            Ok(()) => {
                self.events.add(if close { "fenced" } else { "unfenced" }, "by hand");
                if !close {
                    self.resend(u32::MAX);
                }
                json!({ "epoch": self.epoch })
            }
        }
    }
}

/// The table of flows may be large, and heartbeats do not wait for it.
fn sweep_in_background(mut sweeper: FlowSweeper, flows: FlowCounts) -> Result<()> {
    let sweep = move || {
        loop {
            for (count, now) in flows.iter().zip(sweeper.sweep()) {
                count.store(now, Ordering::Relaxed);
            }
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
        outside: config.edge(side).outside.clone(),
        strings: config.strings.iter().map(port).collect(),
        leads: side == Side::Near,
        return_all: config.group.returns == Return::All,
        seed,
        pin_dir: config.pin_dir(side),
        flows_max: config.group.flows_max,
    }
}
