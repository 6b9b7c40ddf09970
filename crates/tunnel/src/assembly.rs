//! Packets that came as cells: complete when all their cells are there.

use std::collections::VecDeque;

/// Packets that may be incomplete at a time; more push the oldest out.
const PACKETS_MAX: usize = 256;

#[derive(Clone, Debug)]
struct Packet {
    id: u16,
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    packets: VecDeque<Packet>,
    bytes: usize,
    bytes_max: usize,
    pub dropped: u64,
}

impl Assembly {
    pub fn new(bytes_max: usize) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, bytes_max, dropped: 0 }
    }

    /// Takes a cell; the encoded item if it is complete. A cell that contradicts others of its
    /// packet begins a new one.
    pub fn cell(&mut self, id: u16, index: u8, last: u8, part: &[u8]) -> Option<Vec<u8>> {
        let count = usize::from(last) + 1;
        let (index, found) = (usize::from(index), self.packets.iter().position(|it| it.id == id));
        let is_same = |it: &Packet| it.parts.len() == count && it.parts.get(index) == Some(&None);
        let at = match found {
            Some(at) if is_same(&self.packets[at]) => at,
            Some(at) => {
                self.drop_packet(at);
                self.begin(id, count)
            }
            None => self.begin(id, count),
        };
        let packet = self.packets.get_mut(at)?;
        let slot = packet.parts.get_mut(index)?;
        *slot = Some(part.to_vec());
        packet.missing -= 1;
        packet.bytes += part.len();
        self.bytes += part.len();
        if packet.missing == 0 {
            let packet = self.packets.remove(at)?;
            self.bytes -= packet.bytes;
            return Some(packet.parts.into_iter().flatten().flatten().collect());
        }
        while self.bytes > self.bytes_max {
            self.drop_packet(0);
        }
        None
    }

    fn begin(&mut self, id: u16, count: usize) -> usize {
        if self.packets.len() >= PACKETS_MAX {
            self.drop_packet(0);
        }
        let packet = Packet { id, parts: vec![None; count], missing: count, bytes: 0 };
        self.packets.push_back(packet);
        self.packets.len() - 1
    }

    fn drop_packet(&mut self, at: usize) {
        if let Some(packet) = self.packets.remove(at) {
            self.bytes -= packet.bytes;
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cells_in_any_order_make_the_packet() {
        let mut assembly = Assembly::new(1000);
        assert_eq!(assembly.cell(7, 2, 2, b"c"), None);
        assert_eq!(assembly.cell(8, 0, 1, b"x"), None);
        assert_eq!(assembly.cell(7, 0, 2, b"aa"), None);
        assert_eq!(assembly.cell(7, 1, 2, b"b"), Some(b"aabc".to_vec()));
        assert_eq!(assembly.cell(8, 1, 1, b"y"), Some(b"xy".to_vec()));
        assert_eq!((assembly.bytes, assembly.packets.len(), assembly.dropped), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn the_limits_hold(cells in prop::collection::vec((0u16..400, any::<u8>(), any::<u8>(), 0usize..50), 1..2000)) {
            let mut assembly = Assembly::new(300);
            for (id, a, b, len) in cells {
                assembly.cell(id, a.min(b), a.max(b), &[0; 50][..len]);
                prop_assert!(assembly.bytes <= 300 && assembly.packets.len() <= PACKETS_MAX);
                let bytes: usize = assembly.packets.iter().map(|it| it.bytes).sum();
                prop_assert_eq!(bytes, assembly.bytes);
            }
        }
    }
}
