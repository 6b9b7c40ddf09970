//! The host servers, connected or not: what each says, and whether it is heard.

use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, Offer, is_understood};

/// A message of a host server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Who sends it. `fits`: whether that is the expected host server, of a release that is understood.
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
            Message::Hello { .. } => Self::Hello { fits: is_hello_of(&message, group, name) },
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

/// Whether this is the hello of the host called `name`, in this group and of a release that is
/// understood.
pub(super) fn is_hello_of(message: &Message<'_>, group: &str, name: &str) -> bool {
    let Message::Hello { version, log_version, group: theirs, member, .. } = message else {
        return false;
    };
    is_understood(*version) && (*log_version, *theirs, *member) == (LOG_VERSION, group, name)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::hello;
    use holdfast_wire::message::{VERSION, VERSION_OLDEST};

    #[test]
    fn a_hello_fits_only_if_release_group_and_host_server_do() {
        let said = |versions: (u32, u32), group, name| {
            let mut hello = hello(group, name, (0, false), Vec::new());
            if let Message::Hello { version, log_version, .. } = &mut hello {
                (*version, *log_version) = versions;
            }
            Word::of(hello, "web", "a")
        };
        let release = (VERSION, LOG_VERSION);
        for (word, fits) in [
            (said(release, "web", "a"), true),
            (said((VERSION_OLDEST, LOG_VERSION), "web", "a"), true),
            (said((VERSION + 1, LOG_VERSION), "web", "a"), false),
            (said((VERSION_OLDEST - 1, LOG_VERSION), "web", "a"), false),
            (said((VERSION, LOG_VERSION + 1), "web", "a"), false),
            (said(release, "mail", "a"), false),
            (said(release, "web", "b"), false),
        ] {
            assert_eq!(word, Word::Hello { fits });
        }
    }

    #[test]
    fn what_host_servers_say_is_told_apart() {
        let of = |message| Word::of(message, "web", "a");
        assert_eq!(of(Message::Beat { number: 1, echo: 0, executed: 0 }), Word::Beat);
        let services = vec![Offer { address: [3; 16], port: 80, udp: true }];
        let said = Said { weight: 7, layer2: true, tunnels: vec![[4; 16]], services };
        let Said { weight, layer2, tunnels, services } = said.clone();
        let announce = Message::Announce { weight, layer2, tunnels, services };
        assert_eq!(of(announce), Word::Announce(said));
        assert_eq!(of(Message::Ask), Word::Nonsense);
    }
}
