//! Every checker can fail: each mutation breaks the model, or what the daemons'
//! machines hear and tell their host, in one way, and the checker that watches over
//! that law reports it. The last five are bugs that the simulation found in the
//! daemons' logic; since it runs that very logic, it would find them again.

use holdfast_sim::{Fault, Mutation, Plan, Ways, When, simulate};

const MS: u64 = 1_000_000;

/// A plan whose backup follows from its start. The log goes the short way only for who looks at
/// that: the others' seeds found what they find without it.
fn follows(seed: u64, mutation: Mutation) -> Plan {
    let plan = Plan { cold: None, ..Plan::draw(seed) };
    let direct = plan.direct.filter(|_| mutation == Mutation::HeldUnseen);
    Plan { direct, ..plan }
}

/// The laws that any of `seeds` breaks.
fn broken(seeds: u64, mutation: Mutation, faults: &[(When, Fault)]) -> Vec<&'static str> {
    (0..seeds)
        .flat_map(|seed| {
            let mut plan = follows(seed, mutation);
            plan.mutation = Some(mutation);
            plan.faults = faults.to_vec();
            simulate(plan, false).violations
        })
        .map(|violation| violation.law)
        .collect()
}

/// Without the mutation the same runs are clean.
fn sees(law: &str, mutation: Mutation, faults: &[(When, Fault)]) {
    sees_in(SEEDS, law, mutation, faults);
}

fn sees_in(seeds: u64, law: &str, mutation: Mutation, faults: &[(When, Fault)]) {
    let laws = broken(seeds, mutation, faults);
    assert!(laws.contains(&law), "{mutation:?}: {laws:?}");
    for seed in 0..seeds {
        let mut plan = follows(seed, mutation);
        plan.faults = faults.to_vec();
        let outcome = simulate(plan, false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

const SEEDS: u64 = 40;

fn at(ms: u64, fault: Fault) -> (When, Fault) {
    (When::At(ms * MS), fault)
}

#[test]
fn l1_an_ack_beyond_what_the_backup_holds_is_seen() {
    sees("L1", Mutation::AckBeyondStable, &[]);
}

#[test]
fn l2_output_that_does_not_wait_is_seen() {
    sees("L2", Mutation::NoCommit, &[]);
}

#[test]
fn l2_a_syn_ack_that_does_not_wait_is_seen() {
    sees("L2", Mutation::SynAckAtOnce, &[]);
}

#[test]
fn l2_a_server_that_hears_more_than_is_held_is_seen() {
    sees("L2", Mutation::HeldUnseen, &[]);
}

#[test]
fn l2_an_end_that_leaves_with_the_last_bytes_is_seen() {
    sees("L2", Mutation::LeaveFin, &[at(300, Fault::KillServer { member: 0 })]);
}

#[test]
fn l1_a_repeat_that_looks_like_news_is_seen() {
    sees("L1", Mutation::KeepDsack, &[]);
}

#[test]
fn l3_two_speakers_are_seen() {
    sees("L3", Mutation::NoFence, &[at(300, Fault::Mistake)]);
}

#[test]
fn l3_a_replaced_member_that_goes_on_is_seen() {
    sees("L3", Mutation::NeverStandDown, &[at(300, Fault::Mistake)]);
}

#[test]
fn l4_a_right_edge_that_moves_left_is_seen() {
    sees("L4", Mutation::ShrinkWindow, &[]);
}

#[test]
fn l5_a_replica_that_counts_twice_is_seen() {
    sees("L5", Mutation::CountTwice, &[at(300, Fault::HostDies { member: 0 })]);
}

#[test]
fn l3_the_promotion_of_a_stale_backup_is_seen() {
    // With its backup out of reach, the primary runs on alone; the backup hears
    // nothing of that, and both would speak.
    let pair = Fault::CutPair { ways: Ways::Both, lasts: 5000 * MS };
    let edge = Fault::CutEdge { member: 1, ways: Ways::Both, lasts: 4000 * MS };
    sees("L3", Mutation::PromoteAnybody, &[at(200, pair), (When::After(MS), edge)]);
}

#[test]
fn l5_other_bytes_than_the_server_would_have_read_are_seen() {
    let lost = at(300, Fault::TapLoss { lasts: 300 * MS });
    let dies = (When::After(200 * MS), Fault::HostDies { member: 0 });
    sees("L5", Mutation::PeekAside, &[lost, dies]);
}

#[test]
fn l6_a_table_without_a_limit_is_seen() {
    sees("L6", Mutation::NoLimit, &[]);
}

#[test]
fn l6_a_new_connection_that_harms_an_old_one_is_seen() {
    // Nothing but a client is wrong there.
    sees_in(2 * SEEDS, "one client", Mutation::EvictOldest, &[]);
}

#[test]
fn a_cluster_that_does_not_go_on_is_seen() {
    sees("liveness", Mutation::NeverPromote, &[at(300, Fault::HostDies { member: 0 })]);
}

#[test]
fn a_withheld_ack_that_a_lone_primary_keeps_is_seen() {
    sees("owed", Mutation::AcksKept, &[at(300, Fault::KillServer { member: 1 })]);
}

#[test]
fn an_edge_that_stays_closed_is_seen() {
    let closed = Fault::ClosedByHand { until_takeover: false, lasts: 300 * MS };
    let dies = (When::After(100 * MS), Fault::HostDies { member: 0 });
    sees("liveness", Mutation::StaysClosed, &[at(300, closed), dies]);
}

#[test]
fn nobody_misses_a_restarted_edge() {
    let restart = [at(300, Fault::EdgeHost { lasts: 500 * MS })];
    sees("liveness", Mutation::NoKeepalive, &restart);
}

#[test]
fn nobody_opens_the_fence_of_a_restarted_edge() {
    let restart = [at(300, Fault::EdgeHost { lasts: 500 * MS })];
    sees("liveness", Mutation::NobodyAsksAgain, &restart);
}

#[test]
fn a_restarted_edge_does_not_know_who_is_in_step() {
    let restart = at(300, Fault::EdgeDaemon { lasts: 500 * MS });
    // Its channel is closed: the backup asks although it hears no edge.
    let dies = (When::After(100 * MS), Fault::KillDaemon { member: 0, again: None });
    sees("liveness", Mutation::NotSaidAgain, &[restart, dies]);
}

#[test]
fn a_backup_that_was_granted_had_been_sent_away() {
    // The backup has asked to be current, and the request is under way.
    let pair = Fault::CutPair { ways: Ways::Both, lasts: 180 * MS };
    let edge = Fault::CutEdge { member: 1, ways: Ways::Both, lasts: 20 * MS };
    sees("liveness", Mutation::SentAway, &[at(300, pair), (When::After(75 * MS), edge)]);
}

#[test]
fn a_backup_that_starts_anew_is_not_in_step() {
    // The edge hears of the new life before it hears of the old one's end.
    let edge = Fault::CutEdge { member: 1, ways: Ways::Both, lasts: 20 * MS };
    let dies = Fault::KillDaemon { member: 1, again: Some(20 * MS) };
    sees("liveness", Mutation::NotForgotten, &[at(300, edge), (When::After(17 * MS), dies)]);
}

#[test]
fn l5_clients_alone_notice_output_that_did_not_wait() {
    sees("L5", Mutation::NoCommit, &[(When::Record(40), Fault::HostDies { member: 0 })]);
}

#[test]
fn a_takeover_without_a_cause_is_seen() {
    sees("cause", Mutation::NoBeats, &[]);
}

#[test]
fn what_is_shown_of_a_dead_backup_is_seen() {
    sees("status", Mutation::StaysProtected, &[at(300, Fault::HostDies { member: 1 })]);
}

#[test]
fn a_clock_that_begins_anew_is_seen() {
    sees("L5", Mutation::ClocksAnew, &[at(300, Fault::HostDies { member: 0 })]);
}

#[test]
fn a_client_that_costs_others_their_connections_is_seen() {
    sees("one client", Mutation::NeighbourPays, &[]);
}

#[test]
fn what_is_not_given_back_is_seen() {
    let laws = |mutation: Option<Mutation>| -> Vec<&'static str> {
        let run = |seed| {
            let plan = Plan { mutation, faults: Vec::new(), ..Plan::draw(seed) };
            simulate(Plan { rest: 66_000 * MS, ..plan }, false).violations
        };
        (0..5).flat_map(run).map(|violation| violation.law).collect()
    };
    assert_eq!(laws(None), Vec::<&str>::new());
    assert!(laws(Some(Mutation::KeepSlots)).contains(&"rest"));
}
