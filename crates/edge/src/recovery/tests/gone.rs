//! What is not kept, and what is not there any more when its turn comes.

use super::*;

#[test]
fn a_packet_without_a_place_on_the_shelf_leaves_nothing_behind() {
    let mut bench = Bench::new(with(1));
    bench.cache.handle_packet(MS, 1, &data(1000), |_| None);
    assert_eq!((bench.cache.flows(), bench.cache.counts().refused), (0, 1));
    bench.pass(1, data(1000));
    // Of a flow that is known, what was kept stays.
    bench.cache.handle_packet(MS, 1, &data(500), |_| None);
    assert_eq!((bench.cache.flows(), bench.cache.counts().refused), (1, 2));
    let refuse = |bench: &mut Bench, key| {
        bench.cache.handle_packet(MS, key, &data(1000), |_| None);
    };
    refuse(&mut bench, 2);
    let room = bench.cache.lists.flows.memory_bytes();
    (3..100).for_each(|key| refuse(&mut bench, key));
    assert_eq!(bench.cache.lists.flows.memory_bytes(), room, "their places are used again");
}

#[test]
fn a_server_that_ends_a_connection_ends_what_is_kept_of_it() {
    let mut bench = Bench::new(with(1));
    bench.pass(1, data(1000));
    bench.pass(1, Passing { ack: None, ..ack(1000) });
    assert_eq!((bench.cache.flows(), bench.cache.bytes()), (1, 1514), "it says nothing");
    bench.pass(1, Passing { is_end: true, ..ack(1000) });
    assert_eq!((bench.cache.flows(), bench.cache.bytes()), (0, 0));
}

#[test]
fn an_acknowledgement_that_is_old_is_not_repeated() {
    let age_max_ns = 100 * MS;
    for (waits_ms, copies) in [(90, 3), (110, 0)] {
        let mut bench = Bench::new(RecoveryConfig { age_max_ns, ..with(1) });
        bench.pass(1, data(1000));
        bench.pass(1, ack(1000));
        bench.now += waits_ms * MS;
        bench.pass(1, data(500));
        assert_eq!(bench.kick().len(), 1 + copies, "{waits_ms}");
        assert_eq!(bench.kick().len(), 0);
        assert_eq!(bench.cache.bytes(), 0);
    }
}

#[test]
fn who_has_all_by_now_holds_up_no_other_that_waits() {
    let config =
        RecoveryConfig { ack_copies: 0, segments_spare: 100, follow_ns: 50 * MS, ..with(2) };
    let mut bench = Bench::new(config);
    for key in [1, 2] {
        (1..=3).for_each(|number| bench.pass(key, data(number * 1000)));
    }
    assert_eq!(bench.kick().len(), 2);
    bench.pass(1, ack(2000));
    bench.pass(2, ack(3000));
    bench.pass(1, ack(4000));
    assert_eq!(bench.drain()[0], (IntoCluster, 3000), "of the second flow");
}
