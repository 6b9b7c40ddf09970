//! The channels between the edges of a spread group: of two, the one whose name comes later connects.

use super::links::Link;
use crate::channel::{Channel, ChannelError, Identity};
use crate::daemon::dialer::{Dialer, LinkEvent};
use crate::poll::Poll;
use holdfast_member::spread::EdgeWord;
use holdfast_wire::message::Message;
use std::net::SocketAddr;
use std::time::Instant;

/// Bytes that may wait for one edge; beyond, only signs of life are sent to it.
const BACKLOG_MAX: usize = 256 << 10;

/// What has become of a channel.
#[derive(Debug)]
pub(super) enum PeerEvent {
    Nothing,
    Opened,
    Lost(String),
    /// It could not be opened.
    Failed(ChannelError),
}

/// The channel to another edge.
pub(super) enum PeerLink {
    /// This edge connects.
    Dials(Box<Dialer>, String),
    /// The other one does.
    Waits(Box<Link>),
}

impl PeerLink {
    pub fn dials(name: &str, at: SocketAddr, identity: Identity, token: u64, now: Instant) -> Self {
        Self::Dials(Dialer::new(at, identity, token, now).into(), name.to_owned())
    }

    pub fn waits(name: &str) -> Self {
        Self::Waits(Box::new(Link::new(name)))
    }

    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Dials(dialer, _) => dialer.deadline(),
            Self::Waits(_) => None,
        }
    }

    /// Takes a channel that the other edge has opened; false if this edge is who connects.
    pub fn adopt(
        &mut self,
        channel: Channel,
        poll: &Poll,
        token: u64,
    ) -> Result<bool, ChannelError> {
        match self {
            Self::Waits(link) => link.adopt(channel, poll, token).map(|()| true),
            Self::Dials(..) => Ok(false),
        }
    }

    /// What has come, and what became of the channel.
    pub fn turn(&mut self, group: &str, poll: &Poll, now: Instant) -> (Vec<EdgeWord>, PeerEvent) {
        match self {
            Self::Dials(dialer, name) => {
                let mut words = Vec::new();
                let each = |message: Message<'_>| words.push(EdgeWord::of(message, group, name));
                let event = dialer.turn(now, poll, each);
                (words, event_of(event))
            }
            Self::Waits(link) => {
                let (words, result) =
                    link.receive(usize::MAX, |message, name| EdgeWord::of(message, group, name));
                (
                    words,
                    result.map_or_else(
                        |error| PeerEvent::Lost(error.to_string()),
                        |()| PeerEvent::Nothing,
                    ),
                )
            }
        }
    }

    pub fn send(&mut self, message: &Message<'_>) {
        match self {
            Self::Dials(dialer, _) => {
                dialer.send(message);
            }
            Self::Waits(link) => link.send(message),
        }
    }

    /// Whether more than signs of life can be sent.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Dials(dialer, _) => dialer.is_open() && dialer.backlog_bytes() < BACKLOG_MAX,
            Self::Waits(link) => link.backlog_bytes().is_some_and(|bytes| bytes < BACKLOG_MAX),
        }
    }

    /// Writes what is queued.
    pub fn flush(&mut self, poll: &Poll, token: u64, now: Instant) -> PeerEvent {
        match self {
            Self::Dials(dialer, _) => event_of(dialer.flush(now, poll)),
            Self::Waits(link) => match link.flush(poll, token) {
                Ok(()) => PeerEvent::Nothing,
                Err(error) => PeerEvent::Lost(error.to_string()),
            },
        }
    }

    pub fn close(&mut self, now: Instant) {
        match self {
            Self::Dials(dialer, _) => dialer.close(now),
            Self::Waits(link) => link.close(),
        }
    }
}

fn event_of(event: LinkEvent) -> PeerEvent {
    match event {
        LinkEvent::Nothing => PeerEvent::Nothing,
        LinkEvent::Opened => PeerEvent::Opened,
        LinkEvent::Lost(error) => PeerEvent::Lost(error.to_string()),
        LinkEvent::Failed(error) => PeerEvent::Failed(error),
    }
}
