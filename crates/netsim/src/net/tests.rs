//! The thesis' numbers, and those measured with ns-3 and Linux, from the same endpoints and
//! machines.

use super::dumbbell::{Dumbbell, active_active, one_flow};
use super::link::QueueLimit;
use super::outcome::Outcome;
use super::*;
use crate::Ns;
use crate::tcp::{Congestion, Profile};
use holdfast_edge::{HalrConfig, Law, PfrcConfig, RecoveryConfig, RightEdge};

mod shipped;

const MS: Ns = 1_000_000;
const FAILS_AT: Ns = 2000 * MS;

fn halr() -> Dumbbell {
    let recovery = Some(HalrConfig::printed(RecoveryConfig::default()));
    Dumbbell { recovery, ..Dumbbell::thesis() }
}

/// Completion time in s of ten segments that start at `arrival_ms`.
fn short_flow(dumbbell: &Dumbbell, tcp: Congestion, arrival_ms: u64, outage_ms: u64) -> f64 {
    let outage = (outage_ms > 0).then_some((FAILS_AT, FAILS_AT + outage_ms * MS));
    let scenario = one_flow(dumbbell, Profile::NS2.with(tcp), 10, arrival_ms * MS, outage);
    run(&scenario).unwrap().flows[0].completion_s().unwrap()
}

fn extremes(dumbbell: &Dumbbell, arrivals: std::ops::Range<u64>, outage_ms: u64) -> (f64, f64) {
    let times = arrivals
        .step_by(10)
        .map(|arrival| short_flow(dumbbell, Congestion::NewReno, arrival, outage_ms));
    times.fold((f64::MAX, 0.0), |(low, high), it| (low.min(it), high.max(it)))
}

fn is_near(value: f64, wanted: f64) -> bool {
    (value - wanted).abs() < 0.01
}

#[test]
fn an_undisturbed_short_flow_takes_six_tenths_of_a_second() {
    for tcp in [Congestion::Reno, Congestion::NewReno, Congestion::Sack] {
        let time = short_flow(&Dumbbell::thesis(), tcp, 0, 0);
        assert!((time - 0.602).abs() < 0.001, "{tcp:?}: {time}");
    }
}

#[test]
fn half_a_second_costs_raw_flows_one_timeout() {
    let raw = Dumbbell::thesis();
    let (low, high) = extremes(&raw, 1440..1840, 500);
    assert!(is_near(low, 2.10) && is_near(high, 2.40), "{low} {high}");
    assert!(is_near(extremes(&raw, 1300..1440, 500).1, 0.602), "not before 1.44 s");
    let (low, high) = extremes(&raw, 1850..2450, 500);
    assert!(is_near(low, 4.003) && is_near(high, 4.003), "{low} {high}");
}

#[test]
fn three_seconds_make_a_group_of_ten() {
    let raw = Dumbbell::thesis();
    for (arrivals, low, high) in
        [(1440..1840, 5.10, 5.40), (1850..1960, 9.90, 9.90), (1970..4960, 4.003, 4.003)]
    {
        let found = extremes(&raw, arrivals.clone(), 3000);
        assert!(is_near(found.0, low) && is_near(found.1, high), "{arrivals:?}: {found:?}");
    }
}

#[test]
fn five_seconds_split_forty_to_sixty() {
    let raw = Dumbbell::thesis();
    let times = (2000..7000).step_by(10).map(|at| short_flow(&raw, Congestion::NewReno, at, 5000));
    let lost: Vec<f64> = times.filter(|time| *time > 1.0).collect();
    let long = lost.iter().filter(|time| **time > 9.0).count() as f64 / lost.len() as f64;
    assert!((0.39..0.41).contains(&long), "{long}");
}

#[test]
fn recovery_makes_the_delay_that_of_the_outage() {
    // NewReno takes 0.75 to 1.49 s at an outage of 0.5 s, and 3.6 to 4.2 s at 3 s, falling
    // linearly.
    let (low, high) = extremes(&halr(), 1440..2450, 500);
    assert!(low > 0.60 && (1.30..1.50).contains(&high), "{low} {high}");
    let (low, high) = extremes(&halr(), 1440..2000, 3000);
    assert!((3.59..3.65).contains(&low) && (4.0..4.2).contains(&high), "{low} {high}");
    for arrival in [2200, 3000, 4000, 4800] {
        let time = short_flow(&halr(), Congestion::Reno, arrival, 3000);
        let linear = (5000 - arrival) as f64 / 1e3 + 0.56;
        assert!((time - linear).abs() < 0.01, "{arrival}: {time}");
    }
}

fn shared(tcp: Congestion, buffer: u32, rate_control: bool) -> Outcome {
    // ns-2's DropTail drops a packet that would make the queue as long as its limit (drop-tail.cc),
    // so that a limit of 750 holds 749.
    let dumbbell = Dumbbell {
        string_rates_bps: vec![100_000_000; 2],
        buffer: QueueLimit::Packets(buffer - 1),
        rate_control: rate_control.then_some(PfrcConfig {
            capacity_bytes_per_s: 12_500_000,
            interval_ns: 250 * MS,
            rtt_ns: 100 * MS,
            alpha: 1.0,
            utilization: 0.95,
            law: Law::Printed,
            window_min_bytes: 3000,
            right_edge: RightEdge::MayShrink,
            flows_max: 1000,
        }),
        ..Dumbbell::thesis()
    };
    let profile = Profile { sack: tcp == Congestion::Sack, ..Profile::NS2.with(tcp) };
    run(&active_active(&dumbbell, profile)).unwrap()
}

fn surges(outcome: &Outcome) -> usize {
    outcome.queues[0].surges(8000 * MS, 28_000 * MS, 700 * MS)
}

#[test]
fn buffers_overflow_in_eight_and_three_surges() {
    let (small, large) =
        (shared(Congestion::Sack, 750, false), shared(Congestion::Sack, 1500, false));
    // The numbers are chaotic: the order of packets that arrive at one instant is enough to change
    // them. Over seeds they are 8.6 ± 0.5 and 3.0 ± 0.4 (Figs 25, 26).
    let (small_surges, large_surges) = (surges(&small), surges(&large));
    assert!((7..=9).contains(&small_surges), "{small_surges}");
    assert!((2..=4).contains(&large_surges), "{large_surges}");
    assert_eq!(surges(&shared(Congestion::Sack, 3000, false)), 1, "postponed, not avoided");
    assert!(small.flows.iter().all(|flow| flow.finished_ns.is_some()));
}

/// Jain's index of the flows that were active throughout.
fn fairness(outcome: &Outcome, from_s: u64, until_s: u64) -> f64 {
    let whole = |flow: &&super::outcome::FlowOutcome| {
        flow.connected_ns.is_some_and(|at| at < from_s * 1000 * MS)
            && flow.received_ns.is_none_or(|at| at > until_s * 1000 * MS)
    };
    let shares = outcome.flows.iter().filter(whole).map(|flow| {
        let bins = flow.bins.iter().take(until_s as usize * 10).skip(from_s as usize * 10);
        bins.map(|bytes| f64::from(*bytes)).sum::<f64>()
    });
    let shares: Vec<f64> = shares.collect();
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|it| it * it).sum::<f64>())
}

#[test]
fn rate_control_holds_the_queue_and_is_fair() {
    let controlled = shared(Congestion::Sack, 750, true);
    let queue = &controlled.queues[0];
    let longest = queue.max_between(8000 * MS, 28_000 * MS);
    assert!((550..=650).contains(&longest), "about 600: {longest}");
    assert!(queue.overflows.is_empty());
    for (from, until) in [(13, 17), (17, 21)] {
        let (on, off) = (
            fairness(&controlled, from, until),
            fairness(&shared(Congestion::Sack, 750, false), from, until),
        );
        assert!(on >= 0.99 && off < 0.9, "{on} {off}");
    }
}

#[test]
fn flows_of_a_failed_string_pause_and_go_on_on_the_other() {
    let outcome = shared(Congestion::NewReno, 750, true);
    let moved: Vec<_> = outcome.flows.iter().filter(|flow| flow.moved).collect();
    assert_eq!(moved.len(), 21, "those that began by 5 s");
    let bytes = |bins: std::ops::Range<usize>| -> u64 {
        let of = |flow: &super::outcome::FlowOutcome| {
            flow.bins.iter().take(bins.end).skip(bins.start).map(|it| u64::from(*it)).sum::<u64>()
        };
        moved.iter().map(|flow| of(flow)).sum()
    };
    assert_eq!(bytes(52..80), 0);
    assert!(bytes(80..100) > 0);
}

#[test]
fn a_scenario_that_names_what_is_not_there_is_refused() {
    let scenario = one_flow(&Dumbbell::thesis(), Profile::NS2, 10, 0, None);
    let broken = |change: fn(&mut Scenario)| {
        let mut scenario = scenario.clone();
        change(&mut scenario);
        run(&scenario).unwrap_err().to_string()
    };
    assert_eq!(broken(|it| it.flows[0].path = 7), "path 7 does not exist; there are 1");
    assert_eq!(broken(|it| it.paths[0].back.clear()), "path 0 has 0 hops; let it have 1 to 64");
    assert!(broken(|it| it.switches.clear()).starts_with("switch 0 does not exist"));
    assert!(broken(|it| it.watch.queues = vec![99]).starts_with("link 99"));
}

#[test]
fn the_same_scenario_has_the_same_outcome() {
    let mut dumbbell = Dumbbell::thesis();
    dumbbell.loss = loss::LossModel::Bernoulli(0.01);
    let mut scenario = one_flow(&dumbbell, Profile::NS2, 1000, 0, None);
    scenario.seed = 5;
    let first = run(&scenario).unwrap();
    assert_eq!(first, run(&scenario).unwrap());
    assert!(first.flows[0].counts.resent > 0);
    scenario.seed = 6;
    assert_ne!(first, run(&scenario).unwrap());
}

/// Results of a flow as in ns-3.48's runs: arrivals over 1.4 s before the outage's end, 100 Mb/s,
/// one-way delays of 45 + 2 + 2 + 1 ms, packets lost at the receiving interface.
fn like_ns3(profile: Profile, segments: u32, arrival_ns: Ns, outage_ms: u64) -> (f64, u32) {
    let dumbbell = Dumbbell { delays_ns: [45 * MS, 2 * MS, 2 * MS, MS], ..Dumbbell::thesis() };
    let outage = (outage_ms > 0).then_some((FAILS_AT, FAILS_AT + outage_ms * MS));
    let mut scenario = one_flow(&dumbbell, profile, segments, arrival_ns, outage);
    scenario.outages.iter_mut().for_each(|it| it.cut = scenario::CutAt::FarEnd);
    let outcome = run(&scenario).unwrap();
    (outcome.flows[0].received_s().unwrap(), outcome.flows[0].counts.timeouts)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn short_flows_are_those_of_ns3() {
    // Outage, median times with lost data and with a lost SYN, and timeouts of all 300 flows.
    let measured = [
        (0, 0.5527, 0.0, 0),
        (500, 1.8535, 3.5527, 149),
        (3000, 3.8535, 3.5527, 97),
        (5000, 7.8536, 3.5527, 87),
    ];
    for (outage_ms, data, syn, timeouts) in measured {
        for sack in [false, true] {
            let profile = Profile { sack, ..Profile::NS3 };
            let step = (600 + outage_ms) * MS / 600;
            let flow = |number: u64| {
                let at = 1400 * MS + (2 * number + 1) * step;
                (at, like_ns3(profile, 10, at, outage_ms))
            };
            let flows: Vec<_> = (0..300).map(flow).collect();
            let class = |early: bool| {
                let of = flows.iter().filter(|flow| (flow.0 < FAILS_AT) == early);
                median(of.map(|flow| flow.1.0).chain([0.0]).collect())
            };
            assert!((class(true) / data - 1.0).abs() < 0.05, "{outage_ms}: {}", class(true));
            assert!(
                (class(false) - syn).abs() < 0.05 * syn + 1e-9,
                "{outage_ms}: {}",
                class(false)
            );
            let found: u32 = flows.iter().map(|flow| flow.1.1).sum();
            assert!(found.abs_diff(timeouts) <= 1, "{outage_ms}: {found} timeouts");
        }
    }
}

#[test]
fn long_flows_are_those_of_ns3() {
    // SACK, outage, least, median and largest time in s of the flows that lost data, and the
    // numbers of the 40 flows by their number of timeouts.
    let measured = [
        (true, 50, 1.67, 4.38, 8.60, (0, 27)),
        (true, 100, 2.79, 7.59, 8.60, (1, 28)),
        (true, 500, 3.50, 7.19, 8.39, (1, 39)),
        (true, 1000, 3.50, 7.19, 10.30, (1, 38)),
        (true, 3000, 4.67, 10.39, 14.30, (2, 38)),
        (true, 5000, 10.10, 14.39, 14.70, (3, 39)),
        (true, 12_000, 18.10, 22.39, 22.70, (4, 39)),
        (false, 50, 1.67, 3.77, 10.61, (1, 19)),
        (false, 100, 3.41, 8.09, 10.61, (1, 36)),
    ];
    for (sack, outage_ms, least, middle, most, (timeouts, flows)) in measured {
        let profile = Profile { sack, ..Profile::NS3 };
        let mut times = Vec::new();
        let mut found = 0;
        for at in (400..2000).step_by(40) {
            let flow = like_ns3(profile, 1000, at * MS, outage_ms);
            times.push(flow.0);
            found += usize::from(flow.1 == timeouts);
        }
        times.sort_by(f64::total_cmp);
        let is_near = |time: f64, wanted: f64| (time / wanted - 1.0).abs() < 0.05;
        let name = format!("SACK {sack}, {outage_ms} ms: {times:?}");
        assert!(is_near(times[0], least) && is_near(times[20], middle), "{name}");
        // Without SACK the longest time depends on single spurious recoveries.
        assert!(!sack || is_near(times[39], most), "{name}");
        assert!(found.abs_diff(flows) <= 1, "{name}: {found} with {timeouts} timeouts");
    }
}
