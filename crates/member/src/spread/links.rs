//! The host servers, connected or not: what each says, and whether it is heard.

use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, VERSION};

/// A message of a host server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Who sends it. `fits`: whether that is the expected host server, of this release.
    Hello {
        fits: bool,
    },
    /// A sign of life, and nothing else.
    Beat,
    Announce(Said),
    /// A message that no host server sends.
    Nonsense,
}

/// An announcement, as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub weight: u32,
    pub layer2: bool,
    pub tunnels: Vec<[u8; 16]>,
    pub services: Vec<Offer>,
}

impl Word {
    /// The meaning of a message from `name`, in this group.
    #[must_use]
    pub fn of(message: Message<'_>, group: &str, name: &str) -> Self {
        match message {
            Message::Hello { version, log_version, group: theirs, member, .. } => {
                let is_this_release = version == VERSION && log_version == LOG_VERSION;
                Self::Hello { fits: is_this_release && theirs == group && member == name }
            }
            Message::Beat { .. } => Self::Beat,
            Message::Announce { weight, layer2, tunnels, services } => {
                Self::Announce(Said { weight, layer2, tunnels, services })
            }
            _ => Self::Nonsense,
        }
    }

    /// The reason to disconnect a host server that says this, if there is one.
    pub(super) fn fault(&self, greeted: bool) -> Option<&'static str> {
        match self {
            Self::Hello { fits: false } => Some("its hello is of another release, group or host"),
            _ if !greeted => Some("it did not say hello first"),
            Self::Nonsense => Some("it said what no host server says"),
            _ => None,
        }
    }
}

/// A change in the detector's opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    Suspected,
    Declared,
}

/// One host server.
#[derive(Debug)]
pub(super) struct Link {
    pub name: String,
    /// Whether its channel is open.
    pub here: bool,
    pub greeted: bool,
    /// Complaint about its last announcement; told once, however often it comes.
    pub complaint: String,
    /// Whether heartbeats are missing: SYNs on their way to it may be lost.
    pub doubted: bool,
    /// The detector outlives a channel: a daemon that comes back at once was
    /// never gone.
    detector: Detector,
    /// Whether it was declared dead, and not heard since.
    silent: bool,
}

impl Link {
    pub fn new(name: &str, period: Nanos, now: Nanos) -> Self {
        Self {
            name: name.to_owned(),
            here: false,
            greeted: false,
            complaint: String::new(),
            doubted: false,
            detector: Detector::new(now, period),
            silent: false,
        }
    }

    pub fn hear(&mut self, now: Nanos) {
        self.detector.handle_received(now, &mut Verdicts::default());
        self.silent = false;
    }

    /// When [`Link::watch`] is due.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.detector.next_deadline()
    }

    /// The heartbeat to send, if it is time, and the meaning of the host
    /// server's silence.
    pub fn watch(
        &mut self,
        now: Nanos,
        period: Nanos,
    ) -> (Option<(u64, u64)>, Option<HealthChange>) {
        let before = self.detector.peer();
        let mut verdicts = Verdicts::default();
        self.detector.handle_timeout(now, &mut verdicts);
        let suspected = before == Peer::Alive && self.detector.peer() == Peer::Suspected;
        let news = if verdicts.declared {
            // Heartbeats go on, since it may come back.
            self.detector = Detector::new(now, period);
            (!std::mem::replace(&mut self.silent, true)).then_some(HealthChange::Declared)
        } else {
            (suspected && !self.silent).then_some(HealthChange::Suspected)
        };
        (verdicts.beat, news)
    }
}
