use super::*;
use Direction::{IntoCluster, OutOfCluster};

const MS: Ns = 1_000_000;

fn data(seq: u32) -> Passing {
    Passing {
        direction: IntoCluster,
        seq: SeqNo(seq),
        end: SeqNo(seq.wrapping_add(1000)),
        ack: None,
        is_syn: false,
        is_end: false,
        sack: false,
        bytes: 1514,
    }
}

fn ack(ack: u32) -> Passing {
    let seq = SeqNo(7);
    Passing { direction: OutOfCluster, seq, end: seq, ack: Some(SeqNo(ack)), bytes: 64, ..data(0) }
}

fn syn(seq: u32) -> Passing {
    Passing { is_syn: true, end: SeqNo(seq.wrapping_add(1)), bytes: 64, ..data(seq) }
}

/// A cache whose packets are what was asked of it.
struct Bench {
    cache: Recovery<u32, Passing>,
    now: Ns,
}

impl Bench {
    fn new(config: RecoveryConfig) -> Self {
        Self { cache: Recovery::new(config), now: 0 }
    }

    fn pass(&mut self, key: u32, passing: Passing) {
        self.now += MS;
        self.cache.handle_packet(self.now, key, &passing, || passing);
    }

    /// What is resent, as (direction, sequence number or acknowledgement).
    fn kick(&mut self) -> Vec<(Direction, u32)> {
        self.cache.handle_restored(self.now);
        self.drain()
    }

    fn drain(&mut self) -> Vec<(Direction, u32)> {
        let mut out = Vec::new();
        while let Some(resend) = self.cache.poll_resend(self.now) {
            let number = resend.packet.ack.unwrap_or(resend.packet.seq).0;
            out.push((resend.direction, number));
        }
        out
    }
}

fn with(segments_max: usize) -> RecoveryConfig {
    RecoveryConfig { segments_max, ..RecoveryConfig::default() }
}

#[test]
fn the_lowest_segment_and_the_latest_acknowledgement_are_kept() {
    let mut bench = Bench::new(with(1));
    for seq in [2000, 3000, 1000, 4000] {
        bench.pass(1, data(seq));
    }
    bench.pass(1, ack(1000));
    bench.pass(1, ack(900));
    let expected =
        [(IntoCluster, 1000), (OutOfCluster, 1000), (OutOfCluster, 1000), (OutOfCluster, 1000)];
    assert_eq!(bench.kick(), expected);
    assert_eq!(bench.kick(), [], "what was resent is released");
    assert_eq!((bench.cache.bytes(), bench.cache.flows()), (0, 0));
}

#[test]
fn what_is_acknowledged_is_not_kept() {
    let mut bench = Bench::new(with(2));
    bench.pass(1, data(1000));
    bench.pass(1, ack(2000));
    bench.pass(1, data(1000));
    assert_eq!(bench.cache.bytes(), 64);
    bench.pass(1, data(2000));
    assert_eq!(bench.kick()[0], (IntoCluster, 2000));
}

#[test]
fn the_tail_follows_the_heads_of_all_flows() {
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..with(2) });
    for key in [1, 2] {
        (1..6).for_each(|number| bench.pass(key, data(number * 1000)));
    }
    assert_eq!(bench.kick(), [(IntoCluster, 1000), (IntoCluster, 1000)]);
    bench.now += MS;
    assert_eq!(bench.drain(), [(IntoCluster, 5000), (IntoCluster, 5000)]);
}

#[test]
fn more_room_keeps_the_lowest_ones_and_the_highest() {
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, tail_delay_ns: 0, ..with(3) });
    (1..9).for_each(|number| bench.pass(1, data(number * 1000)));
    bench.pass(1, data(1500));
    let kept: Vec<u32> = bench.kick().iter().map(|it| it.1).collect();
    assert_eq!(kept, [1000, 1500, 8000]);
}

#[test]
fn sequence_numbers_may_wrap() {
    let mut bench = Bench::new(with(1));
    bench.pass(1, data(u32::MAX - 100));
    bench.pass(1, data(900));
    bench.pass(1, ack(100));
    assert_eq!(bench.kick()[0], (IntoCluster, u32::MAX - 100));
    bench.pass(1, data(u32::MAX - 100));
    bench.pass(1, ack(899));
    bench.pass(1, data(899));
    assert_eq!(bench.kick()[0], (IntoCluster, 899));
}

#[test]
fn with_sack_no_bare_duplicates_are_sent() {
    let mut bench = Bench::new(with(1));
    bench.pass(1, Passing { sack: true, ..data(1000) });
    bench.pass(1, ack(1000));
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
}

#[test]
fn only_syns_if_so_configured() {
    let mut bench = Bench::new(RecoveryConfig { syn_only: true, ..with(1) });
    for key in 0..1000 {
        bench.pass(key, syn(5));
        bench.pass(key, data(6));
    }
    // thesis §3.4: 10,000 connections a second and an outage of 100 ms.
    assert_eq!(bench.cache.bytes(), 64_000);
    bench.pass(3, ack(6));
    assert_eq!(bench.kick().len(), 999);
}

#[test]
fn ten_thousand_flows_take_what_the_thesis_says() {
    let mut bench = Bench::new(with(1));
    for key in 0..10_001 {
        bench.pass(key, data(1000));
        bench.pass(key, ack(1000));
    }
    assert_eq!(bench.cache.counts().bytes_peak, 15_780_000);
    assert_eq!(bench.cache.flows(), 10_000, "the limit refuses the new one");
    assert_eq!(bench.cache.counts().refused, 1);
}

#[test]
fn a_limit_of_bytes_never_harms_what_is_kept() {
    let mut bench = Bench::new(RecoveryConfig { bytes_max: 3000, ..with(1) });
    bench.pass(1, data(1000));
    bench.pass(2, data(1000));
    bench.pass(1, ack(1000));
    assert_eq!(bench.cache.bytes(), 1578);
    assert_eq!(bench.kick().len(), 4);
}

#[test]
fn an_end_or_a_new_connection_forgets_the_old_one() {
    let mut bench = Bench::new(with(1));
    bench.pass(1, data(1000));
    bench.pass(1, Passing { is_end: true, ..data(2000) });
    assert_eq!(bench.cache.flows(), 0);
    bench.pass(1, data(1000));
    bench.pass(1, syn(77));
    assert_eq!(bench.kick(), [(IntoCluster, 77)]);
}

#[test]
fn what_is_old_is_not_resent() {
    let mut bench = Bench::new(with(1));
    bench.pass(1, data(1000));
    bench.now += bench.cache.config.age_max_ns + 1;
    assert_eq!(bench.kick(), []);
}

#[test]
fn resends_are_paced() {
    let config = RecoveryConfig { pace_bytes_per_s: 1_514_000, ack_copies: 0, ..with(1) };
    let mut bench = Bench::new(config);
    (0..3).for_each(|key| bench.pass(key, data(1000)));
    bench.cache.handle_restored(bench.now);
    let start = bench.now;
    let mut times = Vec::new();
    while let Some(at) = bench.cache.poll_timeout() {
        bench.now = at.max(bench.now);
        times.extend(bench.drain().iter().map(|_| bench.now - start));
    }
    assert_eq!(times, [0, MS, 2 * MS]);
}

proptest::proptest! {
    /// Whatever passes: the limits hold, and what is resent was unacknowledged.
    #[test]
    fn limits_hold(
        packets in proptest::collection::vec((0..6u32, 0..5u8, 0..40u32), 0..400),
        segments_max in 0..5usize,
    ) {
        let config = RecoveryConfig { flows_max: 4, bytes_max: 9000, ..with(segments_max) };
        let mut bench = Bench::new(config);
        for (key, what, number) in packets {
            bench.pass(key, match what {
                0 | 1 => data(number * 1000),
                2 | 3 => ack(number * 1000),
                _ => syn(number),
            });
            let cache = &bench.cache;
            proptest::prop_assert!(cache.flows.len() <= 4 && cache.bytes <= 9000);
            proptest::prop_assert_eq!(cache.bytes, cache.flows.values().map(Flow::bytes).sum::<u64>());
            for flow in cache.flows.values() {
                proptest::prop_assert!(flow.segments.len() <= segments_max);
                proptest::prop_assert!(flow.segments.windows(2).all(|it| it[1].seq.after(it[0].seq)));
            }
        }
    }
}
