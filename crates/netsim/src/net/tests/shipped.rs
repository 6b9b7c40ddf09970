//! Recovery and rate control as they ship, in virtual time.

use super::super::dumbbell::{Dumbbell, active_active, one_flow};
use super::super::link::QueueLimit;
use super::super::outcome::{Outcome, Tap};
use super::super::packet::{Kind, Packet};
use super::super::scenario::{Alert, FlowSpec, Scenario};
use super::super::{Network, run};
use super::{FAILS_AT, MS, fairness};
use crate::Ns;
use crate::tcp::{Congestion, Profile};
use holdfast_edge::{HalrConfig, HalrLimits, Keeps, Law, PfrcConfig, RightEdge};

const HEARTBEAT: Ns = 20 * MS;

fn pfrc() -> PfrcConfig {
    PfrcConfig {
        capacity_bytes_per_s: 12_500_000,
        interval_ns: 100 * MS,
        rtt_ns: 100 * MS,
        alpha: PfrcConfig::ALPHA_SHIPPED,
        utilization: 0.98,
        law: Law::SHIPPED,
        window_min_bytes: 3000,
        right_edge: RightEdge::Keeps,
        flows_max: 1000,
    }
}

/// Records the right edges that arrive at each sender.
#[derive(Default)]
struct RightEdges {
    flows: Vec<u32>,
    acks: u64,
}

impl Tap for RightEdges {
    fn packet(&mut self, now: Ns, link: u32, packet: &Packet, _: bool) {
        // The last link of each pair of ends comes after those of two strings.
        let is_last = link >= 8 && link % 4 == 3;
        if packet.is_forward() || !is_last {
            return;
        }
        let flow = packet.flow as usize;
        self.flows.resize(self.flows.len().max(flow + 1), 0);
        let edge = packet.ack + packet.window;
        assert!(edge >= self.flows[flow], "L4: flow {flow} at {now}: {edge} segments");
        self.flows[flow] = edge;
        self.acks += 1;
    }
}

#[test]
fn the_law_that_ships_is_fair_after_an_outage_and_takes_nothing_back() {
    let shared = |rate_control| {
        let dumbbell = Dumbbell {
            string_rates_bps: vec![100_000_000; 2],
            buffer: QueueLimit::Packets(749),
            rate_control,
            ..Dumbbell::thesis()
        };
        let profile = Profile { sack: true, ..Profile::NS2.with(Congestion::Sack) };
        let scenario = active_active(&dumbbell, profile);
        let mut edges = RightEdges::default();
        let outcome = Network::new(&scenario).unwrap().with_tap(&mut edges).run();
        assert!(edges.acks > 100_000, "{}", edges.acks);
        outcome
    };
    let (on, off) = (shared(Some(pfrc())), shared(None));
    assert!(on.rate_control[0].capped > 0 && off.rate_control.is_empty());
    // Windows that were advertised before are used up first, so that the queue overflows once more,
    // and senders that lost packets there grow again for some seconds.
    for (from, until, least, most) in [(13, 17, 0.9, 0.7), (17, 21, 0.98, 0.9)] {
        let (on, off) = (fairness(&on, from, until), fairness(&off, from, until));
        assert!(on >= least && off < most, "{from} to {until} s: {on} {off}");
    }
    // The string is used again.
    let bytes = |outcome: &Outcome| -> u64 {
        let bins = outcome.flows.iter().flat_map(|flow| flow.bins.iter().take(210).skip(130));
        bins.map(|it| u64::from(*it)).sum()
    };
    let (with, without) = (bytes(&on), bytes(&off));
    assert!(with * 100 > without * 90, "{with} of {without} bytes in 8 s");
    assert!(on.flows.iter().all(|flow| flow.finished_ns.is_some()));
}

fn halr(keeps: Keeps, always: bool) -> HalrConfig {
    let limits = HalrLimits {
        flows_max: 10_000,
        memory_bytes: 32 << 20,
        age_max_ns: 60_000 * MS,
        pace_bytes_per_s: 125_000_000,
        heaviest: 0,
    };
    HalrConfig::shipped(keeps, always, &limits)
}

fn dumbbell(keeps: Option<Keeps>) -> Dumbbell {
    Dumbbell {
        recovery: keeps.map(|keeps| halr(keeps, false)),
        alert: Alert::Heartbeats(HEARTBEAT),
        ..Dumbbell::thesis()
    }
}

fn kicked(outcome: &Outcome) -> u64 {
    outcome.recovery.iter().map(|it| it.resent).sum()
}

#[test]
fn a_modern_flow_goes_on_when_its_string_is_back() {
    let time = |keeps, outage_ms: u64| {
        let outage = Some((FAILS_AT, FAILS_AT + outage_ms * MS));
        let scenario = one_flow(&dumbbell(keeps), Profile::MODERN, 4000, FAILS_AT / 2, outage);
        let outcome = run(&scenario).unwrap();
        (outcome.flows[0].completion_s().unwrap(), kicked(&outcome))
    };
    for outage_ms in [1000, 3000] {
        let ((raw, _), (mended, resent)) =
            (time(None, outage_ms), time(Some(Keeps::HeadTail), outage_ms));
        assert!(resent > 0 && raw - mended > 0.2, "{outage_ms} ms: {raw} {mended} {resent}");
    }
    // Two heartbeats in a row have to be missing.
    assert_eq!(time(Some(Keeps::HeadTail), 30).1, 0);
}

#[test]
fn a_syn_of_the_outage_goes_out_when_it_is_over() {
    let connected = |keeps| {
        let outage = Some((FAILS_AT, FAILS_AT + 5000 * MS));
        let begins = FAILS_AT + 1950 * MS;
        let scenario = one_flow(&dumbbell(keeps), Profile::MODERN, 10, begins, outage);
        run(&scenario).unwrap().flows[0].connected_ns.unwrap() - begins
    };
    let mended = connected(Some(Keeps::Syns));
    assert_eq!(mended / MS, 3050 + 60, "with the first heartbeat, from the edge there and back");
    assert!(connected(None) > mended + 900 * MS, "else with its own timer");
}

/// Two strings with ten flows each; the first string fails for good.
fn two_strings() -> Scenario {
    let dumbbell =
        Dumbbell { string_rates_bps: vec![100_000_000; 2], ..dumbbell(Some(Keeps::HeadTail)) };
    let mut scenario = active_active(&dumbbell, Profile::MODERN);
    scenario.flows.truncate(20);
    scenario.flows.iter_mut().for_each(|flow: &mut FlowSpec| flow.segments = 20_000);
    scenario
}

/// Records what goes to senders and into the strings around the end of the outage.
#[derive(Default)]
struct Around {
    acks_held: Vec<Ns>,
    resent: Vec<u32>,
}

const BACK: Ns = 8000 * MS;

impl Tap for Around {
    fn packet(&mut self, now: Ns, link: u32, packet: &Packet, _: bool) {
        if link >= 8 && link % 4 == 3 && packet.kind == Kind::Ack {
            self.acks_held.push(now);
        }
        if link < 8 && packet.is_forward() && now == BACK && packet.sent_at < BACK - 100 * MS {
            self.resent.push(packet.flow);
        }
    }
}

#[test]
fn acknowledgements_wait_while_lost_flows_are_resent_and_others_are_not() {
    let scenario = two_strings();
    let mut around = Around::default();
    let outcome = Network::new(&scenario).unwrap().with_tap(&mut around).run();
    assert!(outcome.flows.iter().all(|flow| flow.finished_ns.is_some()));
    let acks = |from: Ns, until: Ns| {
        around.acks_held.iter().filter(|at| (from..until).contains(*at)).count()
    };
    assert!(acks(BACK - 10 * MS, BACK) > 0);
    assert_eq!(acks(BACK, BACK + 2 * MS), 0, "they wait");
    assert!(acks(BACK + 2 * MS, BACK + 12 * MS) > acks(BACK - 10 * MS, BACK) / 2);
    assert!(!around.resent.is_empty());
    let of_the_other = around.resent.iter().filter(|flow| *flow % 2 == 1).count();
    assert_eq!(of_the_other, 0, "{:?}", around.resent);
}
