//! The keyed hash that compares what two members read and wrote.
//!
//! rapidhash with a secret seed and secret multipliers: a client that sends
//! different bytes to the tap and to the primary never sees a hash and does not
//! know the key, so it cannot search for a collision. It runs at memory speed
//! and costs a fraction of copying the bytes.

use rapidhash::v3::{RapidSecrets, RapidStreamHasherInlineV3, rapidhash_v3_inline};

/// The group's hash key, derived from its secret: a seed and seven multipliers.
pub type HashKey = [u64; 8];

/// A [`HashKey`] made ready for use.
pub struct Secrets(RapidSecrets);

impl Secrets {
    #[must_use]
    pub fn new(key: &HashKey) -> Self {
        let [seed, secrets @ ..] = *key;
        Self(RapidSecrets { seed, secrets })
    }
}

/// Hashes a byte stream given in pieces; the split does not change the result.
pub struct StreamHash<'a>(RapidStreamHasherInlineV3<'a, true, true>);

impl<'a> StreamHash<'a> {
    #[must_use]
    pub fn new(secrets: &'a Secrets) -> Self {
        Self(RapidStreamHasherInlineV3::new(&secrets.0))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    #[must_use]
    pub fn finish(self) -> u64 {
        self.0.finish()
    }
}

/// Hash of a stream given in pieces.
#[must_use]
pub fn hash_pieces<'b>(key: &HashKey, pieces: impl IntoIterator<Item = &'b [u8]>) -> u64 {
    let secrets = Secrets::new(key);
    let mut pieces = pieces.into_iter().filter(|p| !p.is_empty());
    let first = pieces.next().unwrap_or_default();
    let Some(second) = pieces.next() else { return hash(key, first) };
    let mut h = StreamHash::new(&secrets);
    h.update(first);
    h.update(second);
    pieces.for_each(|p| h.update(p));
    h.finish()
}

/// Hash of one contiguous buffer.
#[must_use]
pub fn hash(key: &HashKey, bytes: &[u8]) -> u64 {
    rapidhash_v3_inline::<true, false, true>(bytes, &Secrets::new(key).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_does_not_change_the_hash() {
        let key = [1, 2, 3, 4, 5, 6, 7, 8];
        let data: [u8; 1000] = core::array::from_fn(|i| (i * 7) as u8);
        for len in [0, 1, 7, 16, 17, 48, 111, 112, 113, 224, 1000] {
            let whole = hash(&key, &data[..len]);
            for cut in 0..len {
                let (a, b) = data[..len].split_at(cut);
                assert_eq!(hash_pieces(&key, [a, b]), whole, "{len} bytes cut at {cut}");
            }
        }
        assert_ne!(hash(&[1, 2, 3, 4, 5, 6, 7, 9], &data), hash(&key, &data));
        assert_ne!(hash(&[2, 2, 3, 4, 5, 6, 7, 8], &data), hash(&key, &data));
    }
}
