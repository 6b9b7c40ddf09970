//! A TCP connection inside that a kernel sends, with CUBIC and HyStart: the tunnel carries its packets.
//! Its windows meet the delays of repairs as they would those of a queue.

use crate::world::{World, independent, ms, us};
use holdfast_netsim::net::packet::{Kind, Packet};
use holdfast_netsim::tcp::{Profile, Receiver, Segment, Sender};
use holdfast_tunnel::{Class, Endpoint, Inside, Rule};
use std::time::Duration;

/// 50 Mbit/s, in bytes per second.
const RATE: f64 = 50e6 / 8.0;
/// Headers of IPv4 and TCP with timestamps, and segments that fill an outer packet of 1500 bytes.
const PROFILE: Profile = Profile { mss_bytes: 1320, header_bytes: 52, ..Profile::MODERN };
/// How often the connection's timers are looked at.
const STEP: Duration = us(250);

struct Connection {
    sender: Sender,
    receiver: Receiver,
    /// All that was sent, by the number that its packet carries: what a packet of the simulated
    /// connection says beside its bytes.
    sent: Vec<Packet>,
    received: u64,
}

impl Connection {
    fn new() -> Self {
        let mut sender = Sender::new(&PROFILE, u32::MAX / 2);
        sender.start();
        Self { sender, receiver: Receiver::default(), sent: Vec::new(), received: 0 }
    }

    /// An IPv4 packet with what the tunnel looks at: who talks, the order, the length.
    fn bytes(&mut self, packet: Packet) -> Vec<u8> {
        let is_forward = packet.is_forward();
        let len = if packet.kind == Kind::Data { packet.bytes as usize } else { 52 };
        let mut bytes = vec![0x45, 0];
        bytes.extend_from_slice(&(len as u16).to_be_bytes());
        bytes.extend_from_slice(&[0, 9, 0x40, 0, 64, 6, 0, 0]);
        let ends = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let order = if is_forward { [0, 1] } else { [1, 0] };
        order.iter().for_each(|end| bytes.extend_from_slice(&ends[*end]));
        bytes.extend_from_slice(&[0, 80, 0, 80]);
        let first = packet.seq.saturating_sub(1) * PROFILE.mss_bytes + u32::from(packet.seq > 0);
        bytes.extend_from_slice(&first.to_be_bytes());
        bytes.extend_from_slice(&packet.ack.to_be_bytes());
        let flags = match packet.kind {
            Kind::Syn => 0x02,
            Kind::SynAck => 0x12,
            Kind::Data | Kind::Ack => 0x10,
        };
        bytes.extend_from_slice(&[0x80, flags, 0xff, 0xff, 0, 0, 0, 0]);
        // Options: the number stands where a timestamp would.
        bytes.extend_from_slice(&[1, 1, 8, 10]);
        bytes.extend_from_slice(&(self.sent.len() as u64).to_be_bytes());
        bytes.resize(len, 0);
        self.sent.push(packet);
        bytes
    }

    fn send(&mut self, end: &mut Endpoint, now: Duration) {
        let ns = now.as_nanos() as u64;
        while let Some(segment) = self.sender.poll_transmit(ns, &PROFILE) {
            let bytes = self.bytes(Segment::packet(segment, ns, &PROFILE, 0));
            let _a_full_queue_drops_it = end.handle_packet(&bytes, now);
        }
    }

    fn answer(&mut self, end: &mut Endpoint, now: Duration) {
        if let Some(ack) = self.receiver.poll_transmit(now.as_nanos() as u64, &PROFILE) {
            let bytes = self.bytes(ack);
            let _a_full_queue_drops_it = end.handle_packet(&bytes, now);
        }
    }

    fn take(&mut self, end: &mut Endpoint, inside: Inside, now: Duration) {
        let Inside::Packet(bytes) = inside else { panic!("{inside:?}") };
        let number = u64::from_be_bytes(bytes[44..52].try_into().unwrap());
        let packet = self.sent[number as usize];
        let ns = now.as_nanos() as u64;
        if packet.is_forward() {
            self.received += u64::from(self.receiver.handle_packet(ns, &PROFILE, &packet).in_order);
            self.answer(end, now);
        } else {
            self.sender.handle_ack(ns, &PROFILE, &packet);
            self.send(end, now);
        }
    }

    fn run(&mut self, world: &mut World, until: Duration) {
        while world.now < until {
            let now = world.now;
            let ns = now.as_nanos() as u64;
            if self.sender.poll_timeout().is_some_and(|at| at <= ns) {
                self.sender.handle_timeout(ns, &PROFILE);
            }
            self.receiver.handle_timeout(ns);
            self.send(&mut world.ends[0], now);
            self.answer(&mut world.ends[1], now);
            world.run_until(now + STEP, |end, _, inside, now| self.take(end, inside, now));
        }
    }
}

/// Goodput as a share of the link, and how it came about.
fn share(queue: usize, loss: f64, seed: u64) -> f64 {
    let (from, until) = (ms(2000), ms(8000));
    let mut world = World::new(&World::config(), independent(loss), seed);
    for link in &mut world.links {
        link.rate = Some((RATE, queue));
    }
    let mut connection = Connection::new();
    connection.run(&mut world, from);
    let at_start = connection.received;
    connection.run(&mut world, until);
    println!("window {:.0?}, {:?}", connection.sender.window(), connection.sender.counts());
    let bytes = (connection.received - at_start) * u64::from(PROFILE.mss_bytes);
    bytes as f64 / (until - from).as_secs_f64() / RATE
}

/// Its own bytes in packets that fill the link are 0.92 of it; a loss and what makes good for it in
/// time take their part. Without a tunnel it has a fiftieth of the link at a tenth of loss.
fn check(queue: usize, asked: &[(f64, f64)]) {
    for (loss, least) in asked {
        let of_seeds = std::array::from_fn::<_, 12, _>(|at| share(queue, *loss, 21 + at as u64));
        let mean = of_seeds.iter().sum::<f64>() / of_seeds.len() as f64;
        let percent = loss * 100.0;
        println!("inside, queue {queue}, {percent:.1} %: {mean:.3} of the link ({of_seeds:.3?})");
        assert!(mean >= *least, "queue {queue}, loss {loss}: {mean}");
    }
}

#[test]
fn a_connection_inside_uses_a_link_that_loses() {
    // A queue of 100 full packets, as in the laboratory.
    let asked = [(0.0, 0.9), (0.001, 0.78), (0.01, 0.72), (0.05, 0.72), (0.1, 0.67), (0.2, 0.55)];
    check(150_000, &asked);
}

/// What overflows there is no loss of the path's: redundancy would only overflow, too.
#[test]
fn a_connection_inside_uses_a_link_with_a_short_queue() {
    check(45_000, &[(0.0, 0.83), (0.01, 0.75), (0.1, 0.65)]);
    check(20_000, &[(0.0, 0.68), (0.01, 0.7), (0.1, 0.58)]);
}

/// Bytes of a request, and of its answer.
const LONE_BYTES: u32 = 64;

/// A packet of a connection that waits for the answer to each request; its number stands where a
/// timestamp would.
fn lone(id: u64, is_back: bool) -> Vec<u8> {
    const LEN: usize = 52 + LONE_BYTES as usize;
    let mut bytes = vec![0x45, 0, 0, LEN as u8];
    bytes.extend_from_slice(&(id as u16).to_be_bytes());
    bytes.extend_from_slice(&[0x40, 0, 64, 6, 0, 0]);
    let (near, far) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let ends = if is_back { [far, near] } else { [near, far] };
    bytes.extend_from_slice(&ends.concat());
    bytes.extend_from_slice(if is_back { &[0, 80, 0, 81] } else { &[0, 81, 0, 80] });
    let seq = (id as u32).wrapping_mul(LONE_BYTES).to_be_bytes();
    bytes.extend_from_slice(&[seq, seq].concat());
    bytes.extend_from_slice(&[0x80, 0x18, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10]);
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.resize(LEN, 0);
    bytes
}

/// How long a request and its answer take; `None` if one of them does not come.
fn round(world: &mut World, id: u64) -> Option<Duration> {
    let (start, mut took) = (world.now, None);
    let _a_full_queue_drops_it = world.ends[0].handle_packet(&lone(id, false), start);
    world.run_until(start + ms(250), |end, at, inside, now| {
        let Inside::Packet(bytes) = inside else { panic!("{inside:?}") };
        if at == 0 {
            assert!(bytes == lone(id, true), "an answer of before");
            took = Some(now - start);
        } else {
            let _a_full_queue_drops_it = end.handle_packet(&lone(id, true), now);
        }
    });
    took
}

/// Nothing that follows a lone packet tells that it is missing, and TCP's own timer takes 200 ms.
#[test]
fn lone_packets_are_repaired_before_their_senders_timer() {
    for class in [None, Some(Class::Soon), Some(Class::Bulk)] {
        for loss in [0.02, 0.05, 0.1] {
            let mut config = World::config();
            let rule = |class| Rule { protocol: Some(6), port: None, dscp: None, class };
            config.rules.extend(class.map(rule));
            let mut world = World::new(&config, independent(loss), 5);
            let mut took: Vec<_> = (1..3000).map(|id| round(&mut world, id)).collect();
            let missing = took.iter().filter(|it| it.is_none()).count();
            took.sort_unstable();
            let p99 = took[took.len() * 99 / 100];
            println!("{class:?}, {loss}: {missing} missing, p99 {p99:?}");
            assert!(missing <= 1, "{missing} of {} with {class:?} at {loss}", took.len());
            assert!(p99 < Some(ms(100)), "{p99:?} with {class:?} at {loss}");
        }
    }
}
