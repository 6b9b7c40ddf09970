//! The two MACs at the end of handshake messages, and the cookie that is the key of the second one
//! (WireGuard's paper, §5.3, §5.4.4 and §5.4.7).
//!
//! The first MAC is keyed with the receiver's public key: who does not know that gets no answer. When
//! messages come more often than they are answered, the receiver replies with a cookie, a MAC of the
//! sender's address under a secret that it changes, and takes messages only whose second MAC is keyed
//! with it: whoever gets that far receives at the address that he claims.

use super::Random;
use super::error::NoRandom;
use super::keys::PublicKey;
use super::layout::{self, COOKIE_BYTES, COOKIE_NONCE_BYTES, Index, MAC_BYTES};
use super::timing::COOKIE_LASTS;
use blake2::digest::consts::{U16, U32};
use blake2::digest::{Digest, Mac};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::aead::{AeadInPlace as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const LABEL_MAC: &[u8] = b"holdfast tunnel mac 1";
const LABEL_COOKIE: &[u8] = b"holdfast tunnel cookie 1";

pub(super) type Cookie = [u8; COOKIE_BYTES];

/// What the receiver of a handshake message with a given public key checks it with.
#[derive(Debug)]
pub(super) struct Macs {
    first: [u8; 32],
    cookie: [u8; 32],
}

impl Macs {
    pub(super) fn of(receiver: &PublicKey) -> Self {
        let key = |label| Blake2s256::new().chain_update(label).chain_update(receiver.bytes());
        Self {
            first: key(LABEL_MAC).finalize().into(),
            cookie: key(LABEL_COOKIE).finalize().into(),
        }
    }

    /// Ends a message with both; without a cookie the second one is zero.
    pub(super) fn append(&self, message: &mut Vec<u8>, cookie: Option<&Cookie>) {
        let first = mac_of(&self.first, &[message]);
        message.extend(first);
        let second = cookie.map_or([0; MAC_BYTES], |cookie| mac_of(&widened(cookie), &[message]));
        message.extend(second);
    }

    /// Whether a message's first MAC is right.
    pub(super) fn is_first_right(&self, message: &[u8]) -> bool {
        let Some((body, macs)) = message.split_last_chunk::<{ 2 * MAC_BYTES }>() else {
            return false;
        };
        verifies(&self.first, &[body], &macs[..MAC_BYTES])
    }

    /// A reply to `message`, which `sender` has numbered, with a cookie sealed for who knows the
    /// public key and the message.
    pub(super) fn reply(
        &self,
        sender: Index,
        message: &[u8],
        mut cookie: Cookie,
        random: &mut dyn Random,
    ) -> Result<Option<Vec<u8>>, NoRandom> {
        let Some(first) = first_of(message) else { return Ok(None) };
        let mut nonce = [0; COOKIE_NONCE_BYTES];
        random.fill(&mut nonce)?;
        let cipher = XChaCha20Poly1305::new((&self.cookie).into());
        let sealed = cipher.encrypt_in_place_detached(&XNonce::from(nonce), first, &mut cookie);
        let Ok(tag) = sealed else { return Ok(None) };
        let mut out = layout::cookie_reply(sender);
        out.extend(nonce);
        out.extend(cookie);
        out.extend(tag);
        Ok(Some(out))
    }

    /// The cookie in a reply to the message that ended with `first`.
    pub(super) fn open(&self, first: &[u8], nonce: &[u8], sealed: &[u8]) -> Option<Cookie> {
        let nonce: [u8; COOKIE_NONCE_BYTES] = nonce.try_into().ok()?;
        let (cookie, tag) = sealed.split_first_chunk::<COOKIE_BYTES>()?;
        let tag: [u8; MAC_BYTES] = tag.try_into().ok()?;
        let (mut cookie, cipher) = (*cookie, XChaCha20Poly1305::new((&self.cookie).into()));
        cipher
            .decrypt_in_place_detached(&XNonce::from(nonce), first, &mut cookie, &Tag::from(tag))
            .ok()?;
        Some(cookie)
    }
}

/// The first MAC of a whole message.
pub(super) fn first_of(message: &[u8]) -> Option<&[u8]> {
    let (_, macs) = message.split_last_chunk::<{ 2 * MAC_BYTES }>()?;
    Some(&macs[..MAC_BYTES])
}

/// What makes cookies, and knows them again.
#[derive(Debug, Default)]
pub(super) struct Oven {
    /// The newest secret first, with the time when it was drawn.
    secrets: Vec<(Duration, [u8; 32])>,
}

impl Oven {
    /// The cookie of an address.
    pub(super) fn bake(
        &mut self,
        from: SocketAddr,
        now: Duration,
        random: &mut dyn Random,
    ) -> Result<Cookie, NoRandom> {
        let newest = self.secrets.first().filter(|(drawn, _)| now < *drawn + COOKIE_LASTS);
        let secret = match newest {
            Some((_, secret)) => *secret,
            None => {
                let mut secret = [0; 32];
                random.fill(&mut secret)?;
                self.secrets.insert(0, (now, secret));
                // The one before counts, for who got it a moment ago.
                self.secrets.truncate(2);
                secret
            }
        };
        Ok(cookie_of(&secret, from))
    }

    /// Whether the second MAC of a message is keyed with a cookie of that address.
    pub(super) fn knows(&self, message: &[u8], from: SocketAddr, now: Duration) -> bool {
        let Some((body, second)) = message.split_last_chunk::<MAC_BYTES>() else { return false };
        // Who has no cookie sends zeros: a flood of those costs one MAC each and not three.
        if *second == [0; MAC_BYTES] {
            return false;
        }
        let counts = |drawn: &Duration| now < *drawn + 2 * COOKIE_LASTS;
        let secrets = self.secrets.iter().filter(|(drawn, _)| counts(drawn));
        secrets
            .map(|(_, secret)| cookie_of(secret, from))
            .any(|cookie| verifies(&widened(&cookie), &[body], second))
    }
}

fn cookie_of(secret: &[u8; 32], from: SocketAddr) -> Cookie {
    let port = from.port().to_be_bytes();
    match from.ip() {
        IpAddr::V4(ip) => mac_of(secret, &[&ip.octets(), &port]),
        IpAddr::V6(ip) => mac_of(secret, &[&ip.octets(), &port]),
    }
}

fn widened(cookie: &Cookie) -> [u8; 32] {
    let mut key = [0; 32];
    key[..COOKIE_BYTES].copy_from_slice(cookie);
    key
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let key: &blake2::digest::generic_array::GenericArray<u8, U32> = key.into();
    let mac = <Blake2sMac<U16> as Mac>::new(key);
    parts.iter().fold(mac, |mac, part| mac.chain_update(part))
}

fn mac_of(key: &[u8; 32], parts: &[&[u8]]) -> [u8; MAC_BYTES] {
    keyed(key, parts).finalize().into_bytes().into()
}

/// Compares in constant time.
fn verifies(key: &[u8; 32], parts: &[&[u8]], mac: &[u8]) -> bool {
    keyed(key, parts).verify_slice(mac).is_ok()
}
