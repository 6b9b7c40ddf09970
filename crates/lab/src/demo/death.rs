//! One death: a redis-server under load, with Holdfast or without, and what its clients saw.

use super::screen::Screen;
use super::words;
use crate::bench::faults::{FaultKind, fault_steps};
use crate::bench::service::{Variant, address, with_recipe};
use crate::bench::takeover::{DAY_S, Outcome, PHASES, failure, second_of_day};
use crate::load::{Action, Fault, Group, Report, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::{Program, Recipe};
use crate::testbed::{Host, Plan, Role, Shape};
use anyhow::{Context as _, Result};
use holdfast_chance::Rng;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rate of the demonstration's links, bits per second.
const LINK_BITS_PER_SECOND: u64 = 1_000_000_000;

/// Earliest moment of a fault after all connections work, in µs.
const FAULT_EARLIEST_US: u64 = 700_000;

/// Span from which the moment of the fault is drawn, in µs.
const FAULT_SPAN_US: u64 = 1_500_000;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Time for which the load goes on after the fault, in ms.
const AFTER_FAULT_MS: u64 = 2_000;

/// Time within which every fault is detected, in ms; a longer one means that a clock was set.
const LATE_MS: f64 = 60_000.0;

/// Time after the fault in which the edge's steps belong to it, in ms.
const STEPS_MS: f64 = 500.0;

/// What happens in a death, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Death,
    /// Without Holdfast: no connection is left.
    AllEnded,
    Suspected,
    Declared,
    Known,
    Barred,
    Rebuilt,
    FirstByte,
    HandedOver,
    Resent,
}

/// One death and what its clients saw.
pub struct Death {
    pub title: &'static str,
    /// Whether Holdfast was there.
    pub is_protected: bool,
    /// What each connection does, in the order of the report's.
    pub clients: Vec<String>,
    pub report: Report,
    /// What was wrong, if anything; without Holdfast nothing is expected.
    pub failure: Option<String>,
    /// What happened when, in ms after the death, in order.
    pub moments: Vec<(f64, Moment)>,
}

impl Death {
    /// Number of connections that lived, and got every byte right.
    pub fn lived(&self) -> usize {
        self.report.connections.iter().filter(|it| it.survived()).count()
    }

    /// Longest pause of any connection around the death, in ms.
    pub fn pause_ms(&self) -> f64 {
        self.report.stall_ns() as f64 / 1e6
    }
}

/// The clients: the first is the long download, the second the idle subscriber, which gets nothing
/// until the very end.
pub fn clients() -> Vec<Group> {
    let port = Program::Redis.port();
    let usual = |workload, connections| Group::usual(workload, connections, port);
    vec![
        usual(Workload::Download, 1),
        usual(Workload::IdleSubscriber, 1),
        usual(Workload::Incr, 4),
        usual(Workload::Shared, 4),
        usual(Workload::Pubsub, 1),
        Group { interval_us: 2_000, ..usual(Workload::Upload, 1) },
        Group { interval_us: 1_000, ..usual(Workload::Churn, 1) },
    ]
}

/// What each connection does, in the load's order.
pub fn names() -> Vec<String> {
    let clients = clients();
    clients.iter().flat_map(words::clients).collect()
}

/// The same death without Holdfast: one machine, and a router that only forwards.
///
/// # Errors
/// When the hosts cannot be built or the load cannot begin.
pub fn unprotected(title: &'static str, seed: u64, screen: &Screen) -> Result<Death> {
    let report = with_redis(Variant::Clean, screen, |service| {
        let steps = vec![(0, Action::Kill(service.server_pid()?))];
        load(service.testbed.host(Role::Client), steps, seed, screen)
    })?;
    let ended = report.connections.iter().filter_map(|it| it.failed_ns).max();
    let ended = ended.zip(report.fault_ns).map(|(end, fault)| (end as f64 - fault as f64) / 1e6);
    let mut moments = vec![(0.0, Moment::Death)];
    if report.connections.iter().all(|it| it.failed_ns.is_some()) {
        moments.extend(ended.map(|ms| (ms, Moment::AllEnded)));
    }
    let clients = names();
    Ok(Death { title, is_protected: false, clients, report, failure: None, moments })
}

/// A death with Holdfast.
///
/// # Errors
/// When the pair cannot be built or the load cannot begin.
pub fn protected(
    kind: FaultKind,
    title: &'static str,
    seed: u64,
    screen: &Screen,
) -> Result<Death> {
    let outcome = with_redis(Variant::Ours, screen, |service| {
        let testbed = service.testbed;
        let group = service.group()?;
        let steps = fault_steps(kind, testbed, group, seed)?;
        let report = load(testbed.host(Role::Client), steps, seed, screen);
        let report = report.with_context(|| group.log_tails())?;
        screen.stage("The members are asked what they did");
        Ok(Outcome::of(report, Some(kind.survivor()), group))
    })?;
    let (failure, moments) = (failure(&outcome), moments(&outcome));
    let (clients, report) = (names(), outcome.report);
    Ok(Death { title, is_protected: true, clients, report, failure, moments })
}

/// Hands a running redis-server to `work`, with Holdfast or without.
///
/// # Errors
/// Those of the building and those of `work`.
pub fn with_redis<T>(
    variant: Variant,
    screen: &Screen,
    work: impl FnOnce(&mut crate::bench::service::Service<'_>) -> Result<T>,
) -> Result<T> {
    let shape = Shape::Tbf { bits_per_second: LINK_BITS_PER_SECOND };
    let plan = Plan { shape, ..Plan::default() };
    let is_ours = variant == Variant::Ours;
    screen.stage(match is_ours {
        true => "Four machines start: a client, an edge, a primary and its backup",
        false => "Three machines start: a client, a router and one server",
    });
    let install = |first: &Host, others: &[&Host]| {
        screen.stage(match is_ours {
            true => "redis-server starts on the primary, and in step on the backup",
            false => "redis-server starts",
        });
        others.iter().try_for_each(|host| Recipe::prepare(Program::Redis, host, 0).map(drop))?;
        Recipe::prepare(Program::Redis, first, 0)
    };
    with_recipe(variant, &plan, &GroupOptions::default(), install, work)
}

/// Runs the clients until some time after the death that they cause.
fn load(host: &Host, steps: Vec<(u64, Action)>, seed: u64, screen: &Screen) -> Result<Report> {
    screen.stage("The clients connect");
    let after_us = FAULT_EARLIEST_US + Rng::of_state(seed).below(FAULT_SPAN_US);
    let spec = Spec {
        address: address(false)?,
        groups: clients(),
        duration_ms: AFTER_FAULT_MS,
        congestion: None,
        fault: Some(Fault { after_us, redraw_us: REDRAW_US, steps }),
        seed,
        points: (0..names().len()).collect(),
    };
    let mut was_dead = None;
    Run::start_told(host, &spec)?.follow(|snapshot| {
        let is_dead = snapshot.fault_ns.is_some();
        if was_dead.replace(is_dead) != Some(is_dead) {
            match is_dead {
                true => screen.blow("It is DEAD. Every byte goes on being checked"),
                false => {
                    screen.stage("The clients work; when the server dies is a matter of chance")
                }
            }
        }
        screen.snapshot(snapshot);
    })
}

/// The time of day of the fault, which the load knows by the monotonic clock.
struct FaultClock {
    second_of_day: f64,
}

impl FaultClock {
    fn of(outcome: &Outcome) -> Option<Self> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        let since_ns = crate::monotonic_ns().checked_sub(outcome.report.fault_ns?)?;
        Some(Self { second_of_day: now_s - since_ns as f64 / 1e9 })
    }

    /// Time from the fault to a time of day, in ms; `None` if it was not soon after.
    fn ms(&self, second_of_day: f64) -> Option<f64> {
        let ms = (second_of_day - self.second_of_day).rem_euclid(DAY_S) * 1e3;
        Some(ms).filter(|ms| *ms < LATE_MS)
    }
}

/// What happened when, in ms after the death.
fn moments(outcome: &Outcome) -> Vec<(f64, Moment)> {
    let mut moments = vec![(0.0, Moment::Death)];
    if let Some(clock) = FaultClock::of(outcome) {
        moments.extend(edge_moments(outcome, &clock));
        moments.extend(member_moments(outcome, &clock));
    }
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    moments
}

/// The edge's steps, each the first time that it was taken.
fn edge_moments(outcome: &Outcome, clock: &FaultClock) -> Vec<(f64, Moment)> {
    let steps =
        [("suspect", Moment::Suspected), ("declare", Moment::Declared), ("resend", Moment::Resent)];
    let first = |(name, moment)| {
        let mut at = outcome.edge_events.iter().filter(|(_, what)| what == name);
        let ms = at.find_map(|(at, _)| clock.ms(second_of_day(at)?).filter(|ms| *ms < STEPS_MS))?;
        Some((ms, moment))
    };
    steps.into_iter().filter_map(first).collect()
}

/// The survivor's steps: it says when its takeover was over, and how long each phase took.
fn member_moments(outcome: &Outcome, clock: &FaultClock) -> Vec<(f64, Moment)> {
    let of = |outcome: &Outcome| -> Option<Vec<(f64, Moment)>> {
        let takeover = outcome.takeover.as_ref()?;
        let over_s = second_of_day(takeover.get("at")?.as_str()?)?;
        let begin_ms = clock.ms(over_s - takeover.get("total_us")?.as_f64()? / 1e6)?;
        let phases = takeover.get("phases_us")?;
        let mut at_ms = begin_ms;
        let mut moments = vec![(begin_ms, Moment::Known)];
        for name in PHASES.into_iter().filter(|name| *name != "detect") {
            at_ms += phases.get(name).and_then(|it| it.as_f64()).unwrap_or(0.0) / 1e3;
            match name {
                "fence" => moments.push((at_ms, Moment::Barred)),
                "repair" => {
                    moments.push((at_ms, Moment::Rebuilt));
                    moments.extend(first_byte_ms(outcome, at_ms).map(|ms| (ms, Moment::FirstByte)));
                }
                "kick" => moments.push((at_ms, Moment::HandedOver)),
                _ => {}
            }
        }
        Some(moments)
    };
    of(outcome).unwrap_or_default()
}

/// When a client got the first byte from the backup, in ms after the fault: before `rebuilt_ms`
/// the backup's sockets did not exist, and what came then the dead machine's kernel still had.
fn first_byte_ms(outcome: &Outcome, rebuilt_ms: f64) -> Option<f64> {
    let fault_ns = outcome.report.fault_ns? as f64;
    let points = outcome.report.connections.iter().flat_map(|it| &it.points);
    let after_ms = points.map(|point| (point.0 as f64 - fault_ns) / 1e6);
    after_ms.filter(|ms| *ms >= rebuilt_ms).min_by(f64::total_cmp)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::load::{ConnectionReport, Quantiles};

    /// A report of `names` clients that lived, or of which none did, around a fault at 1 s.
    pub fn report(lives: bool) -> Report {
        let fault_ns = 1_000_000_000;
        let one = |index: usize| {
            let steps = (0..300u64).map(|step| 990_000_000 + step * 200_000);
            let is_paused = |at: u64| (fault_ns..fault_ns + 4_000_000).contains(&at);
            let seen = steps.filter(|at| if lives { !is_paused(*at) } else { *at < fault_ns });
            ConnectionReport {
                workload: Workload::Incr,
                replies: 1_000,
                bytes_in: 4_000,
                bytes_out: 4_000,
                connects: 1,
                open_at_fault: true,
                stall_ns: if lives { 4_200_000 + index as u64 * 10_000 } else { 0 },
                stall_start_ns: fault_ns - 200_000,
                later_gap_ns: 0,
                byte_errors: 0,
                resets: u64::from(!lives),
                hung: false,
                error: (!lives).then(|| "read: reset".to_owned()),
                failed_ns: (!lives).then_some(fault_ns + 300_000),
                points: seen.map(|at| (at, at)).collect(),
            }
        };
        Report {
            ready_ns: 500_000_000,
            stop_ns: 3_000_000_000,
            fault_ns: Some(fault_ns),
            redraws: 0,
            outstanding_at_fault: 9,
            connections: (0..names().len()).map(one).collect(),
            shared_error: None,
            latency_ns: Quantiles::default(),
            connect_ns: Quantiles::default(),
            retransmits: 0,
            own_pause_ns: 0,
        }
    }

    /// A death that lasted a few ms, or the same without Holdfast.
    pub fn death(is_protected: bool) -> Death {
        let moments = match is_protected {
            false => vec![(0.0, Moment::Death), (0.3, Moment::AllEnded)],
            true => vec![
                (0.0, Moment::Death),
                (0.2, Moment::Known),
                (0.9, Moment::Barred),
                (2.8, Moment::Rebuilt),
                (3.1, Moment::FirstByte),
                (4.0, Moment::HandedOver),
            ],
        };
        let report = report(is_protected);
        let (title, clients, failure) = ("kill -9 of the server", names(), None);
        Death { title, is_protected, clients, report, failure, moments }
    }

    #[test]
    fn every_connection_has_a_name_of_its_own_kind() {
        let (names, clients) = (names(), clients());
        assert_eq!(names.len(), 14);
        // A publisher and its subscriber are one group and two connections.
        let pairs = clients.iter().filter(|it| it.workload == Workload::Pubsub).count();
        assert_eq!(clients.iter().map(|it| it.connections).sum::<usize>() + pairs, names.len());
        assert!(names.iter().all(|name| name.len() <= 24 && !name.contains("Incr")), "{names:?}");
    }

    #[test]
    fn what_lived_and_what_did_not_is_counted() {
        assert_eq!((death(true).lived(), death(false).lived()), (14, 0));
        let headline = words::Headline::of(&[death(false), death(true), death(true)]);
        assert_eq!((headline.with, headline.without), ((14, 14), (0, 14)));
        assert_eq!(headline.words, "connections lived in each of 2 deaths; worst pause 4.3 ms");
    }
}
