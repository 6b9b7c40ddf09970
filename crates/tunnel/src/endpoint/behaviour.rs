//! Which class a packet belongs to: by the user's rules, by its DSCP, else by how its flow behaves.

use crate::inner::Inner;
use crate::{Class, Rule};
use std::collections::HashMap;
use std::time::Duration;

const TCP: u8 = 6;
/// Share of the path's rate that a UDP flow may have and still count as urgent.
const THIN_SHARE: f64 = 0.1;
/// Part of these limits below which a flow that was a bulk transfer is none any more.
const THIN_AGAIN: f64 = 0.25;
/// What is taken for the path's rate before it is known, in bytes per second: 10 Mbit/s.
const RATE_UNKNOWN: f64 = 1.25e6;
/// Packets per round trip up to which a TCP flow is a dialogue, not a bulk transfer.
const THIN_PACKETS: f64 = 8.0;
/// Time over which a flow's use is averaged; of TCP at least this, and four round trips.
const MEMORY_MIN: Duration = Duration::from_millis(50);
/// Longest such time, and that of all others.
const MEMORY: Duration = Duration::from_millis(500);
/// Flows whose behaviour is remembered.
const FLOWS_MAX: usize = 4096;

/// Decaying sums of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    at: Duration,
    bytes: f64,
    packets: f64,
    is_bulk: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Behaviour {
    flows: HashMap<u64, Use>,
}

/// The class that a code point asks for (RFC 4594, RFC 8622); `None` for the default one.
fn of_dscp(dscp: u8) -> Option<Class> {
    match dscp {
        // CS6, CS7, EF, VOICE-ADMIT, CS5, CS4, AF4x: control, voice, conferences, games.
        48 | 56 | 46 | 44 | 40 | 32 | 34 | 36 | 38 => Some(Class::Now),
        // CS2, CS3, AF3x, AF2x: operations, signalling, streams, transactions.
        16 | 24 | 26 | 28 | 30 | 18 | 20 | 22 => Some(Class::Soon),
        // CS1, LE, AF1x: what may take its time.
        8 | 1 | 10 | 12 | 14 => Some(Class::Bulk),
        _ => None,
    }
}

impl Behaviour {
    pub fn class_of(
        &mut self,
        inner: &Inner,
        len: usize,
        rules: &[Rule],
        rate: f64,
        rtt: Duration,
        now: Duration,
    ) -> Class {
        let fits = |rule: &&Rule| {
            let has_port = |port| inner.ports.is_some_and(|(a, b)| a == port || b == port);
            rule.protocol.is_none_or(|protocol| protocol == inner.protocol)
                && rule.dscp.is_none_or(|dscp| dscp == inner.dscp)
                && rule.port.is_none_or(has_port)
        };
        if let Some(rule) = rules.iter().find(fits) {
            return rule.class;
        }
        if let Some(class) = of_dscp(inner.dscp) {
            return class;
        }
        if inner.tcp.is_some_and(|tcp| tcp.is_pure_ack()) {
            return Class::Soon;
        }
        // Some round trips of TCP: after half a second its slow start would be over.
        let is_tcp = inner.protocol == TCP;
        let memory = if is_tcp { (rtt * 4).clamp(MEMORY_MIN, MEMORY) } else { MEMORY };
        let usage = self.note(inner.flow, len, memory, now);
        let per_second = 1.0 / memory.as_secs_f64();
        let part = if is_tcp {
            usage.packets * per_second * rtt.as_secs_f64() / THIN_PACKETS
        } else {
            usage.bytes * per_second / (THIN_SHARE * rate.max(RATE_UNKNOWN))
        };
        // A flow that left the bulk queue at once would overtake itself.
        usage.is_bulk = part > if usage.is_bulk { THIN_AGAIN } else { 1.0 };
        if usage.is_bulk { Class::Bulk } else { Class::Now }
    }

    fn note(&mut self, flow: u64, len: usize, memory: Duration, now: Duration) -> &mut Use {
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&flow) {
            self.flows.retain(|_, usage| usage.at + MEMORY > now);
            if self.flows.len() >= FLOWS_MAX {
                self.flows.clear();
            }
        }
        let usage = self.flows.entry(flow).or_default();
        let kept = (-now.saturating_sub(usage.at).as_secs_f64() / memory.as_secs_f64()).exp();
        usage.bytes = usage.bytes * kept + len as f64;
        usage.packets = usage.packets * kept + 1.0;
        usage.at = now;
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::{ipv4, tcp, udp};

    const MS: Duration = Duration::from_millis(1);

    fn classes(packet: &[u8], gap: Duration, rules: &[Rule]) -> Class {
        let mut behaviour = Behaviour::default();
        let inner = Inner::parse(packet).unwrap();
        let mut class = Class::Now;
        for i in 0..1000 {
            class = behaviour.class_of(&inner, packet.len(), rules, 6e6, 20 * MS, gap * i);
        }
        class
    }

    #[test]
    fn thin_flows_are_urgent_and_thick_ones_are_bulk() {
        let game = ipv4(17, 0, &udp(1, 2, &[0; 100]));
        assert_eq!(classes(&game, 20 * MS, &[]), Class::Now);
        let flood = ipv4(17, 0, &udp(1, 2, &[0; 1400]));
        assert_eq!(classes(&flood, MS / 2, &[]), Class::Bulk);
        let keys = ipv4(6, 0, &tcp(22, 1, &[0; 40]));
        assert_eq!(classes(&keys, 50 * MS, &[]), Class::Now);
        let copy = ipv4(6, 0, &tcp(22, 1, &[0; 1400]));
        assert_eq!(classes(&copy, MS / 4, &[]), Class::Bulk);
        assert_eq!(classes(&ipv4(6, 0, &tcp(22, 1, &[])), MS, &[]), Class::Soon);
    }

    #[test]
    fn rules_come_before_marks_and_marks_before_behaviour() {
        let marked = ipv4(17, 46 << 2, &udp(1, 2, &[0; 1400]));
        assert_eq!(classes(&marked, MS / 2, &[]), Class::Now);
        let rule = Rule { protocol: Some(17), port: Some(2), dscp: None, class: Class::Soon };
        assert_eq!(classes(&marked, MS / 2, &[rule]), Class::Soon);
        let other = Rule { port: Some(3), ..rule };
        assert_eq!(classes(&marked, MS / 2, &[other]), Class::Now);
    }
}
