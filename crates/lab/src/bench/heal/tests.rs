use super::*;
use crate::load::Quantiles;

fn connection(workload: Workload, stall_ns: u64) -> ConnectionReport {
    ConnectionReport {
        workload,
        replies: 1,
        bytes_in: 0,
        bytes_out: 0,
        connects: 1,
        open_at_fault: false,
        stall_ns,
        stall_start_ns: 0,
        later_gap_ns: 0,
        byte_errors: 0,
        resets: 0,
        hung: false,
        error: None,
        failed_ns: None,
        points: Vec::new(),
    }
}

fn report(connections: Vec<ConnectionReport>) -> Report {
    Report {
        ready_ns: 0,
        stop_ns: 0,
        fault_ns: None,
        redraws: 0,
        outstanding_at_fault: 0,
        connections,
        shared_error: None,
        latency_ns: Quantiles::default(),
        connect_ns: Quantiles::default(),
        retransmits: 0,
        own_pause_ns: 0,
    }
}

#[test]
fn idle_clients_have_no_gap() {
    let all = [(Workload::Incr, 7), (Workload::Idle, 9), (Workload::Incr, 8)];
    let report = report(all.map(|(workload, gap)| connection(workload, gap)).to_vec());
    assert_eq!(gaps_ns(&report), [7, 8]);
}

#[test]
fn a_connection_that_was_made_again_is_lost() {
    let mut again = connection(Workload::Incr, 0);
    again.connects = 2;
    let mut wrong = connection(Workload::Incr, 0);
    wrong.byte_errors = 1;
    let report = report(vec![connection(Workload::Incr, 0), again, wrong]);
    let fate = Fate::of(&report);
    assert_eq!(fate, Fate { connections: 3, lost: 2, wrong: 1 });
    assert!(!fate.is_good());
    assert_eq!(Fate::of_all([fate, fate].iter()).lost, 4);
}

#[test]
fn each_client_is_held_against_itself() {
    let gaps = Gaps::of(&[(5_000_000, 1_000_000), (9_000_000, 8_000_000), (1, 2)]);
    assert_eq!((gaps.with_ms.max, gaps.without_ms.max), (9.0, 8.0));
    assert_eq!((gaps.added_ms.max, gaps.added_ms.p50, gaps.added_ms.min), (4.0, 1.0, 0.0));
}

#[test]
fn a_limit_is_kept_up_to_itself() {
    assert!(Verdict::at_most(String::new(), 10.0, 10.0, "ms").kept);
    assert!(!Verdict::at_most(String::new(), 10.1, 10.0, "ms").kept);
}

#[test]
fn two_loads_at_one_server_have_keys_of_their_own() {
    for seed in 0..100 {
        assert!((0..100).all(|other| quiet_seed(seed) != other));
    }
}
