//! Key pairs (X25519, RFC 7748): each host has a secret of its own, and two hosts get what they
//! share from the secret of one and the public key of the other.

use super::{GroupKey, KEY_BYTES};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Update};
use curve25519_dalek::montgomery::MontgomeryPoint;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a host is known by: the public half of its secret. As text it is base64, so that nobody
/// takes it for a secret, which is hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PublicKey([u8; KEY_BYTES]);

/// Why a text is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPublic {
    #[error("has the form of a secret key, which belongs in no other file than key_file")]
    Secret,
    #[error("is not a public key")]
    Malformed,
    #[error("is a public key with which nothing stays secret")]
    Weak,
}

impl PublicKey {
    /// Whether an agreement with it depends on the other end's secret (RFC 7748 §6.1).
    fn is_sound(self) -> bool {
        let point = MontgomeryPoint(self.0).mul_clamped([1; KEY_BYTES]);
        point.0 != [0; KEY_BYTES]
    }
}

impl GroupKey {
    /// The public half of this secret.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(MontgomeryPoint::mul_base_clamped(self.0).0)
    }

    /// The secret that this host of `group` shares with the one of `theirs`; `None` if nothing
    /// stays secret with that key.
    #[must_use]
    pub(super) fn agree(&self, theirs: PublicKey, group: &str) -> Option<Self> {
        let agreed = MontgomeryPoint(theirs.0).mul_clamped(self.0).0;
        if agreed == [0; KEY_BYTES] {
            return None;
        }
        let mut both = [self.public(), theirs];
        both.sort();
        let mut mac = blake2::Blake2sMac::<U32>::new((&agreed).into());
        mac.update(b"holdfast pair 1");
        both.iter().for_each(|public| mac.update(&public.0));
        mac.update(group.as_bytes());
        Some(Self(mac.finalize_fixed().into()))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = NotPublic;

    fn try_from(text: String) -> Result<Self, NotPublic> {
        text.parse()
    }
}

impl FromStr for PublicKey {
    type Err = NotPublic;

    fn from_str(text: &str) -> Result<Self, NotPublic> {
        if text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotPublic::Secret);
        }
        let bytes = STANDARD.decode(text).map_err(|_| NotPublic::Malformed)?;
        let key = Self(bytes.try_into().map_err(|_| NotPublic::Malformed)?);
        // The highest bit means nothing (RFC 7748 §5): one key has one text.
        if key.0[KEY_BYTES - 1] & 0x80 != 0 {
            return Err(NotPublic::Malformed);
        }
        if key.is_sound() { Ok(key) } else { Err(NotPublic::Weak) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> GroupKey {
        GroupKey::parse(text).unwrap()
    }

    /// Bob's of RFC 7748 §6.1.
    #[test]
    fn public_keys_are_those_of_the_standard() {
        let bob = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let public = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
        assert_eq!(bob.public().to_string(), public);
        assert_eq!(public.parse(), Ok(bob.public()));
    }

    #[test]
    fn both_ends_agree_and_nobody_else() {
        let [a, b, c] = [(); 3].map(|()| GroupKey::generate().unwrap());
        let of = |one: &GroupKey, two: &GroupKey| one.agree(two.public(), "demo");
        assert!(of(&a, &b).is_some() && of(&a, &b) == of(&b, &a));
        assert_ne!(of(&a, &b), of(&a, &c));
        assert_ne!(of(&a, &b), a.agree(b.public(), "other"), "each group has its own");
    }

    #[test]
    fn a_key_with_which_nothing_stays_secret_is_refused() {
        // Points of low order: 0, 1, and the two of order 8.
        let eight = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
        let other = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157";
        let mut one = [0; KEY_BYTES];
        one[0] = 1;
        for bytes in [[0; KEY_BYTES], one, hex(eight).0, hex(other).0] {
            let text = STANDARD.encode(bytes);
            assert_eq!(text.parse::<PublicKey>(), Err(NotPublic::Weak), "{text}");
            assert_eq!(GroupKey::generate().unwrap().agree(PublicKey(bytes), "demo"), None);
        }
    }

    #[test]
    fn a_secret_is_not_taken_for_a_public_key() {
        let secret = "ab".repeat(32);
        assert_eq!(secret.parse::<PublicKey>(), Err(NotPublic::Secret));
        assert_eq!(STANDARD.encode([0xff; 32]).parse::<PublicKey>(), Err(NotPublic::Malformed));
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in ".{0,60}") {
            let _ = text.parse::<PublicKey>();
        }

        #[test]
        fn a_public_key_survives_its_text(bytes in any::<[u8; 32]>()) {
            let public = GroupKey(bytes).public();
            prop_assert_eq!(public.to_string().parse(), Ok(public));
        }
    }
}
