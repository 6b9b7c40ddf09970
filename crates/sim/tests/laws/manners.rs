//! Clients with bad manners: whatever they send, all other clients' streams are whole
//! and all others are served, while members die and take over.

use holdfast_sim::{ClientPlan, Fault, Limits, Plan, Reached, Stage, Trick, When, simulate};

const MS: u64 = 1_000_000;
/// Seeds of each case.
const SEEDS: u64 = 12;

/// Each fault that makes another member probe the clients, and none.
const FAULTS: [Option<Fault>; 4] = [
    None,
    Some(Fault::HostDies { member: 0 }),
    Some(Fault::KillServer { member: 0 }),
    Some(Fault::KillDaemon { member: 1, again: None }),
];

/// Runs each case's seeds, with a plan that `change` has changed.
fn all_are_served(change: impl Fn(&mut Plan)) -> Reached {
    let mut reached = Reached::default();
    for fault in FAULTS {
        for seed in 0..SEEDS {
            let mut plan = Plan::draw(seed);
            plan.faults = fault.map(|fault| (When::At(300 * MS), fault)).into_iter().collect();
            change(&mut plan);
            let outcome = simulate(plan.clone(), false);
            let why = &outcome.violations;
            assert!(why.is_empty(), "seed {seed}, {fault:?}: {why:?}\n{plan}");
            reached += outcome.reached;
        }
    }
    reached
}

/// Two clients play one trick, and nobody else plays any.
fn with_trick(trick: Trick) -> Reached {
    let reached = all_are_served(|plan| {
        plan.clients.retain(|client| client.trick.is_none());
        let hostile = |start| {
            let mut client = ClientPlan { start, ..plan.clients[0].clone() };
            client.plays(trick);
            client
        };
        let hostile = [hostile(30 * MS), hostile(100 * MS)];
        plan.clients.extend(hostile);
    });
    assert!(reached.hostile > 2000, "{trick:?}: {reached:?}");
    reached
}

#[test]
fn they_acknowledge_what_was_never_sent() {
    assert!(with_trick(Trick::AcksUnsent).implausible > 100);
}

#[test]
fn they_reset_beside_the_next_number_and_lie_to_who_asks() {
    assert!(with_trick(Trick::ResetsBeside).lies_at_probe > 5);
}

#[test]
fn their_segments_belong_nowhere() {
    assert!(with_trick(Trick::StraysOutside).implausible > 100);
}

#[test]
fn they_end_more_than_once() {
    with_trick(Trick::EndsTwice);
}

#[test]
fn they_complete_no_handshake() {
    let reached = with_trick(Trick::FloodsSyns);
    assert!(reached.syns_dropped > 100 && reached.handshakes_ended > 100, "{reached:?}");
}

#[test]
fn they_come_and_reset() {
    with_trick(Trick::Storms);
}

#[test]
fn they_come_again_from_the_same_port() {
    all_are_served(|plan| {
        plan.clients.iter_mut().for_each(|client| client.comes_again = true);
    });
}

#[test]
fn they_vanish_half_open_and_behind_their_end() {
    all_are_served(|plan| {
        for (number, client) in plan.clients.iter_mut().enumerate().skip(1) {
            let stage = if number % 2 == 0 { Stage::HalfOpen } else { Stage::Ended };
            client.vanishes_in = Some(stage);
        }
    });
}

/// For a tuple that is used again, its kernel tells only about the newest life.
#[test]
fn a_handshake_that_makes_room_is_the_oldest_and_no_newer_one() {
    let reached = all_are_served(|plan| {
        plan.limits = Limits { backlog: 4, ..plan.limits };
        plan.load_until = 1500 * MS;
        plan.clients.retain(|client| client.trick.is_none());
        for client in &mut plan.clients {
            (client.reuse_port, client.requests, client.think) = (true, 1, 2 * MS);
            (client.vanishes_at, client.vanishes_in, client.trick) = (None, None, None);
        }
    });
    assert!(reached.gates.clamped > 0);
}
