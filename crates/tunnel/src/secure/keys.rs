//! The keys of the two ends, and how they look as text: a secret is hexadecimal, in a file that only
//! its owner can read; a public key is base64, so that nobody takes one for the other.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use std::fmt;
use std::str::FromStr;

/// Bytes of a key, secret or public.
pub const KEY_BYTES: usize = 32;

/// What an end proves itself with.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; KEY_BYTES]);

/// What an end is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what they are")]
pub enum NotAKey {
    #[error("has the form of a secret key, which belongs in a key file only")]
    Secret,
    #[error("is not a public key")]
    NotPublic,
    #[error("is a public key with which nothing stays secret")]
    Weak,
    #[error("does not hold a key: it has 64 hexadecimal digits on one line")]
    NotSecret,
}

impl SecretKey {
    /// The key made of random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a key file's text: one line of digits, and comments.
    ///
    /// # Errors
    /// [`NotAKey::NotSecret`] for anything else.
    pub fn parse(text: &str) -> Result<Self, NotAKey> {
        let is_meant = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let mut lines = text.lines().map(str::trim).filter(is_meant);
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err(NotAKey::NotSecret);
        };
        if line.len() != 2 * KEY_BYTES || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAKey::NotSecret);
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(line.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| NotAKey::NotSecret)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NotAKey::NotSecret)?;
        }
        if bytes == [0; KEY_BYTES] { Err(NotAKey::NotSecret) } else { Ok(Self(bytes)) }
    }

    /// The file's text: a comment and the digits.
    #[must_use]
    pub fn to_text(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("# the secret of one end of a holdfast tunnel, for its owner alone\n{digits}\n")
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut public = [0; KEY_BYTES];
        if let Some(mut curve) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            curve.set(&self.0);
            public.copy_from_slice(curve.pubkey());
        }
        PublicKey(public)
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(secret)")
    }
}

impl PublicKey {
    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Whether an agreement with it depends on the other end's secret (RFC 7748 §6.1).
    fn is_sound(&self) -> bool {
        let Some(mut curve) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) else {
            return false;
        };
        curve.set(&[1; KEY_BYTES]);
        let mut agreed = [0; KEY_BYTES];
        curve.dh(&self.0, &mut agreed).is_ok() && agreed != [0; KEY_BYTES]
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        if text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAKey::Secret);
        }
        let bytes = STANDARD.decode(text).map_err(|_| NotAKey::NotPublic)?;
        let key = Self(bytes.try_into().map_err(|_| NotAKey::NotPublic)?);
        // The highest bit means nothing (RFC 7748 §5): one key has one text.
        if key.0[KEY_BYTES - 1] & 0x80 != 0 {
            return Err(NotAKey::NotPublic);
        }
        if key.is_sound() { Ok(key) } else { Err(NotAKey::Weak) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_texts() {
        let secret = SecretKey::from_random([7; KEY_BYTES]);
        assert_eq!(SecretKey::parse(&secret.to_text()).unwrap(), secret);
        let public = secret.public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert!(!format!("{secret:?}").contains("07"));
    }

    /// RFC 7748 §6.1: Alice's keys.
    #[test]
    fn the_public_half_is_the_one_of_the_standard() {
        let secret = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
        let public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        let found = SecretKey::parse(secret).unwrap().public();
        let digits: String = found.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, public);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let digits = "ab".repeat(KEY_BYTES);
        assert_eq!(digits.parse::<PublicKey>(), Err(NotAKey::Secret));
        assert_eq!("abc".parse::<PublicKey>(), Err(NotAKey::NotPublic));
        let weak = STANDARD.encode([0; KEY_BYTES]);
        assert_eq!(weak.parse::<PublicKey>(), Err(NotAKey::Weak));
        let two = format!("{digits}\n{digits}");
        for text in ["", "# nothing", "xyz", &"0".repeat(64), &"+1".repeat(32), &two] {
            assert_eq!(SecretKey::parse(text), Err(NotAKey::NotSecret), "{text}");
        }
    }
}
