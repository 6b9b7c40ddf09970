//! The channels that others open to an edge: host servers, and later edges of the file.

use crate::channel::{Channel, ChannelError};
use crate::poll::{Interest, Poll};
use holdfast_wire::message::Message;

/// Most messages taken from a host server in one turn: the others have theirs, too.
pub(super) const WORDS_MAX: usize = 256;

/// The channel of one of them, while it is connected.
pub(super) struct Link {
    name: String,
    channel: Option<Channel>,
}

impl Link {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), channel: None }
    }

    /// Takes a new channel in place of the earlier one.
    pub fn adopt(&mut self, channel: Channel, poll: &Poll, token: u64) -> Result<(), ChannelError> {
        self.channel = None;
        poll.add(&channel, token, Interest::Read)?;
        self.channel = Some(channel);
        Ok(())
    }

    pub fn close(&mut self) {
        self.channel = None;
    }

    /// Its messages, `most` of what has come, and whether its channel still lives.
    pub fn receive<W>(
        &mut self,
        most: usize,
        word_of: impl Fn(Message<'_>, &str) -> W,
    ) -> (Vec<W>, Result<(), ChannelError>) {
        let mut words = Vec::new();
        let Self { name, channel: Some(channel) } = self else { return (words, Ok(())) };
        let result = channel.recv(|message| {
            if words.len() < most {
                words.push(word_of(message, name));
            }
        });
        (words, result)
    }

    /// Bytes that wait to be sent; `None`: there is no channel.
    pub fn backlog_bytes(&self) -> Option<usize> {
        self.channel.as_ref().map(Channel::backlog_bytes)
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
