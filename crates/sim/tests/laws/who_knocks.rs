//! A client that connects during an outage is let in as soon as it is over, though the
//! copy of its SYN was lost: the edge has kept it.

use holdfast_sim::{Fault, Limits, Mutation, Plan, When, simulate};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 20;
const CLIENTS: usize = 16;

/// Many short sessions, and an outage after the edge's patience with who has just begun.
fn plan(seed: u64, fault: Fault, mutation: Option<Mutation>) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.limits = Limits { edge_flows: 1024, gate_slots: 1024, ..Limits::WIDE };
    (plan.load_until, plan.path.delay) = (1600 * MS, MS);
    plan.clients.retain(|client| client.trick.is_none());
    let some = plan.clients.clone();
    plan.clients.extend((0..CLIENTS).map(|n| some[n % some.len()].clone()));
    for client in &mut plan.clients {
        (client.reuse_port, client.comes_again, client.patient) = (false, false, true);
        (client.requests, client.think) = (1, 200 * MS);
        (client.vanishes_at, client.vanishes_in, client.looks_away) = (None, None, None);
    }
    let lost = Fault::TapLoss { lasts: 900 * MS };
    plan.faults = vec![(When::At(900 * MS), lost), (When::After(300 * MS), fault)];
    Plan { unattached: false, mutation, ..plan }
}

#[test]
fn the_edge_has_kept_their_syns() {
    let faults =
        [Fault::HostDies { member: 0 }, Fault::FreezeHost { member: 0, lasts: 2_000 * MS }];
    let (mut resent, mut takeovers, mut unanswered) = (0, 0, 0);
    for fault in faults {
        for seed in 0..SEEDS {
            let outcome = simulate(plan(seed, fault, None), false);
            let why = &outcome.violations;
            assert!(why.is_empty(), "seed {seed}, {fault:?}: {why:?}");
            resent += outcome.reached.syns_resent;
            takeovers += outcome.takeovers;
            let broken = simulate(plan(seed, fault, Some(Mutation::NeverResend)), false);
            unanswered += u64::from(broken.violations.iter().any(|it| it.law == "knock"));
        }
    }
    println!("{takeovers} takeovers, {resent} SYNs sent again, {unanswered} runs need that");
    assert!(takeovers > SEEDS && resent > SEEDS && unanswered > SEEDS / 2, "too little");
}
