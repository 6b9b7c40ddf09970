//! The channels of the host servers to their edge.

use crate::channel::{Channel, ChannelError};
use crate::poll::{Interest, Poll};
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, VERSION};

/// What a host server says.
pub(super) enum Word {
    /// It has shown that it lives.
    Beat,
    Announce(Said),
    /// It may not stay connected.
    Leave(String),
}

/// An announcement, as it came.
#[derive(Debug)]
pub(super) struct Said {
    pub weight: u32,
    pub layer2: bool,
    pub tunnels: Vec<[u8; 16]>,
    pub services: Vec<Offer>,
}

/// What the detector thinks anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Suspected,
    Declared,
}

/// Announcements and beats taken from one host server at a time.
const WORDS_MAX: usize = 256;

/// One host server, whether it is connected or not.
pub(super) struct Link {
    pub name: String,
    /// What was wrong with its last announcement; told once, however often it comes.
    pub complaint: String,
    channel: Option<Channel>,
    greeted: bool,
    /// It outlives a channel: a daemon that comes back at once was never gone.
    detector: Detector,
    /// Declared dead, and not heard since.
    silent: bool,
}

impl Link {
    pub fn new(name: &str, period: Nanos, at: Nanos) -> Self {
        let detector = Detector::new(at, period);
        let (name, complaint) = (name.to_owned(), String::new());
        Self { name, complaint, channel: None, greeted: false, detector, silent: false }
    }

    pub fn is_connected(&self) -> bool {
        self.channel.is_some()
    }

    pub fn adopt(
        &mut self,
        channel: Channel,
        group: &str,
        poll: &Poll,
        token: u64,
    ) -> Result<(), ChannelError> {
        self.channel = None;
        self.greeted = false;
        poll.add(&channel, token, Interest::Read)?;
        self.channel.insert(channel).send(&Message::Hello {
            version: VERSION,
            log_version: LOG_VERSION,
            group,
            member: "edge",
            epoch: 0,
            speaks: false,
            world: Vec::new(),
        })
    }

    /// Closes the channel; false if there was none.
    pub fn close(&mut self) -> bool {
        self.channel.take().is_some()
    }

    /// When [`Link::watch`] is due.
    pub fn deadline(&self) -> Option<Nanos> {
        self.detector.next_deadline()
    }

    /// Sends a heartbeat when it is time, and judges the silence.
    pub fn watch(&mut self, at: Nanos, period: Nanos) -> Option<News> {
        let before = self.detector.peer();
        let mut verdicts = Verdicts::default();
        self.detector.handle_timeout(at, &mut verdicts);
        if let (Some((number, echo)), Some(channel)) = (verdicts.beat, &mut self.channel) {
            // A channel that cannot take it has failed; its next turn says so.
            let _ = channel.send(&Message::Beat { number, echo, executed: 0 });
        }
        let suspected = before == Peer::Alive && self.detector.peer() == Peer::Suspected;
        if verdicts.declared {
            // It may come back: the beats go on.
            self.detector = Detector::new(at, period);
            return (!std::mem::replace(&mut self.silent, true)).then_some(News::Declared);
        }
        (suspected && !self.silent).then_some(News::Suspected)
    }

    /// What it has said, and whether its channel still lives.
    pub fn receive(&mut self, group: &str, at: Nanos) -> (Vec<Word>, Result<(), ChannelError>) {
        let mut words = Vec::new();
        let Self { name, channel: Some(channel), greeted, detector, silent, .. } = self else {
            return (words, Ok(()));
        };
        let result = channel.recv(|message| {
            detector.handle_received(at, &mut Verdicts::default());
            *silent = false;
            let word = match message {
                Message::Hello { version, log_version, group: theirs, member, .. } => {
                    *greeted = version == VERSION
                        && log_version == LOG_VERSION
                        && theirs == group
                        && member == name;
                    let other = "its hello is of another release, group or host";
                    if *greeted { Word::Beat } else { Word::Leave(other.to_owned()) }
                }
                _ if !*greeted => Word::Leave("it did not say hello first".to_owned()),
                Message::Beat { .. } => Word::Beat,
                Message::Announce { weight, layer2, tunnels, services } => {
                    Word::Announce(Said { weight, layer2, tunnels, services })
                }
                _ => Word::Leave("it said what no host server says".to_owned()),
            };
            if words.len() < WORDS_MAX {
                words.push(word);
            }
        });
        (words, result)
    }

    pub fn send(&mut self, message: &Message<'_>) {
        if let Some(channel) = &mut self.channel
            && let Err(error) = channel.send(message)
        {
            tracing::warn!("{}: {error}", self.name);
        }
    }

    /// Writes what is queued.
    pub fn flush(&mut self, poll: &Poll, token: u64) -> Result<(), ChannelError> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        let before = channel.wants_write();
        channel.flush()?;
        if before || channel.wants_write() {
            let interest = if channel.wants_write() { Interest::Both } else { Interest::Read };
            poll.modify(channel, token, interest)?;
        }
        Ok(())
    }
}
