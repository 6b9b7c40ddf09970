//! The bytes that are sent: a stream in which every place of every connection looks different, so
//! that a byte that is lost, repeated, moved or taken from another connection is seen. It is copied
//! from one table.

use holdfast_chance::Rng;
use std::sync::OnceLock;

/// Length of the pattern in bytes: a prime, so that no segment, block or page size is a multiple of
/// it.
const PERIOD: usize = 65_521;

/// Distance between the streams of neighbouring salts, in bytes.
const SALT_STEP: u64 = 7_919;

/// Two periods of the pattern, so that any slice of one period is contiguous.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = Rng::of_state(0x686f_6c64_6661_7374);
        let one: Vec<u8> = (0..PERIOD).map(|_| rng.draw() as u8).collect();
        [one.as_slice(), one.as_slice()].concat()
    })
}

/// Bytes `at..` of the stream of `salt`, at most `len` and at most one period.
fn piece(salt: u64, at: u64, len: u64) -> &'static [u8] {
    let place = salt.wrapping_mul(SALT_STEP).wrapping_add(at % PERIOD as u64) % PERIOD as u64;
    let len = len.min(PERIOD as u64) as usize;
    &table()[place as usize..place as usize + len]
}

/// Appends bytes `at..at + len` of the stream of `salt`.
pub fn append(out: &mut Vec<u8>, salt: u64, mut at: u64, mut len: u64) {
    while len > 0 {
        let part = piece(salt, at, len);
        out.extend_from_slice(part);
        at += part.len() as u64;
        len -= part.len() as u64;
    }
}

/// Compares `bytes` with the stream of `salt` from `at`: `None` when all are
/// right, else the offset of the first wrong one.
pub fn first_wrong(salt: u64, at: u64, bytes: &[u8]) -> Option<u64> {
    let mut done = 0;
    while done < bytes.len() {
        let part = piece(salt, at + done as u64, (bytes.len() - done) as u64);
        let here = &bytes[done..done + part.len()];
        if here != part {
            let wrong = here.iter().zip(part).take_while(|(a, b)| a == b).count();
            return Some(at + (done + wrong) as u64);
        }
        done += part.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_what_is_expected() {
        let mut out = Vec::new();
        append(&mut out, 3, 1000, 300_000);
        assert_eq!(out.len(), 300_000);
        assert_eq!(first_wrong(3, 1000, &out), None);
        assert!(first_wrong(4, 1000, &out).is_some());
        assert!(first_wrong(3, 1001, &out).is_some());
        out[200_000] ^= 1;
        assert_eq!(first_wrong(3, 1000, &out), Some(201_000));
    }

    #[test]
    fn any_split_gives_the_same_bytes() {
        let mut whole = Vec::new();
        append(&mut whole, 9, 0, 200_000);
        let mut parts = Vec::new();
        for at in (0..200_000).step_by(777) {
            append(&mut parts, 9, at, 777.min(200_000 - at));
        }
        assert_eq!(whole, parts);
    }
}
