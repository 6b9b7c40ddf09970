//! Whatever a path did before, it is used again when it is calm: no flow hangs, and no rate that was found
//! in bad times lasts.

use crate::bulk::{FRAMING, RATE, Transfer};
use crate::world::{World, independent, ms, runs, stamp_of, stamped, us};
use holdfast_chance::Rng;
use holdfast_tunnel::{Class, Inside};
use std::time::Duration;

/// The queue of the calm link, and its delay.
const QUEUE: usize = 150_000;
const DELAY: Duration = ms(10);
/// Phases of the path that are not calm.
const PHASES: u64 = 4;
/// How long a calm path may take until all is as it was, and how long is looked at then.
const RECOVERY: Duration = ms(4000);
const LOOKED_AT: Duration = ms(1000);

/// Messages of one class that come all the time.
#[derive(Clone, Copy, Debug)]
struct Flow {
    end: usize,
    class: Class,
    bytes: usize,
    every: Duration,
    next: Duration,
}

fn flows(rng: &mut Rng) -> Vec<Flow> {
    let count = 1 + rng.below(3) as usize;
    let mut one = |_| {
        let bytes = 16 + rng.below(1300) as usize;
        // Together no more than three tenths of the link.
        let share = 0.1 * (rng.below(1000) + 1) as f64 / 1000.0;
        let every = (bytes as f64 / RATE / share).min(0.5);
        Flow {
            end: rng.below(4) as usize / 3,
            class: rng.pick(&Class::ALL),
            bytes,
            every: Duration::from_secs_f64(every),
            next: us(rng.below(100_000)),
        }
    };
    (0..count).map(&mut one).collect()
}

/// Makes both directions of the path something else.
fn disturb(world: &mut World, rng: &mut Rng) {
    let losses = match rng.below(4) {
        0 => independent(0.0),
        1 => independent(0.6 * rng.below(1000) as f64 / 1000.0),
        2 => runs(0.15, 3.0),
        _ => runs(0.2, 20.0),
    };
    world.set_losses(losses);
    let now = world.now;
    for link in &mut world.links {
        link.jitter = if rng.one_in(2) { us(rng.below(20_000)) } else { Duration::ZERO };
        link.reordered = 0.05 * rng.below(2) as f64;
        link.loses_behind = rng.one_in(2);
        let slower = 1 + rng.below(30);
        link.rate = Some((RATE / slower as f64, 10_000 + rng.below(300_000) as usize));
        // A delay that is four times another counts as a queue for ten seconds: not these.
        link.delay = ms(5 + rng.below(55));
        let from = now + ms(rng.below(1000));
        link.outage = rng.one_in(2).then(|| (from, from + ms(rng.below(3000))));
    }
}

fn calm_down(world: &mut World) {
    world.set_losses(independent(0.0));
    for link in &mut world.links {
        (link.jitter, link.reordered, link.outage) = (Duration::ZERO, 0.0, None);
        (link.rate, link.delay) = (Some((RATE, QUEUE)), DELAY);
    }
}

/// Lets the path be `PHASES` others, and then calm for `RECOVERY`; the time after that.
fn live_through(
    world: &mut World,
    rng: &mut Rng,
    mut run: impl FnMut(&mut World, Duration),
) -> Duration {
    for _ in 0..PHASES {
        disturb(world, rng);
        let until = world.now + ms(100 + rng.below(2500));
        run(world, until);
    }
    calm_down(world);
    let from = world.now + RECOVERY;
    run(world, from);
    from
}

/// How much of what is sent on a calm path arrives within twice its delay, after `PHASES` of another kind.
fn share_in_time(seed: u64) -> f64 {
    let mut rng = Rng::new(seed, 6);
    let mut flows = flows(&mut rng);
    let mut world = World::new(&World::config(), independent(0.0), seed);
    let from = live_through(&mut world, &mut rng, |world, until| {
        send(world, &mut flows, until, &mut |_, _| {});
    });
    let mut in_time = 0u64;
    let mut count = |sent_at: Duration, took: Duration| {
        in_time += u64::from(sent_at >= from && took <= 2 * DELAY);
    };
    let sent = send(&mut world, &mut flows, from + LOOKED_AT, &mut count);
    let end = world.now + 3 * DELAY;
    send(&mut world, &mut [], end, &mut count);
    println!("seed {seed}: {in_time} of {sent} in time: {flows:?}");
    if sent == 0 { 1.0 } else { in_time as f64 / sent as f64 }
}

/// Sends until a time; how many messages were sent.
fn send(
    world: &mut World,
    flows: &mut [Flow],
    until: Duration,
    arrived: &mut dyn FnMut(Duration, Duration),
) -> u64 {
    let mut sent = 0;
    loop {
        let at = flows.iter().map(|flow| flow.next).min().unwrap_or(until).min(until);
        world.run_until(at, |_, _, inside, now| {
            let Inside::Message { bytes, .. } = inside else { return };
            let sent_at = stamp_of(&bytes);
            arrived(sent_at, now.saturating_sub(sent_at));
        });
        if at >= until {
            return sent;
        }
        for (id, flow) in flows.iter_mut().enumerate().filter(|(_, flow)| flow.next <= at) {
            let bytes = stamped(at, flow.bytes);
            let _ = world.ends[flow.end].handle_message(id as u32, flow.class, &bytes, at);
            sent += 1;
            flow.next += flow.every;
        }
    }
}

/// A stream's share of a calm link, after such phases.
fn stream_share(seed: u64) -> f64 {
    let mut rng = Rng::new(seed, 6);
    let mut world = World::new(&World::config(), independent(0.0), seed);
    let mut transfer = Transfer::new(&mut world);
    let from = live_through(&mut world, &mut rng, |world, until| transfer.run(world, until));
    let before = transfer.read;
    transfer.run(&mut world, from + LOOKED_AT);
    let share = (transfer.read - before) as f64 * FRAMING / LOOKED_AT.as_secs_f64() / RATE;
    println!("seed {seed}: a stream has {share:.3} of the link");
    share
}

fn check(of: fn(u64) -> f64, least: f64, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let share = of(seed);
        assert!(share >= least, "seed {seed}: {share}");
    }
}

#[test]
fn messages_are_in_time_again() {
    check(share_in_time, 0.8, 0..60);
}

#[test]
fn a_stream_has_the_link_again() {
    check(stream_share, 0.7, 0..30);
}

#[test]
#[ignore = "takes minutes"]
fn over_many_seeds() {
    check(share_in_time, 0.8, 1000..2000);
    check(stream_share, 0.7, 1000..1300);
}
