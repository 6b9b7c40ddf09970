//! The CRC-32 of IEEE 802.3 and AAL5, bit-reversed as on Ethernet.

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// The check of `parts` one behind the other.
pub(crate) fn crc32(parts: &[&[u8]]) -> u32 {
    let sum = parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(!0u32, |sum, byte| sum >> 8 ^ TABLE[usize::from(sum as u8 ^ byte)]);
    !sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_is_the_usual_one() {
        assert_eq!(super::crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
    }
}
