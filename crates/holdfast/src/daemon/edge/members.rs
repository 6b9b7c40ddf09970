//! The channels of the members to the edge, by index.

use super::MEMBERS;
use crate::channel::{Channel, ChannelError};
use crate::config::Config;
use crate::daemon::pulse::Pulse;
use crate::daemon::said::{Said, listed, takeover_of};
use crate::fingerprint;
use crate::poll::{Interest, Poll};
use crate::status::{Member, Takeover};
use holdfast_cluster::Nanos;
use holdfast_member::edge::MemberRequest;
use holdfast_wire::message::{FingerprintKind, FingerprintPart, Message};
use std::time::Instant;

/// Most messages taken from a member in one turn: the other members have theirs, too.
const WORDS_MAX: usize = 1024;

/// One slot per member of the configuration.
pub(super) struct Links {
    group: String,
    /// Settings of the edge's file that must be the same in the members' files.
    file: Vec<String>,
    slots: Vec<Slot>,
    pulse: Pulse,
}

struct Slot {
    name: String,
    channel: Option<Channel>,
    /// Its latest report of its own state, since it connected.
    says: Option<Said>,
    /// The latest report of all, and when it came.
    heard: Option<(Said, Instant)>,
    /// How its file differs from the edge's.
    differs: Option<String>,
}

/// A member's message: the request for the machine, and the report for this daemon.
pub(super) struct Word {
    pub wish: MemberRequest,
    pub report: Option<Report>,
}

/// Reports of members that no grant depends on.
pub(super) enum Report {
    /// Settings of its file that must be the same in the edge's.
    File(Vec<String>),
    /// Its own state.
    Says(Said),
    /// A test frame (`way.rs`: sign) of the edge has reached it, at this hardware address.
    SignSeen { number: u64, mac: [u8; 6] },
    /// The takeover that it has carried out.
    TookOver(Takeover),
}

impl Links {
    pub fn new(config: &Config, pulse: Pulse) -> Self {
        let slot = |name: &String| Slot {
            name: name.clone(),
            channel: None,
            says: None,
            heard: None,
            differs: None,
        };
        let slots = config.members.iter().map(|m| slot(&m.name)).collect();
        let file = fingerprint::of_file(config);
        Self { group: config.group.name.clone(), file, slots, pulse }
    }

    pub fn name(&self, index: usize) -> &str {
        self.slots.get(index).map_or("?", |slot| &slot.name)
    }

    /// What the member says about itself.
    pub fn says(&self, index: usize) -> Option<&Said> {
        self.slots.get(index).and_then(|slot| slot.says.as_ref())
    }

    /// Notes what the member has just said about itself.
    pub fn note_says(&mut self, index: usize, says: Said) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.heard = Some((says.clone(), Instant::now()));
            slot.says = Some(says);
        }
    }

    /// The member in the list of a status.
    pub fn listed(&self, index: usize) -> Member {
        let heard = self.slots.get(index).and_then(|slot| slot.heard.as_ref());
        listed(self.name(index), heard)
    }

    /// How the member's file differs from the edge's.
    pub fn differs(&self, index: usize) -> Option<&str> {
        self.slots.get(index).and_then(|slot| slot.differs.as_deref())
    }

    /// Notes what the member's file says.
    pub fn note_file(&mut self, index: usize, lines: &[String]) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.differs = fingerprint::other_file(&self.file, lines, &slot.name);
        }
    }

    /// Takes a channel; an earlier channel of the member is closed.
    pub fn adopt(
        &mut self,
        index: usize,
        channel: Channel,
        poll: &Poll,
    ) -> Result<(), ChannelError> {
        let Some(slot) = self.slots.get_mut(index) else { return Err(ChannelError::Closed) };
        (slot.channel, slot.says, slot.differs) = (None, None, None);
        poll.add(&channel, MEMBERS + index as u64, Interest::Read)?;
        slot.channel = Some(channel);
        Ok(())
    }

    pub fn close(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.channel = None;
        }
    }

    /// When a heartbeat datagram of the member last came.
    pub fn heard(&self, index: usize) -> Option<Nanos> {
        self.pulse.heard(index)
    }

    /// Notes that the loop has turned.
    pub fn turned(&self) {
        self.pulse.turned();
    }

    /// How late the heartbeats' thread was, for the status.
    pub fn lateness(&self) -> impl Iterator<Item = (String, u64)> {
        self.pulse.counters().into_iter().map(|(name, n)| (format!("pulse.{name}"), n))
    }

    /// The member's messages, and whether its channel still lives.
    pub fn receive(&mut self, index: usize) -> (Vec<Word>, Result<(), ChannelError>) {
        let mut words = Vec::new();
        let group = self.group.as_str();
        let Some(Slot { name, channel: Some(channel), .. }) = self.slots.get_mut(index) else {
            return (words, Ok(()));
        };
        let result = channel.recv(|message| {
            if words.len() < WORDS_MAX {
                let report = report_of(&message);
                words.push(Word { wish: MemberRequest::of(message, group, name), report });
            }
        });
        (words, result)
    }

    /// Sends a message to a member that is here, and writes what its socket
    /// takes.
    pub fn send(
        &mut self,
        index: usize,
        message: &Message<'_>,
        poll: &Poll,
    ) -> Result<(), ChannelError> {
        let Some(Slot { channel: Some(channel), .. }) = self.slots.get_mut(index) else {
            return Ok(());
        };
        let before = channel.wants_write();
        channel.send(message)?;
        flush(channel, before, index, poll)
    }

    /// Writes what is queued.
    pub fn flush(&mut self, index: usize, poll: &Poll) -> Result<(), ChannelError> {
        let Some(Slot { channel: Some(channel), .. }) = self.slots.get_mut(index) else {
            return Ok(());
        };
        let before = channel.wants_write();
        flush(channel, before, index, poll)
    }
}

/// Writes what is queued, and watches for writability if the socket is full. `before`: whether
/// the channel already waited to write before the last message was queued.
fn flush(
    channel: &mut Channel,
    before: bool,
    index: usize,
    poll: &Poll,
) -> Result<(), ChannelError> {
    channel.flush()?;
    // A long queue is flushed while it is filled, so `before` may be true
    // although nobody watches for room yet.
    if before || channel.wants_write() {
        let interest = if channel.wants_write() { Interest::Both } else { Interest::Read };
        poll.modify(&*channel, MEMBERS + index as u64, interest)?;
    }
    Ok(())
}

fn report_of(message: &Message<'_>) -> Option<Report> {
    match *message {
        Message::Hello { ref fingerprint, .. } => Some(Report::File(settings(fingerprint))),
        Message::Says { .. } => Said::of(message).map(Report::Says),
        Message::SignSeen { number, mac } => Some(Report::SignSeen { number, mac }),
        Message::TookOver { .. } => takeover_of(message).map(Report::TookOver),
        _ => None,
    }
}

/// What a hello says about the member's file.
fn settings(fingerprint: &[FingerprintPart<'_>]) -> Vec<String> {
    let settings = fingerprint.iter().filter(|part| part.kind == FingerprintKind::Setting);
    settings.map(|part| part.name.to_owned()).collect()
}
