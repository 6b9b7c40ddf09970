//! Goodput of streams over a path with a rate.

use crate::world::{World, independent, ms, stamp_of, stamped, us};
use holdfast_chance::Rng;
use holdfast_tunnel::{Class, Endpoint, Inside, StreamEvent, StreamId};
use std::time::Duration;

/// 50 Mbit/s, in bytes per second.
pub const RATE: f64 = 50e6 / 8.0;
/// Bytes on the wire per byte of a stream in a full datagram of 1500.
pub const FRAMING: f64 = 1500.0 / 1432.0;

/// Luck is averaged over these.
pub const SEEDS: [u64; 4] = [11, 12, 13, 14];

/// The byte of a stream at a place.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A stream from end 0 to end 1 that never ends.
pub struct Transfer {
    id: StreamId,
    written: u64,
    pub read: u64,
}

impl Transfer {
    pub fn new(world: &mut World) -> Self {
        let id = world.ends[0].stream_open(Class::Bulk).unwrap();
        Self { id, written: 0, read: 0 }
    }

    pub fn run(&mut self, world: &mut World, until: Duration) {
        self.write(&mut world.ends[0], self.id);
        world.run_until(until, |end, _, inside, _| match inside {
            Inside::Stream(id, StreamEvent::Readable) => self.read(end, id),
            Inside::Stream(id, StreamEvent::Writable) => self.write(end, id),
            _ => {}
        });
    }

    fn write(&mut self, end: &mut Endpoint, id: StreamId) {
        loop {
            let chunk: Vec<u8> = (self.written..self.written + 16_384).map(byte_at).collect();
            let taken = end.stream_write(id, &chunk).unwrap();
            self.written += taken as u64;
            if taken < chunk.len() {
                return;
            }
        }
    }

    fn read(&mut self, end: &mut Endpoint, id: StreamId) {
        let mut out = Vec::new();
        while let Ok(Some(1..)) = end.stream_read(id, &mut out, 1 << 20) {}
        for byte in out {
            assert_eq!(byte, byte_at(self.read), "a wrong byte at {}", self.read);
            self.read += 1;
        }
    }
}

/// Bytes of a stream that arrive between two times; at the first, `look` is called.
pub fn goodput_of(
    world: &mut World,
    from: Duration,
    until: Duration,
    mut look: impl FnMut(&mut World),
) -> f64 {
    let mut transfer = Transfer::new(world);
    let mut at_start = 0;
    for stop in [from, until] {
        at_start = transfer.read;
        look(world);
        transfer.run(world, stop);
    }
    (transfer.read - at_start) as f64
}

fn world(rate: f64, loss: f64, queue: usize, seed: u64) -> World {
    let mut world = World::new(&World::config(), independent(loss), seed);
    for link in &mut world.links {
        link.rate = Some((rate, queue));
    }
    world
}

/// The stream's bytes in full datagrams as a share of the link, at the least.
fn check_goodput(rate: f64, loses_behind: bool, least: &[(f64, f64)]) {
    for (loss, least) in least {
        let of_seeds = SEEDS.map(|seed| {
            // A queue of two round trips.
            let mut world = world(rate, *loss, (rate * 0.04) as usize, seed);
            for link in &mut world.links {
                link.loses_behind = loses_behind;
            }
            let (from, until) = (ms(2000), ms(8000));
            let bytes = goodput_of(&mut world, from, until, |_| {});
            (bytes / (until - from).as_secs_f64() / rate, world.ends[0].report())
        });
        let shares = of_seeds.each_ref().map(|(share, _)| share * FRAMING);
        let share = of_seeds.iter().map(|(share, _)| share).sum::<f64>() / SEEDS.len() as f64;
        let report = &of_seeds[0].1;
        println!(
            "stream on {:.0} Mbit/s at {:.0} %, lost {} the queue: {share:.3} of the link, {:.3} \
             with framing ({shares:.3?}); loss seen {:.3}, of the path {:.3}, round trip {:.1} of \
             {:.1} ms",
            rate * 8e-6,
            loss * 100.0,
            if loses_behind { "behind" } else { "before" },
            share * FRAMING,
            report.sending.loss,
            report.sending.path_loss,
            report.rtt_ms,
            report.rtt_min_ms,
        );
        assert!(share * FRAMING >= *least, "{loss}: {share}");
    }
}

#[test]
fn a_stream_fills_a_link_that_loses_before_its_queue() {
    let least = [
        (0.0, 0.985),
        (0.001, 0.96),
        (0.01, 0.94),
        (0.05, 0.93),
        (0.1, 0.93),
        (0.2, 0.85),
        (0.3, 0.75),
    ];
    check_goodput(RATE, false, &least);
    check_goodput(
        2.0 * RATE,
        false,
        &[(0.0, 0.985), (0.01, 0.94), (0.1, 0.93), (0.2, 0.85), (0.3, 0.75)],
    );
}

#[test]
fn a_stream_fills_a_link_that_loses_behind_its_queue() {
    // What is lost there has used the link: 1 - loss is possible.
    check_goodput(RATE, true, &[(0.01, 0.94), (0.1, 0.82), (0.3, 0.58)]);
}

#[test]
fn a_stream_that_is_finished_ends_on_both_sides_and_an_outage_does_not_break_it() {
    let mut world = world(RATE, 0.1, 300_000, 12);
    world.links[0].outage = Some((ms(200), ms(900)));
    let id = world.ends[0].stream_open(Class::Bulk).unwrap();
    let data: Vec<u8> = (0..2_000_000).map(byte_at).collect();
    let mut rng = Rng::new(12, 0);
    let (mut written, mut read, mut ended) = (0, Vec::new(), false);
    for step in 1..4000 {
        written += world.ends[0].stream_write(id, &data[written..]).unwrap_or(0);
        if written == data.len() {
            let _ = world.ends[0].stream_finish(id);
        }
        world.run_until(ms(step), |_, _, _, _| {});
        let most = rng.below(1 << 20) as usize;
        if let Ok(None) = world.ends[1].stream_read(StreamId(1), &mut read, most) {
            ended = true;
            break;
        }
    }
    assert!(ended && read == data, "{} of {} bytes", read.len(), data.len());
    println!("2 MB with an outage of 0.7 s took {:?}", world.now);
}

/// What an outage swallows says nothing about the path before and after it: the rate does not grow
/// from next to nothing afterwards, and redundancy is not set for a path that loses all.
#[test]
fn after_an_outage_half_of_the_rate_is_soon_used_again() {
    // After two seconds what has waited meanwhile is sent first.
    let paths = [
        (0.0, 100, 0.99),
        (0.0, 450, 0.99),
        (0.01, 450, 0.99),
        (0.1, 450, 0.99),
        (0.1, 2000, 0.75),
    ];
    for (loss, lasts_ms, least) in paths {
        for seed in 60..64 {
            let mut world = world(RATE, loss, 150_000, seed);
            let end_ms = 2000 + lasts_ms;
            world.links[0].outage = Some((ms(2000), ms(end_ms)));
            let counts = ms(end_ms + 300)..ms(end_ms + 1300);
            let (mut arrived, mut sent) = (0, 0);
            // One of 1200 bytes each 400 us is half of 50 Mbit/s.
            while world.now < counts.end + ms(200) {
                let at = world.now + us(400);
                world.run_until(at, |_, _, inside, _| {
                    let Inside::Message { bytes, .. } = inside else { return };
                    arrived += u32::from(counts.contains(&stamp_of(&bytes)));
                });
                sent += u32::from(counts.contains(&at));
                let _ = world.ends[0].handle_message(1, Class::Bulk, &stamped(at, 1200), at);
            }
            let share = f64::from(arrived) / f64::from(sent);
            let seen = world.ends[0].report().sending.loss;
            println!("{lasts_ms} ms at {loss}: {share:.3} arrive, loss seen {seen:.3}");
            assert!(share >= least && seen < loss + 0.03);
        }
    }
}

#[test]
fn messages_beside_a_stream_do_not_wait_for_it() {
    check_messages_beside(750_000, ms(1000));
}

/// The start of the tunnel overflows this one. Whoever shares it with others has to fill it as they do;
/// who is alone finds that out within three seconds.
#[test]
fn nor_where_the_start_has_filled_a_queue() {
    check_messages_beside(150_000, ms(3000));
}

fn check_messages_beside(queue: usize, from: Duration) {
    let mut world = world(RATE, 0.0, queue, 13);
    let mut transfer = Transfer::new(&mut world);
    let mut delays = Vec::new();
    for step in 1..350u64 {
        let at = ms(20 * step);
        transfer.write(&mut world.ends[0], transfer.id);
        let transfer = &mut transfer;
        world.run_until(at, |end, _, inside, now| match inside {
            Inside::Stream(id, StreamEvent::Readable) => transfer.read(end, id),
            Inside::Stream(id, StreamEvent::Writable) => transfer.write(end, id),
            Inside::Message { bytes, .. } => {
                let sent = stamp_of(&bytes);
                if sent > from {
                    delays.push(now - sent);
                }
            }
            _ => {}
        });
        let message = stamped(world.now, 8);
        world.ends[0].handle_message(1, Class::Now, &message, world.now).unwrap();
    }
    delays.sort_unstable();
    let (p50, p99) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    let share = transfer.read as f64 / 7.0 / RATE;
    println!(
        "queue {queue}: messages beside bulk: p50 {p50:?}, p99 {p99:?} (asked: 20 ms); bulk {share:.3}"
    );
    assert!(p99 <= ms(20));
    assert!(share > 0.85);
}
