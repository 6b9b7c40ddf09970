//! Why a channel refused or closed.

use holdfast_wire::message::{BadMessage, MESSAGE_MAX};
use std::io;

/// What went wrong on a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the channel")]
    Closed,
    #[error("the peer closed the channel in the middle of a message")]
    Truncated,
    #[error("the peer did not finish the handshake in time")]
    HandshakeTimeout,
    #[error("what answers there is not holdfast")]
    OtherProgram,
    #[error(
        "the peer speaks version {theirs}, we speak {ours}; run the same release on all hosts of the group"
    )]
    OtherVersion { ours: u32, theirs: u32 },
    #[error(
        "the peer has another key, group or role; compare key_file, group.name and the addresses on all hosts"
    )]
    WrongKey,
    #[error("a record was corrupted, reordered or repeated on the way")]
    Tampered,
    #[error("the peer announced a message of {bytes} bytes; at most {MESSAGE_MAX} are possible")]
    GiantMessage { bytes: usize },
    #[error(transparent)]
    BadMessage(#[from] BadMessage),
    #[error("a message of {bytes} bytes is longer than the {MESSAGE_MAX} allowed")]
    MessageTooLong { bytes: usize },
    #[error("the peer does not read: too much waits to be sent")]
    Backlog,
}
