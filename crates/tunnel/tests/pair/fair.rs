//! Who gets how much of a link that is shared with plain TCP.

use crate::bulk::goodput_of;
use crate::competitor::{Competitor, PACKET_BYTES};
use crate::world::{World, independent, ms};

/// 20 Mbit/s, in bytes per second; with a round trip of 20 ms 33 packets are on the way.
const RATE: f64 = 20e6 / 8.0;

/// Shares of the link: the tunnel's and each competitor's.
fn shares(competitors: usize, queue_packets: usize, loss: f64, seed: u64) -> Vec<f64> {
    let mut world = World::new(&World::config(), independent(loss), seed);
    world.links[0].rate = Some((RATE, queue_packets * PACKET_BYTES));
    world.competitors = (0..competitors).map(|at| Competitor::new(ms(50 * at as u64))).collect();
    let (from, until) = (ms(4000), ms(14_000));
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
            let shares = shares(competitors, queue, 0.0, 21);
            let fair = 1.0 / shares.len() as f64;
            println!(
                "{competitors} CUBIC, queue {queue}: the tunnel has {:.2} x its share, Jain {:.2} (asked: 0.5 to 2, 0.9): {shares:.2?}",
                shares[0] / fair,
                jain(&shares),
            );
        }
    }
}
