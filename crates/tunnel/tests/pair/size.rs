//! Paths that take no longer what they took, or are others.

use crate::bulk::{FRAMING, RATE, Transfer};
use crate::world::{WIRE_BYTES, World, independent, ms, stamped};
use holdfast_tunnel::{Class, DATAGRAM_BYTES_MIN, Endpoint};
use std::time::Duration;

/// Looks for a doubt of end 0 each 10 ms.
fn doubt_until(world: &mut World, transfer: &mut Transfer, until: Duration) -> Option<Duration> {
    while world.now < until {
        let next = world.now + ms(10);
        transfer.run(world, next);
        if world.ends[0].take_path_doubt(world.now).is_some() {
            return Some(world.now);
        }
    }
    None
}

/// Whether anything small comes back meanwhile or not.
#[test]
fn one_that_takes_less_is_doubted_soon_and_a_stream_goes_on_with_less() {
    for (seed, loss) in [(71, 0.0), (72, 0.1), (73, 0.3)] {
        for has_more in [false, true] {
            let mut world = World::new(&World::config(), independent(loss), seed);
            world.links[0].rate = Some((RATE, 150_000));
            let mut transfer = Transfer::new(&mut world);
            assert_eq!(doubt_until(&mut world, &mut transfer, ms(3000)), None, "it takes all");
            world.links[0].longest = DATAGRAM_BYTES_MIN + WIRE_BYTES;
            let from = world.now;
            let mut doubted = None;
            while doubted.is_none() && world.now < from + ms(2000) {
                if has_more {
                    let message = stamped(world.now, 60);
                    let _ = world.ends[0].handle_message(1, Class::Now, &message, world.now);
                }
                let until = world.now + ms(20);
                doubted = doubt_until(&mut world, &mut transfer, until);
            }
            let took = doubted.expect("nothing long comes through") - from;
            println!("loss {loss}, messages {has_more}: doubted after {took:?}");
            assert!(took < ms(1000), "{took:?}");
            world.ends[0].set_datagram_bytes_max(DATAGRAM_BYTES_MIN);
            let from = world.now + ms(500);
            transfer.run(&mut world, from);
            let before = transfer.read;
            transfer.run(&mut world, from + ms(1000));
            assert!((transfer.read - before) as f64 > RATE / 2.0, "{}", transfer.read - before);
        }
    }
}

/// Loss alone is no length.
#[test]
fn one_that_loses_most_is_asked_now_and_then() {
    let mut world = World::new(&World::config(), independent(0.0), 74);
    world.links[0].rate = Some((RATE, 150_000));
    let mut transfer = Transfer::new(&mut world);
    transfer.run(&mut world, ms(1000));
    world.set_losses(independent(0.6));
    let mut doubts = 0;
    while world.now < ms(11_000) {
        let until = world.now + ms(1000);
        doubts += u32::from(doubt_until(&mut world, &mut transfer, until).is_some());
    }
    println!("{doubts} doubts in 10 s of 60 % of loss");
    assert!(doubts <= 5, "{doubts}");
}

/// An end moves: the other path is slower or faster, longer or shorter.
#[test]
fn another_path_is_measured_anew() {
    for (rate, delay) in [0.2, 4.0].into_iter().flat_map(|it| [(it, ms(25)), (it, ms(5))]) {
        for seed in 80..83 {
            let mut world = World::new(&World::config(), independent(0.02), seed);
            world.links[0].rate = Some((RATE, 150_000));
            let mut transfer = Transfer::new(&mut world);
            transfer.run(&mut world, ms(4000));
            world.links[0].rate = Some((rate * RATE, 100_000));
            for link in &mut world.links {
                link.delay = delay;
            }
            world.ends.iter_mut().for_each(Endpoint::path_changed);
            let before = transfer.read;
            transfer.run(&mut world, ms(7000));
            let share = (transfer.read - before) as f64 * FRAMING / 3.0 / (rate * RATE);
            println!("{rate} of the rate, {delay:?}: {share:.2} of the link in three seconds");
            assert!(share > 0.65, "{share}");
        }
    }
}
