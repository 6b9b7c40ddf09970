//! How messages become bytes and are read again, in every version that this build understands.
//!
//! All versions number the messages alike. Version 12 has all that 13 has, in the same form, but for
//! those of the log's short way: who would send one asks for the channel's version first. Version 14
//! has those of 13; it says what its replicas understand of a log.

use super::{
    ADOPTED_MAX, FINGERPRINT_NAME_BYTES_MAX, FINGERPRINT_PARTS_MAX, FLOWS_MAX, IMAGE_BYTES_MAX,
    KEYS_MAX, Message, OFFERS_MAX, SAID_BYTES_MAX, UNREAD_BYTES_MAX, VERSION, VERSION_DIRECT,
    VERSION_OLDEST,
};
use serde::{Deserialize, Serialize};

/// Whether this build speaks that version of messages.
#[must_use]
pub fn is_understood(version: u32) -> bool {
    (VERSION_OLDEST..=VERSION).contains(&version)
}

/// A message that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage;

impl std::fmt::Display for BadMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the peer's message is malformed or of another version; run the same release on all members")
    }
}

impl std::error::Error for BadMessage {}

impl<'a> Message<'a> {
    /// Appends the encoding to `out`, for a reader in this process: the newest form, with nothing
    /// changed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        append(self, out);
    }

    /// Decodes one whole message that [`Message::encode`] has made.
    ///
    /// # Errors
    /// [`BadMessage`] for anything but exactly one known message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let message: Self = whole(bytes)?;
        if message.is_bounded() { Ok(message) } else { Err(BadMessage) }
    }

    /// Appends the encoding to `out`, in the form and with the number of this version, which
    /// [`is_understood`].
    pub fn encode_in(&self, version: u32, out: &mut Vec<u8>) {
        let Self::Hello {
            log_version, group, member, epoch, speaks, fingerprint, hash_key, ..
        } = self
        else {
            return append(self, out);
        };
        let (log_version, epoch, speaks) = (*log_version, *epoch, *speaks);
        let (fingerprint, hash_key) = (fingerprint.clone(), *hash_key);
        append(
            &Message::Hello {
                version,
                log_version,
                group,
                member,
                epoch,
                speaks,
                fingerprint,
                hash_key,
            },
            out,
        );
    }

    /// Decodes one whole message of this version, which [`is_understood`].
    ///
    /// # Errors
    /// [`BadMessage`] for anything but exactly one known message of that version; also for a hello
    /// that says another version.
    pub fn decode_in(version: u32, bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let message: Self = whole(bytes)?;
        let fits = match &message {
            Self::Hello { version: said, .. } => *said == version,
            message => version >= VERSION_DIRECT || !message.is_of_short_way(),
        };
        if fits && message.is_bounded() { Ok(message) } else { Err(BadMessage) }
    }

    /// Whether version 12 does not have it.
    fn is_of_short_way(&self) -> bool {
        matches!(
            self,
            Self::Direct { .. }
                | Self::DirectOk { .. }
                | Self::LogAt { .. }
                | Self::FrameAt { .. }
                | Self::LogHeld { .. }
        )
    }

    fn is_bounded(&self) -> bool {
        match self {
            Self::Hello { fingerprint, .. } => {
                fingerprint.len() <= FINGERPRINT_PARTS_MAX
                    && fingerprint.iter().all(|part| part.name.len() <= FINGERPRINT_NAME_BYTES_MAX)
            }
            Self::Unread { bytes, .. } => bytes.len() <= UNREAD_BYTES_MAX,
            Self::AreAlive { keys, .. } | Self::NotAlive { keys, .. } => keys.len() <= KEYS_MAX,
            Self::Adopt { conns } => conns.len() <= ADOPTED_MAX,
            Self::Image { bytes } | Self::Earlier { bytes, .. } => bytes.len() <= IMAGE_BYTES_MAX,
            Self::Announce { tunnels, services, .. } => {
                tunnels.len() <= 2 && services.len() <= OFFERS_MAX
            }
            Self::Flows { host, flows, .. } => {
                host.len() <= SAID_BYTES_MAX && flows.len() <= FLOWS_MAX
            }
            Self::Drains { host, .. } => host.len() <= SAID_BYTES_MAX,
            Self::Says { role, state, reason, remedy } => {
                [role, state, reason, remedy].iter().all(|text| text.len() <= SAID_BYTES_MAX)
            }
            Self::GaveUp { state, reason } => {
                [state, reason].iter().all(|text| text.len() <= SAID_BYTES_MAX)
            }
            Self::TookOver { cause, at, .. } => {
                cause.len() <= SAID_BYTES_MAX && at.len() <= SAID_BYTES_MAX
            }
            _ => true,
        }
    }
}

fn append(what: &impl Serialize, out: &mut Vec<u8>) {
    let taken = std::mem::take(out);
    // Extending a vector cannot fail, so neither can this.
    *out = postcard::to_extend(what, taken).unwrap_or_default();
}

fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, BadMessage> {
    match postcard::take_from_bytes(bytes) {
        Ok((what, [])) => Ok(what),
        _ => Err(BadMessage),
    }
}
