//! The workloads: what is sent when, as a plan that a seed draws.

use holdfast_chance::Rng;
use std::time::Duration;

/// Bytes of an inner IP packet that are headers: IPv4 and UDP.
pub const HEADERS: usize = 28;

/// When messages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrivals {
    /// At equal distances, so many at once.
    Even(u32),
    /// As many users at random make them.
    Poisson,
}

/// A kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// How many packets per second.
    pub per_second: u32,
    /// Shortest and longest inner IP packet, in bytes.
    ip_bytes: (u32, u32),
    arrivals: Arrivals,
    /// Whether the far end sends as many.
    pub both_ways: bool,
    /// Packets that are one thing only together: a frame counts when it is complete.
    pub packets_per_frame: u32,
}

/// A workload: messages, bulk, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    pub messages: Option<Messages>,
    pub has_bulk: bool,
}

const fn even(per_second: u32, ip_bytes: (u32, u32), at_once: u32) -> Messages {
    Messages {
        per_second,
        ip_bytes,
        arrivals: Arrivals::Even(at_once),
        both_ways: false,
        packets_per_frame: 1,
    }
}

const M: Messages = even(200, (92, 92), 1);

const fn only(name: &'static str, about: &'static str, messages: Messages) -> Workload {
    Workload { name, about, messages: Some(messages), has_bulk: false }
}

/// All of them.
pub const WORKLOADS: [Workload; 9] = [
    only("S", "keys of SSH, control: 20/s x 60 to 120 B", even(20, (60, 120), 1)),
    only(
        "V",
        "voice, games: 50/s x 100 to 200 B each way",
        Messages { both_ways: true, ..even(50, (100, 200), 1) },
    ),
    only("M", "messages: 200/s x 92 B", M),
    only("M4", "messages, four at once: 200/s x 92 B", even(200, (92, 92), 4)),
    only(
        "R",
        "many small requests: 2,000/s x 400 B at random",
        Messages { arrivals: Arrivals::Poisson, ..even(2000, (400, 400), 1) },
    ),
    only(
        "R5",
        "many larger requests: 5,000/s x 1,200 B at random",
        Messages { arrivals: Arrivals::Poisson, ..even(5000, (1200, 1200), 1) },
    ),
    only(
        "F",
        "video: 30 frames/s x 15 x 1,400 B, a frame counts when it is complete",
        Messages { packets_per_frame: 15, ..even(450, (1400, 1400), 15) },
    ),
    Workload { name: "B", about: "one connection in bulk", messages: None, has_bulk: true },
    Workload {
        name: "B+M",
        about: "one connection in bulk, and messages: 200/s x 92 B",
        messages: Some(M),
        has_bulk: true,
    },
];

/// A packet that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Since the beginning.
    pub at: Duration,
    /// Bytes behind the headers of IPv4 and UDP.
    pub payload_bytes: usize,
}

impl Messages {
    /// `count` packets, or a little more, so that frames are complete.
    pub fn plan(&self, count: usize, seed: u64) -> Vec<Packet> {
        let mut rng = Rng::new(seed, 5);
        let at_once = match self.arrivals {
            Arrivals::Even(at_once) => at_once as usize,
            Arrivals::Poisson => 1,
        };
        let step = at_once as f64 / f64::from(self.per_second);
        let (mut packets, mut at) = (Vec::new(), 0.0);
        for _ in 0..count.div_ceil(at_once) {
            for _ in 0..at_once {
                let (least, most) = self.ip_bytes;
                let bytes = rng.range(least.into(), u64::from(most) + 1) as usize;
                let at = Duration::from_secs_f64(at);
                packets.push(Packet { at, payload_bytes: bytes - HEADERS });
            }
            at += match self.arrivals {
                Arrivals::Even(_) => step,
                // The distance between events without memory, of mean `step`.
                Arrivals::Poisson => {
                    -step * (1.0 - rng.below(1 << 53) as f64 / (1u64 << 53) as f64).ln()
                }
            };
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_have_the_rate_and_the_sizes_that_they_name() {
        for workload in WORKLOADS {
            let Some(messages) = workload.messages else { continue };
            let plan = messages.plan(20_000, 3);
            let rate = plan.len() as f64 / plan.last().unwrap().at.as_secs_f64();
            let wanted = f64::from(messages.per_second);
            assert!((rate / wanted - 1.0).abs() < 0.03, "{}: {rate}", workload.name);
            assert_eq!(plan.len() % messages.packets_per_frame as usize, 0);
            let (least, most) = messages.ip_bytes;
            let fits =
                |it: &Packet| (least..=most).contains(&((it.payload_bytes + HEADERS) as u32));
            assert!(plan.iter().all(fits), "{}", workload.name);
            assert_eq!(plan, messages.plan(20_000, 3), "the same seed, the same plan");
        }
    }
}
