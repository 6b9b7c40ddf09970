//! What both roles of a member share: what it has heard, what it needs of its
//! host, and how its turns end.

use crate::backup::{Cause, Phases};
use crate::nanos;
use crate::request::EpochRequest;
use crate::standing::{CurrentMember, Place, Settled, Standing};
use crate::timing::primary::IDLE_LOOK;
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Watch;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::message::{ConnKey, Message};
use holdfast_wire::packet::TcpSegment;
use std::time::Duration;

/// A member of a pair.
#[derive(Debug)]
pub struct Member {
    /// The member's epoch.
    pub epoch: u64,
    /// Whether it is the primary of its epoch, as far as it knows, and its
    /// server lives.
    pub speaks: bool,
    /// What the edge has said.
    pub standing: Standing,
    /// Whether the other member lives.
    pub watch: Watch,
    /// Whether the operator wants its backup to be the primary.
    pub hands_over: bool,
    /// How often it has given up as a backup since it last followed for a while, and how
    /// often it may.
    pub given_up: u32,
    pub rejoin_max: u32,
    /// Whether the group's backup builds its server only to take over (decision 30).
    pub is_cold: bool,
    /// What acknowledgements and output wait for (decision 32).
    pub buffering: Buffering,
    /// How long it waits for the other member before it serves without a backup.
    pub alone_after: Nanos,
    /// Position at which the log of the last server ended that fell and was to be rebuilt (decision
    /// 31), and how many before it had ended there, one after the other.
    pub fallen_at: Option<(u64, u32)>,
}

/// How a server fell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fall {
    /// By itself: a signal of the kind that its own doing causes, or an exit status.
    Crashed,
    /// By SIGKILL: somebody else ended it, or the host had no memory for it.
    Killed,
}

impl Fall {
    /// How often in a row it is rebuilt although it had fallen at the same place before: what it
    /// does there by itself it would do again.
    pub(crate) const fn repeats_max(self) -> u32 {
        match self {
            Self::Crashed => 0,
            Self::Killed => 1,
        }
    }
}

impl Member {
    /// A member that has heard nothing yet.
    #[must_use]
    pub fn new(group: &str, me: &str, other: &str, period: Nanos, now: Nanos) -> Self {
        Self {
            epoch: 0,
            speaks: false,
            standing: Standing::new(group, me, other),
            watch: Watch::new(now, period),
            hands_over: false,
            given_up: 0,
            rejoin_max: u32::MAX,
            is_cold: false,
            buffering: Buffering::Commit,
            alone_after: Nanos(u64::MAX),
            fallen_at: None,
        }
    }

    /// Takes a message from the edge.
    pub fn handle_edge(&mut self, message: &Message<'_>) {
        self.standing.handle_message(message, self.epoch);
    }

    /// Call after everything that the edge has said; see [`Standing::settle`].
    pub fn settle(&mut self, now: Nanos, say: &mut dyn FnMut(&Message<'_>)) -> Settled {
        self.standing.settle(now, (self.epoch, self.speaks), &mut self.watch, say)
    }

    /// The other member, if it speaks in a newer epoch.
    #[must_use]
    pub fn replaced_by(&self) -> Option<CurrentMember> {
        self.standing.replaced_by(self.epoch).cloned()
    }

    /// Whether another member is current, as far as this one knows.
    #[must_use]
    pub fn is_behind_another(&self) -> bool {
        self.standing.is_behind_another(self.epoch)
    }
}

/// The kernel's state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    /// The connection is gone, or only TIME-WAIT is left.
    Over,
    /// The client has not answered the SYN-ACK.
    SynReceived,
    Living,
}

/// What a backup says whose daemon somebody has stopped.
pub const STOPPED: &str = "it was stopped";

/// Why a backup gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The replica computed something else than the server.
    Diverged,
    /// The replica makes no progress.
    Hung,
    /// Another member speaks.
    Fenced,
    /// The replica's process, or its daemon, has ended.
    Ended,
    /// A cold backup has no room for what it keeps, or has lost it.
    Unkept,
    /// A cold backup has so much log that it needs a new image.
    Outgrown,
    /// Clients would not reach its server: the host's interface is gone.
    Unreachable,
    /// The channel to a primary that lives did not outlive an outage of the network.
    Cut,
}

impl Fault {
    /// The fault's name, as the other member is told.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Diverged => "diverged",
            Self::Hung => "hung",
            Self::Fenced => "fenced",
            Self::Ended => "ended",
            Self::Unkept => "unkept",
            Self::Outgrown => "outgrown",
            Self::Unreachable => "unreachable",
            Self::Cut => "cut off",
        }
    }
}

/// Who goes on after the end of a primary's server.
#[derive(Debug)]
pub enum Successor<'a> {
    /// The backup, as soon as the edge lets it.
    Backup,
    /// The backup, if the edge hears it again.
    Unheard,
    /// Nobody, because the backup is lost for this reason.
    Nobody(&'a str),
    /// The other member is current.
    Current(&'a CurrentMember),
}

/// Events of a member that people want to know about.
#[derive(Debug)]
pub enum MemberEvent<'a> {
    /// The operator stops a primary, so that its backup goes on.
    HandsOver,
    /// The stopped primary's server stands still, and its backup takes over.
    Stopped,
    /// The edge has let the other member speak, `took` after the stop began.
    HandedOver { newer: &'a CurrentMember, took: Nanos },
    /// The server has ended.
    ServerEnded(Successor<'a>),
    /// The server of a member that speaks alone has ended.
    EndedAlone,
    /// Another member is current; this one is silent.
    Replaced { newer: &'a CurrentMember },
    /// The backup does not answer, and the edge is asked to bar it. The next event is the outcome;
    /// none follows if the backup is heard again.
    Doubts { reason: &'a str },
    /// The member asks the edge to let it go on alone.
    Asks { reason: &'a str },
    /// The member goes on alone.
    Alone { reason: &'a str },
    /// A member joins: an image of the server is sent.
    Joins { image_bytes: u64 },
    /// The join failed, and will be tried again.
    JoinFailed { reason: &'a str },
    /// The joiner is a backup in step.
    Joined { took: Nanos },
    /// A cold backup has a new image, `took` after it was asked for, and the log behind that.
    Renewed { took: Nanos },
    /// It has none, and keeps what it had.
    RenewedNot { reason: &'a str },
    /// The backup begins to take over.
    Promotes { cause: Cause, stopped: bool },
    /// The takeover goes on; `builds`: the server is built first, and the edge not asked before.
    TakesOver { cause: Cause, builds: bool },
    /// A cold backup's server was built from its image; its log follows.
    Built { took: Nanos },
    /// The edge does not allow the takeover, for now.
    Waits { reason: &'a str },
    /// The takeover is complete.
    TookOver { cause: Cause, stopped: bool, phases: &'a Phases },
    /// It has given up too often: it will not join again by itself.
    GaveUpForGood,
    /// The backup gives up; `builds`: while it built the server to take over, before it asked the
    /// edge.
    GaveUp { fault: Fault, reason: &'a str, builds: bool },
    /// Everything that a server which speaks alone can be rebuilt from is kept, `took` after the
    /// attempt began.
    Keeps { took: Nanos },
    /// What a server that speaks alone could be rebuilt from is not kept, or no longer.
    KeepsNot { reason: &'a str },
    /// The server of a member that speaks alone has fallen, and is rebuilt from its image and log,
    /// which ends at `log_at`.
    Fell { log_at: u64 },
    /// The fallen server is not rebuilt, or has fallen again at the same place of its log. `input`:
    /// the connection whose bytes it read last.
    NotRebuilt { reason: &'a str, input: Option<ConnKey> },
}

/// What is the same in every role: a clock, and the channel to the edge.
pub trait Context {
    /// The time, which advances within a turn.
    fn now(&self) -> Nanos;
    fn member(&mut self) -> &mut Member;
    /// Takes the edge's messages, tells the member, and hands each message on. True
    /// if the channel has just opened.
    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool;
    /// Whether the channel to the edge is open.
    fn is_edge_open(&self) -> bool;
    /// Sends a message to the edge, if the channel is open.
    fn tell_edge(&mut self, message: &Message<'_>);
}

/// A context in which no edge is heard, nor hears.
#[derive(Debug)]
pub(crate) struct Secluded {
    pub(crate) now: Nanos,
    pub(crate) member: Member,
}

impl Context for Secluded {
    fn now(&self) -> Nanos {
        self.now
    }
    fn member(&mut self) -> &mut Member {
        &mut self.member
    }
    fn turn_edge(&mut self, _: &mut dyn FnMut(&Message<'_>)) -> bool {
        false
    }
    fn is_edge_open(&self) -> bool {
        false
    }
    fn tell_edge(&mut self, _: &Message<'_>) {
        // Nobody hears it.
    }
}

/// A type that works in such a context.
pub trait Hosted {
    type Context: Context;
    fn context(&self) -> &Self::Context;
    fn context_mut(&mut self) -> &mut Self::Context;
    /// See [`Context::now`].
    fn now(&self) -> Nanos {
        self.context().now()
    }
    /// See [`Context::member`].
    fn member(&mut self) -> &mut Member {
        self.context_mut().member()
    }
    /// See [`Context::turn_edge`].
    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        self.context_mut().turn_edge(each)
    }
    /// See [`Context::is_edge_open`].
    fn is_edge_open(&self) -> bool {
        self.context().is_edge_open()
    }
    /// See [`Context::tell_edge`].
    fn tell_edge(&mut self, message: &Message<'_>) {
        self.context_mut().tell_edge(message);
    }
}

/// What every role with a server needs of its host.
pub trait MemberHost: Hosted {
    /// Whether the process of the server, or of the replica, has ended.
    fn has_server_ended(&mut self) -> bool;
    /// Kills the server, and waits until it is gone.
    fn kill_server(&mut self);
    /// The kernel's states of connections; `None`: the kernel does not answer.
    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>>;
    /// Sends a segment to a client, past everything that may hold it back.
    fn send_segment(&mut self, segment: &TcpSegment<'_>);
    /// What a member does while its server speaks alone and nobody may join: it refuses members
    /// that come.
    fn stand_by(&mut self);
    fn show(&mut self, news: MemberEvent<'_>);
}

/// When a member is called again.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// At once: there is more.
    Busy,
    /// When something comes, or at this time at the latest.
    Until(Nanos),
    End(End),
}

impl Turn {
    /// At the latest after a pause.
    pub(crate) fn after(pause: Duration, now: Nanos) -> Self {
        Self::Until(now.plus(nanos(pause)))
    }
}

/// Why a role has come to an end.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The operator stopped it; the service no longer needs this member.
    Stopped,
    /// The operator stopped it, and another member may yet carry the connections over: whatever
    /// silences this host's kernel has to stay.
    Silent,
    /// The member has to ask the edge for its place again.
    Again,
    /// The member's place is known.
    Placed(Place),
    /// The server of a member that spoke alone has fallen, and is rebuilt (decision 31).
    Fallen,
    /// It has met the other member, and joins that one's server if it `runs` already.
    Met { runs: bool },
    /// No member has come that could be its backup, so it serves without one.
    Unmet,
    /// It has taken over and clients have everything that was in flight: it is now a primary that
    /// speaks alone.
    Survives,
    /// The host cannot do what it must; the text says why.
    Failed(String),
}

/// Hears the edge, as a member that is not in step. An edge that has just started waits for that
/// word from each member that knows its epoch.
pub(crate) fn hear_out_of_step(host: &mut impl Hosted, each: &mut dyn FnMut(&Message<'_>)) {
    let opened = host.turn_edge(each);
    let epoch = host.member().epoch;
    if opened && epoch > 0 {
        host.tell_edge(&Message::InStep { epoch, yes: false });
    }
}

/// Asks for an epoch when it is time, or at once if the channel has just
/// `opened`.
pub(crate) fn ask_for(host: &mut impl MemberHost, request: &mut EpochRequest, opened: bool) {
    let channel = (host.is_edge_open(), opened);
    request.settle(host.now(), channel, &mut |message| host.tell_edge(message));
}

/// Tells the edge which of the connections that it asks about are over.
pub(crate) fn tell_vanished<H: MemberHost>(
    host: &mut H,
    is_alive: impl FnOnce(&mut H, &[ConnKey]) -> Option<Vec<bool>>,
) {
    let keys = host.member().standing.take_asked();
    if keys.is_empty() {
        return;
    }
    let Some(alive) = is_alive(host, &keys) else { return };
    let gone = keys.into_iter().zip(alive).filter(|(_, alive)| !alive);
    let keys: Vec<ConnKey> = gone.map(|(key, _)| key).collect();
    if !keys.is_empty() {
        let epoch = host.member().epoch;
        host.tell_edge(&Message::NotAlive { epoch, keys });
    }
}

/// A turn of a member whose server speaks alone and outlives this daemon (decision 20). It answers
/// the edge for the server's kernel: with a backup only the gate could, because the kernel of a
/// dying server would take away what the backup needs. `stop`: the operator ends this member, and
/// its server with it.
pub fn stand_alone<H: MemberHost>(stop: bool, host: &mut H) -> Option<End> {
    host.stand_by();
    speak_alone(stop, host)
}

/// Like [`stand_alone`], for a member whose server others may join.
pub(crate) fn speak_alone<H: MemberHost>(stop: bool, host: &mut H) -> Option<End> {
    host.turn_edge(&mut |_| {});
    tell_vanished(host, |host, keys| {
        let states = host.states(keys)?;
        Some(states.into_iter().map(|state| state != ConnState::Over).collect())
    });
    let member = host.member();
    if let Some(newer) = member.replaced_by().filter(|_| member.speaks) {
        (member.speaks, member.epoch) = (false, newer.epoch);
        host.kill_server();
        host.show(MemberEvent::Replaced { newer: &newer });
    }
    if host.has_server_ended() {
        host.member().speaks = false;
        host.show(MemberEvent::EndedAlone);
    }
    stop.then(|| {
        host.kill_server();
        End::Stopped
    })
}

/// A turn of a member whose server has outlived an earlier daemon.
pub fn turn_found(stop: bool, host: &mut impl MemberHost) -> Turn {
    stand_alone(stop, host).map_or_else(|| Turn::after(IDLE_LOOK, host.now()), Turn::End)
}

#[cfg(test)]
mod tests;
