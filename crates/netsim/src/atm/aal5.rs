//! AAL5 (ITU-T I.363.5): a packet becomes cells by padding it, so that its
//! trailer of 8 bytes ends the last cell. Cells carry no number: a lost one is
//! noticed only by the trailer's length and CRC-32.

use super::cell::PAYLOAD_BYTES;
use crc32fast::Hasher;

/// Bytes of the trailer: user-to-user byte, CPI, length, CRC-32.
pub const TRAILER_BYTES: usize = 8;
/// Bytes of the longest packet.
pub const PACKET_BYTES_MAX: usize = 65_535;

/// Payload of a cell.
pub type Payload = [u8; PAYLOAD_BYTES];

/// Number of cells of a packet, when a cell has `payload_bytes` for it.
#[must_use]
pub const fn cells(packet_bytes: usize, payload_bytes: usize) -> usize {
    (packet_bytes + TRAILER_BYTES).div_ceil(payload_bytes)
}

/// AAL5's CRC-32 has the usual polynomial but takes the highest bit of a byte first, where the
/// usual CRC-32 takes the lowest. Reversing the bits of every byte, and of the result, turns one
/// into the other.
#[derive(Clone, Debug, Default)]
struct Check(Hasher);

impl Check {
    fn update(&mut self, bytes: &[u8]) {
        let mut turned = [0; PAYLOAD_BYTES];
        for part in bytes.chunks(PAYLOAD_BYTES) {
            for (to, from) in turned.iter_mut().zip(part) {
                *to = from.reverse_bits();
            }
            self.0.update(&turned[..part.len()]);
        }
    }

    fn value(&self) -> u32 {
        self.0.clone().finalize().reverse_bits()
    }
}

/// Cuts a packet into cells' payloads; the last one is the end.
///
/// `None` if it is too long for the trailer's length field.
#[must_use]
pub fn segment(packet: &[u8]) -> Option<Vec<Payload>> {
    let length = u16::try_from(packet.len()).ok()?;
    let mut payloads: Vec<Payload> = packet
        .chunks(PAYLOAD_BYTES)
        .map(|part| {
            let mut payload = [0; PAYLOAD_BYTES];
            payload[..part.len()].copy_from_slice(part);
            payload
        })
        .collect();
    payloads.resize(cells(packet.len(), PAYLOAD_BYTES), [0; PAYLOAD_BYTES]);
    let (last, before) = payloads.split_last_mut()?;
    let (body, trailer) = last.split_at_mut(PAYLOAD_BYTES - TRAILER_BYTES);
    trailer[2..4].copy_from_slice(&length.to_be_bytes());
    let mut check = Check::default();
    before.iter().for_each(|payload| check.update(payload));
    check.update(body);
    check.update(&trailer[..4]);
    trailer[4..].copy_from_slice(&check.value().to_be_bytes());
    Some(payloads)
}

/// Puts the packets of one circuit together again.
#[derive(Clone, Debug, Default)]
pub struct Reassembler {
    bytes: Vec<u8>,
}

impl Reassembler {
    /// Takes a cell. An end cell returns the packet, if its length and its
    /// check are right, and begins the next one in any case.
    pub fn push(&mut self, payload: &Payload, is_end: bool) -> Option<Vec<u8>> {
        if self.bytes.len() <= PACKET_BYTES_MAX + PAYLOAD_BYTES {
            self.bytes.extend_from_slice(payload);
        }
        if !is_end {
            return None;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let (body, sent) = bytes.split_last_chunk::<4>()?;
        let mut check = Check::default();
        check.update(body);
        let (_, length) = body.split_last_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let fits = cells(length, PAYLOAD_BYTES) * PAYLOAD_BYTES == bytes.len();
        if check.value() != u32::from_be_bytes(*sent) || !fits {
            return None;
        }
        bytes.truncate(length);
        Some(bytes)
    }
}

/// Decides as the real format would whether the packets of a circuit are intact, from the numbers
/// that a run's cells carry: a packet is intact if it arrived completely and without others' cells.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Intact {
    pdu: u32,
    next: u16,
    broken: bool,
}

impl Intact {
    /// Takes a cell; returns whether an end cell completes an intact packet of `size` cells.
    pub fn push(&mut self, pdu: u32, index: u16, is_end: bool, size: u16) -> bool {
        if self.next == 0 {
            *self = Self { pdu, next: 0, broken: false };
        }
        self.broken |= pdu != self.pdu || index != self.next;
        self.next = index + 1;
        if !is_end {
            return false;
        }
        let intact = !self.broken && self.next == size;
        self.next = 0;
        intact
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn the_check_is_that_of_the_standard() {
        // The catalogued check value of CRC-32/BZIP2, which AAL5 uses.
        let mut check = Check::default();
        check.update(b"123456789");
        assert_eq!(check.value(), 0xfc89_1918);
    }

    #[test]
    fn the_papers_packets_have_so_many_cells() {
        let counts = [576, 1500, 4470, 9180].map(|it| cells(it, PAYLOAD_BYTES));
        assert_eq!(counts, [13, 32, 94, 192]);
        for bytes in [0, 1, 40, 41, 1500, PACKET_BYTES_MAX] {
            let packet: Vec<u8> = (0..bytes).map(|it| it as u8).collect();
            let payloads = segment(&packet).unwrap();
            assert_eq!(payloads.len(), cells(bytes, PAYLOAD_BYTES));
            let mut reassembler = Reassembler::default();
            let (last, before) = payloads.split_last().unwrap();
            assert!(before.iter().all(|it| reassembler.push(it, false).is_none()));
            assert_eq!(reassembler.push(last, true), Some(packet));
        }
        assert_eq!(segment(&vec![0; PACKET_BYTES_MAX + 1]), None);
    }

    /// The rule that runs use accepts the same packets as the real format, whichever cells are
    /// lost, ends included.
    #[test]
    fn the_rule_of_a_run_decides_as_the_real_format_does() {
        let mut rng = Rng::new(5, 0);
        let (mut intact, mut broken) = (0, 0);
        for _ in 0..50 {
            let loss = [0.0, 0.02, 0.1, 0.4][rng.below(4) as usize];
            let (mut real, mut rule) = (Reassembler::default(), Intact::default());
            for pdu in 0..40 {
                let bytes = rng.range(1, 700) as usize;
                let packet: Vec<u8> = (0..bytes).map(|_| rng.draw() as u8).collect();
                let payloads = segment(&packet).unwrap();
                let size = payloads.len();
                for (index, payload) in payloads.iter().enumerate() {
                    if rng.chance(loss) {
                        continue;
                    }
                    let is_end = index + 1 == size;
                    let got = real.push(payload, is_end);
                    let said = rule.push(pdu, index as u16, is_end, size as u16);
                    assert_eq!(got.is_some(), said);
                    assert!(got.is_none_or(|got| got == packet));
                    intact += u32::from(said);
                    broken += u32::from(is_end && !said);
                }
            }
        }
        assert!(intact > 300 && broken > 100, "{intact} {broken}");
    }
}
