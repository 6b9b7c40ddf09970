//! The channels of the host servers to their edge.

use crate::channel::{Channel, ChannelError};
use crate::poll::{Interest, Poll};
use holdfast_member::spread::Word;
use holdfast_wire::message::Message;

/// Most messages taken from one host server in one turn: the others have theirs, too.
const WORDS_MAX: usize = 256;

/// The channel of one host server, while it is connected.
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

    /// Its messages, and whether its channel still lives.
    pub fn receive(&mut self, group: &str) -> (Vec<Word>, Result<(), ChannelError>) {
        let mut words = Vec::new();
        let Self { name, channel: Some(channel) } = self else { return (words, Ok(())) };
        let result = channel.recv(|message| {
            if words.len() < WORDS_MAX {
                words.push(Word::of(message, group, name));
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
