//! A member's channel to the edge: it connects, reconnects after a loss, and sends while it is
//! open. It owns one token of the caller's event loop.
//!
//! The same type serves any channel that this side opens; the backup also
//! reaches the primary with it.
//!
//! Every attempt says the newest version of messages. To a peer that answers with an older one
//! which is understood, it connects once more at once, in that version.

use crate::channel::{Channel, ChannelError, Identity};
use crate::key::GroupKey;
use crate::poll::{Interest, Poll};
use holdfast_wire::message::{Message, VERSION, is_understood};
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
    /// Version in which the next attempt, or the channel that there is, begins.
    version: u32,
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
            version: VERSION,
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

    /// The secret that has opened the channel, while it is open.
    #[must_use]
    pub fn secret(&self) -> Option<&GroupKey> {
        self.channel.as_ref().filter(|_| self.opened).and_then(Channel::secret)
    }

    /// The peer's name, once open.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.channel.as_ref().filter(|_| self.opened).map(Channel::peer)
    }

    /// The version of messages that the channel carries, once open.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
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
            self.opened &= !matches!(error, ChannelError::TalkedDown { .. });
            return self.lose(now, error);
        }
        match self.flush(now, poll) {
            LinkEvent::Nothing if newly_open => {
                tracing::debug!("link to {} open in version {}", self.address, self.version);
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
        (self.channel, self.version) = (None, VERSION);
        self.opened = false;
        self.retry_at = now + RETRY;
    }

    fn connect(&mut self, now: Instant, poll: &Poll) -> Result<(), ChannelError> {
        let channel = Channel::connect_in(self.version, self.address, &self.identity, now)?;
        self.watched = Interest::Both;
        poll.add(&channel, self.token, self.watched)?;
        self.channel = Some(channel);
        Ok(())
    }

    fn lose(&mut self, now: Instant, error: ChannelError) -> LinkEvent {
        let (was_open, said) = (self.opened, self.version);
        // One of two hosts may be a step ahead in a change of keys.
        self.identity.attempt = self.identity.attempt.wrapping_add(usize::from(error.is_of_key()));
        tracing::debug!("link to {}, open {was_open}: {error}", self.address);
        self.close(now);
        match error {
            // Only downwards, so that nobody can make it try again and again.
            ChannelError::OtherVersion { theirs, .. } if theirs < said && is_understood(theirs) => {
                (self.version, self.retry_at) = (theirs, now);
                LinkEvent::Nothing
            }
            error if was_open => LinkEvent::Lost(error),
            error => LinkEvent::Failed(error),
        }
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
    use crate::key::{GroupKey, Keyring};
    use holdfast_wire::message::VERSION_OLDEST;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    fn identity(me: &str) -> Identity {
        Identity {
            keyring: Keyring::shared(vec![GroupKey::parse(&"7".repeat(64)).unwrap()]),
            peers: Vec::new(),
            attempt: 0,
            group: "demo".to_owned(),
            me: me.to_owned(),
            kind: Kind::Edge,
        }
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

    /// Stands before the listener at `to`, and answers connections that begin with the newest
    /// version as a release that speaks only `version` does, while `forges`.
    fn forger(to: SocketAddr, forges: &Arc<AtomicBool>, tries: &Arc<AtomicU32>) -> SocketAddr {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = door.local_addr().unwrap();
        let (forges, tries) = (Arc::clone(forges), Arc::clone(tries));
        std::thread::spawn(move || {
            while let Ok((mut near, _)) = door.accept() {
                let mut preamble = [0; 8];
                if near.read_exact(&mut preamble).is_err() {
                    continue;
                }
                tries.fetch_add(1, SeqCst);
                if forges.load(SeqCst) && u32::from(preamble[4]) == VERSION {
                    preamble[4] = VERSION_OLDEST as u8;
                    near.write_all(&preamble).unwrap();
                    continue;
                }
                let mut far = TcpStream::connect(to).unwrap();
                far.write_all(&preamble).unwrap();
                let (mut from_far, mut to_near) =
                    (far.try_clone().unwrap(), near.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from_far, &mut to_near));
                std::thread::spawn(move || std::io::copy(&mut near, &mut far));
            }
        });
        at
    }

    /// Somebody on the way answers in the other end's place that it speaks an older version.
    #[test]
    fn it_is_not_talked_down_and_opens_with_the_newest_once_it_can() {
        let mut listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), identity("edge")).unwrap();
        let (forges, tries) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
        let at = forger(listener.local_addr().unwrap(), &forges, &tries);
        let mut poll = Poll::new().unwrap();
        let begun = Instant::now();
        let mut link = Dialer::new(at, identity("a"), 5, begun);
        let (mut far, mut refused) = (None, 0);
        let mut until = |link: &mut Dialer, wanted: u32| {
            let done = |event: &LinkEvent, _: &mut Option<Channel>| {
                match event {
                    LinkEvent::Failed(ChannelError::TalkedDown { version: VERSION_OLDEST }) => {
                        refused += 1;
                    }
                    LinkEvent::Nothing => {}
                    LinkEvent::Opened => return true,
                    other => panic!("{other:?}"),
                }
                refused == wanted
            };
            turn_until(link, &mut poll, &mut listener, done, &mut far);
        };
        until(&mut link, 3);
        assert!(!link.is_open() && !link.send(&Message::Ask));
        // Two connections, and then a pause.
        let (pauses, tried) = (begun.elapsed().as_millis() / RETRY.as_millis(), tries.load(SeqCst));
        assert!(u128::from(tried) <= 2 * (pauses + 1), "{tried} in {pauses} pauses");
        forges.store(false, SeqCst);
        until(&mut link, u32::MAX);
        assert!(link.is_open());
        assert_eq!(link.version(), VERSION);
    }

    /// A release that speaks an older version only: it is asked again, in that, at once, and with
    /// the newest after it has gone.
    #[test]
    fn an_older_release_is_spoken_to_in_its_own_version() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut link = Dialer::new(door.local_addr().unwrap(), identity("a"), 5, Instant::now());
        door.set_nonblocking(true).unwrap();
        let (mut poll, mut said) = (Poll::new().unwrap(), Vec::new());
        let until = Instant::now() + Duration::from_secs(10);
        while said.len() < 3 && Instant::now() < until {
            poll.wait(Some(Instant::now() + Duration::from_millis(2))).unwrap();
            link.turn(Instant::now(), &poll, |_| {});
            let Ok((mut near, _)) = door.accept() else { continue };
            // What connects says its first words in its next turn.
            link.turn(Instant::now(), &poll, |_| {});
            near.set_nonblocking(false).unwrap();
            let mut preamble = [0; 8];
            near.read_exact(&mut preamble).unwrap();
            said.push(u32::from(preamble[4]));
            preamble[4] = VERSION_OLDEST as u8;
            near.write_all(&preamble).unwrap();
        }
        assert_eq!(said, [VERSION, VERSION_OLDEST, VERSION]);
    }
}
