//! Every judge of spread groups can fail: each mutation breaks the model, or what the
//! machines hear and say of their host, in one way, and its judge says so. And what the
//! simulation has found in the machines, as a plan that shows it.

use holdfast_sim::spread::{Fault, Lie, Limits, Mutation, Plan, Trick, Ways, simulate};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 30;

/// A plan without limits and losses, in which this happens.
fn plan(seed: u64, faults: &[(u64, Fault)]) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.faults = faults.iter().map(|(ms, fault)| (ms * MS, *fault)).collect();
    plan.limits = Limits::WIDE;
    plan.loss_permille = 0;
    plan.load_until = 9000 * MS;
    plan.clients.iter_mut().for_each(|client| client.trick = None);
    plan
}

/// The laws that any of the seeds breaks with the mutation; without it none does.
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

const DIES: Fault = Fault::HostDies { server: 0, again: None };
const DRAINED: Fault = Fault::Drained { server: 0, lasts: 4000 * MS };

#[test]
fn a_connection_that_moves_is_seen() {
    sees("moved", Mutation::ForgetsFlows, &[(5000, DRAINED)]);
}

#[test]
fn a_new_connection_at_a_dead_host_server_is_seen() {
    sees("choice", Mutation::TablesStay, &[(5000, DIES)]);
}

#[test]
fn a_new_connection_at_a_drained_host_server_is_seen() {
    sees("choice", Mutation::DrainIgnored, &[(5000, DRAINED)]);
}

#[test]
fn shares_that_are_not_the_weights_are_seen() {
    sees("shares", Mutation::SharesEqual, &[]);
}

#[test]
fn a_syn_that_nobody_resends_is_seen() {
    sees("knock", Mutation::NothingResent, &[(5000, DIES)]);
}

#[test]
fn a_dead_host_server_that_is_shown_as_up_is_seen() {
    sees("status", Mutation::HearsTheDead, &[(5000, DIES)]);
}

#[test]
fn an_announcement_beyond_the_file_is_seen() {
    for lie in [Lie::OthersTunnel, Lie::Weight(300), Lie::Service] {
        let lies = Fault::Lies { server: 1, lie, lasts: 1000 * MS };
        sees("file", Mutation::FileIgnored, &[(5000, lies)]);
    }
}

#[test]
fn a_table_without_a_limit_is_seen() {
    let few = |plan: &mut Plan| plan.limits.flows_max = 6;
    sees_with("limit", Mutation::NoLimit, &[], few);
}

#[test]
fn a_new_connection_that_harms_an_old_one_is_seen() {
    let few = |plan: &mut Plan| {
        plan.limits.flows_max = 6;
        plan.clients[0].trick = Some(Trick::Hoards);
    };
    // Nothing else is wrong there but a client.
    sees_with("one client", Mutation::EvictsFlows, &[], few);
}

#[test]
fn a_connection_whose_host_server_is_well_and_that_is_not_answered_is_seen() {
    let cut = Fault::Cut { server: 0, ways: Ways::ToEdge, lasts: 3000 * MS };
    let client = |plan: &mut Plan| plan.clients.iter_mut().for_each(|it| it.requests = 50);
    sees_with("liveness", Mutation::ForgetsFlows, &[(5000, cut)], client);
}

/// One that was drained, died, and came back after the edge's daemon had been started
/// again got new connections.
#[test]
fn who_was_drained_when_it_died_is_still_so_for_another_daemon_of_the_edge() {
    for seed in 0..SEEDS {
        let faults = [
            (5000, Fault::Drained { server: 0, lasts: 9000 * MS }),
            (5500, Fault::HostDies { server: 0, again: Some(2000 * MS) }),
            (6500, Fault::EdgeDaemon { lasts: 100 * MS }),
        ];
        let outcome = simulate(plan(seed, &faults), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

/// A host with the key, but no name of the file, took all links there may be, and kept
/// those of the file out forever.
#[test]
fn strangers_leave_room_for_those_of_the_file() {
    for seed in 0..SEEDS {
        let strangers = Fault::Lies { server: 1, lie: Lie::Strangers, lasts: 1500 * MS };
        let mut plan = plan(seed, &[(1000, strangers)]);
        plan.limits.hosts_max = plan.servers.len() + 2;
        plan.servers[0].starts = 2000 * MS;
        let outcome = simulate(plan.clone(), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        assert_eq!(outcome.reached.shut_out, 0, "seed {seed}\n{plan}");
    }
}

/// A service that nobody has any more kept the table of an earlier daemon of the edge.
#[test]
fn tables_of_an_earlier_daemon_do_not_outlive_those_who_served() {
    for seed in 0..SEEDS {
        let all = Plan::draw(seed).servers.len();
        let mut faults = vec![(5500, Fault::EdgeDaemon { lasts: 300 * MS })];
        faults.extend((0..all).map(|server| (5600, Fault::HostDies { server, again: None })));
        let outcome = simulate(plan(seed, &faults), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

/// Of connections that had outlived a boot of the edge nothing was remembered, and a host
/// server that was drained lost them all.
#[test]
fn what_outlives_a_boot_of_the_edge_is_not_moved_by_a_drain() {
    let mut kept = 0;
    for seed in 0..SEEDS {
        let faults = [
            (3000, Fault::EdgeBoots { lasts: 50 * MS }),
            (7000, Fault::Drained { server: 0, lasts: 3000 * MS }),
        ];
        let mut plan = plan(seed, &faults);
        plan.clients.iter_mut().for_each(|client| (client.requests, client.think) = (60, 100 * MS));
        let outcome = simulate(plan.clone(), false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}\n{plan}", outcome.violations);
        kept += outcome.reached.learnt;
    }
    assert!(kept > 0, "no connection has outlived a boot");
}
