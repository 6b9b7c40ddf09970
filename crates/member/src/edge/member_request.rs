//! What members say to the edge.

use holdfast_cluster::membership::Greeting;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{ConnKey, Message, is_understood};

/// What a member's message asks the edge to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRequest {
    Hello {
        /// Whether it is of a release that is understood, of this group, and from the member whose
        /// channel it is.
        fits: bool,
        greeting: Greeting,
    },
    Ask,
    InStep {
        epoch: u64,
        yes: bool,
    },
    /// It is in step, and builds its server before it asks to be current.
    Builds {
        epoch: u64,
    },
    /// `lives`: it is current, and its server lives.
    Promote {
        epoch: u64,
        lives: bool,
    },
    /// The connections, of those asked about, that are over.
    NotAlive {
        epoch: u64,
        keys: Vec<ConnKey>,
    },
    /// Nothing but a sign of life; the rest is the host's affair.
    Nothing,
    /// A message that no member sends to its edge.
    Nonsense,
}

impl MemberRequest {
    /// The wish of `member`'s message to the edge of `group`.
    #[must_use]
    pub fn of(message: Message<'_>, group: &str, member: &str) -> Self {
        match message {
            Message::Hello {
                version,
                log_version,
                group: its,
                member: name,
                epoch,
                speaks,
                ..
            } => {
                let fits = is_understood(version) && log_version == LOG_VERSION;
                let fits = fits && its == group && name == member;
                Self::Hello { fits, greeting: Greeting { epoch, speaks } }
            }
            Message::Ask => Self::Ask,
            Message::InStep { epoch, yes } => Self::InStep { epoch, yes },
            Message::Builds { epoch } => Self::Builds { epoch },
            Message::Promote { epoch } => Self::Promote { epoch, lives: false },
            Message::GoAlone { epoch } => Self::Promote { epoch, lives: true },
            Message::NotAlive { epoch, keys } => Self::NotAlive { epoch, keys },
            Message::Beat { .. }
            | Message::Says { .. }
            | Message::SignSeen { .. }
            | Message::TookOver { .. } => Self::Nothing,
            _ => Self::Nonsense,
        }
    }

    /// The reason to disconnect a member that says this, if there is one.
    pub(super) fn fault(&self, greeted: bool) -> Option<&'static str> {
        match self {
            Self::Hello { fits: false, .. } => {
                Some("its hello is of another release, group or member")
            }
            Self::Hello { .. } => None,
            _ if !greeted => Some("it did not say hello first"),
            Self::Nonsense => Some("it sent the edge what only a member may hear"),
            _ => None,
        }
    }
}
