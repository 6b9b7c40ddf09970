//! Every table and queue is tiny (law L6): new connections are refused, and may come
//! later; old ones are not harmed, whoever dies meanwhile.

use holdfast_sim::{Fault, Limits, Plan, Reached, Rng, Trick, When, simulate};

const MS: u64 = 1_000_000;
/// Seeds of each case.
const SEEDS: u64 = 40;

#[test]
fn at_the_limits_old_connections_go_on() {
    let faults = [
        None,
        Some(Fault::HostDies { member: 0 }),
        Some(Fault::KillServer { member: 0 }),
        Some(Fault::TapLoss { lasts: 200 * MS }),
        Some(Fault::KillDaemon { member: 1, again: Some(50 * MS) }),
    ];
    let mut reached = Reached::default();
    for fault in faults {
        for seed in 0..SEEDS {
            let mut plan = Plan::draw(seed);
            plan.faults = fault.map(|fault| (When::At(300 * MS), fault)).into_iter().collect();
            let clients = plan.clients.len();
            plan.limits.tighten(&mut Rng::new(seed, 7), clients);
            let outcome = simulate(plan.clone(), false);
            let why = &outcome.violations;
            assert!(why.is_empty(), "seed {seed}, {fault:?}: {why:?}\n{plan}");
            reached += outcome.reached;
        }
    }
    println!("{reached:?}");
    let tables = [reached.tap_lost, reached.refused_full, reached.edge_refused];
    assert!(tables.iter().all(|count| *count > 100), "{reached:?}");
}

/// Strangers' handshakes hold no more than their share of the gate's slots, however many
/// the listener takes.
#[test]
fn handshakes_that_nobody_completes_leave_slots_for_others() {
    let mut reached = Reached::default();
    for seed in 0..SEEDS {
        let mut plan = Plan::draw(seed);
        plan.faults.clear();
        plan.load_until = 1000 * MS;
        plan.clients.truncate(2);
        for client in &mut plan.clients {
            (client.comes_again, client.vanishes_at, client.vanishes_in) = (false, None, None);
            client.start = 300 * MS;
        }
        let mut stranger = plan.clients[0].clone();
        stranger.plays(Trick::FloodsSyns);
        stranger.start = 20 * MS;
        plan.clients.push(stranger);
        plan.limits = Limits { gate_slots: 20, edge_flows: 4000, backlog: 500, ..Limits::WIDE };
        let outcome = simulate(plan, false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        reached += outcome.reached;
    }
    assert_eq!(reached.shut_out, 0, "{reached:?}");
    assert!(reached.handshakes_ended > 1000, "{reached:?}");
}
