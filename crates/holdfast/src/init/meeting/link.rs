//! One connection of a meeting, encrypted with the code, as a machine over bytes.
//!
//! A frame is a kind, a length (u16, little-endian) and so many bytes. Before the handshake is over
//! only a host's refusal is not part of it, and a guest believes that one no more than it has to:
//! it ends the attempt, and says what was told.

use super::Code;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use snow::{HandshakeState, TransportState};

/// As the daemons' channel; a code, in its place of the group's key, is known to both ends.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
const MAGIC: [u8; 4] = *b"HFMT";
/// Version of what is said at meetings.
const VERSION: u8 = 2;
const PREAMBLE: usize = MAGIC.len() + 1;
const HEADER: usize = 3;
/// Longest frame of a handshake, in bytes: an ephemeral key and a tag.
const HANDSHAKE_MAX: usize = 64;
/// Longest message, in bytes.
pub const MESSAGE_MAX: usize = 32 << 10;
/// What AES-GCM adds.
const TAG: usize = 16;
const NOISE: u8 = 1;
const REFUSAL: u8 = 2;

/// One end of a connection.
pub struct Link {
    noise: Noise,
    input: Vec<u8>,
    is_guest: bool,
    preamble_seen: bool,
}

enum Noise {
    Opening(Box<HandshakeState>),
    Open(Box<TransportState>),
    /// Something was wrong, and nothing is said any more.
    Closed,
}

/// What a host tells somebody who has not shown the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    WrongCode = 1,
    /// Too many wrong codes have come from that address.
    ShutOut = 2,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("what is at the other end is not `holdfast init`")]
    OtherProgram,
    #[error("the other end's release meets in another way (version {theirs}, here {VERSION})")]
    OtherVersion { theirs: u8 },
    #[error("the codes differ")]
    WrongCode,
    #[error("too many wrong codes have come from this host's address")]
    ShutOut,
    #[error("a message was changed, repeated or reordered on the way")]
    Tampered,
    #[error("a message is longer than {MESSAGE_MAX} bytes")]
    TooLong,
    #[error("a message says nothing that this release knows here")]
    Unknown,
    #[error("the connection is closed")]
    Closed,
}

impl Link {
    /// The end that begins, with its first bytes.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if this host cannot encrypt.
    pub fn guest(code: &Code, out: &mut Vec<u8>) -> Result<Self, LinkError> {
        let mut noise = begin(code, true)?;
        out.extend(preamble());
        push_handshake(&mut noise, out)?;
        Ok(Self::new(noise, true))
    }

    /// The end that is begun with.
    ///
    /// # Errors
    /// As [`Link::guest`].
    pub fn host(code: &Code) -> Result<Self, LinkError> {
        Ok(Self::new(begin(code, false)?, false))
    }

    fn new(noise: HandshakeState, is_guest: bool) -> Self {
        let noise = Noise::Opening(Box::new(noise));
        Self { noise, input: Vec::new(), is_guest, preamble_seen: false }
    }

    /// Takes bytes of the other end, and returns the messages that they complete. What is to be
    /// answered before the link is open is appended to `out`.
    ///
    /// # Errors
    /// Why this link has ended; it answers nothing any more.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Vec<Vec<u8>>, LinkError> {
        self.input.extend_from_slice(bytes);
        let mut messages = Vec::new();
        loop {
            match self.step(out) {
                Ok(Step::Wait) => return Ok(messages),
                Ok(Step::Progress) => {}
                Ok(Step::Message(message)) => messages.push(message),
                Err(error) => {
                    self.noise = Noise::Closed;
                    return Err(error);
                }
            }
        }
    }

    /// Encrypts a message.
    ///
    /// # Errors
    /// [`LinkError::Closed`] unless the link is open, [`LinkError::TooLong`].
    pub fn say(&mut self, message: &impl Serialize, out: &mut Vec<u8>) -> Result<(), LinkError> {
        let Noise::Open(noise) = &mut self.noise else { return Err(LinkError::Closed) };
        let plain = serde_json::to_vec(message).map_err(|_| LinkError::Unknown)?;
        if plain.len() > MESSAGE_MAX {
            return Err(LinkError::TooLong);
        }
        let mut sealed = vec![0; plain.len() + TAG];
        let len = noise.write_message(&plain, &mut sealed).map_err(|_| LinkError::Closed)?;
        push(NOISE, &sealed[..len], out);
        Ok(())
    }

    /// Whether the keys are agreed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.noise, Noise::Open(_))
    }

    fn step(&mut self, out: &mut Vec<u8>) -> Result<Step, LinkError> {
        if !self.preamble_seen {
            return self.read_preamble(out);
        }
        let Some(header) = self.input.first_chunk::<HEADER>() else { return Ok(Step::Wait) };
        let [kind, length @ ..] = *header;
        let length = usize::from(u16::from_le_bytes(length));
        let most = if self.is_open() { MESSAGE_MAX + TAG } else { HANDSHAKE_MAX };
        if length > most {
            return Err(LinkError::TooLong);
        }
        let Some(body) = self.input.get(HEADER..HEADER + length) else { return Ok(Step::Wait) };
        let body = body.to_vec();
        self.input.drain(..HEADER + length);
        match (kind, &mut self.noise) {
            (NOISE, Noise::Open(noise)) => {
                let mut plain = vec![0; body.len()];
                let len = noise.read_message(&body, &mut plain).map_err(|_| LinkError::Tampered)?;
                plain.truncate(len);
                Ok(Step::Message(plain))
            }
            (NOISE, Noise::Opening(_)) => self.open(&body, out),
            (REFUSAL, Noise::Opening(_)) if self.is_guest => Err(refused(&body)),
            _ => Err(LinkError::Unknown),
        }
    }

    /// Who comes with another version is told this one, so that both hosts can say what differs.
    fn read_preamble(&mut self, out: &mut Vec<u8>) -> Result<Step, LinkError> {
        let shared = self.input.len().min(MAGIC.len());
        if self.input[..shared] != MAGIC[..shared] {
            return Err(LinkError::OtherProgram);
        }
        let Some(theirs) = self.input.first_chunk::<PREAMBLE>() else { return Ok(Step::Wait) };
        let theirs = theirs[MAGIC.len()];
        if theirs != VERSION {
            if !self.is_guest {
                out.extend(preamble());
            }
            return Err(LinkError::OtherVersion { theirs });
        }
        self.input.drain(..PREAMBLE);
        self.preamble_seen = true;
        Ok(Step::Progress)
    }

    /// Takes the other end's part of the handshake; a host answers with its own.
    fn open(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<Step, LinkError> {
        let taken = std::mem::replace(&mut self.noise, Noise::Closed);
        let Noise::Opening(mut noise) = taken else { return Err(LinkError::Closed) };
        let mut nothing = [0; HANDSHAKE_MAX];
        noise.read_message(body, &mut nothing).map_err(|_| LinkError::WrongCode)?;
        if !self.is_guest {
            out.extend(preamble());
            push_handshake(&mut noise, out)?;
        }
        let noise = noise.into_transport_mode().map_err(|_| LinkError::WrongCode)?;
        self.noise = Noise::Open(Box::new(noise));
        Ok(Step::Progress)
    }
}

enum Step {
    Wait,
    Progress,
    Message(Vec<u8>),
}

/// Reads what a message says.
///
/// # Errors
/// [`LinkError::Unknown`].
pub fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, LinkError> {
    serde_json::from_slice(message).map_err(|_| LinkError::Unknown)
}

/// What a host sends to somebody whom it does not let in.
#[must_use]
pub fn refusal(why: Refusal) -> Vec<u8> {
    let mut out = preamble().to_vec();
    push(REFUSAL, &[why as u8], &mut out);
    out
}

fn refused(body: &[u8]) -> LinkError {
    match body {
        [code] if *code == Refusal::WrongCode as u8 => LinkError::WrongCode,
        [code] if *code == Refusal::ShutOut as u8 => LinkError::ShutOut,
        _ => LinkError::Unknown,
    }
}

fn begin(code: &Code, is_guest: bool) -> Result<HandshakeState, LinkError> {
    let parameters = PATTERN.parse().map_err(|_| LinkError::Closed)?;
    let key = code.key();
    let builder = snow::Builder::new(parameters)
        .psk(0, &key)
        .and_then(|builder| builder.prologue(b"holdfast meeting 1"))
        .map_err(|_| LinkError::Closed)?;
    let noise = if is_guest { builder.build_initiator() } else { builder.build_responder() };
    noise.map_err(|_| LinkError::Closed)
}

fn push_handshake(noise: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), LinkError> {
    let mut record = [0; HANDSHAKE_MAX];
    let len = noise.write_message(&[], &mut record).map_err(|_| LinkError::Closed)?;
    push(NOISE, &record[..len], out);
    Ok(())
}

fn push(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    // No body is longer than MESSAGE_MAX and its tag.
    out.extend((body.len() as u16).to_le_bytes());
    out.extend(body);
}

fn preamble() -> [u8; PREAMBLE] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION]
}
