//! Why a channel refused or closed.

use crate::status::counted;
use holdfast_wire::message::{BadMessage, MESSAGE_MAX};
use std::io;
use std::net::IpAddr;

/// What went wrong on a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the channel")]
    Closed,
    #[error(
        "the peer closed the connection before it said who it is: it has another key, group or role (compare key_file, group.name and the addresses on all hosts), or its daemon has just ended"
    )]
    NotWelcome,
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
        "the peer speaks a newer version than {version}, to which somebody on the way has talked this end down; it begins again with the newest"
    )]
    TalkedDown { version: u32 },
    #[error(
        "the peer has another key, group or role; compare key_file, group.name and the addresses on all hosts"
    )]
    WrongKey,
    #[error(
        "the peer's public key, or this host's, is not the one in the other one's file, or their groups or roles differ; say `holdfast key pub` on both, and compare public_keys, group.name and the addresses"
    )]
    WrongPublicKey,
    #[error(
        "the peer closed the connection before it said who it is: it does not know this host's public key, or has another group or role (say `holdfast key pub` on both, and compare public_keys, group.name and the addresses), or its daemon has just ended"
    )]
    NotKnown,
    #[error("a record was corrupted, reordered or repeated on the way")]
    Tampered,
    #[error(
        "a record was begun and does not come to its end, although bytes arrive: somebody on the way changes them"
    )]
    Unfinished,
    #[error("the peer announced a message of {bytes} bytes; at most {MESSAGE_MAX} are possible")]
    GiantMessage { bytes: usize },
    #[error(transparent)]
    BadMessage(#[from] BadMessage),
    #[error("a message of {bytes} bytes is longer than the {MESSAGE_MAX} allowed")]
    MessageTooLong { bytes: usize },
    #[error("the peer does not read: too much waits to be sent")]
    Backlog,
    #[error("a connection from {from} was refused: {why} (and {unsaid} more since the last line)")]
    Refused { from: IpAddr, why: Box<ChannelError>, unsaid: u64 },
    #[error(
        "no connection can be taken: {why} (and {} more since the last line); give the daemon more descriptors, or the host more memory",
        counted(*unsaid, "time")
    )]
    NotTaken { why: Box<ChannelError>, unsaid: u64 },
}

impl ChannelError {
    /// The same where each host has a key of its own.
    pub(super) fn in_pairs(self) -> Self {
        match self {
            Self::WrongKey => Self::WrongPublicKey,
            Self::NotWelcome => Self::NotKnown,
            other => other,
        }
    }

    /// Whether the other end may know another secret that both share.
    #[must_use]
    pub fn is_of_key(&self) -> bool {
        matches!(self, Self::WrongKey | Self::NotWelcome | Self::WrongPublicKey | Self::NotKnown)
    }

    /// Whether the peer ended the connection before it had said anything.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::NotWelcome | Self::NotKnown)
    }

    /// What keeps the two ends from trusting each other, and the remedy; `peer` is
    /// the other end. A peer that has not proved itself is told nothing, so each
    /// end can only say what they do not have in common.
    #[must_use]
    pub fn distrust(&self, peer: &str) -> Option<(String, &'static str)> {
        let (what, remedy) = match self {
            Self::WrongKey | Self::NotWelcome => (
                format!("the key of `{peer}` differs, or its group.name"),
                "copy key_file from one host to all others, and compare group.name; then start \
                 the daemon again",
            ),
            Self::WrongPublicKey | Self::NotKnown => (
                format!(
                    "the public key of `{peer}` or of this host is not the one in their files, or \
                     group.name differs"
                ),
                "say `holdfast key pub` with the key_file of both hosts, compare with public_keys in \
                 the files of both, and compare group.name; then say `holdfast reload`",
            ),
            Self::OtherVersion { ours, theirs } => (
                format!("`{peer}` speaks version {theirs}, this host {ours}"),
                "run the same release on all hosts of the group",
            ),
            Self::TalkedDown { version } => (
                format!(
                    "somebody on the way has said that `{peer}` speaks version {version} only, \
                     and it speaks a newer one"
                ),
                "it is tried again with the newest; if this stays, look who can change packets \
                 between the hosts",
            ),
            Self::OtherProgram => (
                format!("what answers in the place of `{peer}` is not holdfast"),
                "compare the addresses in the files of both hosts",
            ),
            _ => return None,
        };
        Some((format!("handshake failed: {what}"), remedy))
    }
}
