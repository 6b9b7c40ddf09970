//! One Noise IK handshake: what each end says in it, and the two keys that come out.

use super::Random;
use super::cipher::{Cipher, Suite, Suites};
use super::error::{Dropped, NoRandom};
use super::keys::{KEY_BYTES, PublicKey, SecretKey};
use super::layout::{HELLO_BYTES, Index, WELCOME_BYTES};
use snow::HandshakeState;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher as NoiseCipher, Dh, Hash, Random as NoiseRandom};
use std::time::Duration;

/// The ends know each other's static keys: one round trip, and nobody else learns who speaks.
const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// What both ends mix into their keys: another protocol or version agrees on nothing.
const PROLOGUE: &[u8] = b"holdfast tunnel 1";
/// Most bytes of a message of this pattern.
const MESSAGE_MAX: usize = 256;

/// A life of an end's program: another one knows nothing of what was said before.
pub(super) type Life = u64;

/// Time of day, seconds and nanoseconds since 1970, as the wire has it. It only has to grow.
pub(super) type Stamp = [u8; 12];

/// The stamp of a time since 1970.
pub(super) fn stamp(since_1970: Duration) -> Stamp {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&since_1970.as_secs().to_be_bytes());
    bytes[8..].copy_from_slice(&since_1970.subsec_nanos().to_be_bytes());
    bytes
}

/// What the first message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub stamp: Stamp,
    pub life: Life,
    pub suites: Suites,
}

impl Hello {
    fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..12].copy_from_slice(&self.stamp);
        bytes[12..20].copy_from_slice(&self.life.to_be_bytes());
        bytes[20] = self.suites.bits();
        bytes
    }

    fn read(bytes: &[u8; HELLO_BYTES]) -> Self {
        let (stamp, rest) = bytes.split_first_chunk().unwrap_or((&[0; 12], &[]));
        let life = rest.first_chunk().map_or(0, |life| Life::from_be_bytes(*life));
        Self { stamp: *stamp, life, suites: Suites::from_bits(bytes[HELLO_BYTES - 1]) }
    }
}

/// What a finished handshake leaves.
#[derive(Debug)]
pub(super) struct Agreed {
    pub suite: Suite,
    pub seal: Cipher,
    pub open: Cipher,
    pub peer_life: Life,
}

/// A first message that waits for its answer.
#[derive(Debug)]
pub(super) struct Initiation {
    noise: Box<HandshakeState>,
    pub index: Index,
    /// The life that it tells.
    pub own_life: Life,
    /// The first MAC of the message, which seals a cookie for it.
    pub first_mac: Vec<u8>,
}

/// Begins a handshake: the state, and Noise's message behind `out`.
pub(super) fn begin(
    own: &SecretKey,
    peer: &PublicKey,
    index: Index,
    hello: &Hello,
    random: &mut dyn Random,
    out: &mut Vec<u8>,
) -> Result<Initiation, Dropped> {
    let builder = builder(random).map_err(|NoRandom| Dropped::NoRandom)?;
    let mut noise = builder
        .local_private_key(own.bytes())
        .and_then(|builder| builder.remote_public_key(peer.bytes()))
        .and_then(|builder| builder.prologue(PROLOGUE))
        .and_then(snow::Builder::build_initiator)
        .map_err(|_| Dropped::WrongKey)?;
    append(&mut noise, &hello.bytes(), out)?;
    Ok(Initiation { noise: Box::new(noise), index, own_life: hello.life, first_mac: Vec::new() })
}

impl Initiation {
    /// Reads the answer. A wrong one changes nothing: the right one may yet come.
    pub(super) fn finish(&mut self, message: &[u8]) -> Result<Agreed, Dropped> {
        let mut payload = [0; MESSAGE_MAX];
        let length =
            self.noise.read_message(message, &mut payload).map_err(|_| Dropped::WrongKey)?;
        let welcome: &[u8; WELCOME_BYTES] =
            payload[..length].try_into().map_err(|_| Dropped::WrongKey)?;
        let (life, suite) = welcome.split_first_chunk().ok_or(Dropped::WrongKey)?;
        let suite = suite.first().and_then(|bit| Suite::of_bit(*bit)).ok_or(Dropped::NoCipher)?;
        let (to_answerer, to_initiator) = self.noise.dangerously_get_raw_split();
        agreed(suite, [to_answerer, to_initiator], Life::from_be_bytes(*life))
    }
}

/// A first message of the peer that was read, and is not yet answered.
#[derive(Debug)]
pub(super) struct Question {
    noise: Box<HandshakeState>,
    pub hello: Hello,
}

/// Reads a first message. Only `peer` can have made it, but anybody may send it again.
pub(super) fn read(
    own: &SecretKey,
    peer: &PublicKey,
    message: &[u8],
    random: &mut dyn Random,
) -> Result<Question, Dropped> {
    let builder = builder(random).map_err(|NoRandom| Dropped::NoRandom)?;
    let mut noise = builder
        .local_private_key(own.bytes())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .and_then(snow::Builder::build_responder)
        .map_err(|_| Dropped::WrongKey)?;
    let mut payload = [0; MESSAGE_MAX];
    let length = noise.read_message(message, &mut payload).map_err(|_| Dropped::WrongKey)?;
    // A public key is no secret, and whoever has it proved that he has the other half.
    if noise.get_remote_static() != Some(peer.bytes()) {
        return Err(Dropped::WrongKey);
    }
    let hello: &[u8; HELLO_BYTES] = payload[..length].try_into().map_err(|_| Dropped::WrongKey)?;
    Ok(Question { noise: Box::new(noise), hello: Hello::read(hello) })
}

impl Question {
    /// Answers it, with Noise's message behind `out`.
    pub(super) fn answer(
        mut self,
        life: Life,
        suite: Suite,
        out: &mut Vec<u8>,
    ) -> Result<Agreed, Dropped> {
        let mut welcome = [0; WELCOME_BYTES];
        welcome[..8].copy_from_slice(&life.to_be_bytes());
        welcome[8] = suite.bit();
        append(&mut self.noise, &welcome, out)?;
        let (to_answerer, to_initiator) = self.noise.dangerously_get_raw_split();
        agreed(suite, [to_initiator, to_answerer], self.hello.life)
    }
}

fn agreed(
    suite: Suite,
    [seal, open]: [[u8; KEY_BYTES]; 2],
    peer_life: Life,
) -> Result<Agreed, Dropped> {
    let ciphers = Cipher::new(suite, &seal).zip(Cipher::new(suite, &open));
    let (seal, open) = ciphers.ok_or(Dropped::NoCipher)?;
    Ok(Agreed { suite, seal, open, peer_life })
}

fn append(noise: &mut HandshakeState, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Dropped> {
    let mut message = [0; MESSAGE_MAX];
    let length = noise.write_message(payload, &mut message).map_err(|_| Dropped::NoRandom)?;
    out.extend(&message[..length]);
    Ok(())
}

/// A builder whose handshake draws its one ephemeral key from `random`.
fn builder(random: &mut dyn Random) -> Result<snow::Builder<'static>, NoRandom> {
    let mut bytes = [0; KEY_BYTES];
    random.fill(&mut bytes)?;
    let parameters = PATTERN.parse().map_err(|_| NoRandom)?;
    Ok(snow::Builder::with_resolver(parameters, Box::new(Given(bytes))))
}

/// Noise's primitives, with randomness that was drawn before.
struct Given([u8; KEY_BYTES]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn NoiseRandom>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn NoiseCipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Random bytes for one key, once.
struct Once(Option<[u8; KEY_BYTES]>);

impl NoiseRandom for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if out.len() == KEY_BYTES => {
                out.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_with_time_and_hellos_survive() {
        let times = [0, 1, 999_999_999, 1_000_000_000, 1_800_000_000_123_456_789];
        let stamps = times.map(|ns| stamp(Duration::from_nanos(ns)));
        assert!(stamps.is_sorted());
        let hello = Hello { stamp: stamps[4], life: 77, suites: Suites::ALL };
        assert_eq!(Hello::read(&hello.bytes()), hello);
    }
}
