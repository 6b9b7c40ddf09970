//! Bad input, bad paths: no wrong byte, no panic, no memory without bound.

use crate::world::{World, independent, ms, runs, stamp_of, stamped, us};
use holdfast_chance::Rng;
use holdfast_tunnel::{Class, Config, Ecn, Endpoint, Inside, Limits};
use std::collections::HashSet;
use std::time::Duration;

const TINY: Limits = Limits {
    window_symbols: 64,
    window_bytes: 20_000,
    rows_waiting: 8,
    queue_bytes: 30_000,
    queue_packets: 200,
    flows: 4,
    resequence_bytes: 5000,
    assembly_bytes: 20_000,
    streams: 4,
    stream_bytes: 300_000,
    streams_bytes: 600_000,
    inside_bytes: 50_000,
};

fn message(id: u64, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    let len = rng.below(2500);
    let mut own = Rng::new(id, 5);
    bytes.extend((0..len).map(|_| own.draw() as u8));
    bytes
}

/// Messages of all classes and sizes over a path of all kinds of faults: each comes at most once,
/// and as it was sent.
fn any_path(
    seed: u64,
    limits: Limits,
    tamper: Option<fn(&mut Vec<u8>, &mut Rng)>,
) -> (usize, usize) {
    let mut rng = Rng::new(seed, 4);
    let losses = match rng.below(3) {
        0 => independent(0.4 * rng.below(1000) as f64 / 1000.0),
        1 => runs(0.15, 3.0),
        _ => runs(0.1, 10.0),
    };
    let config = Config { limits, overhead_max: 1.0, ..World::config() };
    let mut world = World::new(&config, losses, seed);
    world.tamper = tamper;
    for link in &mut world.links {
        link.jitter = us(rng.below(5000));
        link.reordered = 0.05 * rng.below(2) as f64;
        link.loses_behind = rng.one_in(2);
        link.rate = rng.one_in(2).then_some((1.25e6, 50_000));
        let from = rng.below(2000);
        link.outage = Some((ms(from), ms(from + rng.below(500))));
    }
    let (mut arrived, mut sent) = (HashSet::new(), 0);
    let is_tampered = tamper.is_some();
    for id in 0..1500u64 {
        let at = world.now + us(rng.below(4000));
        world.run_until(at, |_, end, inside, _| {
            let Inside::Message { bytes, .. } = inside else { return };
            if is_tampered || end == 0 {
                return;
            }
            let id = u64::from_be_bytes(bytes[..8].try_into().unwrap());
            let mut own = Rng::new(id, 5);
            assert!(bytes[8..].iter().all(|byte| *byte == own.draw() as u8), "a wrong byte");
            assert!(arrived.insert(id), "message {id} came twice");
        });
        let bytes = message(id, &mut rng);
        let class = rng.pick(&Class::ALL);
        sent += usize::from(world.ends[0].handle_message(id as u32 % 7, class, &bytes, at).is_ok());
        if rng.one_in(300) {
            let bytes = 1200 + rng.below(300) as usize;
            world.ends[0].set_datagram_bytes_max(bytes);
        }
    }
    world.run_until(world.now + ms(2000), |_, _, _, _| {});
    (arrived.len(), sent)
}

#[test]
fn whatever_the_path_does_no_byte_is_wrong() {
    for seed in 100..130 {
        let (arrived, sent) = any_path(seed, Limits::default(), None);
        assert!(arrived * 10 > sent * 5, "seed {seed}: {arrived} of {sent}");
    }
}

#[test]
fn tiny_limits_lose_packets_and_nothing_else() {
    for seed in 200..220 {
        any_path(seed, TINY, None);
    }
}

#[test]
fn a_peer_that_sends_nonsense_is_no_danger() {
    fn spoil(plaintext: &mut Vec<u8>, rng: &mut Rng) {
        match rng.below(5) {
            0 => plaintext.truncate(rng.below(plaintext.len() as u64 + 1) as usize),
            1 => {
                for _ in 0..1 + rng.below(8) {
                    let at = rng.below(plaintext.len() as u64) as usize;
                    if let Some(byte) = plaintext.get_mut(at) {
                        *byte = rng.draw() as u8;
                    }
                }
            }
            2 => plaintext.iter_mut().for_each(|byte| *byte = rng.draw() as u8),
            _ => {}
        }
    }
    for seed in 300..320 {
        any_path(seed, TINY, Some(spoil));
    }
}

#[test]
fn random_datagrams_with_random_numbers() {
    let mut rng = Rng::new(400, 0);
    let config = Config { limits: TINY, ..World::config() };
    let mut end = Endpoint::new(config, 1, Duration::ZERO);
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    for _ in 0..30_000 {
        now += us(rng.below(3000));
        let len = rng.below(60) as usize;
        // Kinds and flags that are possible are more telling than arbitrary ones.
        let kind = (1 + rng.below(9) as u8) << 4 | rng.below(16) as u8;
        let mut plaintext = vec![kind];
        plaintext.extend((0..len).map(|_| if rng.one_in(3) { rng.draw() as u8 } else { 0 }));
        let number = if rng.one_in(10) { rng.draw() >> rng.below(64) } else { rng.below(1000) };
        let _ = end.handle_datagram(number, &plaintext, Ecn::NotCapable, now);
        let _ = end.handle_message(1, rng.pick(&Class::ALL), &[7; 100], now);
        for _ in 0..100 {
            if end.poll_datagram(now, &mut out).is_none() {
                break;
            }
        }
        while end.poll_inside(now).is_some() {}
    }
    println!("{:?}", end.report());
}

/// What makes a path worse.
type Change = fn(&mut World);

/// Share of lone messages later than a time, with what was lost counted as late.
fn late(path: &str, change: Change, later_than: Duration) -> f64 {
    let config = Config { overhead_max: 2.0, ..World::config() };
    let mut world = World::new(&config, independent(0.0), 500);
    change(&mut world);
    let (mut arrived, mut sent) = (0, 0);
    for id in 0..6000u64 {
        let at = ms(5 * id);
        world.run_until(at, |_, _, inside, now| {
            if let Inside::Message { bytes, .. } = inside {
                let sent_at = stamp_of(&bytes);
                arrived += usize::from(sent_at > ms(5000) && now - sent_at <= later_than);
            }
        });
        sent += usize::from(at > ms(5000));
        world.ends[0].handle_message(1, Class::Now, &stamped(at, 8), at).unwrap();
    }
    world.run_until(world.now + ms(1000), |_, _, inside, now| {
        if let Inside::Message { bytes, .. } = inside {
            let sent_at = stamp_of(&bytes);
            arrived += usize::from(sent_at > ms(5000) && now - sent_at <= later_than);
        }
    });
    let share = 1.0 - arrived as f64 / sent as f64;
    println!(
        "{path}: {:.2} % later than {later_than:?}, lost {:.2} % of datagrams",
        share * 100.0,
        world.links[0].lost as f64 / world.links[0].sent as f64 * 100.0
    );
    share
}

#[test]
fn messages_are_never_later_than_without_the_tunnel() {
    // What plain UDP has: the share that is lost, or delayed by the path itself.
    let paths: [(&str, Change, f64); 7] = [
        ("1 % lost", |world| world.set_losses(independent(0.01)), 0.01),
        ("3 % lost", |world| world.set_losses(independent(0.03)), 0.03),
        ("30 % lost", |world| world.set_losses(independent(0.3)), 0.3),
        ("10 % lost in runs of 3", |world| world.set_losses(runs(0.1, 3.0)), 0.1),
        ("10 % lost in runs of 10", |world| world.set_losses(runs(0.1, 10.0)), 0.1),
        ("5 % out of order", |world| world.links[0].reordered = 0.05, 0.0),
        ("jitter of 5 ms", |world| world.links[0].jitter = ms(5), 0.0),
    ];
    for (name, change, plain) in paths {
        let share = late(name, change, ms(17));
        // A part in a hundred is chance.
        assert!(share <= plain * 1.01 + 0.001, "{name}: {share} instead of {plain}");
    }
}
