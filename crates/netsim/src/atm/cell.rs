//! The ATM cell: 5 bytes of header, 48 of payload (ITU-T I.361), and its header's
//! check (I.432).

/// Bytes of a cell on the wire.
pub const CELL_BYTES: usize = 53;
/// Bytes of a cell's header.
pub const HEADER_BYTES: usize = 5;
/// Bytes of a cell's payload.
pub const PAYLOAD_BYTES: usize = 48;

/// Polynomial of the header check, a CRC-8: x⁸+x²+x+1 (I.432 §4.3.2).
const HEC_POLYNOMIAL: u8 = 0x07;
/// Value that is added to the header check (I.432 §4.3.2).
const HEC_COSET: u8 = 0x55;

/// A cell's header at the user-network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The virtual path.
    pub path: u8,
    /// The virtual circuit.
    pub circuit: u16,
    /// Whether it is the last cell of an AAL5 packet.
    pub is_end: bool,
    /// Whether it may be dropped before others.
    pub is_discardable: bool,
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let word = u32::from(self.path) << 20
            | u32::from(self.circuit) << 4
            | u32::from(self.is_end) << 1
            | u32::from(self.is_discardable);
        let [a, b, c, d] = word.to_be_bytes();
        [a, b, c, d, header_check([a, b, c, d])]
    }

    /// The header that these bytes are; `None` if its check fails.
    #[must_use]
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Option<Self> {
        let [a, b, c, d, check] = bytes;
        if header_check([a, b, c, d]) != check {
            return None;
        }
        let word = u32::from_be_bytes([a, b, c, d]);
        Some(Self {
            path: (word >> 20) as u8,
            circuit: (word >> 4) as u16,
            is_end: word & 2 != 0,
            is_discardable: word & 1 != 0,
        })
    }
}

fn header_check(bytes: [u8; 4]) -> u8 {
    let shift = |crc: u8| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ HEC_POLYNOMIAL };
    let step = |crc: u8, byte: u8| (0..8).fold(crc ^ byte, |crc, _| shift(crc));
    bytes.into_iter().fold(0, step) ^ HEC_COSET
}

/// A cell of a run, with the numbers that its bytes would carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Number of the connection.
    pub flow: u16,
    /// Index of the cell in its packet, as sent this time.
    pub index: u16,
    /// Whether it is the packet's last one.
    pub is_end: bool,
    /// Whether the packet carries what was sent before.
    pub is_again: bool,
    /// Number of the packet in the connection; every transmission has another one.
    pub pdu: u32,
    /// Number of the segment that it is part of.
    pub segment: u32,
    /// Number of the connection's cells that were sent before it.
    pub order: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_and_a_damaged_one_is_refused() {
        // An idle cell (I.432 §4.4): the header 00 00 00 01 has the check 52.
        let idle = Header { is_discardable: true, ..Header::default() };
        assert_eq!(idle.to_bytes(), [0, 0, 0, 1, 0x52]);
        let header = Header { path: 7, circuit: 0xabcd, is_end: true, is_discardable: false };
        let bytes = header.to_bytes();
        assert_eq!(Header::parse(bytes), Some(header));
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(damaged), None, "bit {bit}");
        }
    }
}
