//! The host servers, whether they are connected or not: what each says, and whether
//! it is heard.

use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, VERSION};

/// What a host server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Who it is; whether that is who it should be, and of this release.
    Hello {
        fits: bool,
    },
    /// It has shown that it lives.
    Beat,
    Announce(Said),
    /// What no host server says.
    Nonsense,
}

/// An announcement, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub weight: u32,
    pub layer2: bool,
    pub tunnels: Vec<[u8; 16]>,
    pub services: Vec<Offer>,
}

impl Word {
    /// What a message means that came from `name`, in this group.
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

    /// Why who says this may not stay connected.
    pub(super) fn fault(&self, greeted: bool) -> Option<&'static str> {
        match self {
            Self::Hello { fits: false } => Some("its hello is of another release, group or host"),
            _ if !greeted => Some("it did not say hello first"),
            Self::Nonsense => Some("it said what no host server says"),
            _ => None,
        }
    }
}

/// What the detector thinks anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Suspected,
    Declared,
}

/// One host server.
#[derive(Debug)]
pub(super) struct Link {
    pub name: String,
    /// Its channel is open.
    pub here: bool,
    pub greeted: bool,
    /// What was wrong with its last announcement; told once, however often it comes.
    pub complaint: String,
    /// Heartbeats are missing: SYNs on their way to it may be lost.
    pub doubted: bool,
    /// It outlives a channel: a daemon that comes back at once was never gone.
    detector: Detector,
    /// Declared dead, and not heard since.
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

    /// The heartbeat to send, if it is time, and what its silence means.
    pub fn watch(&mut self, now: Nanos, period: Nanos) -> (Option<(u64, u64)>, Option<News>) {
        let before = self.detector.peer();
        let mut verdicts = Verdicts::default();
        self.detector.handle_timeout(now, &mut verdicts);
        let suspected = before == Peer::Alive && self.detector.peer() == Peer::Suspected;
        let news = if verdicts.declared {
            // It may come back: the beats go on.
            self.detector = Detector::new(now, period);
            (!std::mem::replace(&mut self.silent, true)).then_some(News::Declared)
        } else {
            (suspected && !self.silent).then_some(News::Suspected)
        };
        (verdicts.beat, news)
    }
}
