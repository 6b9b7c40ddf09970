//! The loop of the load: it reads replies, sends requests, causes the fault at its moment, and
//! computes the results at the end.

use super::connection::{Common, Connection, State};
use super::fault::Trigger;
use super::talk::{Part, Talk};
use super::{Quantiles, Report, Snapshot, Spec, Workload};
use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Most bytes taken from a socket at a time.
const SCRATCH_BYTES: usize = 256 << 10;

/// Most events taken at a time.
const EVENTS_MAX: usize = 256;

/// Longest time between two turns of the loop, in ns: it paces requests, and measures how late it
/// wakes up.
const TICK_NS: u64 = 1_000_000;

/// Time without progress after which a connection counts as hung, in ns.
const HANG_NS: u64 = 10_000_000_000;

/// Time between two looks whether a load without a duration has to end, in ns.
const LOOK_EVERY_NS: u64 = 20_000_000;

/// Longest latency that is distinguished, in ns.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Time between two snapshots, in ns.
const TELL_EVERY_NS: u64 = 100_000_000;

/// Time within which all connections must work, in ns.
const READY_LIMIT_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Running,
    /// No more requests are sent; the last replies are awaited.
    Stopping,
}

pub(super) struct Engine<'a> {
    spec: &'a Spec,
    connections: Vec<Connection>,
    common: Common,
    trigger: Option<Trigger>,
    phase: Phase,
    started_ns: u64,
    ready_ns: u64,
    stop_ns: u64,
    own_pause_ns: u64,
    look_ns: u64,
    /// When the next snapshot is due; `None`: nobody wants one.
    tell_ns: Option<u64>,
    retransmits_before: u64,
}

impl<'a> Engine<'a> {
    pub(super) fn new(spec: &'a Spec, is_told: bool) -> Result<Self> {
        let histogram = || {
            hdrhistogram::Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
                .context("cannot make a histogram")
        };
        let common = Common {
            address: spec.address,
            congestion: spec.congestion.clone(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            fault_ns: None,
            measuring: false,
            latency: histogram()?,
            connect: histogram()?,
        };
        Ok(Self {
            connections: connections(spec),
            common,
            trigger: spec.fault.clone().map(|fault| Trigger::new(fault, spec.seed)),
            spec,
            phase: Phase::Starting,
            started_ns: crate::monotonic_ns(),
            ready_ns: 0,
            stop_ns: 0,
            own_pause_ns: 0,
            look_ns: 0,
            tell_ns: is_told.then_some(0),
            retransmits_before: retransmits(),
        })
    }

    pub(super) fn run(mut self) -> Result<Report> {
        // The epoll data of each connection is its place in the table.
        let now_ns = crate::monotonic_ns();
        for connection in &mut self.connections {
            connection.connect(&mut self.common, now_ns);
        }
        let mut scratch = vec![0u8; SCRATCH_BYTES];
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let mut next_tick_ns = 0;
        while !self.is_finished() {
            let before_ns = crate::monotonic_ns();
            let wait_ns = self.wait_ns(before_ns);
            let wait = Timespec { tv_sec: 0, tv_nsec: wait_ns as i64 };
            let ready = match epoll::wait(&self.common.epoll, &mut events, Some(&wait)) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("waiting for events"),
            };
            let now_ns = crate::monotonic_ns();
            if ready.is_empty() {
                let late_ns = now_ns.saturating_sub(before_ns + wait_ns);
                self.own_pause_ns = self.own_pause_ns.max(late_ns);
            }
            for event in ready.iter() {
                let index = event.data.u64() as usize;
                self.handle(index, now_ns, &mut scratch);
            }
            self.fault(now_ns);
            if now_ns >= next_tick_ns {
                next_tick_ns = now_ns + TICK_NS / 4;
                self.tick(now_ns)?;
            }
        }
        self.tell_ns = self.tell_ns.map(|_| 0);
        self.tell(crate::monotonic_ns())?;
        Ok(self.report())
    }

    fn handle(&mut self, index: usize, now_ns: u64, scratch: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let replies = connection.replies;
        connection.ready(&mut self.common, now_ns, scratch);
        if connection.replies > replies {
            self.after_reply(index, now_ns);
        }
    }

    /// Goes on after a reply: closes and reconnects, or asks again.
    fn after_reply(&mut self, index: usize, now_ns: u64) {
        let connection = &mut self.connections[index];
        if connection.talk.reconnects() && connection.state != State::Done {
            connection.close();
        }
        self.go_on(index, now_ns);
    }

    fn go_on(&mut self, index: usize, now_ns: u64) {
        let connection = &mut self.connections[index];
        let part = connection.talk.part;
        if self.phase != Phase::Running {
            return;
        }
        if connection.state == State::Closed {
            if now_ns >= connection.next_ask_ns {
                connection.connect(&mut self.common, now_ns);
            }
            return;
        }
        if connection.talk.is_idle() || part == Part::Subscriber {
            return;
        }
        while self.connections[index].ask(&mut self.common, now_ns) {
            if let Part::Publisher(subscriber) = part {
                self.connections[subscriber].announce(now_ns);
            }
        }
    }

    fn fault(&mut self, now_ns: u64) {
        let Some(trigger) = &mut self.trigger else { return };
        let connections = &self.connections;
        trigger.poll(now_ns, || {
            connections.iter().filter(|connection| connection.is_outstanding()).count() as u64
        });
        if self.common.fault_ns.is_none() && trigger.fired_ns.is_some() {
            self.common.fault_ns = trigger.fired_ns;
            self.connections.iter_mut().for_each(Connection::fault_came);
        }
    }

    fn tick(&mut self, now_ns: u64) -> Result<()> {
        match self.phase {
            Phase::Starting => self.begin_when_ready(now_ns)?,
            Phase::Running => {
                for index in 0..self.connections.len() {
                    self.go_on(index, now_ns);
                }
                // If no connection lives, the moment of a fault never comes.
                let all_done = self.connections.iter().all(|it| it.state == State::Done);
                let over = self.end_ns().is_some_and(|end_ns| now_ns >= end_ns);
                if all_done || over || self.is_told_to_end(now_ns) {
                    self.stop(now_ns);
                }
            }
            Phase::Stopping => {}
        }
        for connection in &mut self.connections {
            if connection.waiting_ns(now_ns) > HANG_NS {
                connection.hang(&self.common, now_ns);
            }
        }
        self.tell(now_ns)
    }

    /// Says what has been seen so far, if that is wanted and due.
    fn tell(&mut self, now_ns: u64) -> Result<()> {
        if self.tell_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return Ok(());
        }
        self.tell_ns = Some(now_ns + TELL_EVERY_NS);
        let fault_ns = self.common.fault_ns;
        let one = |it: &mut Connection| it.snapshot(fault_ns.is_some(), now_ns);
        let lanes = self.connections.iter_mut().map(one).collect();
        println!("{}", serde_json::to_string(&Snapshot { at_ns: now_ns, fault_ns, lanes })?);
        Ok(())
    }

    fn begin_when_ready(&mut self, now_ns: u64) -> Result<()> {
        let failed = self.connections.iter().find_map(|it| it.report.error.as_ref());
        if let Some(error) = failed {
            let own_ms = self.own_pause_ns / 1_000_000;
            bail!(
                "a connection failed before all worked: {error} \
                 (the load itself stood still for up to {own_ms} ms)"
            );
        }
        if self.connections.iter().any(|connection| connection.replies == 0) {
            if now_ns > self.started_ns + READY_LIMIT_NS {
                bail!("not all connections work");
            }
            return Ok(());
        }
        self.phase = Phase::Running;
        self.ready_ns = now_ns;
        self.own_pause_ns = 0;
        self.common.measuring = true;
        if let Some(trigger) = &mut self.trigger {
            trigger.arm(now_ns);
        }
        let count = self.connections.len() as u64;
        for (index, connection) in self.connections.iter_mut().enumerate() {
            // Paced connections do not all send at the same moment.
            let interval_ns = connection.interval_ns();
            connection.next_ask_ns = now_ns + interval_ns * index as u64 / count.max(1);
        }
        for index in 0..self.connections.len() {
            self.go_on(index, now_ns);
        }
        Ok(())
    }

    /// A load without a duration ends with its input, or with its first failure.
    fn is_told_to_end(&mut self, now_ns: u64) -> bool {
        if self.spec.duration_ms > 0 || now_ns < self.look_ns {
            return false;
        }
        self.look_ns = now_ns + LOOK_EVERY_NS;
        let input = std::io::stdin();
        let mut ends = [PollFd::new(&input, PollFlags::IN)];
        let ended = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        ended.is_ok_and(|count| count > 0)
            || self.connections.iter().any(|it| it.report.error.is_some())
    }

    /// When to stop sending requests, once it is known.
    fn end_ns(&self) -> Option<u64> {
        if self.spec.duration_ms == 0 {
            return None;
        }
        let from_ns = match self.trigger {
            Some(_) => self.common.fault_ns?,
            None => self.ready_ns,
        };
        Some(from_ns + self.spec.duration_ms * 1_000_000)
    }

    fn stop(&mut self, now_ns: u64) {
        self.phase = Phase::Stopping;
        self.stop_ns = now_ns;
        self.common.measuring = false;
        for connection in &mut self.connections {
            if connection.talk.is_idle() {
                connection.ask(&mut self.common, now_ns);
            }
        }
    }

    fn is_finished(&self) -> bool {
        let busy = |connection: &Connection| connection.is_outstanding();
        self.phase == Phase::Stopping && !self.connections.iter().any(busy)
    }

    fn wait_ns(&self, now_ns: u64) -> u64 {
        let due_ns = self.trigger.as_ref().and_then(Trigger::due_ns).unwrap_or(u64::MAX);
        due_ns.saturating_sub(now_ns).min(TICK_NS)
    }

    fn report(mut self) -> Report {
        let (mut redraws, mut outstanding_at_fault) = (0, 0);
        if let Some(trigger) = &mut self.trigger {
            trigger.finish();
            (redraws, outstanding_at_fault) = (trigger.redraws, trigger.outstanding);
        }
        let shared = self.connections.iter().flat_map(|it| it.talk.shared.iter().copied());
        let unanswered = self.connections.iter().map(|it| it.talk.unanswered()).sum();
        Report {
            ready_ns: self.ready_ns,
            stop_ns: self.stop_ns,
            fault_ns: self.common.fault_ns,
            redraws,
            outstanding_at_fault,
            shared_error: shared_error(shared.collect(), unanswered),
            latency_ns: quantiles(&self.common.latency),
            connect_ns: quantiles(&self.common.connect),
            retransmits: retransmits().saturating_sub(self.retransmits_before),
            own_pause_ns: self.own_pause_ns,
            connections: self.connections.into_iter().map(|it| it.report).collect(),
        }
    }
}

fn connections(spec: &Spec) -> Vec<Connection> {
    let mut all = Vec::new();
    for group in &spec.groups {
        let paired = matches!(group.workload, Workload::Pubsub | Workload::Mqtt);
        for _ in 0..group.connections {
            let pair = all.len();
            let mut add = |part| {
                let index = all.len();
                let talk = Talk::new(group, part, index, pair, spec.seed);
                all.push(Connection::new(talk, group, index, spec.points.contains(&index)));
            };
            if paired {
                add(Part::Subscriber);
                add(Part::Publisher(pair));
            } else {
                add(Part::Only);
            }
        }
    }
    all
}

/// Checks that every increment happened exactly once: the values together are 1..=N. Only as many
/// may be missing as requests were never answered: a server that ends for good may have written the
/// reply to a later request first (Redis does, since it keeps what it owes on a stack). If every
/// request was answered, none may be missing.
fn shared_error(mut values: Vec<u64>, unanswered: u64) -> Option<String> {
    values.sort_unstable();
    let (mut last, mut missing) = (0, 0);
    for value in values {
        missing += value.saturating_sub(last + 1);
        if value == last || missing > unanswered {
            let replies = format!("the shared counter's replies go from {last} to {value}");
            return Some(format!("{replies}; {unanswered} requests had none"));
        }
        last = value;
    }
    None
}

fn quantiles(histogram: &hdrhistogram::Histogram<u64>) -> Quantiles {
    Quantiles {
        count: histogram.len(),
        p50: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
        max: histogram.max(),
    }
}

/// Number of segments that this network namespace has sent again, from `/proc/net/snmp`.
fn retransmits() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap_or_default();
    let mut rows = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (Some(names), Some(values)) = (rows.next(), rows.next()) else { return 0 };
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs
        .find(|(name, _)| *name == "RetransSegs")
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_counters_must_add_up() {
        assert_eq!(shared_error(vec![3, 1, 2], 0), None);
        assert_eq!(shared_error(vec![], 0), None);
        assert!(shared_error(vec![1, 2, 2], 0).is_some());
        assert!(shared_error(vec![1, 2, 4], 0).is_some());
        assert!(shared_error(vec![2, 3], 0).is_some());
    }

    #[test]
    fn a_shared_counter_lacks_at_most_what_nobody_was_told() {
        assert_eq!(shared_error(vec![1, 2, 5], 2), None);
        assert!(shared_error(vec![1, 2, 5], 1).is_some());
        assert!(shared_error(vec![1, 3, 5], 1).is_some());
        assert!(shared_error(vec![1, 2, 2, 5], 9).is_some());
    }
}
