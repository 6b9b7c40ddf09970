//! Who gets how much of a link that is shared with plain TCP.

use crate::bulk::{SEEDS, goodput_of};
use crate::competitor::{Competitor, PACKET_BYTES};
use crate::world::{World, independent, ms};
use holdfast_chance::Rng;

/// 20 Mbit/s, in bytes per second; with a round trip of 20 ms 33 packets are on the way.
const RATE: f64 = 20e6 / 8.0;

/// Shares of the link: the tunnel's and each competitor's.
fn shares(
    competitors: usize,
    queue_packets: usize,
    marks_from: Option<usize>,
    seed: u64,
) -> Vec<f64> {
    let mut world = World::new(&World::config(), independent(0.0), seed);
    world.links[0].rate = Some((RATE, queue_packets * PACKET_BYTES));
    world.links[0].marks_from = marks_from.map(|packets| packets * PACKET_BYTES);
    // Nothing is lost by chance: when they begin is what differs.
    let mut rng = Rng::new(seed, 7);
    let start = |at| Competitor::new(ms(50 * at as u64 + rng.below(200)));
    world.competitors = (0..competitors).map(start).collect();
    let (from, until) = (ms(4000), ms(24_000));
    let mut before = Vec::new();
    let tunnel = goodput_of(&mut world, from, until, |world| {
        before = world.competitors.iter().map(|it| it.received).collect();
    });
    let per_s = (until - from).as_secs_f64();
    let plain = world
        .competitors
        .iter()
        .zip(&before)
        .map(|(it, before)| (it.received - before) as f64 * PACKET_BYTES as f64 / per_s / RATE);
    std::iter::once(tunnel / per_s / RATE * 1500.0 / 1432.0).chain(plain).collect()
}

/// Jain's index: 1 if all have the same, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|it| it * it).sum::<f64>())
}

#[test]
fn beside_plain_tcp() {
    for competitors in [1, 2, 4] {
        for queue in [20, 50, 133] {
            check(competitors, queue, None);
        }
    }
}

#[test]
fn beside_plain_tcp_where_a_router_marks() {
    for competitors in [1, 2, 4] {
        check(competitors, 133, Some(20));
    }
}

/// Prints the tunnel's share, averaged over seeds, and whether it is a fair one.
fn check(competitors: usize, queue: usize, marks_from: Option<usize>) {
    let of_seeds = SEEDS.map(|seed| shares(competitors, queue, marks_from, seed));
    let fair = 1.0 / (competitors + 1) as f64;
    let own = of_seeds.each_ref().map(|shares| shares[0] / fair);
    let jains = of_seeds.each_ref().map(|shares| jain(shares));
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (own_mean, jain_mean) = (mean(&own), mean(&jains));
    println!(
        "{competitors} CUBIC, queue {queue}, marked from {marks_from:?}: the tunnel has \
         {own_mean:.2} x its share ({own:.2?}), Jain {jain_mean:.3} ({jains:.2?}) (asked: 0.5 to 2, \
         0.9)",
    );
    assert!((0.5..2.0).contains(&own_mean), "{own:?}");
    assert!(jain_mean > 0.8, "{jains:?}");
}
