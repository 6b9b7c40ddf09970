//! The two ciphers, and which one two ends use.

use super::layout::{HEADER_BYTES, TAG_BYTES};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::Serialize;
use std::fmt;

/// A cipher that authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// Fast where the processor has instructions for it.
    Aes256Gcm,
    /// Fast everywhere.
    Chacha20Poly1305,
}

impl Suite {
    /// Datagrams that one key seals before there must be another one (RFC 9001 §6.6: 2^23 for AES;
    /// for the other one the number of datagrams is not what limits it).
    pub(super) fn sealed_max(self) -> u64 {
        match self {
            Self::Aes256Gcm => 1 << 23,
            Self::Chacha20Poly1305 => 1 << 60,
        }
    }

    /// Forgeries after which a key counts no more (the same section).
    pub(super) fn forged_max(self) -> u64 {
        match self {
            Self::Aes256Gcm => 1 << 52,
            Self::Chacha20Poly1305 => 1 << 36,
        }
    }

    /// Its bit in [`Suites`].
    pub(super) fn bit(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::Chacha20Poly1305 => 2,
        }
    }

    /// The suite of a single bit.
    pub(super) fn of_bit(bit: u8) -> Option<Self> {
        [Self::Aes256Gcm, Self::Chacha20Poly1305].into_iter().find(|suite| suite.bit() == bit)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::Chacha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// The ciphers that an end has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suites(u8);

impl Suites {
    /// Only the one that is fast everywhere.
    pub const PORTABLE: Self = Self(2);
    /// Both.
    pub const ALL: Self = Self(3);

    /// Those that this processor is fast with: AES where it has instructions for it.
    #[must_use]
    pub fn of_this_processor() -> Self {
        if has_aes() { Self::ALL } else { Self::PORTABLE }
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// The better one of those that both ends have.
    pub(super) fn choose(self, theirs: Self) -> Option<Suite> {
        let both = self.0 & theirs.0;
        let has = |suite: &Suite| both & suite.bit() != 0;
        [Suite::Aes256Gcm, Suite::Chacha20Poly1305].into_iter().find(has)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// One direction's key.
pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    /// `None` never happens with keys of this length.
    pub(super) fn new(suite: Suite, key: &[u8; 32]) -> Option<Self> {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::Chacha20Poly1305 => &CHACHA20_POLY1305,
        };
        Some(Self(LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?)))
    }

    /// Seals `plaintext` in its place. No key may see a kind and number twice.
    pub(super) fn seal(
        &self,
        number: u64,
        header: [u8; HEADER_BYTES],
        plaintext: &mut [u8],
    ) -> Option<[u8; TAG_BYTES]> {
        let nonce = nonce(header[0], number);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(header), plaintext).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Opens what was sealed, in its place; `None` if it was not, or not so.
    pub(super) fn open<'a>(
        &self,
        number: u64,
        header: [u8; HEADER_BYTES],
        sealed: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.0.open_in_place(nonce(header[0], number), Aad::from(header), sealed).ok()
    }
}

/// Data and control count by themselves, so their kind is a part of the nonce.
fn nonce(kind: u8, number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[0] = kind;
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_cipher_of_both_ends_is_taken() {
        let (all, portable) = (Suites::ALL, Suites::PORTABLE);
        assert_eq!(all.choose(all), Some(Suite::Aes256Gcm));
        assert_eq!(all.choose(portable), Some(Suite::Chacha20Poly1305));
        assert_eq!(portable.choose(all), Some(Suite::Chacha20Poly1305));
        assert_eq!(all.choose(Suites::from_bits(0)), None);
        assert_eq!(Suites::from_bits(0xff), all, "what is not known yet is left out");
    }

    #[test]
    fn what_was_changed_does_not_open() {
        for suite in [Suite::Aes256Gcm, Suite::Chacha20Poly1305] {
            let cipher = Cipher::new(suite, &[9; 32]).unwrap();
            let header = [4, 0, 0, 1, 0, 0, 0, 5];
            let mut text = *b"some words";
            let tag = cipher.seal(5, header, &mut text).unwrap();
            let sealed = [&text[..], &tag].concat();
            assert_eq!(cipher.open(5, header, &mut sealed.clone()).unwrap(), b"some words");
            assert!(cipher.open(6, header, &mut sealed.clone()).is_none(), "another number");
            let other = [5, 0, 0, 1, 0, 0, 0, 5];
            assert!(cipher.open(5, other, &mut sealed.clone()).is_none(), "another kind");
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(cipher.open(5, header, &mut changed).is_none(), "{suite} {at}");
            }
        }
    }
}
