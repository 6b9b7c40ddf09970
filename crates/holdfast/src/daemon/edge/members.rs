//! The channels of the members to the edge, by index.

use super::{MEMBERS, Wish};
use crate::channel::{Channel, ChannelError};
use crate::config::Config;
use crate::daemon::beats::Beats;
use crate::daemon::pulse::Pulse;
use crate::daemon::said::{Said, takeover_of};
use crate::poll::{Interest, Poll};
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, FIRST_PATIENCE, Peer};
use holdfast_cluster::hearing::Hearing;
use holdfast_cluster::membership::Greeting;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, VERSION};

/// Wishes taken from a member at a time.
const WISHES_MAX: usize = 1024;

/// One slot per member of the configuration.
pub(super) struct Links {
    group: String,
    slots: Vec<Slot>,
    /// All members together: an edge that hears nobody accuses nobody.
    hearing: Hearing,
    pulse: Pulse,
}

struct Slot {
    name: String,
    channel: Option<Channel>,
    /// Its hello was what it must be.
    greeted: bool,
    /// What it said last of itself, since it came.
    says: Option<Said>,
    /// It outlives a channel: a member that comes back at once was never gone.
    detector: Detector,
}

impl Links {
    /// Every member has some time to come, from time 0 on.
    pub fn new(config: &Config, pulse: Pulse) -> Self {
        let period = Nanos(config.heartbeat().as_nanos() as u64);
        let slot = |name: &String| Slot {
            name: name.clone(),
            channel: None,
            greeted: false,
            says: None,
            detector: Detector::new(Nanos(0), period),
        };
        let slots = config.members.iter().map(|m| slot(&m.name)).collect();
        let hearing = Hearing::new(Nanos(0), period);
        Self { group: config.group.name.clone(), slots, hearing, pulse }
    }

    pub fn count(&self) -> usize {
        self.slots.len()
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.name == name)
    }

    pub fn name(&self, index: usize) -> &str {
        self.slots.get(index).map_or("?", |slot| &slot.name)
    }

    pub fn is_connected(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.channel.is_some())
    }

    /// What the member says of itself.
    pub fn says(&self, index: usize) -> Option<&Said> {
        self.slots.get(index).and_then(|slot| slot.says.as_ref())
    }

    /// Takes a channel; one that the member had before is closed.
    pub fn adopt(
        &mut self,
        index: usize,
        channel: Channel,
        epoch: u64,
        poll: &Poll,
    ) -> Result<(), ChannelError> {
        let Some(slot) = self.slots.get_mut(index) else { return Err(ChannelError::Closed) };
        slot.channel = None;
        slot.greeted = false;
        slot.says = None;
        poll.add(&channel, MEMBERS + index as u64, Interest::Read)?;
        slot.channel.insert(channel).send(&Message::Hello {
            version: VERSION,
            log_version: LOG_VERSION,
            group: &self.group,
            member: "edge",
            epoch,
            speaks: false,
            world: Vec::new(),
        })
    }

    /// Closes the channel; false if there was none. The member has some time to
    /// come back.
    pub fn drop_link(&mut self, index: usize, at: Nanos) -> bool {
        let Some(slot) = self.slots.get_mut(index) else { return false };
        slot.detector.start_over(at);
        slot.channel.take().is_some()
    }

    /// When [`Links::watch`] is due.
    pub fn deadline(&self) -> Option<Nanos> {
        self.slots.iter().filter_map(|slot| slot.detector.next_deadline()).min()
    }

    /// Sends the member a heartbeat when it is time; true when it has been
    /// silent for too long. `passing`: packets of its service have passed since the
    /// last time.
    pub fn watch(&mut self, index: usize, at: Nanos, passing: bool) -> bool {
        let Some(Slot { channel, detector, .. }) = self.slots.get_mut(index) else {
            return false;
        };
        if let Some(heard) = self.pulse.heard(index).filter(|heard| *heard > detector.last_heard())
        {
            let mut beats = Beats { peer: &mut |_| {}, executed: 0, declared: &mut false };
            detector.handle_received(heard, &mut beats);
            self.hearing.handle_received(heard);
        }
        detector.excuse(self.hearing.excused_until(at));
        // Without its daemon a kernel speaks, too, but not for the channel.
        if passing && channel.is_some() {
            detector.handle_passing(at);
        }
        let mut send = |message: &Message<'_>| {
            // A channel that cannot take it has failed; its next turn says so.
            channel.as_mut().map(|channel| channel.send(message));
        };
        let mut declared = false;
        let mut beats = Beats { peer: &mut send, executed: 0, declared: &mut declared };
        detector.handle_timeout(at, &mut beats);
        if declared {
            // It may come back: the beats go on.
            detector.start_over(at);
        }
        declared
    }

    /// The loop has turned.
    pub fn turned(&self) {
        self.pulse.turned();
    }

    /// A member that has just become current starts its server: its silence means
    /// nothing yet.
    pub fn excuse_start(&mut self, index: usize, at: Nanos) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.detector.excuse(at.plus(FIRST_PATIENCE));
        }
    }

    /// How late this process was, for the status.
    pub fn lateness(&self) -> impl Iterator<Item = (String, u64)> {
        let overslept = self.slots.iter().map(|slot| slot.detector.overslept()).max();
        let of = [
            ("loop.overslept", overslept.unwrap_or(0)),
            ("loop.deafened", self.hearing.deafened()),
        ];
        let pulses = self.pulse.counters().map(|(name, n)| (format!("pulse.{name}"), n));
        of.into_iter().map(|(name, n)| (name.to_owned(), n)).chain(pulses)
    }

    /// Whether two of its heartbeats are missing.
    pub fn is_suspected(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.detector.peer() == Peer::Suspected)
    }

    /// What the member wishes, and whether its channel still lives.
    pub fn receive(&mut self, index: usize, at: Nanos) -> (Vec<Wish>, Result<(), ChannelError>) {
        let mut wishes = Vec::new();
        let (group, hearing) = (self.group.as_str(), &mut self.hearing);
        let Some(slot) = self.slots.get_mut(index) else { return (wishes, Ok(())) };
        let Slot { name, channel: Some(channel), greeted, says, detector } = slot else {
            return (wishes, Ok(()));
        };
        let mut declared = false;
        let result = channel.recv(|message| {
            let mut beats = Beats { peer: &mut |_| {}, executed: 0, declared: &mut declared };
            hearing.handle_received(at);
            detector.handle_received(at, &mut beats);
            let wish = match message {
                Message::Hello {
                    version,
                    log_version,
                    group: theirs,
                    member,
                    epoch,
                    speaks,
                    ..
                } => {
                    *greeted = version == VERSION
                        && log_version == LOG_VERSION
                        && theirs == group
                        && member == name;
                    let other = "its hello is of another release, group or member";
                    let hello = Wish::Hello(Greeting { epoch, speaks });
                    Some(if *greeted { hello } else { Wish::Leave(other.to_owned()) })
                }
                _ if !*greeted => Some(Wish::Leave("it did not say hello first".to_owned())),
                Message::Ask => Some(Wish::Ask),
                Message::InStep { epoch, yes } => Some(Wish::InStep { epoch, yes }),
                Message::Promote { epoch } => Some(Wish::Promote { epoch }),
                Message::NotAlive { epoch, keys } => Some(Wish::NotAlive { epoch, keys }),
                Message::Beat { .. } => Some(Wish::Nothing),
                Message::Says { .. } => {
                    *says = Said::of(&message).or(says.take());
                    Some(Wish::Nothing)
                }
                Message::SignSeen { number, mac } => Some(Wish::SignSeen { number, mac }),
                Message::TookOver { .. } => takeover_of(&message).map(Wish::TookOver),
                _ => Some(Wish::Leave("it sent the edge what only a member may hear".to_owned())),
            };
            if wishes.len() < WISHES_MAX {
                wishes.extend(wish);
            }
        });
        (wishes, result)
    }

    /// Queues a message for a member that is here.
    pub fn send(&mut self, index: usize, message: &Message<'_>) {
        let Some(Slot { name, channel: Some(channel), .. }) = self.slots.get_mut(index) else {
            return;
        };
        if let Err(error) = channel.send(message) {
            tracing::warn!("{name}: {error}");
        }
    }

    /// Writes what is queued.
    pub fn flush(&mut self, index: usize, poll: &Poll) -> Result<(), ChannelError> {
        let Some(Slot { channel: Some(channel), .. }) = self.slots.get_mut(index) else {
            return Ok(());
        };
        let before = channel.wants_write();
        channel.flush()?;
        // A long queue is flushed while it is filled, so `before` may be true
        // although nobody watches for room yet.
        if before || channel.wants_write() {
            let interest = if channel.wants_write() { Interest::Both } else { Interest::Read };
            poll.modify(channel, MEMBERS + index as u64, interest)?;
        }
        Ok(())
    }
}
