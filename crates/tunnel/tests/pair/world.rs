//! Two endpoints and a path between them, in virtual time.

use crate::competitor::{Competitor, PACKET_BYTES};
use holdfast_chance::Rng;
use holdfast_netsim::net::loss::{Loss, LossModel};
use holdfast_tunnel::{Config, Ecn, Endpoint, Inside};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Bytes around a plaintext on the wire: IPv4 and UDP 28, the sealing 24.
pub const WIRE_BYTES: usize = 52;
/// Wake-ups at one time after which an endpoint is found to be spinning.
const SPIN_MAX: usize = 10_000;

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A message of so many bytes, at least eight, that says when it was sent.
pub fn stamped(at: Duration, bytes: usize) -> Vec<u8> {
    let mut message = (at.as_nanos() as u64).to_be_bytes().to_vec();
    message.resize(bytes.max(message.len()), 0);
    message
}

/// When a message was sent that says so.
pub fn stamp_of(message: &[u8]) -> Duration {
    Duration::from_nanos(u64::from_be_bytes(message[..8].try_into().unwrap()))
}

/// Independent losses of a share.
pub fn independent(share: f64) -> LossModel {
    LossModel::Bernoulli(share)
}

/// Losses of a share, in runs of so many datagrams on average.
pub fn runs(share: f64, run: f64) -> LossModel {
    let to_good = 1.0 / run;
    let to_bad = to_good * share / (1.0 - share);
    LossModel::GilbertElliott { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }
}

/// What a path makes of marks on its way; `None` of what it drops for having one.
pub type Remark = fn(Ecn) -> Option<Ecn>;

/// One direction.
#[derive(Clone, Debug)]
pub struct Link {
    pub delay: Duration,
    losses: Loss,
    /// Whether losses come behind the queue rather than before it.
    pub loses_behind: bool,
    /// Bytes per second, and the bytes that may wait.
    pub rate: Option<(f64, usize)>,
    /// Bytes that wait from which on datagrams that understand marks get one.
    pub marks_from: Option<usize>,
    pub remark: Option<Remark>,
    pub marked: u64,
    pub jitter: Duration,
    /// Share of datagrams that take 3 ms longer.
    pub reordered: f64,
    /// Longer ones do not pass, in bytes on the wire.
    pub longest: usize,
    /// Nothing passes in between.
    pub outage: Option<(Duration, Duration)>,
    rng: Rng,
    free_at: Duration,
    pub sent: u64,
    pub lost: u64,
    pub bytes: u64,
}

impl Link {
    pub fn new(model: LossModel, seed: u64, stream: u64) -> Self {
        let rng = Rng::new(seed, stream);
        Self {
            delay: ms(10),
            losses: Loss::new(model),
            loses_behind: false,
            rate: None,
            marks_from: None,
            remark: None,
            marked: 0,
            jitter: Duration::ZERO,
            reordered: 0.0,
            longest: usize::MAX,
            outage: None,
            rng,
            free_at: Duration::ZERO,
            sent: 0,
            lost: 0,
            bytes: 0,
        }
    }

    /// When a datagram comes out, if it does, and with which mark.
    pub fn pass(&mut self, bytes: usize, ecn: Ecn, now: Duration) -> Option<(Duration, Ecn)> {
        self.sent += 1;
        self.bytes += bytes as u64;
        let is_lost = self.losses.loses(&mut self.rng)
            || bytes > self.longest
            || self.outage.is_some_and(|(from, until)| (from..until).contains(&now));
        self.lost += u64::from(is_lost);
        if is_lost && !self.loses_behind {
            return None;
        }
        let mut at = now;
        let mut ecn = self.remark.map_or(Some(ecn), |remark| remark(ecn))?;
        if let Some((rate, queue)) = self.rate {
            let start = self.free_at.max(now);
            let waiting = (start - now).as_secs_f64() * rate;
            if ecn != Ecn::NotCapable && self.marks_from.is_some_and(|from| waiting > from as f64) {
                ecn = Ecn::Congested;
                self.marked += 1;
            }
            if waiting > queue as f64 {
                self.lost += u64::from(!is_lost);
                return None;
            }
            at = start + Duration::from_secs_f64(bytes as f64 / rate);
            self.free_at = at;
        }
        if is_lost {
            return None;
        }
        if !self.jitter.is_zero() {
            at += us(self.rng.below(self.jitter.as_micros() as u64 + 1));
        }
        if self.rng.chance(self.reordered) {
            at += ms(3);
        }
        Some((at + self.delay, ecn))
    }
}

/// A datagram on its way: when it arrives, the order of equals, to whom, its number, its mark.
type Flight = Reverse<(Duration, u64, usize, u64, u8, Vec<u8>)>;

/// The first of the numbers that stand for competitors; each has one for its packets' arrival and
/// one for that of the acknowledgement.
const COMPETITORS: usize = 2;

pub struct World {
    /// Plain TCP flows that share the link from end 0 to end 1.
    pub competitors: Vec<Competitor>,
    pub now: Duration,
    pub ends: [Endpoint; 2],
    /// From end 0 to end 1, and back.
    pub links: [Link; 2],
    flying: BinaryHeap<Flight>,
    order: u64,
    buffer: Vec<u8>,
    /// What a tampering path does to a plaintext.
    pub tamper: Option<fn(&mut Vec<u8>, &mut Rng)>,
    tampering: Rng,
}

impl World {
    pub fn new(config: &Config, losses: LossModel, seed: u64) -> Self {
        println!("seed {seed}, {losses:?}");
        Self {
            now: Duration::ZERO,
            ends: [0, 1].map(|end| Endpoint::new(config.clone(), seed + end, Duration::ZERO)),
            links: [Link::new(losses, seed, 1), Link::new(losses, seed, 2)],
            flying: BinaryHeap::new(),
            order: 0,
            buffer: Vec::new(),
            competitors: Vec::new(),
            tamper: None,
            tampering: Rng::new(seed, 3),
        }
    }

    pub fn config() -> Config {
        // An outer MTU of 1500.
        Config { datagram_bytes_max: 1500 - WIRE_BYTES, ..Config::default() }
    }

    /// Both directions lose in this way from now on.
    pub fn set_losses(&mut self, model: LossModel) {
        for link in &mut self.links {
            link.losses = Loss::new(model);
        }
    }

    /// Bytes on the wire, both directions.
    pub fn wire_bytes(&self) -> u64 {
        self.links.iter().map(|link| link.bytes).sum()
    }

    /// Lets an end send what is due.
    fn flush(&mut self, end: usize) {
        for round in 0.. {
            assert!(round < SPIN_MAX, "end {end} does not stop sending at {:?}", self.now);
            let Some(outgoing) = self.ends[end].poll_datagram(self.now, &mut self.buffer) else {
                break;
            };
            let bytes = self.buffer.len() + WIRE_BYTES;
            if let Some((at, ecn)) = self.links[end].pass(bytes, outgoing.ecn, self.now) {
                let mut plaintext = self.buffer.clone();
                if let Some(tamper) = self.tamper {
                    tamper(&mut plaintext, &mut self.tampering);
                }
                self.fly(at, 1 - end, outgoing.number, ecn, plaintext);
            }
        }
    }

    fn flush_competitors(&mut self) {
        for at in 0..self.competitors.len() {
            while let Some(seq) = self.competitors[at].poll(self.now) {
                let passed = self.links[0].pass(PACKET_BYTES, Ecn::Capable0, self.now);
                if let Some((time, ecn)) = passed {
                    self.fly(time, COMPETITORS + 2 * at, seq, ecn, Vec::new());
                }
            }
        }
    }

    fn fly(&mut self, at: Duration, to: usize, number: u64, ecn: Ecn, plaintext: Vec<u8>) {
        self.order += 1;
        self.flying.push(Reverse((at, self.order, to, number, ecn.bits(), plaintext)));
    }

    fn competitor_arrives(&mut self, to: usize, seq: u64, ecn: Ecn, at: Duration) {
        let competitor = (to - COMPETITORS) / 2;
        if to.is_multiple_of(2) {
            self.competitors[competitor].received += 1;
            self.fly(at + self.links[1].delay, to + 1, seq, ecn, Vec::new());
        } else {
            self.competitors[competitor].acknowledged(seq, ecn == Ecn::Congested, at);
        }
    }

    /// Runs until a time; what comes out is given to `take` with the end and the time.
    pub fn run_until(
        &mut self,
        until: Duration,
        mut take: impl FnMut(&mut Endpoint, usize, Inside, Duration),
    ) {
        let mut spins = 0;
        loop {
            for end in 0..2 {
                self.flush(end);
                while let Some(inside) = self.ends[end].poll_inside(self.now) {
                    take(&mut self.ends[end], end, inside, self.now);
                }
                self.flush(end);
            }
            self.flush_competitors();
            let next = self.flying.peek().map(|Reverse(flight)| flight.0);
            let wakes = self.ends.iter().filter_map(Endpoint::wake_at);
            let timeouts = self.competitors.iter().map(Competitor::timeout_at);
            let at =
                next.into_iter().chain(wakes).chain(timeouts).min().unwrap_or(until).max(self.now);
            if at >= until {
                self.now = until;
                return;
            }
            spins = if at == self.now { spins + 1 } else { 0 };
            assert!(
                spins < SPIN_MAX,
                "spinning at {at:?}: {:?} {:?}",
                self.ends[0].wake_at(),
                self.ends[1].wake_at()
            );
            self.now = at;
            while let Some(Reverse(flight)) = self.flying.peek() {
                if flight.0 > at {
                    break;
                }
                let Some(Reverse((_, _, end, number, ecn, plaintext))) = self.flying.pop() else {
                    break;
                };
                let ecn = Ecn::of_bits(ecn);
                if end >= COMPETITORS {
                    self.competitor_arrives(end, number, ecn, at);
                    continue;
                }
                let result = self.ends[end].handle_datagram(number, &plaintext, ecn, at);
                assert!(result.is_ok() || self.tamper.is_some(), "{result:?}");
            }
        }
    }
}
