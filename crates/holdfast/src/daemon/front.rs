//! Who a member asks for its place: an edge, over a channel, or where there is none this host's own
//! stand-in for it, which asks the witness and keeps the lease.

use super::dialer::{Dialer, LinkEvent};
use super::flood::Flood;
use super::lease::{LeaseThread, View};
use super::said::Said;
use crate::config::{Config, Mac, Member};
use crate::key::GroupKey;
use crate::poll::Poll;
use crate::status::{Role, State};
use anyhow::Context as _;
use holdfast_cluster::Nanos;
use holdfast_cluster::lease::Note;
use holdfast_linux::link::{Carries, carries};
use holdfast_member::own_edge::{OwnEdge, Sight};
use holdfast_wire::message::Message;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// See the module.
pub enum Front {
    Edge(Box<Dialer>),
    Own(Box<Own>),
}

impl Front {
    /// What it is called in reasons.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Edge(_) => "edge",
            Self::Own(_) => "witness",
        }
    }

    /// What is said of whom this member asks, as it is called here.
    #[must_use]
    pub fn words<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self {
            Self::Own(_) if text.contains("the edge") => {
                text.replace("the edge", "the witness").into()
            }
            _ => text.into(),
        }
    }

    /// When [`Front::turn`] must be called even if nothing is ready.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Edge(edge) => edge.deadline(),
            Self::Own(own) => Some(own.deadline()),
        }
    }

    /// Whether messages are heard.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Edge(edge) => edge.is_open(),
            Self::Own(own) => own.opened,
        }
    }

    /// Queues a message; true if it was taken.
    pub fn send(&mut self, message: &Message<'_>) -> bool {
        match self {
            Self::Edge(edge) => edge.send(message),
            Self::Own(own) => {
                if matches!(message, Message::SignSeen { .. }) {
                    own.flood.note_seen(Instant::now());
                }
                own.machine.handle_message(message);
                own.is_due = true;
                true
            }
        }
    }

    /// Writes what was queued.
    pub fn flush(&mut self, now: Instant, poll: &Poll) {
        if let Self::Edge(edge) = self {
            // A loss is noticed in the next turn.
            edge.flush(now, poll);
        }
    }

    /// Does what is due, and passes what has come to `each`.
    pub fn turn(&mut self, now: Instant, poll: &Poll, each: impl FnMut(Message<'_>)) -> LinkEvent {
        match self {
            Self::Edge(edge) => edge.turn(now, poll, each),
            Self::Own(own) => own.turn(now, each),
        }
    }

    /// Notes whether this member's server speaks.
    pub fn note_speaks(&mut self, speaks: bool) {
        if let Self::Own(own) = self {
            own.is_due |= own.speaks != speaks;
            own.speaks = speaks;
        }
    }
}

/// The stand-in for an edge.
pub struct Own {
    machine: OwnEdge,
    lease: LeaseThread,
    witness: SocketAddr,
    /// The interface by which clients come, and the service's hardware address.
    interface: String,
    mac: Mac,
    flood: Flood,
    started: Instant,
    view: View,
    opened: bool,
    speaks: bool,
    /// Whether something was said to it since its last turn.
    is_due: bool,
    notes: Vec<Note>,
}

impl Own {
    /// Loads what lets this member speak, and starts the thread that tells it until when.
    ///
    /// # Errors
    /// When a program cannot be loaded, or a socket not be opened.
    pub fn begin(
        config: &Config,
        me: &Member,
        key: &GroupKey,
        started: Instant,
    ) -> anyhow::Result<Self> {
        let arbiter = config.arbiter.as_ref().context("the group has neither edge nor arbiter")?;
        let segment = config.segment.as_ref().context("the group has neither edge nor segment")?;
        let begun = super::speak::begin(config, segment, me)?;
        let lease = LeaseThread::start((config, arbiter), me, key, begun, started)?;
        let period = Nanos(config.heartbeat().as_nanos() as u64);
        Ok(Self {
            machine: OwnEdge::new(&me.name, &config.other(me).name, period, Nanos(0)),
            lease,
            witness: arbiter.witness,
            interface: me.interface.clone(),
            mac: segment.mac,
            flood: Flood::new(&me.interface, segment.mac.0, started)?,
            started,
            view: View::default(),
            opened: false,
            speaks: false,
            is_due: true,
            notes: Vec::new(),
        })
    }

    /// The thread that keeps the lease.
    #[must_use]
    pub fn lease(&self) -> &LeaseThread {
        &self.lease
    }

    /// What was worth telling since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Counts for the status.
    #[must_use]
    pub fn counters(&self) -> &[(&'static str, u64)] {
        &self.view.counters
    }

    fn deadline(&self) -> Instant {
        match self.is_due {
            true => Instant::now(),
            false => self.started + Duration::from_nanos(self.machine.next_deadline().0),
        }
    }

    fn turn(&mut self, now: Instant, mut each: impl FnMut(Message<'_>)) -> LinkEvent {
        self.is_due = false;
        self.view = self.lease.view();
        self.notes.extend(self.lease.take_notes());
        self.flood.turn(self.view.hears_other, now);
        let unheard = self.unheard();
        let at = Nanos((now - self.started).as_nanos() as u64);
        let sight = Sight {
            record: self.view.record,
            speaks: self.view.deadline > at.0,
            hears_other: self.view.hears_other,
            other_follows: self.view.other_follows,
            is_cut: !carries(&self.interface).is_ok_and(|it| it == Carries::Yes),
            has_resigned: self.view.has_resigned,
            unheard: unheard.as_deref(),
        };
        let mut said: Vec<Vec<u8>> = Vec::new();
        let orders = self.machine.turn(at, &sight, self.speaks, &mut |message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            said.push(bytes);
        });
        self.lease.order(orders);
        said.iter().filter_map(|bytes| Message::decode(bytes).ok()).for_each(&mut each);
        match std::mem::replace(&mut self.opened, true) {
            true => LinkEvent::Nothing,
            false => LinkEvent::Opened,
        }
    }

    /// Why nobody could take over now.
    fn unheard(&self) -> Option<String> {
        if !self.view.is_answered {
            return Some(format!("the witness at {} does not answer", self.witness));
        }
        self.view.refused.as_ref().map(|why| format!("the witness refuses: {why}"))
    }

    fn is_in_step(&self, epoch: u64) -> bool {
        self.view.other_follows == Some(epoch) || self.machine.follows() == Some(epoch)
    }

    /// The state of what stands in the edge's place.
    #[must_use]
    pub fn said(&self) -> Said {
        let says =
            |state, reason: &str, remedy: &str| Said::new(Role::Witness, state, reason, remedy);
        if let Some(why) = self.unheard() {
            let remedy = "start `holdfast witness` there, or look at the way to it";
            return says(State::Unprotected, &format!("nobody could take over: {why}"), remedy);
        }
        if self.flood.is_broken(Instant::now()) {
            let reason = format!(
                "frames that the other member sends to {}, the service's hardware address, do not \
                 come here",
                self.mac
            );
            let remedy = "look at the switch: no port may have that address, and frames to unknown \
                          addresses must go to all ports of this segment";
            return says(State::Unprotected, &reason, remedy);
        }
        match self.view.record {
            Some(record) if !record.pair && self.is_in_step(record.epoch) => says(
                State::Unprotected,
                "the record does not name a backup yet",
                super::advice::WAIT,
            ),
            // Who is alone says so itself.
            Some(_) => Said::fine(Role::Witness),
            None => says(State::Waiting, "nobody has begun yet", super::advice::WAIT),
        }
    }
}

/// Level of a note in the log.
#[must_use]
pub fn level(note: Note) -> tracing::Level {
    match note {
        Note::Founded | Note::Protected | Note::ArbiterAnswers | Note::Overslept => {
            tracing::Level::INFO
        }
        _ => tracing::Level::WARN,
    }
}
