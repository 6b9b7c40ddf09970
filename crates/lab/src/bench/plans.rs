//! The scenarios that both simulators run: dumb-bells with one string or two, described once, so
//! that the ns-3 program gets the same numbers as this project's simulator.

use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::Dumbbell;
use holdfast_netsim::net::link::QueueLimit;
use holdfast_netsim::net::scenario::{CutAt, FlowSpec, OutageSpec, Watch};
use holdfast_netsim::tcp::Profile;

const MS: u64 = 1_000_000;

/// Rate of all links, bits per second.
pub const RATE_BPS: u64 = 100_000_000;

/// Bytes of a full segment on a link, with the headers of TCP, IP and the point-to-point link.
pub const PACKET_BYTES: u64 = 1502;

/// A period in which the first string is down.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// Beginning of the period, in ms.
    pub from_ms: u64,
    /// End of the period, in ms.
    pub until_ms: u64,
    /// Whether the string stays down, and its flows move to the other one at the end.
    pub moves_flows: bool,
}

/// A scenario for both simulators.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Name of the scenario.
    pub name: &'static str,
    /// Number of flows, which are dealt out to the strings in turn.
    pub flows: u32,
    /// Number of strings.
    pub strings: u32,
    /// Number of segments of each flow.
    pub segments: u32,
    /// Window that receivers promise, in segments.
    pub window_segments: u32,
    /// Packets that may wait in front of a string.
    pub buffer_packets: u32,
    /// One-way delays, in ms: source to switch, to the string's middle, to the other switch, and to
    /// the destination.
    pub delays_ms: [u64; 4],
    /// Time from one flow of a string to the next, in ms.
    pub every_ms: u64,
    /// End of the run, in s.
    pub end_s: u64,
    /// When the first string is down, if it is.
    pub outage: Option<Outage>,
}

/// Section 7.4 of the HALR thesis.
pub const ACTIVE: Plan = Plan {
    name: "two strings, one fails",
    flows: 100,
    strings: 2,
    segments: 3000,
    window_segments: 5700,
    buffer_packets: 750,
    delays_ms: [40, 2, 2, 6],
    every_ms: 250,
    end_s: 60,
    outage: Some(Outage { from_ms: 5000, until_ms: 8000, moves_flows: true }),
};

/// Short flows during an outage: SYNs and data are lost.
const SHORT: Plan = Plan {
    name: "short flows in an outage",
    flows: 300,
    strings: 1,
    segments: 10,
    buffer_packets: 100_000,
    delays_ms: [45, 2, 2, 1],
    every_ms: 12,
    end_s: 3600,
    outage: Some(Outage { from_ms: 2000, until_ms: 5000, moves_flows: false }),
    ..ACTIVE
};

/// A queue of a third of what the path holds: losses by overflow, no outage.
const QUEUE: Plan = Plan {
    name: "a short queue overflows",
    flows: 10,
    segments: 3000,
    buffer_packets: 250,
    every_ms: 100,
    outage: None,
    ..SHORT
};

/// Many flows without a loss: ns-3 takes minutes, so this one is no part of [`PLANS`].
pub const THOUSAND: Plan = Plan {
    name: "1000 flows, no loss",
    flows: 1000,
    segments: 1000,
    window_segments: 64,
    buffer_packets: 100_000,
    every_ms: 1,
    ..QUEUE
};

/// The scenarios that are compared; the smallest is the first, since memory is a peak of a process.
pub const PLANS: [Plan; 3] = [QUEUE, SHORT, ACTIVE];

impl Plan {
    /// The scenario for this project's simulator. What arrives is counted in order, in bins of 1 s.
    pub fn scenario(&self) -> Scenario {
        let dumbbell = Dumbbell {
            rate_bps: RATE_BPS,
            delays_ns: self.delays_ms.map(|ms| ms * MS),
            string_rates_bps: vec![RATE_BPS; self.strings as usize],
            buffer: QueueLimit::Packets(self.buffer_packets),
            ..Dumbbell::thesis()
        };
        let profile = Profile { window_segments: self.window_segments, ..Profile::NS3 };
        let mut scenario = dumbbell.scenario(self.flows, profile);
        scenario.flows = (0..self.flows)
            .map(|path| FlowSpec {
                start_ns: u64::from(path / self.strings) * self.every_ms * MS,
                segments: self.segments,
                profile: 0,
                path,
                string: Some(path % self.strings),
            })
            .collect();
        scenario.outages.extend(self.outage.map(|outage| OutageSpec {
            links: Vec::new(),
            string: Some((0, 0)),
            from_ns: outage.from_ms * MS,
            until_ns: outage.until_ms * MS,
            moves_flows: outage.moves_flows,
            // ns-3 loses packets where they arrive.
            cut: CutAt::FarEnd,
        }));
        scenario.end_ns = self.end_s * 1000 * MS;
        scenario.watch = Watch { bin_ns: Some(1000 * MS), in_order: true, ..Watch::default() };
        scenario
    }

    /// The words that `Plan` in ns3.cpp reads, in their order.
    pub fn words(&self) -> Vec<String> {
        let whole =
            [self.flows, self.strings, self.segments, self.window_segments, self.buffer_packets];
        let outage = self.outage.unwrap_or(Outage { from_ms: 0, until_ms: 0, moves_flows: false });
        let seconds = |ms: u64| (ms as f64 / 1e3).to_string();
        let whole = whole.iter().map(u32::to_string);
        let words = whole.chain(self.delays_ms.iter().map(u64::to_string)).chain([
            self.every_ms.to_string(),
            self.end_s.to_string(),
            seconds(outage.from_ms),
            seconds(outage.until_ms),
            u8::from(outage.moves_flows).to_string(),
        ]);
        words.collect()
    }

    /// What the scenario is, in a sentence.
    pub fn about(&self) -> String {
        let [access, inward, outward, egress] = self.delays_ms;
        let strings = match self.strings {
            1 => "one string".to_owned(),
            count => format!("{count} strings"),
        };
        let outage = self.outage.map_or(String::new(), |it| {
            let (from, until) = (it.from_ms as f64 / 1e3, it.until_ms as f64 / 1e3);
            let then = match it.moves_flows {
                true => "when its flows move to the other one",
                false => "when it is back",
            };
            format!(" The first string is down from {from} s to {until} s, {then}.")
        });
        format!(
            "{} flows of {} segments of 1460 bytes over {strings} of 100 Mbit/s, {} packets of queue, \
             a round trip of {} ms, a window of {} segments at most, one more flow on a string every {} ms.{outage}",
            self.flows,
            self.segments,
            self.buffer_packets,
            2 * (access + inward + outward + egress),
            self.window_segments,
            self.every_ms,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program reads as many words as there are, and knows no scenario by itself.
    #[test]
    fn the_ns3_program_reads_the_words_of_every_plan() {
        let source = include_str!("ns3.cpp");
        for plan in PLANS {
            let words = plan.words();
            assert!(source.contains(&format!("WORDS = {};", words.len())), "{words:?}");
            assert!(words.iter().all(|word| word.parse::<f64>().is_ok()), "{words:?}");
            assert!(plan.scenario().check().is_ok(), "{}", plan.name);
        }
        assert_eq!(ACTIVE.words()[9..], ["250", "60", "5", "8", "1"]);
    }
}
