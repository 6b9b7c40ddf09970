//! The CRC-32 of IEEE 802.3 and AAL5, bit-reversed as on Ethernet.

/// Bytes that are taken at once.
const STEP: usize = 8;
/// The table `i` is the check of a byte with `i` zero bytes behind it.
static TABLES: [[u32; 256]; STEP] = tables();

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut i = 1;
    while i < STEP {
        let mut byte = 0;
        while byte < 256 {
            let below = tables[i - 1][byte];
            tables[i][byte] = below >> 8 ^ tables[0][(below & 0xff) as usize];
            byte += 1;
        }
        i += 1;
    }
    tables
}

/// The check of `parts` one behind the other.
pub(crate) fn crc32(parts: &[&[u8]]) -> u32 {
    !parts.iter().fold(!0, |sum, part| add(sum, part))
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let sum = steps.iter().fold(sum, |sum, step| {
        let word = u64::from_le_bytes(*step) ^ u64::from(sum);
        let of_byte = |i: usize| TABLES[STEP - 1 - i][(word >> (8 * i)) as usize & 0xff];
        (0..STEP).fold(0, |sum, i| sum ^ of_byte(i))
    });
    rest.iter().fold(sum, |sum, byte| sum >> 8 ^ TABLES[0][usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_is_the_usual_one() {
        assert_eq!(super::crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
        assert_eq!(super::crc32(&[b"123456789"]), 0xcbf4_3926);
    }
}
