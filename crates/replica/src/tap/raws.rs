//! Raw packets beyond a hole, for re-injection. They leave as the hole closes,
//! in the order of their ends, so that no segment makes anybody look at more
//! packets than leave.

use std::collections::BTreeMap;

/// Bytes that a packet costs beside its own, for bookkeeping.
const OVERHEAD_BYTES: usize = 64;

/// The kept packets; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Raws {
    /// Packets by end and start in the stream.
    packets: BTreeMap<(u64, u64), Vec<u8>>,
    bytes: usize,
    /// Number of packets that were looked at.
    #[cfg(test)]
    pub(super) steps: u64,
}

impl Raws {
    /// Bytes that a packet takes in memory.
    pub(super) fn cost(packet: &[u8]) -> usize {
        packet.len() + OVERHEAD_BYTES
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a packet unless `bytes_max` is reached; a packet at the place of
    /// another one is a repeat.
    pub(super) fn keep(&mut self, start: u64, end: u64, packet: &[u8], bytes_max: usize) {
        let cost = Self::cost(packet);
        if packet.is_empty() || self.bytes + cost > bytes_max {
            return;
        }
        self.packets.entry((end, start)).or_insert_with(|| {
            self.bytes += cost;
            packet.to_vec()
        });
        assert!(self.bytes <= bytes_max, "L6: more raw packets than the limit");
    }

    /// Drops packets that end at or before `held`.
    pub(super) fn prune(&mut self, held: u64) {
        while let Some(first) = self.packets.first_entry().filter(|first| first.key().0 <= held) {
            self.bytes -= Self::cost(&first.remove());
            #[cfg(test)]
            {
                self.steps += 1;
            }
        }
    }

    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.values().map(Vec::as_slice)
    }
}
