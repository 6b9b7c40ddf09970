//! How clients' frames reach both members of a pair without an edge, and whether they do. They go
//! to the service's hardware address, V. Where the network floods, nobody is to have it; where it
//! does not, one member holds it: it tells the switch so by frames from V, and its kernel brings
//! what comes to the other one (`bpf/speak.bpf.c`).
//!
//! Each member says in a frame to everybody what it holds and sees (a hello), and who does not hold
//! V sends frames there (probes). So what is shown is proved: the holder sees the other one's
//! probes, and the other one sees its own come back.
//!
//! The current member is the master of V. In a chain it offers V to the other one, and takes it
//! back as soon as that is not heard any more, or hands nothing on.

mod decide;
#[cfg(test)]
mod tests;

use holdfast_cluster::Nanos;
use holdfast_wire::segment::{Frame, Kind, Mode, Says};

/// Time between two hellos with their probes.
const EVERY: Nanos = Nanos::from_ms(250);
/// Time between two announcements.
const ANNOUNCE_EVERY: Nanos = Nanos::from_ms(500);
/// Time between two probes where clients wait as long as they are lost: through a chain.
const PROBE_CHAIN_EVERY: Nanos = Nanos::from_ms(20);
/// How many of these are lost in a row before the chain counts as broken. A primary that stood
/// still itself has sent none meanwhile.
const UNANSWERED_MAX: u32 = 5;
/// How many hellos come without the probe that was sent with each, before it is said that probes do
/// not come. Who stands still for a while sends neither.
const UNSEEN_MAX: u32 = 3;
/// The same, before the current member takes V in a segment that ought to flood: by then the other
/// one hands on what comes to it.
const UNSEEN_CLAIM: u32 = 6;
/// And own probes that did not come back by then.
const UNANSWERED_CLAIM: u32 = 4;
/// Age of a hello from which on the other member is not there.
const MISSED: Nanos = Nanos::from_ms(1600);
/// Age of what should have come before it is told.
const TOLD: Nanos = Nanos::from_ms(3000);
/// Time after that until the current member leaves the service to the other one for it.
const DEAF_AFTER: Nanos = Nanos::from_ms(1500);
/// How often a flooding segment may need V to be taken, before it stays taken.
const CLAIMS_MAX: u32 = 2;
/// First and longest time before a chain that was broken is tried again: each try costs clients
/// some time if it is in vain.
const RETRY_MIN: Nanos = Nanos::from_ms(2_000);
const RETRY_MAX: Nanos = Nanos::from_ms(300_000);

/// What is known besides what the members say here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Whether the record is this life's of the member.
    pub leads: bool,
    /// Whether it is the other member's.
    pub follows: bool,
    /// Whether it names two members.
    pub pair: bool,
    /// Whether this host's kernel lets the service speak now.
    pub speaks: bool,
    /// Whether the other member is heard by other ways.
    pub hears_other: bool,
    /// Whether the interface carries frames.
    pub has_link: bool,
}

/// What the kernel does with frames to V, besides; the address is the other member's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    #[default]
    Nothing,
    /// While this member is silent, the other one gets them in its place.
    HandOn([u8; 6]),
    /// While it speaks, the other one gets copies.
    Copy([u8; 6]),
}

/// What is wrong with the segment, as this member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not flood, and the other member brings what comes.
    Helped,
    /// It does not flood, and nothing comes.
    Lost,
    /// Nothing that the other member sends to everybody comes.
    Unheard,
    /// This member holds V, and what the other one sends there does not come.
    Elsewhere,
    /// The other member holds V, and hands nothing on.
    NotHandedOn,
    /// The other member holds V, and copies nothing.
    NotCopied,
}

/// The other member's last hello.
#[derive(Clone, Copy, Debug)]
struct Other {
    at: Nanos,
    mac: [u8; 6],
    says: Says,
}

/// The machine; see the module.
///
/// # Contract
/// Give it every frame of the members that arrives, and call [`Segment::turn`] at
/// [`Segment::next_deadline`] and when something has come or changed. Do first what it says of the
/// kernel, then send the frames.
#[derive(Clone, Debug)]
pub struct Segment {
    mode: Mode,
    side: u8,
    view: View,
    other: Option<Other>,
    /// Since when the other member has been heard by other ways.
    heard: Option<Nanos>,
    /// When a probe of the other member last came, and one of this member came back.
    came: Option<Nanos>,
    back: Option<Nanos>,
    /// Probes sent since one came back, and hellos of the other member since its last probe.
    unanswered: u32,
    unseen: u32,
    /// Since when the roles are as they are, so that what is due may be missed.
    since: Nanos,
    says: Says,
    /// Whether the chain has broken, since when it may be tried again, and after what pause.
    broken: bool,
    retry_at: Nanos,
    retry_after: Nanos,
    /// How often V was taken in a flooding segment, and whether it is at the moment.
    claims: u32,
    claiming: bool,
    hello_at: Nanos,
    probe_at: Nanos,
    announce_at: Nanos,
    parted: bool,
}

impl Segment {
    /// A machine that has seen nothing. `side`: which member of the file this one is.
    #[must_use]
    pub fn new(mode: Mode, side: u8, now: Nanos) -> Self {
        Self {
            mode,
            side,
            view: View::default(),
            other: None,
            heard: None,
            came: None,
            back: None,
            unanswered: 0,
            unseen: 0,
            since: now,
            says: Says { sees: true, ..Says::default() },
            broken: false,
            retry_at: now,
            retry_after: Nanos(0),
            claims: 0,
            claiming: false,
            hello_at: now,
            probe_at: now,
            announce_at: now,
            parted: false,
        }
    }

    /// A frame of a member has arrived, perhaps one of this one's own.
    pub fn handle_frame(&mut self, now: Nanos, frame: &Frame) {
        match (frame.kind, frame.side == self.side) {
            (Kind::Hello(says), false) => {
                self.other = Some(Other { at: now, mac: frame.mac, says });
                self.unseen = self.unseen.saturating_add(1);
            }
            (Kind::Probe, false) => (self.came, self.unseen) = (Some(now), 0),
            (Kind::Probe, true) => (self.back, self.unanswered) = (Some(now), 0),
            _ => {}
        }
    }

    /// This member is about to leave: what it still says is that it hands nothing on.
    pub fn part(&mut self) {
        self.parted = true;
    }

    /// When [`Segment::turn`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let probe = if self.probes() { self.probe_at } else { self.hello_at };
        let announce = if self.says.holds { self.announce_at } else { self.hello_at };
        self.hello_at.min(probe).min(announce)
    }

    /// Decides anew. Returns what the kernel shall do with frames to V, and what is to be sent
    /// after that.
    pub fn turn(&mut self, now: Nanos, view: &View) -> (Relay, Vec<Kind>) {
        let before = (self.view, self.says);
        self.view = *view;
        self.heard = if view.hears_other { self.heard.or(Some(now)) } else { None };
        self.decide(now, before.0);
        let roles = |of: &View| (of.leads, of.follows, of.pair, of.hears_other);
        if roles(&before.0) != roles(view) || before.1.holds != self.says.holds {
            (self.since, self.unanswered) = (now, 0);
        }
        (self.relay(now), self.due(now, &before))
    }

    /// What is to be sent now.
    fn due(&mut self, now: Nanos, (view, said): &(View, Says)) -> Vec<Kind> {
        let mut kinds = Vec::new();
        // A switch learns at once who speaks now, whoever was the last to say that it holds V.
        let is_new = !said.holds || !view.speaks && self.view.speaks;
        if self.says.holds && (is_new || now >= self.announce_at) {
            self.announce_at = now.plus(ANNOUNCE_EVERY);
            kinds.push(Kind::Announcement);
        }
        if self.says != *said || now >= self.hello_at {
            (self.hello_at, self.probe_at) = (now.plus(EVERY), now);
            kinds.push(Kind::Hello(self.says));
        }
        if self.probes() && now >= self.probe_at {
            let every = if self.is_chained() { PROBE_CHAIN_EVERY } else { EVERY };
            self.probe_at = now.plus(every);
            self.unanswered = self.unanswered.saturating_add(1);
            kinds.push(Kind::Probe);
        }
        kinds
    }

    /// Whether this member sends frames to V.
    fn probes(&self) -> bool {
        self.other.is_some() && !self.says.holds
    }

    /// What is wrong with the segment of a pair.
    #[must_use]
    pub fn fault(&self, now: Nanos) -> Option<Fault> {
        let since = self.since.max(self.heard.filter(|_| self.view.pair)?);
        let is_missed = |at: Option<Nanos>| now.since(at.map_or(since, |at| at.max(since))) > TOLD;
        if self.mode == Mode::Flood {
            return match (is_missed(self.came), is_missed(self.back)) {
                (false, _) => None,
                (true, false) => Some(Fault::Helped),
                (true, true) => Some(Fault::Lost),
            };
        }
        if is_missed(self.other.map(|other| other.at)) {
            return Some(Fault::Unheard);
        }
        // Who has taken V back does without the other one.
        if self.says.holds && !self.broken {
            return is_missed(self.came).then_some(Fault::Elsewhere);
        }
        match self.mode {
            Mode::Chain if self.view.leads => self.broken.then_some(Fault::NotHandedOn),
            Mode::Clone if self.view.follows => is_missed(self.back).then_some(Fault::NotCopied),
            _ => None,
        }
    }

    /// Whether clients' frames go to the other member alone, as it is known here. By now that one
    /// has said what is wrong with it, if anything is.
    #[must_use]
    pub fn is_deaf(&self, now: Nanos) -> bool {
        let fault = self.fault(Nanos(now.0.saturating_sub(DEAF_AFTER.0)));
        self.view.leads && matches!(fault, Some(Fault::Lost | Fault::Elsewhere))
    }
}
