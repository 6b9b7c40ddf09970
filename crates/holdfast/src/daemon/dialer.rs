//! A member's channel to the edge: it connects, reconnects after a loss, and sends while it is
//! open. It owns one token of the caller's event loop.
//!
//! The same type serves any channel that this side opens; the backup also
//! reaches the primary with it.

use crate::channel::{Channel, ChannelError, Identity};
use crate::poll::{Interest, Poll};
use holdfast_wire::message::Message;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Pause between two attempts to connect.
pub const RETRY: Duration = Duration::from_millis(100);

/// The result of a turn of the link.
#[derive(Debug)]
pub enum LinkEvent {
    Nothing,
    /// The peer has proved itself: send what must be sent first.
    Opened,
    /// An open channel was lost; the link tries again by itself.
    Lost(ChannelError),
    /// An attempt failed; the link tries again by itself.
    Failed(ChannelError),
}

/// Keeps a channel to `address` open: reconnects for as long as this value exists.
pub struct Dialer {
    address: SocketAddr,
    identity: Identity,
    token: u64,
    channel: Option<Channel>,
    opened: bool,
    watched: Interest,
    retry_at: Instant,
}

impl Dialer {
    /// A link that starts to connect at its first [`Dialer::turn`].
    #[must_use]
    pub fn new(address: SocketAddr, identity: Identity, token: u64, now: Instant) -> Self {
        Self {
            address,
            identity,
            token,
            channel: None,
            opened: false,
            watched: Interest::Nothing,
            retry_at: now,
        }
    }

    /// The socket, while there is one.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// Whether messages reach the peer now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.opened
    }

    /// The peer's name, once open.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.channel.as_ref().filter(|_| self.opened).map(Channel::peer)
    }

    /// Bytes that are queued and not sent yet.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.channel.as_ref().map_or(0, Channel::backlog_bytes)
    }

    /// When [`Dialer::turn`] must be called even if nothing is ready.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.channel.as_ref().map_or(Some(self.retry_at), Channel::deadline)
    }

    /// Queues a message; true if the channel was open and took it. It leaves
    /// with the next [`Dialer::flush`].
    pub fn send(&mut self, message: &Message<'_>) -> bool {
        match &mut self.channel {
            Some(channel) if self.opened => {
                trace_message("said", message);
                channel.send(message).is_ok()
            }
            _ => false,
        }
    }

    /// Does what is due: connects, drives the handshake, receives. Call it when
    /// the token is ready and at the deadline.
    pub fn turn(
        &mut self,
        now: Instant,
        poll: &Poll,
        mut each: impl FnMut(Message<'_>),
    ) -> LinkEvent {
        let mut each = |message: Message<'_>| {
            trace_message("heard", &message);
            each(message);
        };
        let result = match &mut self.channel {
            None if now < self.retry_at => return LinkEvent::Nothing,
            None => self.connect(now, poll),
            Some(channel) if self.opened => channel.recv(&mut each),
            Some(channel) => channel.tick(now).and_then(|()| channel.handshake()),
        };
        if let Err(error) = result {
            return self.lose(now, error);
        }
        let newly_open = !self.opened && self.channel.as_ref().is_some_and(Channel::is_open);
        self.opened |= newly_open;
        // What arrived together with the handshake is in the channel's buffer, and epoll will
        // not report it.
        if let Some(Err(error)) = self.channel.as_mut().filter(|_| newly_open).map(|c| c.recv(each))
        {
            return self.lose(now, error);
        }
        match self.flush(now, poll) {
            LinkEvent::Nothing if newly_open => {
                tracing::debug!("link to {} open", self.address);
                LinkEvent::Opened
            }
            event => event,
        }
    }

    /// Passes each message that has arrived to `each`, and does nothing else.
    pub fn recv(&mut self, now: Instant, mut each: impl FnMut(Message<'_>)) -> LinkEvent {
        let Some(channel) = self.channel.as_mut().filter(|_| self.opened) else {
            return LinkEvent::Nothing;
        };
        let received = channel.recv(|message| {
            trace_message("heard", &message);
            each(message);
        });
        received.map_or_else(|error| self.lose(now, error), |()| LinkEvent::Nothing)
    }

    /// Writes what was queued: once per turn of the loop, after all `send`s.
    pub fn flush(&mut self, now: Instant, poll: &Poll) -> LinkEvent {
        let Some(channel) = &mut self.channel else { return LinkEvent::Nothing };
        if let Err(error) = channel.flush() {
            return self.lose(now, error);
        }
        let wanted = if channel.wants_write() { Interest::Both } else { Interest::Read };
        if wanted != self.watched {
            self.watched = wanted;
            if let Err(error) = poll.modify(channel, self.token, wanted) {
                return self.lose(now, error.into());
            }
        }
        LinkEvent::Nothing
    }

    /// Drops the channel; the next attempt follows after [`RETRY`].
    pub fn close(&mut self, now: Instant) {
        self.channel = None;
        self.opened = false;
        self.retry_at = now + RETRY;
    }

    fn connect(&mut self, now: Instant, poll: &Poll) -> Result<(), ChannelError> {
        let channel = Channel::connect(self.address, &self.identity, now)?;
        self.watched = Interest::Both;
        poll.add(&channel, self.token, self.watched)?;
        self.channel = Some(channel);
        Ok(())
    }

    fn lose(&mut self, now: Instant, error: ChannelError) -> LinkEvent {
        let was_open = self.opened;
        tracing::debug!("link to {}, open {was_open}: {error}", self.address);
        self.close(now);
        if was_open { LinkEvent::Lost(error) } else { LinkEvent::Failed(error) }
    }
}

/// Writes the beginning of a message to the trace log; the rest of a long one is payload.
fn trace_message(way: &str, message: &Message<'_>) {
    const CHARS_MAX: usize = 120;
    if tracing::enabled!(tracing::Level::TRACE) {
        let text: String = format!("{message:?}").chars().take(CHARS_MAX).collect();
        tracing::trace!("{way}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Kind, Listener};

    fn identity(me: &str) -> Identity {
        Identity { key: [7; 32], group: "demo".to_owned(), me: me.to_owned(), kind: Kind::Edge }
    }

    /// Turns both sides until `done`.
    fn turn_until(
        link: &mut Dialer,
        poll: &mut Poll,
        listener: &mut Listener,
        mut done: impl FnMut(&LinkEvent, &mut Option<Channel>) -> bool,
        far: &mut Option<Channel>,
    ) {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            let soon = Instant::now() + Duration::from_millis(2);
            poll.wait(Some(soon)).unwrap();
            if let Ok(Some(channel)) = listener.accept(Instant::now()) {
                *far = Some(channel);
            }
            let event = link.turn(Instant::now(), poll, |_| {});
            if done(&event, far) {
                return;
            }
        }
        panic!("never");
    }

    #[test]
    fn it_comes_back_after_the_peer_was_gone() {
        let mut listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), identity("edge")).unwrap();
        let mut poll = Poll::new().unwrap();
        let mut link =
            Dialer::new(listener.local_addr().unwrap(), identity("a"), 5, Instant::now());
        let mut far = None;
        assert!(!link.send(&Message::Ask));
        for _ in 0..2 {
            turn_until(
                &mut link,
                &mut poll,
                &mut listener,
                |e, _| matches!(e, LinkEvent::Opened),
                &mut far,
            );
            assert_eq!(link.peer(), Some("edge"));
            assert!(link.send(&Message::Ask));
            let mut asked = false;
            turn_until(
                &mut link,
                &mut poll,
                &mut listener,
                |_, far| {
                    if let Some(far) = far {
                        far.recv(|m| asked |= m == Message::Ask).unwrap();
                    }
                    asked
                },
                &mut far,
            );
            far = None;
            turn_until(
                &mut link,
                &mut poll,
                &mut listener,
                |e, _| matches!(e, LinkEvent::Lost(_)),
                &mut far,
            );
            assert!(!link.is_open());
        }
    }
}
