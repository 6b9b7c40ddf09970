//! Every judge of transit groups can fail: each mutation breaks the model, or what the
//! machines say of their host, in one way, and its judge says so. And how senders share
//! what is left.

use holdfast_edge::strings::Mode;
use holdfast_edge::{Keeps, PfrcSettings};
use holdfast_sim::transit::{Fault, Limits, Mutation, Outcome, Plan, Ways, simulate};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 30;

/// A plan without limits, in which this happens, and that many flows see.
fn plan(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.faults = faults.iter().map(|(ms, fault)| (ms * MS, *fault)).collect();
    plan.limits = Limits::WIDE;
    plan.mode = Mode::ActiveActive;
    plan.keeps = Keeps::HeadTail;
    plan.regulate = Some(PfrcSettings::STANDARD);
    plan.load_until = 9000 * MS;
    plan.senders.iter_mut().for_each(|sender| sender.vanishes = false);
    plan
}

/// Any of the seeds breaks this law with the mutation; without it none breaks any.
fn sees(law: &str, mutation: Mutation, faults: &[(u64, Fault)]) {
    sees_with(law, mutation, faults, |_| {});
}

fn sees_with(law: &str, mutation: Mutation, faults: &[(u64, Fault)], change: fn(&mut Plan)) {
    let mut laws = Vec::new();
    for seed in 0..SEEDS {
        let mut plan = plan(seed, faults);
        change(&mut plan);
        let outcome = simulate(plan.clone(), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}\n{plan}", outcome.violations);
        plan.mutation = Some(mutation);
        laws.extend(simulate(plan, false).violations.into_iter().map(|it| it.law));
    }
    assert!(laws.contains(&law), "{mutation:?}: {laws:?}");
}

const FAILS: Fault = Fault::StringFails { string: 0, ways: Ways::Both, lasts: 6500 * MS };

#[test]
fn a_dead_string_that_is_used_is_seen() {
    sees("table", Mutation::TablesStay, &[(2000, FAILS)]);
}

#[test]
fn other_bytes_than_were_sent_are_seen() {
    sees("bytes", Mutation::ResendsOther, &[(2000, FAILS)]);
}

#[test]
fn an_edge_that_is_opened_by_a_restart_is_seen() {
    let closed = Fault::ClosedByHand { edge: 0, lasts: 3000 * MS };
    let restarted = Fault::EdgeDaemon { edge: 0, lasts: 100 * MS };
    sees("by hand", Mutation::ForgetsClosed, &[(2000, closed), (2500, restarted)]);
}

#[test]
fn a_flow_that_is_sprayed_over_strings_is_seen() {
    sees("order", Mutation::Sprays, &[]);
}

#[test]
fn a_tail_before_its_head_is_seen() {
    sees("order", Mutation::ResendsLast, &[(2000, FAILS)]);
}

#[test]
fn a_right_edge_that_moves_left_is_seen() {
    sees("L4", Mutation::ShrinkWindow, &[(2000, FAILS)]);
}

#[test]
fn windows_that_are_not_capped_are_seen() {
    sees("share", Mutation::NeverCapped, &[(2000, FAILS)]);
}

#[test]
fn windows_that_are_not_everybodys_are_seen() {
    sees("share", Mutation::CapsUnfairly, &[(2000, FAILS)]);
}

#[test]
fn acknowledgements_that_are_held_for_good_are_seen() {
    sees("held", Mutation::KeepsHeld, &[(2000, FAILS)]);
}

#[test]
fn a_cache_without_a_limit_is_seen() {
    let few = |plan: &mut Plan| {
        plan.limits.cache.flows_max = 2;
        plan.always = true;
    };
    sees_with("limit", Mutation::NoLimit, &[], few);
}

#[test]
fn a_group_that_is_shown_as_protected_and_is_not_is_seen() {
    let fails = |plan: &mut Plan| {
        plan.strings.truncate(2);
    };
    sees_with("status", Mutation::ShowsProtected, &[(2000, FAILS)], fails);
}

/// Senders whose receivers promise the same share what the string that is left carries,
/// whatever they had before, as in the unit tests of the law that ships.
#[test]
fn what_is_left_is_shared_and_used() {
    for (seed, senders) in [(1, 4), (2, 6), (3, 9)] {
        let fails = Fault::StringFails { string: 0, ways: Ways::Both, lasts: 40_000 * MS };
        let mut plan = plan(seed, &[(3000, fails)]);
        plan.strings.truncate(2);
        for string in &mut plan.strings {
            string.bytes_per_s = 2_000_000;
            (string.delay, string.queue_bytes, string.loss_permille) = (20 * MS, 400_000, 0);
        }
        let mut sender = plan.senders[0];
        (sender.bytes, sender.start, sender.window) = (90_000_000, 500 * MS, 200_000);
        plan.senders = vec![sender; senders];
        let at = |until: u64| -> Outcome {
            let mut plan = plan.clone();
            plan.load_until = until * MS;
            plan.stops_at = Some(until * MS);
            simulate(plan, false)
        };
        let (before, after) = (at(15_000), at(30_000));
        assert!(after.violations.is_empty(), "{:?}", after.violations);
        let each: Vec<u64> =
            after.acked.iter().zip(&before.acked).map(|(after, before)| after - before).collect();
        let (all, fair) = (each.iter().sum::<u64>(), each.iter().sum::<u64>() / senders as u64);
        let share = all as f64 / 30_000_000.0;
        assert!((0.80..1.0).contains(&share), "{senders} senders use {share}: {each:?}");
        assert!(each.iter().all(|it| it * 10 > fair * 7 && it * 10 < fair * 13), "{each:?}");
        let dropped = after.reached.queue_drops - before.reached.queue_drops;
        assert!(dropped * 200 < all / 1000, "{senders} senders: {dropped} packets are dropped");
    }
}
