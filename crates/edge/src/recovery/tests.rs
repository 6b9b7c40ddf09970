mod gone;

use super::*;
use crate::{Slabs, pool::NONE};
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
        is_last: false,
        sack: Some(false),
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

/// A cache whose packets are numbers that the test has chosen.
struct Bench {
    cache: Recovery<u32, Inline<Passing>>,
    now: Ns,
}

impl Bench {
    fn new(config: RecoveryConfig) -> Self {
        Self { cache: Recovery::new(config, Inline::default()), now: 0 }
    }

    fn pass(&mut self, key: u32, passing: Passing) {
        self.now += MS;
        self.cache.handle_packet(self.now, key, &passing, |_| Some(passing));
    }

    /// Resends; returns direction and sequence number or acknowledgement of each packet.
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
fn the_head_of_a_busy_flow_is_among_the_spare_ones() {
    let config = RecoveryConfig { ack_copies: 0, segments_spare: 100, ..with(2) };
    let mut bench = Bench::new(RecoveryConfig { tail_delay_ns: 0, ..config });
    (1..=50).for_each(|number| bench.pass(1, data(number * 1000)));
    bench.pass(1, ack(17_000));
    let resent: Vec<u32> = bench.kick().iter().map(|it| it.1).collect();
    assert_eq!(resent, [17_000, 50_000]);
    assert_eq!((bench.kick().len(), bench.cache.bytes()), (0, 0), "and the others are released");
}

#[test]
fn what_passed_while_packets_were_lost_goes_out_behind_the_head() {
    let config = RecoveryConfig { ack_copies: 0, segments_spare: 100, recent_max: 3, ..with(2) };
    let resent = |segments: u32, lost_ms: u64| {
        let mut bench = Bench::new(RecoveryConfig { tail_delay_ns: 0, ..config });
        for number in 1..=segments {
            bench.now += 10 * MS;
            bench.pass(1, data(number * 1000));
        }
        bench.now += 5 * MS;
        let since = bench.now - lost_ms * MS;
        bench.cache.handle_restored_for(bench.now, |_| Some(since));
        bench.drain().into_iter().map(|it| it.1 / 1000).collect::<Vec<_>>()
    };
    assert_eq!(resent(50, 20), [1, 49, 50]);
    assert_eq!(resent(50, 0), [1, 50], "nothing passed since, and the highest still goes");
    assert_eq!(resent(50, 500), [1, 48, 49, 50], "no more than `recent_max`");
    assert_eq!(resent(2, 15), [1, 2]);
    assert_eq!(resent(1, 10), [1]);
}

#[test]
fn a_receiver_that_had_more_gets_what_it_waits_for() {
    let config =
        RecoveryConfig { ack_copies: 0, segments_spare: 100, follow_ns: 50 * MS, ..with(2) };
    let mut bench = Bench::new(config);
    (1..=50).for_each(|number| bench.pass(1, data(number * 1000)));
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
    // The flow's acknowledgements up to here were lost.
    bench.pass(1, ack(17_000));
    assert_eq!(bench.drain(), [(IntoCluster, 17_000), (IntoCluster, 50_000)]);
    bench.pass(1, ack(17_000));
    assert_eq!(bench.drain(), [], "once");
    bench.pass(1, ack(18_000));
    bench.pass(1, ack(19_000));
    assert_eq!(bench.drain()[0], (IntoCluster, 19_000));
    bench.now += 50 * MS;
    assert_eq!((bench.drain(), bench.cache.poll_timeout()), (vec![], None));
    bench.pass(1, ack(20_000));
    assert_eq!((bench.drain(), bench.cache.bytes()), (vec![], 0), "it is over");
}

/// The segments of other flows wait for the pace.
#[test]
fn who_was_resent_first_is_followed_before_the_others_are_resent() {
    let config = RecoveryConfig {
        ack_copies: 0,
        follow_ns: 50 * MS,
        pace_bytes_per_s: 1514 * 1000 / 2,
        ..with(2)
    };
    let mut bench = Bench::new(config);
    for key in [1, 2, 3] {
        for seq in [1000, 2000] {
            bench.pass(key, data(seq + key * 10_000));
        }
    }
    assert_eq!(bench.kick(), [(IntoCluster, 11_000)]);
    bench.pass(1, ack(12_000));
    // Nobody has resent anything of this one yet.
    bench.pass(3, ack(32_000));
    bench.now += 2 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 12_000)]);
}

#[test]
fn flows_are_followed_from_the_last_try_on() {
    let (retry_ns, follow_ns) = (10 * MS, 50 * MS);
    let tries = RecoveryConfig { tries: 3, retry_ns, follow_ns, ..with(2) };
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..tries });
    bench.pass(1, data(1000));
    let restored = bench.now;
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
    while bench.cache.is_kicking() {
        bench.now = bench.cache.poll_timeout().expect("another try");
        bench.drain();
    }
    let end = restored + 2 * retry_ns + follow_ns;
    assert_eq!(bench.cache.poll_timeout(), Some(end));
    bench.now = end;
    assert_eq!((bench.drain(), bench.cache.poll_timeout()), (vec![], None));
}

#[test]
fn spare_segments_make_room_for_the_heads_of_others() {
    let bytes_max = 100 * 1514;
    let config = RecoveryConfig { ack_copies: 0, segments_spare: 1000, bytes_max, ..with(2) };
    let mut bench = Bench::new(config);
    (1..=60).for_each(|number| bench.pass(1, data(number * 1000)));
    assert!((50..53).contains(&(bench.cache.bytes() / 1514)));
    (2..40).for_each(|key| bench.pass(key, data(1000)));
    bench.pass(1, data(61_000));
    assert_eq!((bench.cache.bytes() / 1514, bench.cache.counts().refused), (38 + 2, 0));
    assert_eq!(bench.kick().len(), 39);
    bench.now += MS;
    assert_eq!(bench.drain(), [(IntoCluster, 61_000)]);
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
    bench.pass(1, Passing { sack: Some(true), ..data(1000) });
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
    // The thesis' §3.4 has 10,000 connections a second and an outage of 100 ms.
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
    // The same holds if the old connection's numbers would come first, and if only its last
    // acknowledgement is known.
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..with(2) });
    bench.pass(1, data(1000));
    bench.pass(1, syn(9000));
    assert_eq!(bench.kick(), [(IntoCluster, 9000)]);
    bench.pass(2, data(1000));
    bench.pass(2, ack(2000));
    bench.pass(2, syn(100));
    assert_eq!(bench.kick(), [(IntoCluster, 100)]);
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

#[test]
fn a_syn_is_tried_again_until_it_is_answered() {
    let config = RecoveryConfig { syn_only: true, tries: 4, retry_ns: 20 * MS, ..with(1) };
    let mut bench = Bench::new(config);
    bench.pass(1, syn(5));
    bench.pass(2, syn(9));
    assert_eq!(bench.kick(), [(IntoCluster, 5), (IntoCluster, 9)]);
    assert_eq!(bench.drain(), []);
    bench.now += 20 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 5), (IntoCluster, 9)]);
    bench.pass(1, ack(6));
    bench.now += 20 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 9)]);
    bench.now += 100 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 9)], "the last try");
    assert_eq!(
        (bench.cache.poll_timeout(), bench.cache.flows(), bench.cache.bytes()),
        (None, 0, 0)
    );
}

#[test]
fn what_was_acknowledged_meanwhile_is_not_resent() {
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..with(2) });
    for key in [1, 2] {
        (1..6).for_each(|number| bench.pass(key, data(number * 1000)));
    }
    assert_eq!(bench.kick().len(), 2);
    bench.pass(1, ack(6000));
    bench.now += MS;
    assert_eq!(bench.drain(), [(IntoCluster, 5000)]);
    assert_eq!(bench.cache.bytes(), 0);
}

#[test]
fn what_passes_while_others_are_resent_is_kept_anew() {
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..with(2) });
    (1..4).for_each(|number| bench.pass(1, data(number * 1000)));
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
    bench.pass(1, data(4000));
    assert_eq!(bench.drain(), [(IntoCluster, 3000)]);
    assert_eq!(bench.kick(), [(IntoCluster, 4000)]);
}

#[test]
fn only_some_flows_may_be_back() {
    let mut bench = Bench::new(RecoveryConfig { ack_copies: 0, ..with(1) });
    bench.pass(1, data(1000));
    bench.pass(2, data(2000));
    bench.cache.handle_restored_for(bench.now, |packet| (packet.seq == SeqNo(2000)).then_some(0));
    assert_eq!(bench.drain(), [(IntoCluster, 2000)]);
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
}

#[test]
fn whoever_comes_back_later_has_nobody_sent_again() {
    let config = RecoveryConfig { follow_ns: 200 * MS, ack_copies: 0, ..with(2) };
    let mut bench = Bench::new(config);
    for key in [1, 2] {
        for seq in [1000, 2000] {
            bench.pass(key, data(seq + key * 10_000));
        }
    }
    let is_of = |key: u32| move |kept: &Passing| (kept.seq.0 / 10_000 == key).then_some(0);
    bench.cache.handle_restored_for(bench.now, is_of(1));
    bench.now += 2 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 11_000), (IntoCluster, 12_000)]);
    bench.cache.handle_restored_for(bench.now, is_of(3));
    assert_eq!(bench.drain(), []);
    bench.cache.handle_restored_for(bench.now, is_of(2));
    bench.now += 2 * MS;
    assert_eq!(bench.drain(), [(IntoCluster, 21_000), (IntoCluster, 22_000)]);
    // The first flow is still being followed.
    bench.pass(1, ack(12_000));
    assert_eq!(bench.drain(), [(IntoCluster, 12_000)]);
}

#[test]
fn who_comes_to_a_halt_again_is_helped_again() {
    let config = RecoveryConfig {
        follow_ns: 200 * MS,
        overdue_ns: 20 * MS,
        tail_delay_ns: 0,
        ack_copies: 0,
        ..with(2)
    };
    let mut bench = Bench::new(config);
    for key in [1, 2, 3] {
        bench.pass(key, data(1000));
    }
    assert_eq!(bench.kick().len(), 3);
    // One flow goes on, one loses everything that it then sends, and one loses what was resent.
    bench.pass(1, ack(2000));
    bench.pass(2, ack(2000));
    for seq in [2000, 3000, 4000] {
        bench.pass(2, data(seq));
    }
    bench.now += 25 * MS;
    assert_eq!(bench.cache.poll_timeout(), Some(3 * MS + 20 * MS));
    bench.pass(1, data(2000));
    assert_eq!(bench.drain(), [(IntoCluster, 2000), (IntoCluster, 1000), (IntoCluster, 4000)]);
    bench.pass(2, ack(3000));
    bench.pass(3, ack(2000));
    for (after, again) in [(60, true), (180, true), (600, false)] {
        bench.now = (3 + after) * MS;
        bench.pass(1, ack(2000 + after as u32));
        assert_eq!(bench.drain().contains(&(IntoCluster, 4000)), again, "{after} ms");
    }
    assert_eq!(bench.cache.poll_timeout(), None);
}

#[test]
fn the_last_segment_is_kept_until_it_is_acknowledged() {
    let mut bench = Bench::new(with(1));
    let last = Passing { is_last: true, end: SeqNo(2001), ..data(1000) };
    bench.pass(1, last);
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
    bench.pass(1, last);
    bench.pass(1, ack(2001));
    assert_eq!((bench.cache.flows(), bench.cache.bytes()), (0, 0));
}

#[test]
fn flows_without_packets_make_room() {
    let mut bench = Bench::new(RecoveryConfig { flows_max: 2, ack_copies: 0, ..with(1) });
    for key in [1, 2] {
        bench.pass(key, data(1000));
        bench.pass(key, ack(2000));
    }
    bench.pass(3, data(1000));
    assert_eq!(bench.kick(), [(IntoCluster, 1000)]);
    assert_eq!(bench.cache.counts().refused, 0);
}

#[test]
fn only_the_heaviest_flows_are_kept() {
    let config = RecoveryConfig { heaviest: 2, window_ns: 10 * MS, ack_copies: 0, ..with(1) };
    let mut bench = Bench::new(config);
    let long = |seq: u32| Passing { end: SeqNo(seq + 9000), ..data(seq) };
    for round in 0..20 {
        (0..4).for_each(|key| {
            let seq = 1000 + round * 10_000;
            bench.pass(key, if key >= 2 { long(seq) } else { data(seq) });
        });
    }
    assert_eq!(bench.cache.flows.keys().copied().collect::<Vec<_>>(), [2, 3]);
}

/// Memory is exact even if little of it is used: 10,000 flows (thesis §3.4).
#[test]
fn ten_thousand_flows_take_little_memory() {
    let take = |segments_max: usize, lengths: &[usize], is_syn: bool| {
        let config = RecoveryConfig { segments_max, ack_copies: 0, ..RecoveryConfig::default() };
        let config = RecoveryConfig { bytes_max: 1 << 30, ..config };
        let mut cache = Recovery::new(config, Slabs::new(1 << 30));
        for key in 0..10_000u64 {
            for (number, len) in lengths.iter().enumerate() {
                let seq = number as u32 * 1000;
                let passing = if is_syn { syn(seq) } else { data(seq) };
                cache.handle_packet(
                    0,
                    key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    &passing,
                    |slabs| slabs.put(&vec![0; *len], 0),
                );
            }
        }
        assert_eq!(cache.flows(), 10_000);
        let notes = Recovery::<u64, Slabs>::flow_overhead_bytes()
            + segments_max * Recovery::<u64, Slabs>::packet_overhead_bytes();
        assert!(cache.memory_bytes() >= 10_000 * notes, "{}", cache.memory_bytes());
        cache.memory_bytes() + cache.shelf().memory_bytes()
    };
    assert!(take(1, &[60], true) <= 160 * 10_000, "{}", take(1, &[60], true));
    assert!(take(1, &[80], true) <= 192 * 10_000);
    assert!(take(1, &[1500], false) <= 16_000_000, "{}", take(1, &[1500], false));
    assert!(take(2, &[1500, 1500], false) <= 32_000_000);
}

proptest::proptest! {
    /// Whatever passes, the limits hold, and what is resent was unacknowledged.
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
            let mut bytes = 0;
            for flow in cache.flows.values() {
                let segments: Vec<_> =
                    cache.lists.segments(*flow).map(|at| &cache.lists.kept[at]).collect();
                proptest::prop_assert!(segments.len() <= segments_max);
                proptest::prop_assert!(segments.windows(2).all(|it| it[1].seq.after(it[0].seq)));
                bytes += segments.iter().map(|kept| u64::from(kept.bytes)).sum::<u64>();
                let ack = cache.lists.flows[*flow].ack;
                bytes += if ack == NONE { 0 } else { u64::from(cache.lists.kept[ack].bytes) };
            }
            proptest::prop_assert_eq!(cache.bytes, bytes);
        }
    }
}
